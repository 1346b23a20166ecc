"""Write the kernel; get the operator. Operators for PyTorch, and the tool that makes them."""

import importlib as _importlib
from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

# Before all that imports PyTorch.
from torchgraft._private import torch_without_numpy as _torch_without_numpy  # noqa: F401

# isort: split
from torchgraft import native, nn
from torchgraft.kernels.fallback import Fallback, PerformanceWarning, fallbacks
from torchgraft.kernels.measured_choice import choices, forget_choices, load_choices, measure_kernels, save_choices
from torchgraft.kernels.python_kernels import wrap_triton
from torchgraft.nn.grafting import GraftReport, functional_calls, graft, graft_report, ungraft
from torchgraft.operator import Operator, gradient_by_reference, unknown_size
from torchgraft.operator.decomposition import decompositions
from torchgraft.operators.causal_conv1d import causal_conv1d, causal_conv1d_update
from torchgraft.operators.depthwise_conv1d import (
    depthwise_conv1d,
    depthwise_conv1d_input_grad,
    depthwise_conv1d_weight_grad,
    depthwise_conv_transpose1d,
)
from torchgraft.operators.depthwise_conv2d import (
    depthwise_conv2d,
    depthwise_conv2d_input_grad,
    depthwise_conv2d_weight_grad,
    depthwise_conv_transpose2d,
)
from torchgraft.operators.depthwise_conv3d import (
    depthwise_conv3d,
    depthwise_conv3d_input_grad,
    depthwise_conv3d_weight_grad,
    depthwise_conv_transpose3d,
)
from torchgraft.operators.linear import linear
from torchgraft.operators.lltm import lltm, lltm_cell
from torchgraft.operators.mul_constant import mul_constant
from torchgraft.operators.shift import shift, shift_grads, shift_input_grad, shift_offset_grad
from torchgraft.version import __version__

if _TYPE_CHECKING:
    from torchgraft import checking
    from torchgraft.building.aot_package import package
    from torchgraft.building.inline import load_inline
    from torchgraft.capturing import capture
    from torchgraft.checking import check
    from torchgraft.recurrence import Cell, Recurrence
    from torchgraft.shadowing import shadow

__all__ = [
    "Cell",
    "Fallback",
    "GraftReport",
    "Operator",
    "PerformanceWarning",
    "Recurrence",
    "__version__",
    "capture",
    "causal_conv1d",
    "causal_conv1d_update",
    "check",
    "checking",
    "choices",
    "decompositions",
    "depthwise_conv1d",
    "depthwise_conv1d_input_grad",
    "depthwise_conv1d_weight_grad",
    "depthwise_conv2d",
    "depthwise_conv2d_input_grad",
    "depthwise_conv2d_weight_grad",
    "depthwise_conv3d",
    "depthwise_conv3d_input_grad",
    "depthwise_conv3d_weight_grad",
    "depthwise_conv_transpose1d",
    "depthwise_conv_transpose2d",
    "depthwise_conv_transpose3d",
    "fallbacks",
    "forget_choices",
    "functional_calls",
    "gradient_by_reference",
    "graft",
    "graft_report",
    "linear",
    "lltm",
    "lltm_cell",
    "load_choices",
    "load_inline",
    "measure_kernels",
    "mul_constant",
    "native",
    "nn",
    "package",
    "save_choices",
    "shadow",
    "shift",
    "shift_grads",
    "shift_input_grad",
    "shift_offset_grad",
    "ungraft",
    "unknown_size",
    "wrap_triton",
]

native.load("torchgraft", _Path(__file__).parent / "lib")


def __getattr__(name: str) -> _Any:
    """Imports on first use whatever a caller of operators need not wait for."""
    if name in ("check", "checking"):
        checking = _importlib.import_module("torchgraft.checking")
        return checking.check if name == "check" else checking
    if name == "load_inline":
        return _importlib.import_module("torchgraft.building.inline").load_inline
    if name == "capture":
        return _importlib.import_module("torchgraft.capturing").capture
    if name in ("Cell", "Recurrence"):
        return getattr(_importlib.import_module("torchgraft.recurrence"), name)
    if name == "shadow":
        return _importlib.import_module("torchgraft.shadowing").shadow
    if name == "package":
        return _importlib.import_module("torchgraft.building.aot_package").package
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
