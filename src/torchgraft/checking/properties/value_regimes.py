"""The value is as good as the reference's for huge, tiny, equal, zero and masked values.

Proves: on a few samples each tensor argument alone, and all together, hold values times 30, 100, 3000, 1e20, 1e-4 and
1e-30, values with a mean of 1e4, rounded values, zeros of both signs, a row, a column and a slice of zeros, subnormal
numbers, and -inf as masks have it; integers are negated, at the limits of small dtypes, and all equal. Wherever the
reference in the same dtype is finite and right, the result is finite; its error is at most ten times the reference's
own, or ten times what one rounding of the arguments changes, beside two roundings of the result. Integers are exact.
The limits of a sample (`low`, `high`, `values`, `ordered`, `distinct`) hold, and an operator may refuse values.

Cannot prove: anything where the reference itself overflows or loses its digits. Values times 1e20 and 1e-30 say nothing
about results that many elements go into: there PyTorch may compute in float64 what a right kernel need not.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.regime_words import explained
from torchgraft.checking.helpers.regimes import (
    HUGE,
    TINY,
    Regime,
    changed,
    each_telling,
    integer_regimes,
    is_usable,
    mixes,
    number_regimes,
    units,
)
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import each_tensor
from torchgraft.checking.tensors.dtypes import in_float64, is_number
from torchgraft.checking.tensors.own_error import OwnError, Worse, nearby_arguments

# The number of samples.
_QUICK, _FULL = 3, 12


def check(case: Case) -> None:
    """See the module."""
    each_telling(case, partial(_check_call, case), quick=_QUICK, full=_FULL)


def _check_call(case: Case, call: Call) -> None:
    # A kernel that is wrong for ordinary values needs no other explanation.
    call.expect_close(call.function(*call.arguments), call.expected())
    has_masks = case.samples.non_finite(call.sample)
    asked = [
        (unit, regime) for unit in units(call, is_number) for regime in number_regimes(call, unit, has_masks=has_masks)
    ]
    asked += [(unit, regime) for unit in units(call, _is_whole) for regime in integer_regimes(call, unit)]
    for unit, regime in asked:
        arguments = changed(call, unit, regime.change)
        if arguments is None or not is_usable(call.reference, arguments):
            continue
        worse = _worst(call, regime, arguments)
        if worse is None or (regime.factor in (HUGE, TINY) and mixes(call.reference, call.arguments, unit)):
            continue
        raise explained(call, unit, regime, arguments, worse, partial(_worst, call, regime))


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _worst(call: Call, regime: Regime, arguments: tuple[Any, ...]) -> Worse | None:
    """Finds an element that is worse than it can be; None if there is none, or the values make no sense."""
    exact = in_float64(arguments)
    try:
        known = OwnError(
            exact=call.reference(*exact),
            own=_in_own_dtype(call, arguments),
            nearby=lambda: (
                call.reference(*each)
                for each in nearby_arguments(exact, call.dtype, keep_ties=regime.kind in ("ties", "zeros"))
            ),
            dtype=call.precision,
            summed=call.summed,
            roundings=2 if call.precision == call.dtype else 2 + math.isqrt(call.summed),
            coherent=regime.kind == "mean",
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
        return call.reference(*each_tensor(Tensor.clone, arguments))
    except RuntimeError:
        # PyTorch lacks some kernels for halves.
        wider = each_tensor(lambda each: each.float() if is_number(each) and not each.is_complex() else each, arguments)
        return call.reference(*wider)


PROPERTY = Property(check, dtypes=(torch.float32, torch.float16))
