"""The definition of depthwise_conv1d and its two gradients, in PyTorch's own convolutions."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from torchgraft.operators.depthwise_conv1d.window import SequenceWindow
from torchgraft.operators.depthwise_conv2d import reference as of_images


def depthwise_conv1d(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Tensor:
    """The convolution of each channel with its own kernels, over an input padded with zeros."""
    view = SequenceWindow(*window)
    weight, bias = of_images.rounded(weight, input), None if bias is None else of_images.rounded(bias, input)
    # As PyTorch computes 'same': what one side has more is padded before. Results then have PyTorch's strides.
    left, right = view.padding
    even = min(left, right)
    if view.is_uneven:
        input = F.pad(input, (left - even, right - even))
    return F.conv1d(input, weight, bias, view.stride, even, view.dilation, input.shape[1])


def depthwise_conv1d_input_grad(
    output_grad: Tensor, weight: Tensor, channels: int, length: int, channels_last: bool | None, *window: int
) -> Tensor:
    """The transpose of depthwise_conv1d as a map of its input: that of depthwise_conv2d for images of one row."""
    images, kernels = output_grad.unsqueeze(2), weight.unsqueeze(2)
    view = SequenceWindow(*window).of_image
    return of_images.depthwise_conv2d_input_grad(images, kernels, channels, 1, length, channels_last, *view).squeeze(2)


def depthwise_conv1d_weight_grad(
    output_grad: Tensor, input: Tensor, kernel_size: int, *window_and_result: Any
) -> Tensor:
    """The transpose of depthwise_conv1d as a map of its weight: that of depthwise_conv2d for images of one row."""
    *window, dtype, channels_last = window_and_result
    grads, images, view = output_grad.unsqueeze(2), input.unsqueeze(2), SequenceWindow(*window).of_image
    found = of_images.depthwise_conv2d_weight_grad(grads, images, 1, kernel_size, *view, dtype, channels_last)
    return found.squeeze(2)
