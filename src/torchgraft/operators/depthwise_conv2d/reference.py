"""What depthwise_conv2d and its two gradients mean, in PyTorch's own convolutions."""

import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input, conv2d_weight

from torchgraft.operators.depthwise_conv2d.window import Window


def depthwise_conv2d(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Tensor:
    """The convolution of each channel with its own kernels, over an input padded with zeros."""
    view = Window(*window)
    return F.conv2d(_padded(input, view), weight, bias, view.stride, 0, view.dilation, input.shape[1])


def depthwise_conv2d_input_grad(
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *window: int,
) -> Tensor:
    """The transpose of depthwise_conv2d as a map of its input."""
    view = Window(*window)
    padded_height = view.padding_top + height + view.padding_bottom
    padded_width = view.padding_left + width + view.padding_right
    padded_size = (output_grad.shape[0], channels, padded_height, padded_width)
    grad = conv2d_input(padded_size, weight, output_grad, view.stride, 0, view.dilation, channels)
    return grad.narrow(2, view.padding_top, height).narrow(3, view.padding_left, width)


def depthwise_conv2d_weight_grad(
    output_grad: Tensor, input: Tensor, kernel_height: int, kernel_width: int, *window: int
) -> Tensor:
    """The transpose of depthwise_conv2d as a map of its weight."""
    view = Window(*window)
    weight_size = (output_grad.shape[1], 1, kernel_height, kernel_width)
    return conv2d_weight(_padded(input, view), weight_size, output_grad, view.stride, 0, view.dilation, input.shape[1])


def _padded(input: Tensor, view: Window) -> Tensor:
    return F.pad(input, view.padding) if view.padded else input
