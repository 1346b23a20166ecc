"""The value is as good as the reference's for huge, tiny, equal, zero and masked values.

Proves: on a few samples each tensor argument alone, and all together, hold values times 30, 100, 3000, 1e20, 1e-4, 1e-8
(not in float16) and 1e-30, in float32 values of which ten add up to infinity, values with a mean of 1e4 and of
-1e4, rounded values, zeros of both signs, a row, a column and a slice of zeros, subnormal numbers, and -inf as masks
have it. One holds halves of a power of two, which all others are, so that it shows how a kernel rounds; one is equal to
each float among the arguments and to multiples of its half, where a limit belongs to one side. Integers are negated, at
the limits of small dtypes, and all equal. In rows of 263 elements, and along the dimension before them, whole blocks
are zero, equal, times 3000 or -inf, and flags are all the same: all but the last element, all but the first, and all
between these two. Wherever the reference in the same dtype is finite and right, the result is finite; its error is at
most ten times the reference's own, or ten times what one rounding of the arguments changes, beside two roundings of the
result. Integers are exact. Where nothing but integers or flags is changed and the reference gives NaN, as the mean of
no element, so does the operator, unless `Samples(non_finite=...)` says otherwise. The limits of a sample (`low`,
`high`, `values`, `ordered`, `distinct`) hold, and an operator may refuse values. In float64, results of whole numbers
and flags are asked of values that float32 does not tell apart. On a CPU, indices are counted from the end, if the
reference gives the same for these.

Cannot prove: anything where the reference itself overflows or loses its digits. Values times 1e20 and 1e-30 say nothing
about results that many elements go into: there PyTorch may compute in float64 what a right kernel need not.

Mend: the first line names the formula. Subtract the maximum before exp; use expm1 and log1p near zero; subtract the
mean before squares are added; ask whether a divisor is zero; begin a maximum at -inf. `low` and `high` of a sample are
for values that make no sense, and not for values that a kernel computes badly.

Example: computes softplus as log(1 + exp(x)), which is infinite from 89 on.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.derived_calls import (
    Derived,
    ask,
    counts_numbers,
    growing_together,
    is_small,
    is_taken_on_cpu,
    kinds_of,
    resized,
)
from torchgraft.checking.helpers.number_regime import at_numbers
from torchgraft.checking.helpers.other_sizes import SizePlace
from torchgraft.checking.helpers.regime_words import explained
from torchgraft.checking.helpers.regimes import (
    DIGITS,
    Regime,
    Unit,
    changed,
    each_telling,
    from_the_end,
    halved,
    integer_regimes,
    is_usable,
    mixes,
    number_regimes,
    part_regimes,
    units,
)
from torchgraft.checking.helpers.settings import on_threads, pytorch_in_time
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_float64, is_number
from torchgraft.checking.tensors.own_error import OwnError, Worse, nearby_arguments
from torchgraft.sampling import Drawn

# Values that are equal stay so where they are changed by one rounding.
_WITH_TIES = ("ties", "zeros", "digits")
# The number of samples.
_QUICK, _FULL = 3, 12
# The width of rows of which a part is special: two blocks of 128 and a part of one. And of how many samples a quick run
# makes them.
_WIDE, _QUICK_WIDE = 263, 2
# The most elements of all arguments of such a call, and of all results; and the most products that are added up in it.
_ELEMENTS, _PRODUCTS = 1 << 15, 1 << 20
# On the wrong side of a limit a result is off by more than such a share of it.
_JUMP = 1e-3
# The turns that each argument has, and the seconds of this thread after which nothing more is asked.
_TURNS = 2
_QUICK_SECONDS, _SECONDS = 0.15, 2.0


def check(case: Case) -> None:
    """See the module."""
    each_telling(case, partial(_check_call, case), quick=_QUICK, full=_FULL)
    # Threads would take longer to begin than such a call takes.
    with on_threads(1):
        _check_wide(case)


def _check_digits(call: Call) -> None:
    """Asks in float64 about numbers that are equal in float32, where what is compared decides about the result."""
    if call.precision == torch.float64 and counts_numbers(call):
        for unit in units(call, is_number):
            _ask(call, unit, DIGITS)


def _check_wide(case: Case) -> None:
    """Asks about rows that are wide, and of which a part is special."""
    samples = [
        sample
        for sample in case.samples.table
        if not (sample.is_empty or sample.tf32) and case.only in (None, sample.name)
    ]
    end = time.thread_time() + (_QUICK_SECONDS if case.quick else _SECONDS)
    for sample in kinds_of(samples, _QUICK_WIDE if case.quick else _FULL):
        for wide in _widened(case.call(sample)):
            # A kernel that is wrong for the size alone needs no other explanation.
            ask(case, [wide], (check_value,), "")
            # However slow a kernel is, each argument has its first turns.
            for number, turn in enumerate(_turns(wide.call), 1):
                for unit, regime in turn:
                    case.each(partial(_ask_part, wide, unit, regime), [wide.call.sample])
                if number >= _TURNS and time.thread_time() > end:
                    return


def _widened(call: Call) -> Iterator[Derived]:
    """Yields a call for each size that rows have: there they are made wide enough for several blocks of a kernel."""
    for places in growing_together(call):
        if any(_is_last(call, place) for place in places):
            wide = resized(call, dict.fromkeys(places, _WIDE))
            if is_small(wide.call, _ELEMENTS, _PRODUCTS) and is_taken_on_cpu(wide.call):
                yield wide


def _is_last(call: Call, place: SizePlace) -> bool:
    value = call.sample.arguments[place.argument]
    one = value if place.element is None else value[place.element]
    return isinstance(one, Drawn) and place.dim == len(one.shape) - 1


def _turns(call: Call) -> Iterator[list[tuple[Unit, Regime]]]:
    """Yields regimes of parts of rows, one for each argument at a time."""
    has_masks = call.samples.non_finite(call.sample)
    by_argument = [
        [(unit, regime) for regime in part_regimes(call, unit, has_masks=has_masks)]
        for unit in units(call, lambda tensor: True)
        if len(tensors_of([call.arguments[place] for place in unit.places])) == 1
    ]
    for turn in zip_longest(*by_argument):
        yield [pair for pair in turn if pair is not None]


def _ask_part(wide: Derived, unit: Unit, regime: Regime, call: Call) -> None:
    samples = call.samples
    call = replace(call, samples=replace(samples, summed=lambda *given: max(samples.summed(*given), wide.terms)))
    try:
        _ask(call, unit, regime)
    except Mismatch as error:
        error.args = (f"{wide.words}: {error}",)
        raise


def _check_call(case: Case, call: Call) -> None:
    # A kernel that is wrong for ordinary values needs no other explanation.
    call.expect_close(call.function(*call.arguments), call.expected())
    has_masks = case.samples.non_finite(call.sample)
    asked = [
        (unit, regime) for unit in units(call, is_number) for regime in number_regimes(call, unit, has_masks=has_masks)
    ]
    asked += [(unit, regime) for unit in units(call, _is_whole) for regime in integer_regimes(call, unit)]
    for unit, regime in asked:
        _ask(call, unit, regime)
    for other, unit, regime in (*halved(call), *at_numbers(call)):
        _ask(other, unit, regime)
    for unit, regime, arguments in from_the_end(call):
        _ask_about(call, unit, regime, arguments)
    if call.dtype == torch.float32 and torch.float64 in (case.declaration.dtypes or ()):
        _check_digits(replace(call, dtype=torch.float64))


def _ask(call: Call, unit: Unit, regime: Regime) -> None:
    arguments = changed(call, unit, regime.change)
    if arguments is not None and is_usable(call.reference, arguments):
        _ask_about(call, unit, regime, arguments)


def _ask_about(call: Call, unit: Unit, regime: Regime, arguments: tuple[Any, ...]) -> None:
    worse = _worst(call, regime, arguments)
    if (
        worse is None
        or (regime.kind == "number" and not _is_jump(worse))
        or (regime.is_extreme and mixes(call.reference, call.arguments, unit))
    ):
        return
    raise explained(call, unit, regime, arguments, worse, partial(_worst, call, regime))


def _is_jump(worse: Worse) -> bool:
    """Whether an element is another number altogether, and not one with other digits."""
    if worse.kind != "error":
        return True
    return abs(worse.found - worse.expected) > _JUMP * max(abs(worse.found), abs(worse.expected))


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _worst(call: Call, regime: Regime, arguments: tuple[Any, ...]) -> Worse | None:
    """Finds an element that is worse than it can be; None if there is none, or the values make no sense."""
    exact = in_float64(arguments)
    try:
        expected = call.reference(*exact)
        # Every dtype holds halves, and so a code that a kernel makes of them has no excuse.
        is_code = regime.kind == "halves" and all(map(_is_whole, tensors_of([expected])))
        known = OwnError(
            exact=expected,
            own=_in_own_dtype(call, arguments),
            nearby=lambda: (
                call.reference(*each)
                for each in (
                    [exact]
                    if is_code or regime.kind == "number"
                    else nearby_arguments(exact, call.dtype, keep_ties=regime.kind in _WITH_TIES)
                )
            ),
            dtype=call.precision,
            summed=call.summed,
            roundings=2 if call.precision == call.dtype else 2 + math.isqrt(call.summed),
            coherent=regime.kind == "mean",
            # Real numbers are ordinary there, so NaN comes of a number of elements, as that of those that count.
            nan_counts=regime.kind == "integers" and call.samples.non_finite(call.sample),
        )
    except Exception:
        # The reference refuses values that make no sense.
        return None
    # `bad_input` says which errors are clear for integers, which may be indices.
    refusals = (Exception,) if regime.kind == "integers" else (ValueError, TypeError)
    try:
        found = call.function(*each_tensor(Tensor.clone, arguments))
    except refusals:
        return None
    return known.worst(found)


def _in_own_dtype(call: Call, arguments: tuple[Any, ...]) -> Any:
    try:
        with pytorch_in_time(call.device, call.dtype):
            return call.reference(*each_tensor(Tensor.clone, arguments))
    except RuntimeError:
        # PyTorch lacks some kernels for halves.
        wider = each_tensor(lambda each: each.float() if is_number(each) and not each.is_complex() else each, arguments)
        return call.reference(*wider)


PROPERTY = Property(check, dtypes=(torch.float32, torch.float16))
