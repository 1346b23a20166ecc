"""Layers made of torchgraft's operators: PyTorch's own, with the same parameters, and faster."""

from torchgraft.nn.depthwise_conv2d import DepthwiseConv2d
from torchgraft.nn.linear import Linear

__all__ = ["DepthwiseConv2d", "Linear"]
