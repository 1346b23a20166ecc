"""embedding_bag: sums or means of rows of a table. Its gradient is an operator of its own."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

import torchgraft
from torchgraft import building

NAMESPACE = "gallery_embedding_bag"
_SOURCE = Path(__file__).with_name("cpu.cpp")


def _expect_sizes(weight: Tensor, indices: Tensor, offsets: Tensor, mode: str) -> None:
    if weight.dim() != 2:
        raise ValueError(f"embedding_bag: weight must be (rows, columns), got {tuple(weight.shape)}")
    _expect_bags("embedding_bag", indices, offsets, mode)


def _expect_sizes_backward(grad: Tensor, indices: Tensor, offsets: Tensor, rows: int, mode: str) -> None:
    name = "embedding_bag_backward"
    _expect_bags(name, indices, offsets, mode)
    if grad.dim() != 2 or grad.shape[0] != offsets.shape[0]:
        raise ValueError(
            f"{name}: grad must be (bags, columns) with a bag for each of {offsets.shape[0]} offsets, got"
            f" {tuple(grad.shape)}"
        )
    if rows < 0:
        raise ValueError(f"{name}: rows must not be negative, got {rows}")


def _expect_bags(name: str, indices: Tensor, offsets: Tensor, mode: str) -> None:
    if mode not in ("sum", "mean"):
        raise ValueError(f"{name}: mode must be 'sum' or 'mean', got {mode!r}")
    for argument, tensor in (("indices", indices), ("offsets", offsets)):
        if tensor.dim() != 1:
            raise ValueError(f"{name}: {argument} must have one dimension, got {tuple(tensor.shape)}")
    if indices.shape[0] and not offsets.shape[0]:
        raise ValueError(f"{name}: offsets must have an element, as there are indices")


def _expect_values(name: str, indices: Tensor, offsets: Tensor, rows: int) -> None:
    """Raises ValueError where bags hold rows that are not there; on a GPU that would have to be waited for."""
    if indices.device.type == "cpu" and indices.numel():
        least, most = map(int, indices.aminmax())
        if least < 0 or most >= rows:
            raise ValueError(
                f"{name}: indices must lie between 0 and {rows - 1}, as there are {rows} rows; one of them is"
                f" {least if least < 0 else most}"
            )
    if offsets.device.type == "cpu" and offsets.numel():
        starts = offsets.tolist()
        if starts != sorted(starts) or starts[0] != 0 or starts[-1] > len(indices):
            raise ValueError(
                f"{name}: offsets must begin with 0, never fall, and not exceed the {len(indices)} indices"
            )


def _explain(weight: Tensor, indices: Tensor, offsets: Tensor, *, mode: str) -> None:
    _expect_sizes(weight, indices, offsets, mode)
    _expect_values("embedding_bag", indices, offsets, weight.shape[0])


def _explain_backward(grad: Tensor, indices: Tensor, offsets: Tensor, rows: int, *, mode: str) -> None:
    _expect_sizes_backward(grad, indices, offsets, rows, mode)
    if rows * max(grad.shape[1], 1) * 8 >= 2**63:
        raise ValueError(f"embedding_bag_backward: rows must be so few that memory can hold them, got {rows}")
    _expect_values("embedding_bag_backward", indices, offsets, rows)


def _bags(indices: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The bag of each index, and how many indices each bag has; at least one, as a divisor of a mean."""
    places = torch.arange(indices.shape[0], device=indices.device)
    bags = torch.searchsorted(offsets, places, right=True) - 1
    ends = torch.cat((offsets[1:], offsets.new_full((1,), indices.shape[0])))[: offsets.shape[0]]
    return bags, (ends - offsets).clamp(min=1)


def _summed(values: Tensor, places: Tensor, rows: int, dtype: torch.dtype) -> Tensor:
    """Sums of the values that belong in each row; on a GPU always in the same order, which `index_add` would not be."""
    return values.new_zeros(rows, values.shape[1]).index_put((places,), values, accumulate=True).to(dtype)


def _widened(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _reference(weight: Tensor, indices: Tensor, offsets: Tensor, *, mode: str) -> Tensor:
    _expect_sizes(weight, indices, offsets, mode)
    bags, counts = _bags(indices, offsets)
    rows = _widened(weight).index_select(0, indices)
    if mode == "mean":
        rows = rows / counts[bags, None]
    return _summed(rows, bags, offsets.shape[0], weight.dtype)


def _reference_backward(grad: Tensor, indices: Tensor, offsets: Tensor, rows: int, *, mode: str) -> Tensor:
    _expect_sizes_backward(grad, indices, offsets, rows, mode)
    bags, counts = _bags(indices, offsets)
    of_bags = _widened(grad)
    if mode == "mean":
        of_bags = of_bags / counts[:, None]
    return _summed(of_bags.index_select(0, bags), indices, rows, grad.dtype)


def _gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    *,
    mode: str,
) -> tuple[Tensor, None, None]:
    return embedding_bag_backward(output_grads[0], indices, offsets, weight.shape[0], mode=mode), None, None


def _gradient_backward(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    rows: int,
    *,
    mode: str,
) -> tuple[Tensor, None, None]:
    # Both are linear, and each is the other's transpose.
    return embedding_bag(output_grads[0], indices, offsets, mode=mode), None, None


_INTEGERS = (torch.int64,)

# embedding_bag(weight, indices, offsets, mode="mean"): (bags, columns), the mean or sum of the rows of each bag.
embedding_bag = torchgraft.Operator(
    f"{NAMESPACE}::embedding_bag(Tensor weight, Tensor indices, Tensor offsets, *, str mode='mean') -> Tensor",
    reference=_reference,
    output=lambda weight, indices, offsets, *, mode: weight.new_empty(offsets.shape[0], weight.shape[1]),
    gradient=_gradient,
    dtypes={"weight": torchgraft.operator.FLOATING, "indices": _INTEGERS, "offsets": _INTEGERS},
    kernels={"cpu": torchgraft.operator.FLOATING},
    explain=_explain,
)

# embedding_bag_backward(grad, indices, offsets, rows, mode="mean"): (rows, columns), the gradient of weight.
embedding_bag_backward = torchgraft.Operator(
    f"{NAMESPACE}::embedding_bag_backward(Tensor grad, Tensor indices, Tensor offsets, SymInt rows, *,"
    " str mode='mean') -> Tensor",
    reference=_reference_backward,
    output=lambda grad, indices, offsets, rows, *, mode: grad.new_empty(rows, grad.shape[1]),
    gradient=_gradient_backward,
    dtypes={"grad": torchgraft.operator.FLOATING, "indices": _INTEGERS, "offsets": _INTEGERS},
    kernels={"cpu": torchgraft.operator.FLOATING},
    explain=_explain_backward,
)

building.load(NAMESPACE, [_SOURCE])
