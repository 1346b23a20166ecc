"""NaN and infinity appear in the result where the reference has them.

Proves: on the samples for which the definition says what becomes of NaN and infinity, one NaN or one infinity of either
sign, anywhere in an argument, as its first element and as its last one, gives NaN, infinity and finite values in the
same places as the reference. So do two NaNs or two infinities in one row, a NaN whose sign bit is set and one of which
all other bits are, and one NaN or infinity where all other arguments are zero, if the reference in the same dtype gives
the same there. Indices, counts and flags are those of the reference. A random result is wrong where the reference gives
NaN, infinity or a finite value for each of 24 seeds, and the operator gives something else for each of them.

Cannot prove: anything where PyTorch's own implementations differ, for example where a convolution kernel lies over
padding.

Mend: a comparison with NaN is false, so put the case that keeps NaN last: `value < 0 ? 0 : value`. `std::max` drops one
of its arguments; zero times infinity is NaN. `Samples(non_finite=...)` is only for calls whose definition says nothing
of NaN.

Example: gives zero where the definition says NaN.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.regimes import Unit, changed, units
from torchgraft.checking.helpers.settings import pytorch_in_time
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor, replaced
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_equal
from torchgraft.checking.tensors.dtypes import in_float64, is_number

_NAN, _INF = float("nan"), float("inf")
# A processor makes the first of 0/0, and instructions of some GPUs make the second: code that looks at bits takes them
# for less than all numbers, and for more than all others.
_OTHER_NANS = {
    "NaN with its sign bit set": math.copysign(_NAN, -1.0),
    "NaN with all bits but its sign set": struct.unpack("<d", b"\xff" * 7 + b"\x7f")[0],
}
_VALUES = (_NAN, _INF, -_INF)
# The first and the last element of a row.
_PAIRS = ((_NAN, _NAN), (_INF, _INF), (_INF, -_INF))
# What places and counts have; NaN as a code of another dtype is whatever a conversion gives.
_EXACT = (torch.int64, torch.int32, torch.bool)
# Spread over the table: kernels that are forced support few of them.
_SAMPLES = 24
# So many seeds tell which random elements are always NaN, infinite or finite. A right operator that draws other numbers
# than the reference is accused of an element by chance with a probability of 4**-24 at most, that of dropping a half.
_SEEDS = 24
_LARGE_SEED = 2**62


def check(case: Case) -> None:
    """See the module."""
    samples = [each for each in case.table(small=True, empty=False) if case.samples.non_finite(each)]
    if not samples:
        raise NotApplicable("for no sample its reference defines what becomes of NaN and infinity")
    count = min(_SAMPLES, len(samples))
    case.each(_check_each, [samples[turn * len(samples) // count] for turn in range(count)])


def _check_each(call: Call) -> None:
    for argument, tensor, with_other in call.tensors_in_turn():
        if _has_non_finite(tensor):
            for what, values in _patterns(call, tensor):
                _check_pattern(call, f"{argument} with {what}", values, with_other)
    _check_beside_zeros(call)


def _has_non_finite(tensor: Tensor) -> bool:
    """Whether a tensor is of real numbers of two bytes or more, among which NaN and both infinities are."""
    return tensor.is_floating_point() and tensor.element_size() > 1


def _check_beside_zeros(call: Call) -> None:
    """Asks whether zero times infinity is left out, as by a kernel that skips zeros."""
    places = [unit.places[0] for unit in units(call, is_number) if len(unit.places) == 1]
    for place in places:
        tensor, others = call.arguments[place], tuple(each for each in places if each != place)
        if not others or not isinstance(tensor, Tensor) or not _has_non_finite(tensor):
            continue
        zeros = changed(call, Unit("others", others), torch.zeros_like)
        if zeros is None:
            continue
        middle = tuple(size // 2 for size in tensor.shape)
        for value in _VALUES[:2]:
            values = _with(tensor, {middle: value})
            if _agrees_in_both(call, replaced(zeros, place, values)):
                name = f"{call.declaration.arguments[place].name} with one {value}, where all others are zero,"
                _check_pattern(call, name, values, partial(_with_copies, zeros, place))


def _with_copies(arguments: tuple[Any, ...], place: int, other: Tensor) -> tuple[Any, ...]:
    return replaced(each_tensor(Tensor.clone, arguments), place, other)


def _agrees_in_both(call: Call, arguments: tuple[Any, ...]) -> bool:
    """Whether the reference gives NaN and infinity in the same places in float64 and in the dtype of the call."""
    if call.declaration.random:
        return False
    try:
        with pytorch_in_time(call.device, call.dtype):
            own = tree_leaves(call.reference(*each_tensor(Tensor.clone, arguments)))
        pairs = zip(tree_leaves(call.expected(arguments)), own, strict=True)
        return all(one.shape == two.shape and torch.equal(*map(_marks, (one, two))) for one, two in pairs)
    except Exception:
        return False


def _marks(tensor: Tensor) -> Tensor:
    """1 for NaN, 2 for infinity and 0 for what is finite."""
    return tensor.isnan() + 2 * tensor.isinf()


def _patterns(call: Call, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yields tensors with one or two special elements, and what these are."""
    random = Random(call.seed)
    for value in _VALUES:
        anywhere = tuple(random.randrange(size) for size in tensor.shape)
        yield f"one {value}", _with(tensor, {anywhere: value})
    for what, value in _OTHER_NANS.items():
        yield f"one {what}", _with(tensor, {anywhere: value})
    first, last = (0,) * tensor.dim(), tuple(size - 1 for size in tensor.shape)
    if first == last:
        return
    for place, at in (("first", first), ("last", last)):
        for value in _VALUES:
            yield f"one {value}, its {place} element", _with(tensor, {at: value})
    if tensor.shape[-1] > 1:
        row = anywhere[:-1]
        begin, end = (*row, 0), (*row, tensor.shape[-1] - 1)
        for one, other in _PAIRS:
            yield f"{one} first and {other} last in a row", _with(tensor, {begin: one, end: other})


def _with(tensor: Tensor, values: Mapping[tuple[int, ...], float]) -> Tensor:
    changed = tensor.clone()
    for place, value in values.items():
        changed[place] = value
    return changed


def _check_pattern(call: Call, name: str, values: Tensor, with_other: Callable[[Any], tuple[Any, ...]]) -> None:
    try:
        expected = tree_leaves(_by_reference(call, with_other(values), 0))
    except Exception:
        # `bad_input` says what becomes of values that the reference refuses.
        return
    # A call may write to what it is given.
    found = tree_leaves(call.function(*with_other(values.clone())))
    expect(len(found) == len(expected), f"{name} gives another number of results than the reference")
    for one, other in zip(found, expected, strict=True):
        expect(one.shape == other.shape, f"the result of {name} has the wrong shape")
    if call.declaration.random:
        is_known = _wrong_for_all_seeds(call, found, expected, partial(_with_copy, with_other, values))
    else:
        is_known = [torch.ones_like(each, dtype=torch.bool) for each in expected]
    for one, other, judged in zip(found, expected, is_known, strict=True):
        # NaN is equal to NaN here, and 1 stands for whatever is finite.
        kinds = [_kinds(each).where(judged, 0) for each in (one, other)]
        try:
            expect_equal(*kinds, what=f"the pattern of NaN, infinite and finite values in the result of {name}")
        except Mismatch as wrong:
            expected_there, found_there = (_in_words(each[wrong.index or ()]) for each in (other, one))
            raise Mismatch(str(wrong), index=wrong.index, expected=expected_there, found=found_there) from wrong
    places = [place for place, one in enumerate(found) if one.dtype in _EXACT and one.numel()]
    if places and not call.declaration.random:
        own = tree_leaves(call.reference(*with_other(values.clone())))
        for place in places:
            _check_places(found[place], expected[place], own[place], values.numel(), name)


def _with_copy(with_other: Callable[[Any], tuple[Any, ...]], values: Tensor) -> tuple[Any, ...]:
    return with_other(values.clone())


def _by_reference(call: Call, arguments: tuple[Any, ...], turn: int) -> Any:
    """The results of the reference in float64; a random one draws them by the seed of that turn."""
    if not call.declaration.random:
        return call.expected(arguments)
    return call.declaration.visible(call.operator.reference(*in_float64(_seeded(call, arguments, turn))))


def _seeded(call: Call, arguments: tuple[Any, ...], turn: int) -> tuple[Any, ...]:
    """The arguments with another seed for each turn, which has 64 bits too."""
    names = [argument.name for argument in call.declaration.arguments]
    place = names.index(call.declaration.random[0])
    seed = arguments[place]
    return replaced(arguments, place, seed - turn if seed > _LARGE_SEED else seed + turn)


def _wrong_for_all_seeds(
    call: Call, found: Sequence[Tensor], expected: Sequence[Tensor], make: Callable[[], tuple[Any, ...]]
) -> list[Tensor]:
    """Where the reference gives the same kind of value for all seeds, and the operator another kind for each.

    The operator and the reference draw different numbers, so that one of them may drop what the other keeps.

    Args:
        call: of a random operator.
        found: results of the operator by the first seed.
        expected: those of the reference.
        make: gives new arguments.
    """
    kinds = [_marks(each) for each in expected]
    suspected = [_marks(one) != kind for one, kind in zip(found, kinds, strict=True)]
    for turn in range(1, _SEEDS):
        if not any(bool(each.any()) for each in suspected):
            break
        others = tree_leaves(_by_reference(call, make(), turn))
        again = tree_leaves(call.function(*_seeded(call, make(), turn)))
        suspected = [
            still & (_marks(other) == kind) & (_marks(one) != kind)
            for still, kind, other, one in zip(suspected, kinds, others, again, strict=True)
        ]
    return suspected


def _check_places(found: Tensor, expected: Tensor, own: Tensor, most: int, name: str) -> None:
    """Compares whole numbers and flags, as the place of a maximum.

    A code that is made of NaN or infinity may be any number: only what can be a place or a count is compared, where the
    reference gives the same in both dtypes.
    """
    is_known = (own == expected) & (expected.long() >= 0) & (expected.long() <= most)
    expect_equal(
        torch.where(is_known, found.long(), 0),
        torch.where(is_known, expected.long(), 0),
        what=f"the result of {name}",
    )


def _in_words(element: Tensor) -> str:
    """An element as it is, and whether it is finite, where the text of a number does not say it."""
    value = element.to(torch.complex128 if element.is_complex() else torch.float64)
    return f"{value.item()}, which is finite" if value.isfinite() else str(value.item())


def _kinds(tensor: Tensor) -> Tensor:
    exact = tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()
    return torch.where(exact.isfinite(), 1.0, exact)


# Kernels for dtypes of two bytes multiply on tensor cores, where an infinity meets the zeros of a padded product.
PROPERTY = Property(check, dtypes=(torch.float32, torch.float16))
