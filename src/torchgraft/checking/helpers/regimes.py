"""Regimes of values: arguments that are huge, tiny, equal or zero, as far as a sample says that they make sense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.dtypes import is_number
from torchgraft.sampling import Drawn, Sample

# No other sample is asked after this time.
_QUICK_SECONDS, _SECONDS = 1.0, 10.0

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Unit:
    """Arguments that are changed at once: one, with all tensors of a list, or all of them.

    Attributes:
        name: for a person.
        places: among the arguments.
    """

    name: str
    places: tuple[int, ...]


def each_telling(case: Case, check: Callable[[Call], None], *, quick: int, full: int) -> None:
    """Checks a few small samples: those with most elements, which differ in what is not a tensor as far as that goes.

    Args:
        case: has the samples.
        check: of one call.
        quick: how many samples a quick run asks at most.
        full: how many any other run asks at most.

    Raises:
        NotApplicable: there is no such sample, or results are random.
    """
    if case.declaration.random:
        raise NotApplicable("its results are random, and the reference draws other values")
    try:
        small = case.table(small=True, empty=False)
    except NotApplicable:
        small = case.table(empty=False)[:1]
    # Values for tf32 must be such as tf32 holds.
    small = [sample for sample in reversed(small) if not sample.tf32]
    if not small:
        raise NotApplicable("its samples permit tf32, which holds few values")
    seen: set[str] = set()
    first, rest = [], []
    for sample in small:
        kind = _kind(sample)
        (rest if kind in seen else first).append(sample)
        seen.add(kind)
    began = time.monotonic()
    for number, sample in enumerate([*first, *rest][: quick if case.quick else full]):
        # The first one is asked all, however slow the kernel is.
        if number == 0 or time.monotonic() - began < (_QUICK_SECONDS if case.quick else _SECONDS):
            case.each(check, [sample])


def _kind(sample: Sample) -> str:
    """The arguments of a sample that are no tensors, and the ranks of those that are."""
    return repr([len(each.shape) if isinstance(each, Drawn) else each for each in sample.arguments])


def units(call: Call, takes: Callable[[Tensor], bool]) -> Iterator[Unit]:
    """Yields each argument alone that holds tensors of a kind, and all of them together."""
    arguments = call.arguments
    places = [
        place
        for place, value in enumerate(arguments)
        if (tensors := tensors_of([value])) and all(takes(tensor) and tensor.numel() for tensor in tensors)
    ]
    for place in places:
        yield Unit(call.declaration.arguments[place].name, (place,))
    if len(places) > 1:
        yield Unit("all arguments", tuple(places))


def changed(call: Call, unit: Unit, change: Change) -> tuple[Any, ...] | None:
    """Changes arguments; returns None if a sample says that their values would make no sense, or nothing changes."""
    arguments = list(call.arguments)
    drawn = (*call.sample.arguments, *arguments[len(call.sample.arguments) :])
    differs = False
    for place in unit.places:
        value = arguments[place]
        ones = value if isinstance(value, list) else [value]
        specs = drawn[place] if isinstance(value, list) else [drawn[place]]
        made = []
        for one, spec in zip(ones, specs, strict=True):
            other = _in_form(change, one)
            if spec is not None and isinstance(spec, Drawn) and not _makes_sense(other, spec):
                return None
            differs |= not torch.equal(one, other)
            made.append(other)
        arguments[place] = made if isinstance(value, list) else made[0]
    return tuple(arguments) if differs else None


def _in_form(change: Change, tensor: Tensor) -> Tensor:
    """Changes a tensor; the result has the dtype and the strides of the tensor."""
    if tensor.is_complex():
        values = torch.view_as_complex(change(torch.view_as_real(tensor.to(torch.complex128)).contiguous()))
    else:
        values = change(tensor.double() if is_number(tensor) else tensor)
    return torch.empty_like(tensor).copy_(values)


def _makes_sense(values: Tensor, drawn: Drawn) -> bool:
    """Whether values are such as a sample says that an argument may have."""
    if drawn.rounded is not None and not torch.equal(values.to(drawn.rounded).to(values.dtype), values):
        return False
    if drawn.ordered and (values.flatten().diff() < 0).any():
        return False
    if drawn.distinct and values.unique().numel() < values.numel():
        return False
    least, most = limits_of(drawn)
    compared = values if not values.is_complex() else torch.view_as_real(values)
    # NaN and infinity are no values that anybody lists.
    return not ((least is not None and (compared < least).any()) or (most is not None and (compared > most).any()))


def limits_of(drawn: Drawn) -> tuple[float | None, float | None]:
    """Returns the smallest and the largest value that make sense; None where there is no limit.

    What a sample lists one by one is of interest because it is all that makes sense: other values lie between these.
    """
    if drawn.values is not None:
        return (min(drawn.values), max(drawn.values)) if drawn.values else (0, 0)
    if drawn.dtype is not None and not (drawn.dtype.is_floating_point or drawn.dtype.is_complex):
        return drawn.low, None if drawn.high is None else drawn.high - 1
    return drawn.low, drawn.high


def zero_rows(tensor: Tensor) -> Iterator[tuple[str, Change]]:
    """Yields changes that make one row zero: along each of the last two dimensions, and all of the first slice."""

    def emptied(at: tuple[Any, ...]) -> Change:
        def change(values: Tensor) -> Tensor:
            values = values.clone()
            values[at] = 0
            return values

        return change

    dims = tensor.dim()
    if dims >= 2:
        yield "a row of zeros", emptied((0,) * (dims - 1))
        yield "a column of zeros", emptied((*(0,) * (dims - 2), slice(None), 0))
    if dims >= 3:
        yield "a first slice of zeros", emptied((0,))
