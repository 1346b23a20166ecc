"""The definition of depthwise_conv3d and its two gradients, in PyTorch's own convolutions.

They are also what runs on a device without kernels, so the gradients are those that autograd computes for F.conv3d.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchgraft.layout import is_channels_last
from torchgraft.operators.depthwise_conv2d.layouts import dense_strides
from torchgraft.operators.depthwise_conv2d.reference import rounded
from torchgraft.operators.depthwise_conv3d.window import VolumeWindow


def depthwise_conv3d(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Tensor:
    """The convolution of each channel with its own kernels, over an input padded with zeros."""
    view = VolumeWindow(*window)
    weight, bias = rounded(weight, input), None if bias is None else rounded(bias, input)
    padded = _unevenly_padded(_dense(input), view)
    return F.conv3d(padded, _dense(weight), bias, view.stride, _even(view), view.dilation, input.shape[1])


def depthwise_conv3d_input_grad(
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    depth: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *window: int,
) -> Tensor:
    """The transpose of depthwise_conv3d as a map of its input."""
    view, weight, output_grad = VolumeWindow(*window), _dense(rounded(weight, output_grad)), _dense(output_grad)
    sides = zip((depth, height, width), view.before, view.behind, strict=True)
    size = output_grad.shape[0], channels, *(length + abs(behind - before) for length, before, behind in sides)
    is_last = is_channels_last(output_grad) if channels_last is None else channels_last
    # Of the input only the shape and the layout are read.
    input = output_grad.new_empty_strided(size, dense_strides(size, is_last))
    found, _, _ = torch.ops.aten.convolution_backward(
        output_grad,
        input,
        weight,
        None,
        view.stride,
        _even(view),
        view.dilation,
        False,
        (0,),
        channels,
        (True, False, False),
    )
    for dim, (length, before, even) in enumerate(zip((depth, height, width), view.before, _even(view), strict=True), 2):
        found = found.narrow(dim, before - even, length)
    return found


def depthwise_conv3d_weight_grad(
    output_grad: Tensor,
    input: Tensor,
    kernel_depth: int,
    kernel_height: int,
    kernel_width: int,
    *window_and_result: Any,
) -> Tensor:
    """The transpose of depthwise_conv3d as a map of its weight."""
    *window, dtype, _ = window_and_result
    if output_grad.shape[0] != input.shape[0]:
        raise ValueError(f"output_grad has {output_grad.shape[0]} volumes, but input has {input.shape[0]}")
    view, output_grad, input = VolumeWindow(*window), _dense(output_grad), _dense(input)
    _, sums, _ = torch.ops.aten.convolution_backward(
        output_grad,
        _unevenly_padded(input, view),
        input.new_empty(output_grad.shape[1], 1, kernel_depth, kernel_height, kernel_width),
        None,
        view.stride,
        _even(view),
        view.dilation,
        False,
        (0,),
        input.shape[1],
        (False, True, False),
    )
    return sums if dtype is None else sums.to(dtype)


def _dense(volumes: Tensor) -> Tensor:
    """The same volumes, with the strides of dense memory along all sizes, of one too.

    In float64 on CUDA, PyTorch 2.11's kernels of volumes give wrong values otherwise.
    """
    if volumes.is_cuda and volumes.dtype == torch.float64 and volumes.is_contiguous():
        return volumes.flatten().unflatten(0, volumes.shape)
    return volumes


def _even(view: VolumeWindow) -> tuple[int, ...]:
    """The padding that both sides have in each direction."""
    return tuple(map(min, view.before, view.behind))


def _unevenly_padded(input: Tensor, view: VolumeWindow) -> Tensor:
    """An input padded with what one side has more than the other, as PyTorch computes 'same'.

    Results then have PyTorch's strides.
    """
    if not view.is_uneven:
        return input
    sides = reversed(tuple(zip(view.before, view.behind, strict=True)))
    return F.pad(input, [side - min(pair) for pair in sides for side in pair])
