"""The gradient is as good as the reference's for huge, tiny, equal, zero and masked values, and at kinks and ties.

Proves: on a few samples the tensor arguments hold the values of `value_regimes`, but for those times 1e20 and 1e-30.
Wherever the gradient of the reference in the same dtype is finite and right, the gradient is finite, and its error is
at most ten times the reference's own. Where a maximum occurs several times, its gradient may be divided otherwise among
the equal elements, with the same sum. At kinks, as of relu at 0 and of clamp at a whole number, the reference decides;
`Samples(kinks=...)` says where any finite gradient is right. Zeros are asked for each number and flag of the samples.
Where a function of each element goes to zero, as softplus does far below 0, and both its results and the gradient of
the reference are right to 1 %, the gradient has a right digit too. On a CPU, indices are counted from the end.

Cannot prove: that a gradient is divided in a sensible way among equal elements, or anything about kinks at other values
than whole numbers.

Mend: the derivative overflows or divides zero by zero earlier than the value: write it with saved results, as a sigmoid
instead of exp / (1 + exp). At a kink, take the reference's side.

Example: the gradient formula divides two infinities from 89 on.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import SMALL_ELEMENTS, Case
from torchgraft.checking.helpers.kinks import CLOSE, sums_along_ties
from torchgraft.checking.helpers.regime_words import explained
from torchgraft.checking.helpers.regimes import (
    Regime,
    Unit,
    changed,
    each_telling,
    from_the_end,
    is_usable,
    mixes,
    number_regimes,
    times,
    units,
)
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_float64, is_number
from torchgraft.checking.tensors.gradients import attached, grad_or_zeros, leaves_of
from torchgraft.checking.tensors.own_error import OwnError, Worse, nearby_arguments
from torchgraft.sampling import Drawn

_QUICK, _FULL = 2, 8
# What tensors are multiplied by for a function's tails; the share of the largest result up to which one counts as a
# tail; the error that a result may have there, and that a gradient may, in proportion to itself.
_TAILS, _TAIL, _RIGHT, _NO_DIGIT = (10.0, 30.0), 1e-4, 0.01, 0.5
# The seconds of this thread after which no more samples are asked about zeros alone.
_QUICK_SECONDS, _SECONDS = 0.15, 2.0


def check(case: Case) -> None:
    """See the module."""
    each_telling(case, partial(_check_call, case), quick=_QUICK, full=_FULL)
    _check_zeros(case)


def _check_zeros(case: Case) -> None:
    """Asks each sample with other numbers about zeros, which a formula may divide for one of these numbers alone."""
    end = time.thread_time() + (_QUICK_SECONDS if case.quick else _SECONDS)
    seen: set[str] = set()
    for sample in case.table(empty=False):
        numbers = repr([each for each in sample.arguments if not _has_tensors(each)])
        if sample.elements > SMALL_ELEMENTS or sample.tf32 or numbers in seen:
            continue
        seen.add(numbers)
        if time.thread_time() < end:
            case.each(partial(_check_call, case, kinds=("zeros",)), [sample])


def _has_tensors(argument: Any) -> bool:
    return any(isinstance(each, Drawn) for each in (argument if isinstance(argument, (list, tuple)) else [argument]))


def _check_call(case: Case, call: Call, kinds: Sequence[str] = ()) -> None:
    names = {name.partition("[")[0] for name in call.leaf_names}
    if not names:
        raise NotApplicable("no argument has a gradient")
    # A gradient that is wrong for ordinary values needs no other explanation.
    check_gradient(call)
    samples, declared, sizes = case.samples, call.declaration.arguments, _sizes_of_gradients(call)
    has_masks, has_kinks = samples.non_finite(call.sample), samples.kinks(call.sample)
    for unit in units(call, is_number):
        if names.isdisjoint(declared[place].name for place in unit.places):
            continue
        for regime in number_regimes(call, unit, has_masks=has_masks):
            if kinds and regime.kind not in kinds:
                continue
            arguments = changed(call, unit, regime.change)
            if regime.is_extreme or arguments is None or not is_usable(call.reference, arguments):
                continue
            ask = partial(_worst, call, regime, sizes, has_kinks=has_kinks)
            worse = ask(arguments)
            if worse is None:
                continue
            if worse.kind == "error" and regime.kind in ("ties", "zeros"):
                subject = f"{' and '.join(declared[place].name for place in unit.places)} {regime.values}"
                raise _of_kink(subject, worse)
            raise explained(call, unit, regime, arguments, worse, ask)
        if len(unit.places) == 1 and not kinds:
            _check_tails(call, unit)
    for unit, regime, arguments in () if kinds else from_the_end(call):
        ask = partial(_worst, call, regime, sizes, has_kinks=has_kinks)
        try:
            worse = ask(arguments)
        except Mismatch:
            raise
        except Exception:
            # The operator refuses such indices: `bad_input` says which errors are clear.
            continue
        if worse is not None:
            raise explained(call, unit, regime, arguments, worse, ask)


def _check_tails(call: Call, unit: Unit) -> None:
    """Asks for a digit of the gradient where a result is small in proportion to others, and right.

    An absolute error as that of one rounding is all that a gradient can have where the result saturates, as tanh does:
    nothing is left of it there. But a result that goes to zero has all its digits, and so can a gradient made of it.
    """
    name = call.declaration.arguments[unit.places[0]].name
    if name not in call.leaf_names:
        # It is a list.
        return
    number = call.leaf_names.index(name)
    for factor in _TAILS:
        arguments = changed(call, unit, times(factor))
        if arguments is None or not is_usable(call.reference, arguments):
            continue
        try:
            exact = [each for each in tree_leaves(call.expected(arguments)) if each is not None]
            of_elements = len(exact) == 1 and exact[0].shape == arguments[unit.places[0]].shape
            if not of_elements or exact[0].is_complex() or mixes(call.reference, arguments, unit):
                return
            value = exact[0].double()
            output_grads = [torch.ones_like(value, dtype=call.dtype)]
            right, own = (
                of(output_grads, arguments)[number].double()
                for of in (call.expected_gradients, call.reference_gradients)
            )
            leaves = call.leaves(arguments)
            results = call.differentiable_results(tree_leaves(call.function(*leaves)))
            found = grad_or_zeros(results, leaves_of(leaves), output_grads)[number].double()
        except Exception:
            # The reference or the operator refuses such values.
            return
        is_tail = value.abs() <= _TAIL * value.abs().max()
        is_tail &= (results[0].detach().double() - value).abs() <= _RIGHT * value.abs()
        is_tail &= (own - right).abs() <= _RIGHT * right.abs()
        # Beyond, numbers have fewer digits, or none.
        is_tail &= right.abs() >= torch.finfo(call.dtype).tiny / torch.finfo(call.dtype).eps
        wrong = is_tail & ~((found - right).abs() <= _NO_DIGIT * right.abs())
        if wrong.any():
            index = tuple(wrong.nonzero()[0].tolist())
            raise Mismatch(
                f"loses digits by cancellation in the gradient of {name} times {factor:g}: no digit "
                "is right where the result is small, and right itself (use expm1, log1p or a series, as -expm1(-y) for "
                f"1 - exp(-y)); {int(wrong.sum())} of {wrong.numel()} elements, the first at {list(index)}",
                index=index,
                expected=right[index].item(),
                found=found[index].item(),
            )


def _sizes_of_gradients(call: Call) -> list[float]:
    """The largest element of the gradient of each argument, for the values of the sample."""
    leaves = call.leaves()
    results = attached(call.differentiable_results(tree_leaves(call.reference(*leaves))), leaves_of(leaves))
    exact = call.expected_gradients(call.output_grads(results))
    return [each.abs().max().item() if each.numel() else 0.0 for each in exact]


class _Gradients:
    """The gradients of one call with other arguments: by the reference, and how far they can be trusted."""

    def __init__(
        self, call: Call, regime: Regime, sizes: Sequence[float], arguments: tuple[Any, ...], *, has_kinks: bool
    ) -> None:
        self.call, self.exact = call, in_float64(arguments)
        leaves = call.leaves(arguments)
        results = attached(call.differentiable_results(tree_leaves(call.reference(*leaves))), leaves_of(leaves))
        self.output_grads = call.output_grads(results)
        own = grad_or_zeros(results, leaves_of(leaves), self.output_grads)
        exact = self.of(self.exact)
        self.at_kinks = has_kinks and regime.kind in ("ties", "zeros")
        common = OwnError(
            exact=(),
            own=(),
            nearby=lambda: iter(()),
            dtype=call.precision,
            summed=max(call.summed, *(result.numel() for result in results)),
            roundings=2 if call.precision == call.dtype else 2 + math.isqrt(call.summed),
            coherent=regime.kind == "mean",
        )
        # Where a unit saturates, its gradient is nearly zero, and a kernel that computes it from the unit's value finds
        # a difference of one rounding.
        eps = torch.finfo(call.precision).eps
        self.known = [
            replace(common, exact=one, own=other, nearby=partial(self._nearby_alone, number), negligible=eps * size)
            for number, (one, other, size) in enumerate(zip(exact, own, sizes, strict=True))
        ]

    def of(self, arguments: Sequence[Any]) -> tuple[Tensor, ...]:
        """Computes the gradients of the reference in float64."""
        return self.call.expected_gradients(self.output_grads, arguments)

    @cached_property
    def _nearby(self) -> list[tuple[Tensor, ...]]:
        if self.at_kinks:
            # Every dtype holds such values, so a kernel that computes otherwise still is where the reference is.
            return [self.of(self.exact)]
        return [self.of(each) for each in nearby_arguments(self.exact, self.call.dtype, keep_ties=False)]

    def _nearby_alone(self, number: int) -> Iterator[Tensor]:
        return (each[number] for each in self._nearby)


def _worst(
    call: Call, regime: Regime, sizes: Sequence[float], arguments: tuple[Any, ...], *, has_kinks: bool
) -> Worse | None:
    """Finds an element of a gradient that is worse than it can be; None if there is none."""
    try:
        # The reference is asked first: it refuses values that make no sense, and so may an operator that calls it.
        right = _Gradients(call, regime, sizes, arguments, has_kinks=has_kinks)
    except Exception:
        return None
    if regime.kind == "mask" and not all(bool(known.exact.isfinite().all()) for known in right.known):
        # The definition multiplies with -inf: it is no mask.
        return None
    leaves = call.leaves(arguments)
    try:
        results = call.differentiable_results(tree_leaves(call.function(*leaves)))
    except (ValueError, TypeError):
        # The operator refuses such values.
        return None
    found = grad_or_zeros(attached(results, leaves_of(leaves)), leaves_of(leaves), right.output_grads)
    for number, (name, known, gradient) in enumerate(zip(call.leaf_names, right.known, found, strict=True)):
        worse = known.worst(gradient, f"the gradient of {name}")
        if worse is None:
            continue
        if worse.kind == "error" and regime.kind in ("ties", "zeros"):
            by_own = replace(known, exact=in_float64([known.own])[0])
            if not has_kinks or by_own.worst(gradient) is None:
                continue
            sums = sums_along_ties(call, right.exact, in_float64(right.output_grads), number, gradient, known.exact)
            if sums is not None and abs(sums[0] - sums[1]) <= CLOSE * (1 + sums[2]):
                continue
            return replace(worse, what=_of_sums(worse.what, sums))
        return worse
    return None


def _of_sums(what: str, sums: tuple[float, float, float] | None) -> str:
    if sums is None:
        return what
    return f"{what} adds up to {sums[0]:.3g} and that of the reference to {sums[1]:.3g}"


def _of_kink(subject: str, worse: Worse) -> Mismatch:
    where = f"{worse.count} of {worse.total} elements, the first at {list(worse.index)}"
    if " adds up to " in worse.what:
        cause = f"ties: for {subject} {worse.what}; it may be divided otherwise among equal elements, with the same sum"
    else:
        cause = (
            f"a kink: for {subject} {worse.what} is not that of the reference (if any is right there, say so with "
            "kinks= in Samples)"
        )
    return Mismatch(f"{cause}; {where}", index=worse.index, expected=worse.expected, found=worse.found)


PROPERTY = Property(check)
