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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.regimes import Change, Unit, changed, each_telling, units, zero_rows
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_float64, is_number
from torchgraft.checking.tensors.own_error import OwnError, Worse, nearby_arguments

# The number of samples.
_QUICK, _FULL = 3, 12
_MEAN = 1e4
_HUGE, _TINY = 1e20, 1e-30
# The steps of a bisection.
_STEPS = 30


@dataclass(frozen=True)
class _Regime:
    """Values of one kind.

    Attributes:
        kind: decides how a failure is explained.
        values: what they are, for a person; it follows the name of the argument.
        change: makes them of a sample's values.
        factor: what they are multiplied by; 1 if they are made in another way.
    """

    kind: Literal["ties", "zeros", "large", "mean", "small", "mask", "integers"]
    values: str
    change: Change
    factor: float = 1.0


def check(case: Case) -> None:
    """See the module."""

    def each(call: Call) -> None:
        _check_call(call, has_masks=case.samples.non_finite(call.sample))

    each_telling(case, each, quick=_QUICK, full=_FULL)


def _check_call(call: Call, *, has_masks: bool) -> None:
    # A kernel that is wrong for ordinary values needs no other explanation.
    call.expect_close(call.function(*call.arguments), call.expected())
    asked = [(unit, regime) for unit in units(call, is_number) for regime in _number_regimes(call, unit, has_masks)]
    asked += [(unit, regime) for unit in units(call, _is_whole) for regime in _integer_regimes(call, unit)]
    for unit, regime in asked:
        arguments = changed(call, unit, regime.change)
        if arguments is None or not (regime.kind == "mask" or _all_finite(arguments)):
            continue
        question = _Question(call, arguments, coherent=regime.kind == "mean")
        worse = question.worst()
        if worse is None or (regime.factor in (_HUGE, _TINY) and _mixes(call, unit)):
            continue
        raise _explained(call, unit, regime, arguments, worse)


def _is_whole(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def _all_finite(arguments: tuple[Any, ...]) -> bool:
    return all(bool(each.isfinite().all()) for each in tensors_of(arguments) if is_number(each))


# The regimes


def _number_regimes(call: Call, unit: Unit, has_masks: bool) -> Iterator[_Regime]:
    yield _Regime("ties", "rounded", torch.round)
    tensors = tensors_of([call.arguments[place] for place in unit.places])
    if len(tensors) == 1:
        for what, change in zero_rows(tensors[0]):
            yield _Regime("zeros", what, change)
    yield _Regime("zeros", "zeros", torch.zeros_like)
    yield _Regime("zeros", "negative zeros", lambda values: torch.full_like(values, -0.0))
    for factor in (30.0, 100.0, 3000.0, _HUGE):
        yield _Regime("large", f"times {factor:g}", _times(factor), factor)
    yield _Regime("mean", f"with a mean of {_MEAN:g}", lambda values: values + _MEAN)
    for factor in (1e-4, _TINY):
        yield _Regime("small", f"times {factor:g}", _times(factor), factor)
    subnormal = torch.finfo(call.dtype).tiny / 8 if is_number(torch.empty(0, dtype=call.dtype)) else _TINY
    yield _Regime("small", "in subnormal numbers", _times(subnormal), _TINY)
    if has_masks and not any(tensor.is_complex() for tensor in tensors):
        yield _Regime("mask", "with elements of -inf, as a mask has them", _masked)


def _times(factor: float) -> Change:
    return lambda values: values * factor


def _masked(values: Tensor) -> Tensor:
    """Every third element of the last dimension, so that no row of two or more is masked as a whole."""
    values = values.clone()
    if values.dim() and values.shape[-1] > 1:
        values[..., 1::3] = -torch.inf
    return values


def _integer_regimes(call: Call, unit: Unit) -> Iterator[_Regime]:
    yield _Regime("integers", "all equal to its first", lambda values: values.flatten()[0].expand(values.shape))
    yield _Regime("integers", "all equal to its largest", lambda values: values.max().expand(values.shape))
    dtypes = {tensor.dtype for tensor in tensors_of([call.arguments[place] for place in unit.places])}
    if torch.bool in dtypes:
        yield _Regime("integers", "negated", torch.logical_not)
        return
    # Integers without limits may still be indices, which the reference then refuses. `bad_input` asks for an element at
    # the limits of wide dtypes: with its bounds of time and memory.
    if all(dtype.is_signed for dtype in dtypes):
        yield _Regime("integers", "negated", torch.neg)
    if all(dtype.itemsize <= 2 for dtype in dtypes):
        yield _Regime("integers", "at the minimum of its dtype", partial(_at_limit, "min"))
        yield _Regime("integers", "at the maximum of its dtype", partial(_at_limit, "max"))


def _at_limit(limit: str, values: Tensor) -> Tensor:
    return torch.full_like(values, getattr(torch.iinfo(values.dtype), limit))


# The answers


@dataclass(frozen=True)
class _Question:
    """A call with other arguments: what the kernel gives, and what is known of it."""

    call: Call
    arguments: tuple[Any, ...]
    coherent: bool = False

    @cached_property
    def known(self) -> OwnError | None:
        """What the reference says; None if it raises, as it does for values that make no sense."""
        call, exact = self.call, in_float64(self.arguments)
        try:
            return OwnError(
                exact=call.reference(*exact),
                own=_in_own_dtype(call, self.arguments),
                nearby=lambda: (
                    call.reference(*each) for each in nearby_arguments(exact, call.dtype, keep_ties=self.has_ties)
                ),
                dtype=call.precision,
                summed=call.summed,
                roundings=2 if call.precision == call.dtype else 2 + math.isqrt(call.summed),
                coherent=self.coherent,
            )
        except Exception:
            return None

    @property
    def has_ties(self) -> bool:
        """Whether the arguments hold whole numbers, which are equal on purpose."""
        numbers = [each for each in tensors_of(self.arguments) if is_number(each)]
        return all(torch.equal(each, _rounded(each)) for each in numbers)

    def worst(self) -> Worse | None:
        """Finds an element that is worse than it can be; None if there is none, or the kernel refuses the values."""
        if self.known is None:
            return None
        try:
            found = self.call.function(*each_tensor(Tensor.clone, self.arguments))
        except (ValueError, TypeError):
            return None
        return self.known.worst(found)


def _rounded(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_complex() else tensor.round()


def _in_own_dtype(call: Call, arguments: tuple[Any, ...]) -> Any:
    try:
        return call.reference(*each_tensor(Tensor.clone, arguments))
    except RuntimeError:
        # PyTorch lacks some kernels for halves.
        wider = each_tensor(lambda each: each.float() if is_number(each) and not each.is_complex() else each, arguments)
        return call.reference(*wider)


def _mixes(call: Call, unit: Unit) -> bool:
    """Whether an element of a result depends on several elements of one argument."""
    exact = in_float64(call.arguments)
    before = tree_leaves(call.reference(*exact))
    for place in unit.places:
        for tensor in tensors_of([exact[place]]):
            reached: list[list[Tensor]] = []
            # Neighbours along the last dimension, along the one before it, and far apart.
            for element in sorted(
                {0, min(1, tensor.numel() - 1), (tensor.shape or (1,))[-1] % tensor.numel(), -1 % tensor.numel()}
            ):
                values = tensor.clone(memory_format=torch.contiguous_format)
                values.view(-1)[element] += 1
                others = list(exact)
                if isinstance(exact[place], list):
                    others[place] = [values if each is tensor else each for each in exact[place]]
                else:
                    others[place] = values
                after = tree_leaves(call.reference(*others))
                reached.append([_differs(one, other) for one, other in zip(before, after, strict=True)])
            counts = [sum(each.int() for each in results) for results in zip(*reached, strict=True)]
            if any(bool((count > 1).any()) for count in counts):
                return True
    return False


def _differs(one: Tensor, other: Tensor) -> Tensor:
    return (one.double() != other.double()) if one.shape == other.shape else torch.full((2,), True)


# The explanations


def _explained(call: Call, unit: Unit, regime: _Regime, arguments: tuple[Any, ...], worse: Worse) -> Mismatch:
    """Makes the failure, which names the cause where the regime tells it."""
    where = f"{worse.count} of {worse.total} elements, the first at {list(worse.index)}"
    names = " and ".join(call.declaration.arguments[place].name for place in unit.places)
    subject = f"{names} {regime.values}"
    is_lost = worse.kind == "not finite"
    if regime.kind == "large":
        cause = _of_large(call, unit, regime, arguments, worse, names)
    elif worse.kind == "integer":
        ties = "ties: where values are equal, " if regime.kind in ("ties", "zeros") else ""
        cause = f"{ties}the result for {subject} is {worse.found} and the reference's {worse.expected}"
    elif regime.kind == "mean" or (regime.kind == "small" and not is_lost):
        place = "have mean 1e4" if regime.kind == "mean" else f"are near {regime.factor:g}"
        lost = f"it is {worse.found}" if is_lost else f"error {worse.times:.2g} times that of the reference"
        advice = "subtract the mean before squaring" if regime.kind == "mean" else "use expm1, log1p or a series"
        cause = f"loses digits by cancellation: {lost} when the values of {names} {place} ({advice})"
    elif regime.kind in ("zeros", "small") and is_lost:
        division = "0/0" if math.isnan(_number(worse.found)) else "a division by 0, or a logarithm of it,"
        what = regime.values if regime.kind == "zeros" else f"values that are squared to zero ({regime.values})"
        cause = f"{division} for {what} in {names}: the result is {worse.found} where the reference is finite"
    elif regime.kind == "mask":
        cause = f"{worse.found} for {subject}, where the reference is finite (inf - inf, or 0 times inf)"
        if not is_lost:
            cause = f"the result is wrong for {subject}"
    else:
        cause = f"the result is wrong for {subject}: error {worse.times:.2g} times that of the reference"
    allowed = "" if worse.kind == "integer" else f"{worse.allowed:.3g}, as the reference errs in the same dtype too"
    return Mismatch(
        f"{cause}; {where}", index=worse.index, expected=worse.expected, found=worse.found, tolerance=allowed
    )


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _of_large(call: Call, unit: Unit, regime: _Regime, arguments: tuple[Any, ...], worse: Worse, names: str) -> str:
    """Finds the value beyond which a result is wrong, by bisection, and what computes nothing there."""
    right, wrong = 1.0, regime.factor
    for _ in range(_STEPS):
        middle = math.sqrt(right * wrong)
        other = changed(call, unit, _times(middle))
        if other is not None and (found := _Question(call, other).worst()) is not None:
            wrong, arguments, worse = middle, other, found
        else:
            right = middle
    limit, advice = _limit(arguments, unit, worse, call.dtype)
    if worse.kind != "not finite":
        what = f"error {worse.times:.2g} times that of the reference" if worse.kind == "error" else "another result"
        return f"right up to about {limit:.3g} in {names} and wrong beyond: {what} for {names} {regime.values}"
    beyond = "NaN" if math.isnan(_number(worse.found)) else "infinite"
    cause = f"overflows: finite up to about {limit:.3g} in {names} and {beyond} beyond"
    return f"{cause}, where the reference is finite{advice}"


def _limit(arguments: tuple[Any, ...], unit: Unit, worse: Worse, dtype: torch.dtype) -> tuple[float, str]:
    """Returns the value at which a result is just about wrong, and advice where the value tells the cause.

    It is the value that the result is made of, or one of the largest if it is made of many.
    """
    tensors = tensors_of([arguments[place] for place in unit.places])
    if len(tensors) == 1 and tuple(tensors[0].shape) == worse.shape:
        sizes = [abs(tensors[0][worse.index].item())]
    else:
        real = [torch.view_as_real(each) if each.is_complex() else each for each in tensors]
        sizes = sorted({abs(each(one).item()) for one in real for each in (torch.amax, torch.amin)}, reverse=True)
    for is_cause, advice in _CAUSES:
        for size in sizes:
            if any(is_cause(size, torch.finfo(each).max) for each in (dtype, torch.float32)):
                return size, advice
    return sizes[0], ""


# What an overflow that begins at some value, in a dtype with a largest number, most likely is, and what to do about it.
_CAUSES: tuple[tuple[Callable[[float, float], bool], str], ...] = (
    (
        lambda size, most: 0.85 <= size / math.log(most) <= 1.05,
        " (an exponential: subtract the maximum, or use expm1/log1p)",
    ),
    (lambda size, most: 0.45 <= size / math.sqrt(most) <= 1.05, " (a square: divide by the largest value before)"),
)


PROPERTY = Property(check, dtypes=(torch.float32, torch.float16))
