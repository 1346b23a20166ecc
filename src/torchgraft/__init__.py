"""Write the kernel; get the operator. Operators for PyTorch, and the tool that makes them."""

from pathlib import Path as _Path

from torchgraft import native, nn
from torchgraft.fallback import Fallback, PerformanceWarning, fallbacks
from torchgraft.grafting import GraftReport, graft, graft_report, ungraft
from torchgraft.operator import Operator
from torchgraft.operators.depthwise_conv2d import (
    depthwise_conv2d,
    depthwise_conv2d_input_grad,
    depthwise_conv2d_weight_grad,
)
from torchgraft.operators.mul_constant import mul_constant
from torchgraft.version import __version__

__all__ = [
    "Fallback",
    "GraftReport",
    "Operator",
    "PerformanceWarning",
    "__version__",
    "depthwise_conv2d",
    "depthwise_conv2d_input_grad",
    "depthwise_conv2d_weight_grad",
    "fallbacks",
    "graft",
    "graft_report",
    "mul_constant",
    "native",
    "nn",
    "ungraft",
]

native.load("torchgraft", _Path(__file__).parent / "lib")
