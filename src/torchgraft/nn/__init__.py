"""Layers made of torchgraft's operators: PyTorch's own, with the same parameters, and faster."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from torchgraft.nn.causal_conv1d import CausalConv1d
from torchgraft.nn.depthwise_conv1d import DepthwiseConv1d
from torchgraft.nn.depthwise_conv2d import DepthwiseConv2d
from torchgraft.nn.depthwise_conv3d import DepthwiseConv3d
from torchgraft.nn.depthwise_conv_transpose import (
    DepthwiseConvTranspose1d,
    DepthwiseConvTranspose2d,
    DepthwiseConvTranspose3d,
)
from torchgraft.nn.linear import Linear
from torchgraft.nn.lltm import LLTM, LLTMCell
from torchgraft.nn.shift import Shift

if _TYPE_CHECKING:
    from torchgraft.nn.recurrent import GRU, LSTM, RNN

__all__ = [
    "GRU",
    "LLTM",
    "LSTM",
    "RNN",
    "CausalConv1d",
    "DepthwiseConv1d",
    "DepthwiseConv2d",
    "DepthwiseConv3d",
    "DepthwiseConvTranspose1d",
    "DepthwiseConvTranspose2d",
    "DepthwiseConvTranspose3d",
    "LLTMCell",
    "Linear",
    "Shift",
]


def __getattr__(name: str) -> _Any:
    """Imports the layers of recurrences on first use, as their cells are traced then."""
    if name in ("GRU", "LSTM", "RNN"):
        return getattr(_import_module("torchgraft.nn.recurrent"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
