"""The declaration of segment_sum, and of the operator that computes its gradient: each is the other's transpose."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft import Operator

_FLOATS = (torch.float32, torch.float64)
_INTEGERS = (torch.int64,)


def _segments(starts: Tensor, rows: int) -> Tensor:
    """The segment of each row."""
    return torch.searchsorted(starts, torch.arange(rows, device=starts.device), right=True) - 1


def _explain_starts(name: str, starts: Tensor, rows: int) -> None:
    """Raises ValueError if starts are no segments of the rows; on a GPU that would have to be waited for."""
    if rows < 0:
        raise ValueError(f"{name}: rows must not be negative, got {rows}")
    if rows and not starts.shape[0]:
        raise ValueError(f"{name}: starts must have an element, as there are rows")
    if starts.device.type == "cpu" and starts.numel():
        found = starts.tolist()
        if found != sorted(found) or found[0] != 0 or found[-1] > rows:
            raise ValueError(f"{name}: starts must begin with 0, never fall, and not exceed the {rows} rows")


def _reference(values: Tensor, starts: Tensor) -> Tensor:
    sums = values.new_zeros(starts.shape[0], values.shape[1])
    return sums.index_add(0, _segments(starts, values.shape[0]), values)


def _gradient(
    needs_grad: Sequence[bool], output_grads: Sequence[Tensor], saved: Any, values: Tensor, starts: Tensor
) -> tuple[Tensor, None]:
    return segment_sum_backward(output_grads[0], starts, values.shape[0]), None


segment_sum = Operator(
    "gallery::segment_sum(Tensor values, Tensor starts) -> Tensor",
    reference=_reference,
    shapes="rows columns, segments -> segments columns",
    gradient=_gradient,
    dtypes={"values": _FLOATS, "starts": _INTEGERS},
    kernels={"cpu": _FLOATS, "cuda": _FLOATS},
    explain=lambda values, starts: _explain_starts("segment_sum", starts, values.shape[0]),
)


def _backward_reference(sums_grad: Tensor, starts: Tensor, rows: int) -> Tensor:
    return sums_grad.index_select(0, _segments(starts, rows))


def _backward_gradient(
    needs_grad: Sequence[bool], output_grads: Sequence[Tensor], saved: Any, sums_grad: Tensor, starts: Tensor, rows: int
) -> tuple[Tensor, None]:
    return segment_sum(output_grads[0], starts), None


segment_sum_backward = Operator(
    "gallery::segment_sum_backward(Tensor sums_grad, Tensor starts, SymInt rows) -> Tensor",
    reference=_backward_reference,
    shapes="segments columns, segments -> rows columns",
    gradient=_backward_gradient,
    dtypes={"sums_grad": _FLOATS, "starts": _INTEGERS},
    kernels={"cpu": _FLOATS, "cuda": _FLOATS},
    explain=lambda sums_grad, starts, rows: _explain_starts("segment_sum_backward", starts, rows),
)
