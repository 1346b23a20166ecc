"""Layers made of torchgraft's operators: PyTorch's own, with the same parameters, and faster."""

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

__all__ = [
    "LLTM",
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
