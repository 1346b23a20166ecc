"""Explains what is wrong in a regime of values, in the words of whoever wrote the kernel."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch

from torchgraft.checking.call import Call
from torchgraft.checking.helpers.regimes import TINY, Regime, Unit, changed, times
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import is_number
from torchgraft.checking.tensors.own_error import Worse

_TIES = {
    **dict.fromkeys(("ties", "zeros"), "ties: where values are equal, "),
    "halves": "rounds halves in another direction: ",
    "digits": "takes float64 for float32: ",
}
# Factors of which a result changes little, and how far logarithms of steady ones may be apart, and are from 0.
_CLOSE_FACTORS = (1.0, 1.1, 1.21)
_STEADY, _OTHER = 0.2, 0.1
# The steps of a bisection.
_STEPS = 30
# How close to a whole number a power is, and how far from another one.
_NEAR, _APART = 0.1, 0.5


def explained(
    call: Call, unit: Unit, regime: Regime, arguments: tuple[Any, ...], worse: Worse, ask: Callable[..., Worse | None]
) -> Mismatch:
    """Makes the failure of a call in a regime; it names the cause where the regime tells it.

    Args:
        call: with the values of its sample.
        unit: the arguments that were changed.
        regime: how they were changed.
        arguments: the changed ones.
        worse: what is wrong.
        ask: finds what is wrong for other arguments.
    """
    where = f"{worse.count} of {worse.total} elements, the first at {list(worse.index)}"
    names = _names(call, unit)
    subject = f"{names} {regime.values}"
    is_lost = worse.kind == "not finite"
    if worse.kind == "number":
        cause = f"{worse.what} is {worse.found} for {subject}, where the reference gives NaN, as 0/0 is"
    elif regime.kind == "number":
        advice = "the other side of a limit, as < is for <=, or a half that is rounded otherwise"
        cause = f"{worse.what} is {worse.found} for {subject}, and the reference's {worse.expected} ({advice})"
    elif regime.kind == "large":
        cause = _of_large(call, unit, regime, arguments, worse, ask)
    elif worse.kind == "integer":
        ties = _TIES.get(regime.kind, "")
        cause = f"{ties}{worse.what} for {subject} is {worse.found} and the reference's {worse.expected}"
    elif regime.kind == "mean" and is_lost:
        advice = "an exponential: subtract the maximum, which may be far below 0"
        cause = f"{worse.what} is {worse.found} for {subject}, where the reference is finite ({advice})"
    elif regime.kind == "mean" and _is_far_off(worse, regime):
        cause = f"{worse.what} is {worse.found:g} for {subject}, and the reference's {worse.expected:g}"
    elif regime.kind == "small" and not is_lost and (how := _other_growth(call, unit, regime, worse, ask)):
        cause = (
            f"{worse.what} has error {worse.times:.2g} times that of the reference when the values of {names} are near"
            f" {regime.factor:g}: {how} (a floor, a clamp or an epsilon that the definition does not have, or has in"
            " another place)"
        )
    elif regime.kind == "small" and regime.factor == TINY and worse.found == 0:
        # Digits that cancel would have been lost for larger values before.
        cause = (
            f"underflows: {worse.what} is 0 for {subject}, where that of the reference is {worse.expected:g} (a square"
            " of such numbers is 0: divide by the largest value before; or subnormal numbers are taken for zero)"
        )
    elif regime.kind == "mean" or (regime.kind == "small" and not is_lost):
        place = regime.values.replace("with", "have") if regime.kind == "mean" else f"are near {regime.factor:g}"
        lost = f"error {worse.times:.2g} times that of the reference"
        advice = "subtract the mean before squaring" if regime.kind == "mean" else "use expm1, log1p or a series"
        cause = f"loses digits by cancellation{_of(worse)}: {lost} when the values of {names} {place} ({advice})"
    elif regime.kind in ("ties", "zeros", "small") and is_lost:
        division = "0/0" if math.isnan(_number(worse.found)) else "a division by 0, or a logarithm of it,"
        what = {
            "ties": f"values that are {regime.values}",
            "zeros": regime.values,
            "small": f"values that are squared to zero ({regime.values})",
        }[regime.kind]
        cause = f"{division} for {what} in {names}: {worse.what} is {worse.found} where the reference is finite"
    elif regime.kind == "mask" or (is_lost and regime.kind in ("integers", "part")):
        is_nan = math.isnan(_number(worse.found))
        advice = "0/0, inf - inf, or 0 times inf" if is_nan else "a division by 0, a logarithm of it, or an overflow"
        cause = f"{worse.what} is {worse.found} for {subject}, where the reference is finite ({advice})"
        if not is_lost:
            cause = f"{worse.what} is wrong for {subject}"
    elif regime.kind in ("ties", "zeros") and _is_of_signs(arguments, ask):
        cause = f"takes -0.0 for 0 in {names}: {worse.what} is {worse.found:g}, and the reference's {worse.expected:g}"
    else:
        cause = f"{worse.what} is wrong for {subject}: error {worse.times:.2g} times that of the reference"
    allowed = (
        ""
        if worse.kind in ("integer", "number")
        else f"{worse.allowed:.3g}, as the reference errs in the same dtype too"
    )
    return Mismatch(
        f"{cause}; {where}", index=worse.index, expected=worse.expected, found=worse.found, tolerance=allowed
    )


def _is_far_off(worse: Worse, regime: Regime) -> bool:
    """Whether a result that should be as large as its arguments is another number: it has not just lost its digits."""
    expected, found = _number(worse.expected), _number(worse.found)
    mean = abs(float(regime.values.rpartition(" ")[2]))
    return abs(expected) > mean / 10 and abs(found - expected) > abs(expected) / 10


def _is_of_signs(arguments: tuple[Any, ...], ask: Callable[..., Worse | None]) -> bool:
    """Whether a result is right if all zeros are positive."""
    return ask(each_tensor(lambda each: each + 0.0 if is_number(each) else each, arguments)) is None


def _other_growth(call: Call, unit: Unit, regime: Regime, worse: Worse, ask: Callable[..., Worse | None]) -> str:
    """Says how a result grows otherwise with its arguments than the reference's; lost digits follow no rule."""
    if _is_floored(call, unit, regime, worse, ask):
        return "below some point it grows with another power of them"
    parts = []
    for factor in _CLOSE_FACTORS:
        other = changed(call, unit, times(regime.factor * factor))
        one = None if other is None else ask(other)
        if one is None or one.index != worse.index:
            return ""
        found, expected = _number(one.found), _number(one.expected)
        if not (math.isfinite(found) and math.isfinite(expected) and found * expected > 0):
            return ""
        parts.append(math.log(found / expected))
    is_steady = max(parts) - min(parts) < _STEADY
    return "it is about the same part of the other for all of them" if is_steady and abs(parts[0]) > _OTHER else ""


def _is_floored(call: Call, unit: Unit, regime: Regime, worse: Worse, ask: Callable[..., Worse | None]) -> bool:
    """Whether a result has another power of a factor of the arguments than the reference's."""
    for step in (4.0, 0.25):
        ones = [worse]
        for factor in (step, step * step):
            other = changed(call, unit, times(regime.factor * factor))
            next_one = None if other is None else ask(other)
            if next_one is None or next_one.index != worse.index:
                break
            ones.append(next_one)
        found, expected = ([_number(getattr(one, of)) for one in ones] for of in ("found", "expected"))
        if len(ones) < 3 or not all(map(math.isfinite, (*found, *expected))) or 0 in (*found, *expected):
            continue
        powers, wanted = (
            [_power(two / one, step) for one, two in itertools.pairwise(each)] for each in (found, expected)
        )
        is_whole = all(abs(one - round(one)) < _NEAR for one in powers) and round(powers[0]) == round(powers[1])
        if is_whole and all(abs(one - other) > _APART for one, other in zip(powers, wanted, strict=True)):
            return True
    return False


def _power(ratio: float, step: float) -> float:
    return math.log(abs(ratio)) / math.log(step)


def _names(call: Call, unit: Unit) -> str:
    return " and ".join(call.declaration.arguments[place].name for place in unit.places)


def _of(worse: Worse) -> str:
    """Names what is wrong, unless it is the only result."""
    return "" if worse.what == "the result" else f" in {worse.what}"


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _of_large(
    call: Call, unit: Unit, regime: Regime, arguments: tuple[Any, ...], worse: Worse, ask: Callable[..., Worse | None]
) -> str:
    """Finds the value beyond which a result is wrong, by bisection."""
    names = _names(call, unit)
    right, wrong = 1.0, regime.factor
    for _ in range(_STEPS):
        middle = math.sqrt(right * wrong)
        other = changed(call, unit, times(middle))
        if other is not None and (found := ask(other)) is not None:
            wrong, arguments, worse = middle, other, found
        else:
            right = middle
    limit, advice = _limit(arguments, unit, worse, call.dtype)
    if worse.kind != "not finite":
        error = "" if worse.kind == "integer" else f": error {worse.times:.2g} times that of the reference"
        return f"{worse.what} is right up to about {limit:.3g} in {names} and wrong beyond{error}"
    beyond = "NaN" if math.isnan(_number(worse.found)) else "infinite"
    cause = f"overflows{_of(worse)}: finite up to about {limit:.3g} in {names} and {beyond} beyond"
    return f"{cause}, where the reference is finite{advice}"


def _limit(arguments: tuple[Any, ...], unit: Unit, worse: Worse, dtype: torch.dtype) -> tuple[float, str]:
    """Returns the value at which a result is just about wrong, and advice where the value tells the cause.

    It is the value that the result is made of, or one of the largest if it is made of many.
    """
    tensors = tensors_of([arguments[place] for place in unit.places])
    real = [torch.view_as_real(each) if each.is_complex() else each for each in tensors]
    largest = sorted({abs(each(one).item()) for one in real for each in (torch.amax, torch.amin)}, reverse=True)
    is_same_shape = len(tensors) == 1 and tuple(tensors[0].shape) == worse.shape
    sizes = [*([abs(tensors[0][worse.index].item())] if is_same_shape else []), *largest]
    for is_cause, advice in _CAUSES:
        for size in sizes:
            if any(is_cause(size, torch.finfo(each).max) for each in (dtype, torch.float32)):
                return size, f" ({advice})"
    return largest[0], " (something in between, such as an exponential: subtract the maximum before)"


# What an overflow most likely is that begins at some value, in a dtype with a largest number, and what to do about it.
_CAUSES: tuple[tuple[Callable[[float, float], bool], str], ...] = (
    (
        lambda size, most: 0.85 <= size / math.log(most) <= 1.05,
        "an exponential: subtract the maximum, or use expm1/log1p",
    ),
    # A sum of many squares overflows sooner; of halves that would be any number.
    (
        lambda size, most: (0.2 if most > 1e30 else 0.95) <= size / math.sqrt(most) <= 1.05,
        "a square: divide by the largest value before",
    ),
)
