"""Regimes of values: arguments that are huge, tiny, equal or zero, as far as a sample says that they make sense."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.derived_calls import warm_up
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor, replaced, tensors_of
from torchgraft.checking.tensors.dtypes import holds_numbers, in_float64, is_number, is_whole
from torchgraft.sampling import Drawn, Sample

# No other sample is asked once this thread has worked so long: what other programs take does not count.
_QUICK_SECONDS, _SECONDS = 1.0, 10.0
_MEAN = 1e4
HUGE, TINY = 1e20, 1e-30
_LITTLE = 1e-8
# Values of this share of the largest number, of which some ten add up to more, and none alone is nearly infinite.
_SHARE_OF_LARGEST = 1 / 5

# Where a sample allows it, 1.
_POWERS = (1.0, *(2.0**-power for power in range(1, 11)), *(2.0**power for power in range(1, 11)))
# Of fewer elements no part of a dimension is asked: blocks are wider.
_NARROW = 3

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


@dataclass(frozen=True)
class Regime:
    """Values of one kind.

    Attributes:
        kind: decides how a failure is explained.
        values: what they are, for a person; it follows the name of the argument.
        change: makes them of a sample's values.
        factor: what they are multiplied by; 1 if they are made in another way.
    """

    kind: Literal["ties", "halves", "zeros", "large", "mean", "small", "mask", "integers", "part", "digits", "number"]
    values: str
    change: Change
    factor: float = 1.0

    @property
    def is_extreme(self) -> bool:
        """Whether sums and products of such values are beyond what their dtype holds."""
        return self.factor >= HUGE or self.factor == TINY


# A float32 holds 24 bits.
DIGITS = Regime("digits", "that float32 does not tell apart", lambda values: 1 + values * 2.0**-40)


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
    first: list[Sample] = []
    rest: list[Sample] = []
    for sample in small:
        kind = _kind(sample)
        (rest if kind in seen else first).append(sample)
        seen.add(kind)
    chosen = [*first, *rest][: quick if case.quick else full]
    warm_up(case, case.call(chosen[0]), (Call.run,))
    began = time.thread_time()
    for number, sample in enumerate(chosen):
        # The first one is asked all, however slow the kernel is.
        if number == 0 or time.thread_time() - began < (_QUICK_SECONDS if case.quick else _SECONDS):
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
        made: list[Tensor | None] = []
        for one, spec in zip(ones, specs, strict=True):
            if one is None:  # missing from a list of optional tensors
                made.append(None)
                continue
            other = _in_form(change, one)
            if isinstance(spec, Drawn) and not _makes_sense(other, spec):
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
        is_limited = not drawn.low is drawn.high is None
        return (drawn.integers.start, drawn.integers.stop - 1) if is_limited else (None, None)
    return drawn.low, drawn.high


def _zero_rows(tensor: Tensor) -> Iterator[tuple[str, Change]]:
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


def number_regimes(call: Call, unit: Unit, *, has_masks: bool) -> Iterator[Regime]:
    """Yields the regimes of real and complex numbers for some arguments.

    Args:
        call: has the arguments.
        unit: the arguments.
        has_masks: whether -inf is among them.
    """
    yield Regime("ties", "rounded", torch.round)
    yield Regime("ties", "with equal maxima in each row", _with_equal_maxima)
    tensors = tensors_of([call.arguments[place] for place in unit.places])
    if len(tensors) == 1:
        for what, change in _zero_rows(tensors[0]):
            yield Regime("zeros", what, change)
    yield Regime("zeros", "zeros", torch.zeros_like)
    yield Regime("zeros", "negative zeros", lambda values: torch.full_like(values, -0.0))
    yield Regime("ties", "ones", torch.ones_like)
    for factor in (30.0, 100.0, 3000.0, HUGE):
        yield Regime("large", f"times {factor:g}", times(factor), factor)
    if call.dtype == torch.float32 and not any(tensor.is_complex() for tensor in tensors):
        largest = max(float(tensor.abs().max()) for tensor in tensors)
        factor = torch.finfo(call.dtype).max * _SHARE_OF_LARGEST / (largest or 1.0)
        yield Regime("large", f"times {factor:.3g}, whose sums are infinite,", times(factor), factor)
    for mean in (_MEAN, -_MEAN):
        yield Regime("mean", f"with a mean of {mean:g}", _plus(mean))
    # The square of a product of two such numbers is one that float32 holds, unlike that of TINY ones, so results that
    # many elements go into have their digits there. Halves do not hold the numbers themselves.
    little = (_LITTLE,) if holds_numbers(call.dtype) and torch.finfo(call.dtype).tiny < _LITTLE**4 else ()
    for factor in (1e-4, *little, TINY):
        yield Regime("small", f"times {factor:g}", times(factor), factor)
    subnormal = torch.finfo(call.dtype).tiny / 8 if holds_numbers(call.dtype) else TINY
    yield Regime("small", "in subnormal numbers", times(subnormal), TINY)
    if has_masks and not any(tensor.is_complex() for tensor in tensors):
        yield Regime("mask", "with elements of -inf, as a mask has them", _masked)


# What of a dimension is special: so much that a whole block is, however wide the blocks of a kernel are.
_PARTS = {
    "all but the last": slice(None, -1),
    "all but the first": slice(1, None),
    "all but the first and the last": slice(1, -1),
}


def part_regimes(call: Call, unit: Unit, *, has_masks: bool) -> Iterator[Regime]:
    """Yields regimes in which all but one or two elements of each row, and of each column, are special.

    Args:
        call: has the arguments.
        unit: one of them.
        has_masks: whether -inf is among them.
    """
    (tensor,) = tensors_of([call.arguments[place] for place in unit.places])
    # Counted from the front, as the two parts of a complex number are one dimension more at the end.
    for dim, what in ((tensor.dim() - 1, "column"), (tensor.dim() - 2, "row"))[: tensor.dim()]:
        for where, part in _PARTS.items() if tensor.shape[dim] > _NARROW else ():
            place = f"in {where} {what}"
            if not is_number(tensor):
                if tensor.dtype == torch.bool:
                    yield Regime("mask", f"with False {place} and True beside", partial(_flagged, dim, part, False))
                    yield Regime("integers", f"with True {place} and False beside", partial(_flagged, dim, part, True))
                yield Regime("integers", f"equal {place}", partial(_alike, dim, part))
                continue
            # What errs most often, as the caller may have no time for all.
            yield Regime("part", f"times 3000 {place}", partial(_larger, dim, part))
            if has_masks and not tensor.is_complex():
                yield Regime("mask", f"with -inf {place}", partial(_filled, dim, part, -torch.inf))
            yield Regime("zeros", f"zeros {place}", partial(_filled, dim, part, 0))
            yield Regime("ties", f"equal {place}", partial(_alike, dim, part))


def halved(call: Call) -> Iterator[tuple[Call, Unit, Regime]]:
    """Yields calls in which one argument lies halfway between multiples of a power of two, which all others are.

    Quotients and products of both are halves then, in every dtype, and it shows in which direction a kernel rounds.
    """
    places = [place for unit in units(call, is_number) if len(unit.places) == 1 for place in unit.places]
    for place in places:
        drawn = {other: call.sample.arguments[other] for other in places if other != place}
        if any(not isinstance(each, Drawn) or each.distinct for each in drawn.values()):
            continue
        step = next((each for each in _POWERS if all(map(partial(_may_be, each), drawn.values()))), None)
        if step is None:
            continue
        same = {other: replace(each, values=(step,)) for other, each in drawn.items()}
        arguments = tuple(same.get(other, value) for other, value in enumerate(call.sample.arguments))
        alike = replace(call, sample=replace(call.sample, arguments=arguments))
        beside = f", where all others are {step:g}," if drawn else ""
        for width in dict.fromkeys((step, 1 / step)):
            values = f"halfway between multiples of {width:g}{beside}"
            unit = Unit(call.declaration.arguments[place].name, (place,))
            yield alike, unit, Regime("halves", values, partial(_halfway, width))


def _may_be(value: float, drawn: Drawn) -> bool:
    """Whether a sample allows a number."""
    least, most = limits_of(drawn)
    return drawn.rounded is None and (least is None or value >= least) and (most is None or value <= most)


def _halfway(width: float, values: Tensor) -> Tensor:
    return ((values / width).floor() + 0.5) * width


def _part_of(values: Tensor, dim: int, part: slice) -> Tensor:
    return values[(slice(None),) * dim + (part,)]


def _flagged(dim: int, part: slice, value: bool, values: Tensor) -> Tensor:
    """A flag in a part of each row, and the other one in the rest."""
    return _filled(dim, part, value, torch.full_like(values, not value))


def _filled(dim: int, part: slice, value: float, values: Tensor) -> Tensor:
    values = values.clone()
    _part_of(values, dim, part).fill_(value)
    return values


def _alike(dim: int, part: slice, values: Tensor) -> Tensor:
    """Makes the elements of a part the first one of the part."""
    values = values.clone()
    special = _part_of(values, dim, part)
    special.copy_(special.narrow(dim, 0, 1).clone().expand(special.shape))
    return values


def _larger(dim: int, part: slice, values: Tensor) -> Tensor:
    values = values.clone()
    _part_of(values, dim, part).mul_(3000)
    return values


def _plus(number: float) -> Change:
    return lambda values: values + number


def times(factor: float) -> Change:
    """Returns a change that multiplies."""
    return lambda values: values * factor


def _with_equal_maxima(values: Tensor) -> Tensor:
    """Makes the first and the last element of each row its largest."""
    values = values.clone()
    if values.dim() and values.shape[-1] > 1:
        values[..., 0] = values[..., -1] = values.amax(-1) + 1
    return values


def _masked(values: Tensor) -> Tensor:
    """Every third element of the last dimension, so that no row of two or more is masked as a whole."""
    values = values.clone()
    if values.dim() and values.shape[-1] > 1:
        values[..., 1::3] = -torch.inf
    return values


def integer_regimes(call: Call, unit: Unit) -> Iterator[Regime]:
    """Yields the regimes of integers and flags for some arguments."""
    yield Regime("integers", "all equal to its first", lambda values: values.flatten()[0].expand(values.shape))
    yield Regime("integers", "all equal to its largest", lambda values: values.max().expand(values.shape))
    # Often that of padding, or of what is ignored.
    yield Regime("integers", "all equal to its smallest", lambda values: values.min().expand(values.shape))
    dtypes = {tensor.dtype for tensor in tensors_of([call.arguments[place] for place in unit.places])}
    if torch.bool in dtypes:
        yield Regime("integers", "negated", torch.logical_not)
        return
    # Integers without limits may still be indices, which the reference then refuses. `bad_input` asks for an element at
    # the limits of wide dtypes: with its bounds of time and memory.
    if all(dtype.is_signed for dtype in dtypes):
        yield Regime("integers", "negated", torch.neg)
    if all(dtype.itemsize <= 2 for dtype in dtypes):
        yield Regime("integers", "at the minimum of its dtype", partial(_at_limit, "min"))
        yield Regime("integers", "at the maximum of its dtype", partial(_at_limit, "max"))


def from_the_end(call: Call) -> Iterator[tuple[Unit, Regime, tuple[Any, ...]]]:
    """Yields calls whose indices are counted from the end, if the reference gives the same for these.

    A GPU is not asked, as a wrong index ends its use.
    """
    if call.device.type != "cpu":
        return
    expected = tree_leaves(call.expected())
    for unit in units(call, lambda tensor: is_whole(tensor.dtype) and tensor.dtype.is_signed):
        (place, *more), (tensor, *_) = unit.places, tensors_of([call.arguments[each] for each in unit.places])
        if more or isinstance(call.arguments[place], list) or tensor.min() < 0:
            continue
        others = [each for each in tensors_of(call.arguments) if is_number(each)]
        for size in dict.fromkeys(size for each in others for size in each.shape if size > tensor.max()):
            arguments = replaced(call.arguments, place, tensor - size)
            with suppress(Exception):
                found = tree_leaves(call.expected(arguments))
                if all(one is None or torch.equal(one, other) for one, other in zip(found, expected, strict=True)):
                    yield unit, Regime("integers", "counted from the end", lambda values: values), arguments
                    break


def _at_limit(limit: str, values: Tensor) -> Tensor:
    return torch.full_like(values, getattr(torch.iinfo(values.dtype), limit))


def is_usable(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Whether numbers are all finite, or a definition takes -inf among them for what is less than all else.

    Then a number far below the others gives the same.

    Args:
        function: the definition.
        arguments: of a call.
    """
    if all(bool(each.isfinite().all()) for each in tensors_of(arguments) if is_number(each)):
        return True
    if any((each.isnan() | each.isposinf()).any() for each in tensors_of(arguments) if each.is_floating_point()):
        return False
    exact = in_float64(arguments)
    small = each_tensor(lambda each: each.nan_to_num(neginf=-HUGE) if is_number(each) else each, exact)
    try:
        pairs = zip(tree_leaves(function(*exact)), tree_leaves(function(*small)), strict=True)
        return all(
            one.shape == other.shape
            and not (one.isnan() | (one.isfinite() & ~torch.isclose(one.double(), other.double()))).any()
            for one, other in pairs
            if one is not None and is_number(one)
        )
    except Exception:
        return False


def mixes(function: Callable[..., Any], arguments: tuple[Any, ...], unit: Unit) -> bool:
    """Whether an element of a result may depend on several elements of one argument.

    Args:
        function: the definition.
        arguments: of a call.
        unit: the arguments in question.
    """
    exact = list(in_float64(arguments))
    before = tree_leaves(function(*exact))
    for place in unit.places:
        for tensor in tensors_of([exact[place]]):
            if 1 in tensor.shape or not tensor.dim():
                # Of one element nobody can know.
                return True
            count = tensor.numel()
            reached: list[list[Tensor]] = []
            # Neighbours along the last dimension and along the one before it, and the last element.
            for element in {0, 1 % count, (tensor.shape or (1,))[-1] % count, count - 1}:
                values = tensor.clone(memory_format=torch.contiguous_format)
                values.view(-1)[element] += 1
                changed_ones = [values if each is tensor else each for each in tensors_of([exact[place]])]
                value = changed_ones if isinstance(exact[place], list) else values
                after = tree_leaves(function(*replaced(exact, place, value)))
                reached.append([_differs(one, other) for one, other in zip(before, after, strict=True)])
            if any(bool((torch.stack(each).sum(0) > 1).any()) for each in zip(*reached, strict=True)):
                return True
    return False


def _differs(one: Tensor, other: Tensor) -> Tensor:
    return one.double() != other.double() if one.shape == other.shape else torch.ones_like(one, dtype=torch.bool)
