"""torch.func.vmap batches the operator and its gradients over any of its tensors, along any dimension.

Proves: in float64, on a few small samples, vmap gives what a loop over the reference gives: over each tensor alone,
along its first and its last dimension; over all tensors at once; over different dimensions; over a batch of one;
nested; with -1 for a whole number, as of a dimension; and of the gradient. Eager and compiled calls are checked.

Cannot prove: that a batch is computed at once: an operator without a vmap rule runs a loop, and records that as a
fallback.

Mend: in a rule of your own, move the batch dimension where the kernel wants it and return where it lies; count
dimensions that come as negative numbers without it. Without a rule PyTorch's loop is right.

Example: the vmap rule takes the batch for the first dimension, whichever it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad
from torch.utils._pytree import tree_map

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.transforming import Both, Function, check_samples, moved_tensors, squares
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import replaced
from torchgraft.checking.tensors.dtypes import in_float64

InDims = tuple[int | None, ...]
# The calls of the outer of two batches.
_OUTSIDE = 3


def check(case: Case) -> None:
    """See the module."""
    if case.declaration.random:
        raise NotApplicable("it is random, and each call of a batch would need a seed of its own")
    if case.declaration.sizes_from_data:
        raise NotApplicable("results of a batch would have different sizes")
    check_samples(case, 6, _check_eager, _check_compiled, of_gradients=False)


def _check_eager(both: Both) -> None:
    count = len(both.names)
    # A size that no dimension has is not taken for another.
    batch = next(size for size in (2, 3, 5, 7, 11, 13) if all(size not in tensor.shape for tensor in both.tensors))
    for place, name in enumerate(both.names):
        for dim, which in ((0, "first"), (-1, "last")):
            in_dims = tuple(dim if i == place else None for i in range(count))
            _expect_as_loop(both, in_dims, batch, f"over the {which} dimension of {name}")
    everywhere: InDims = (0,) * count
    mixed: InDims = tuple(-1 if place % 2 == 0 else 0 for place in range(count))
    for in_dims, size, what in (
        (everywhere, batch, "over all tensors"),
        (mixed, batch, "over other dimensions of all tensors"),
        (everywhere, 1, "over a batch of one"),
    ):
        _expect_as_loop(both, in_dims, size, what)
        if both.is_differentiable:
            _expect_as_loop(both, in_dims, size, f"of torch.func.grad, {what}", gradient=True)
    if both.is_differentiable:
        one_alone: InDims = (0, *[None] * (count - 1))
        _expect_as_loop(both, one_alone, batch, f"of torch.func.grad, over {both.names[0]} alone", gradient=True)
    _expect_nested_as_loops(both, batch)
    for other, what in _with_other_numbers(both.call):
        _expect_as_loop(Both(other), everywhere, batch, f"over all tensors, with {what}")


def _with_other_numbers(call: Call) -> Iterator[tuple[Call, str]]:
    """Yields calls with -1 in the place of a whole number, as a dimension that is counted from the end."""
    given = call.sample.arguments
    for place, argument in enumerate(call.declaration.arguments[: len(given)]):
        if argument.kind != "int" or argument.is_list or type(given[place]) is not int or given[place] < 0:
            continue
        other = replace(call, sample=replace(call.sample, arguments=replaced(given, place, -1)))
        try:
            other.expect_close(other.function(*other.arguments), other.expected())
        except Exception:  # `numbers` and `bad_input` ask for it
            continue
        yield other, f"{argument.name}=-1"


def _check_compiled(both: Both) -> None:
    everywhere: InDims = (0,) * len(both.names)
    for gradient, what in ((False, "under torch.compile"), (True, "of torch.func.grad, under torch.compile")):
        if both.is_differentiable or not gradient:
            _expect_as_loop(both, everywhere, 2, what, gradient=gradient, compile=True)


def _expect_as_loop(
    both: Both, in_dims: InDims, batch: int, what: str, *, gradient: bool = False, compile: bool = False
) -> None:
    inputs = _batched(both.call, in_dims, batch)

    def transform(function: Function, tensors: Any) -> Any:
        of_one = grad(squares(function), tuple(range(len(in_dims)))) if gradient else function
        if function is both.referred:
            return _loop(of_one, in_dims)(*in_float64(inputs))
        batched = torch.func.vmap(of_one, in_dims)
        return (both.compiled(function, batched) if compile else batched)(*inputs)

    both.expect_same(transform, f"torch.func.vmap {what}", is_compiled=compile, differentiates=gradient)


def _expect_nested_as_loops(both: Both, batch: int) -> None:
    """Over the first tensor outside, and over all inside."""
    inside: InDims = (0,) * len(both.names)
    outside: InDims = (1, *[None] * (len(both.names) - 1))
    # As many rows for each call outside: the numbers of a sample may be the only ones that make sense.
    rows = _batched(both.call, inside, _OUTSIDE * batch)
    inputs = [rows[0].unflatten(0, (batch, _OUTSIDE)), *(each[:batch] for each in rows[1:])]

    def transform(function: Function, tensors: Any) -> Any:
        if function is both.referred:
            return _loop(_loop(function, inside), outside)(*in_float64(inputs))
        return torch.func.vmap(torch.func.vmap(function, inside), outside)(*inputs)

    both.expect_same(transform, "torch.func.vmap of torch.func.vmap", differentiates=False)


def _batched(call: Call, in_dims: InDims, batch: int) -> list[Tensor]:
    """The tensors of as many calls, of which those that have a dimension in `in_dims` are stacked along it."""
    rows = [moved_tensors(call, call.make(seed=i)) for i in range(batch)]
    rows = [[tensor.detach() for tensor in row] for row in rows]
    columns = zip(*rows, strict=True)
    return [
        column[0] if dim is None else torch.stack(column, dim) for column, dim in zip(columns, in_dims, strict=True)
    ]


def _loop(function: Function, in_dims: InDims) -> Function:
    """Loops over a batch: the definition of vmap."""

    def call(*tensors: Tensor) -> Any:
        pairs = list(zip(tensors, in_dims, strict=True))
        size = next(tensor.shape[dim] for tensor, dim in pairs if dim is not None)
        rows: Sequence[Any] = [
            function(*(tensor if dim is None else tensor.select(dim, i) for tensor, dim in pairs)) for i in range(size)
        ]
        return tree_map(lambda *results: torch.stack(results), *rows)

    return call


PROPERTY = Property(check, dtypes=(torch.float64,), imports=COMPILER)
