"""The definition of depthwise_conv2d and its two gradients, in PyTorch's own convolutions."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_weight

from torchgraft.operators.depthwise_conv2d.window import Window


def depthwise_conv2d(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Tensor:
    """The convolution of each channel with its own kernels, over an input padded with zeros."""
    view = Window(*window)
    weight, bias = rounded(weight, input), None if bias is None else rounded(bias, input)
    # As PyTorch computes 'same': what one side has more is padded before. Results then have PyTorch's strides.
    even = min(view.padding_top, view.padding_bottom), min(view.padding_left, view.padding_right)
    if view.is_uneven:
        top, left = even
        more = view.padding_left - left, view.padding_right - left, view.padding_top - top, view.padding_bottom - top
        input = F.pad(input, more)
    return F.conv2d(input, weight, bias, view.stride, even, view.dilation, input.shape[1])


def depthwise_conv2d_input_grad(
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *window: int,
) -> Tensor:
    """The transpose of depthwise_conv2d as a map of its input.

    The gradient of the output, with zeros between its elements where the window has a stride, is convolved with kernels
    turned around. PyTorch's own gradient is as quick, but the gradient of that gradient goes channel by channel.
    """
    view, weight = Window(*window), rounded(weight, output_grad)
    (tall, wide), (rows, columns) = view.stride, view.dilation
    spread = output_grad[:, :, :, None, :, None]
    spread = F.pad(spread, (0, wide - 1, 0, 0, 0, tall - 1)).flatten(4, 5).flatten(2, 3)
    # Where the first element of the gradient lies among the last of what is convolved; cropped where negative.
    top = rows * (weight.shape[2] - 1) - view.padding_top
    left = columns * (weight.shape[3] - 1) - view.padding_left
    bottom = height + view.padding_top - spread.shape[2]
    right = width + view.padding_left - spread.shape[3]
    padded = F.pad(spread, (left, right, top, bottom))
    each = F.conv2d(padded, weight.flip(2, 3), None, 1, 0, view.dilation, weight.shape[0])
    return each.unflatten(1, (channels, -1)).sum(2)


def depthwise_conv2d_weight_grad(
    output_grad: Tensor, input: Tensor, kernel_height: int, kernel_width: int, *window_and_result: Any
) -> Tensor:
    """The transpose of depthwise_conv2d as a map of its weight."""
    *window, dtype, _ = window_and_result
    if output_grad.shape[0] != input.shape[0]:
        # On one thread PyTorch reads memory that is not there.
        raise ValueError(f"output_grad has {output_grad.shape[0]} images, but input has {input.shape[0]}")
    view = Window(*window)
    weight_size = (output_grad.shape[1], 1, kernel_height, kernel_width)
    padded, channels = _padded(input, view), input.shape[1]
    sums = conv2d_weight(padded, weight_size, output_grad, view.stride, 0, view.dilation, channels)
    return sums if dtype is None else sums.to(dtype)


def _padded(input: Tensor, view: Window) -> Tensor:
    return F.pad(input, view.padding) if view.padded else input


def rounded(tensor: Tensor, image: Tensor) -> Tensor:
    """A weight or bias in the dtype of the image; what is no floating-point number stays, and is refused."""
    return tensor.to(image.dtype) if tensor.is_floating_point() else tensor
