"""The definition of shift and its gradients: four taps a result, gathered, weighted and added up."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Beyond any size, and exact in every dtype that offsets are computed in.
_FARTHEST = 2.0**62


class _Offsets(NamedTuple):
    """Offsets (C) taken apart.

    Attributes:
        x: the columns by which channels move, whole.
        y: the rows.
        column_weights: what the two columns that a result lies between weigh.
        row_weights: the two rows.
        known: one for each channel, and NaN where an offset is not finite. What is multiplied with it is NaN there, and
            so is every derivative.
    """

    x: Tensor
    y: Tensor
    column_weights: tuple[Tensor, Tensor]
    row_weights: tuple[Tensor, Tensor]
    known: Tensor


def shift(input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int) -> Tensor:
    """The bilinear sample at (t * stride + y_offset, v + x_offset) of each channel, zero outside."""
    offsets = _take_apart(x_offset, y_offset, input[:, :, : input.shape[2] // stride].numel())
    return _blend(_taps(_multiplied(input, offsets.known), offsets, stride), offsets).to(input.dtype)


def shift_input_grad(
    output_grad: Tensor, x_offset: Tensor, y_offset: Tensor, height: int, channels_last: bool, stride: int
) -> Tensor:
    """The transpose of shift as a map of its input."""
    offsets = _take_apart(x_offset, y_offset, output_grad.numel())
    wide = _multiplied(output_grad, offsets.known)
    steps, width = output_grad.shape[2:]
    every_row = torch.arange(height, device=output_grad.device) - offsets.y[:, None]
    every_column = torch.arange(width, device=output_grad.device) - offsets.x[:, None]
    taps = []
    for i in (0, 1):
        # Only the rows between which a result lies had a part in it.
        rows = torch.div(every_row - i, stride, rounding_mode="floor")
        rows = torch.where(rows * stride == every_row - i, rows, steps)
        taps.append([_gather(wide, rows, every_column - j) for j in (0, 1)])
    return _blend(taps, offsets).to(output_grad.dtype)


def shift_offset_grad(
    output_grad: Tensor, input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int
) -> tuple[Tensor, Tensor]:
    """The derivative of the bilinear weights, to the right of a whole offset, summed over all results of a channel."""
    offsets = _take_apart(x_offset, y_offset, output_grad.numel())
    (top_left, top_right), (low_left, low_right) = _taps(_multiplied(input, offsets.known), offsets, stride)
    (left, right), (top, low) = _per_channel(offsets.column_weights), _per_channel(offsets.row_weights)
    along_x = top * (top_right - top_left) + low * (low_right - low_left)
    along_y = left * (low_left - top_left) + right * (low_right - top_right)
    wide = _multiplied(output_grad, offsets.known)
    sums = ((wide * along).sum((0, 2, 3)) for along in (along_x, along_y))
    x_grad, y_grad = (each.to(input.dtype) for each in sums)
    return x_grad, y_grad


def shift_grads(
    output_grad: Tensor, input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input and of both offsets."""
    input_grad = shift_input_grad(output_grad, x_offset, y_offset, input.shape[2], False, stride)
    return (input_grad, *shift_offset_grad(output_grad, input, x_offset, y_offset, stride))


def _take_apart(x_offset: Tensor, y_offset: Tensor, results: int) -> _Offsets:
    if results == 0:
        # Gradients are sums of nothing then, whatever the offsets are.
        x_offset, y_offset = x_offset.nan_to_num(), y_offset.nan_to_num()
    known = torch.where(x_offset.isfinite() & y_offset.isfinite(), 1.0, torch.nan).to(_wide(x_offset).dtype)
    (x, column_weights), (y, row_weights) = (_split(each, known) for each in (x_offset, y_offset))
    return _Offsets(x, y, column_weights, row_weights, known)


def _split(offset: Tensor, known: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The whole part of offsets, and what the two neighbours weigh between which they lead."""
    wide = _wide(offset)
    floor = torch.where(known.isfinite(), wide, 0).floor().detach()
    fraction = (wide - floor) * known
    return floor.clamp(-_FARTHEST, _FARTHEST).long(), (1 - fraction, fraction)


def _wide(tensor: Tensor) -> Tensor:
    """In the dtype that sums are kept in."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _multiplied(images: Tensor, factors: Tensor) -> Tensor:
    """Images in the dtype that sums are kept in, each channel times a factor."""
    return _wide(images) * factors[:, None, None]


def _taps(input: Tensor, offsets: _Offsets, stride: int) -> list[list[Tensor]]:
    """The neighbours of each result: upper and lower row, left and right column."""
    height, width = input.shape[2:]
    rows = torch.arange(height // stride, device=input.device) * stride + offsets.y[:, None]
    columns = torch.arange(width, device=input.device) + offsets.x[:, None]
    return [[_gather(input, rows + i, columns + j) for j in (0, 1)] for i in (0, 1)]


def _gather(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Images at rows (C, R) and columns (C, S): (N, C, R, S), zero outside."""
    height, width = images.shape[2:]
    channels = torch.arange(images.shape[1], device=images.device)
    # The zeros are read at a row below and a column behind the image.
    wide = F.pad(images, (0, 1, 0, 1))
    rows = torch.where((rows >= 0) & (rows < height), rows, height)
    columns = torch.where((columns >= 0) & (columns < width), columns, width)
    return wide[:, channels[:, None, None], rows[:, :, None], columns[:, None, :]]


def _blend(taps: list[list[Tensor]], offsets: _Offsets) -> Tensor:
    left, right = _per_channel(offsets.column_weights)
    top, low = _per_channel(offsets.row_weights)
    upper, lower = (_weigh(left, row[0]) + _weigh(right, row[1]) for row in taps)
    return _weigh(top, upper) + _weigh(low, lower)


def _per_channel(weights: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return weights[0][:, None, None], weights[1][:, None, None]


def _weigh(weight: Tensor, values: Tensor) -> Tensor:
    """The product, zero where the weight is, and yet with the derivative of a product."""
    return weight * torch.where((weight == 0) & ~values.isfinite(), 0, values)
