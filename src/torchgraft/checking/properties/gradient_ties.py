"""The gradient is that of the reference also at kinks and ties: for rounded, equal and zero values.

Proves: on a few samples each tensor argument that has a gradient, and all together, hold rounded values, zeros, ones, a
row, a column and a slice of zeros, and rows whose largest value occurs twice. No gradient is NaN or infinite where that
of the reference in the same dtype is finite. Each is that of the reference, in float64 or in the same dtype. Where a
maximum occurs several times, its gradient may be divided otherwise among the equal elements, with the same sum. At
kinks, as of relu at 0, the reference decides; `Samples(kinks=...)` says where any finite gradient is right.

Cannot prove: that a gradient between the equal elements is divided in a sensible way, or anything about kinks at other
values.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.regimes import Change, Unit, changed, each_telling, units, zero_rows
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_float64, is_number
from torchgraft.checking.tensors.gradients import attached, grad_or_zeros, leaves_of
from torchgraft.checking.tensors.own_error import OwnError, Worse, nearby_arguments

_QUICK, _FULL = 2, 8
# A step from a tie, along which a reference in float64 is differentiated on both sides.
_STEP = 1e-6
_CLOSE = 1e-4


def check(case: Case) -> None:
    """See the module."""

    def each(call: Call) -> None:
        _check_call(call, has_kinks=case.samples.kinks(call.sample))

    each_telling(case, each, quick=_QUICK, full=_FULL)


def _check_call(call: Call, *, has_kinks: bool) -> None:
    names = set(call.leaf_names)
    if not names:
        raise NotApplicable("no argument has a gradient")
    # A gradient that is wrong for ordinary values needs no other explanation.
    check_gradient(call)
    declared = call.declaration.arguments
    for unit in units(call, is_number):
        if not any(name.partition("[")[0] == declared[place].name for name in names for place in unit.places):
            continue
        for what, change in _regimes(call, unit):
            arguments = changed(call, unit, change)
            if arguments is not None:
                subject = f"{' and '.join(declared[place].name for place in unit.places)} {what}"
                _check_regime(call, arguments, subject, has_kinks=has_kinks)


def _regimes(call: Call, unit: Unit) -> Iterator[tuple[str, Change]]:
    yield "with equal maxima in each row", _with_equal_maxima
    yield "rounded", torch.round
    tensors = tensors_of([call.arguments[place] for place in unit.places])
    if len(tensors) == 1:
        for what, change in zero_rows(tensors[0]):
            yield f"with {what}", change
    yield "of zeros", torch.zeros_like
    yield "of ones", torch.ones_like


def _with_equal_maxima(values: Tensor) -> Tensor:
    """Makes the first and the last element of each row its largest."""
    values = values.clone()
    if values.dim() and values.shape[-1] > 1:
        values[..., 0] = values[..., -1] = values.amax(-1) + 1
    return values


def _check_regime(call: Call, arguments: tuple[Any, ...], subject: str, *, has_kinks: bool) -> None:
    leaves = call.leaves(arguments)
    try:
        results = call.differentiable_results(tree_leaves(call.function(*leaves)))
    except (ValueError, TypeError):
        # The operator refuses such values.
        return
    results = attached(results, leaves_of(leaves))
    output_grads = call.output_grads(results)
    found = grad_or_zeros(results, leaves_of(leaves), output_grads)
    exact = in_float64(arguments)
    grads = in_float64(output_grads)

    def gradients(of: Sequence[Any]) -> list[Tensor]:
        return list(call.expected_gradients(output_grads, of))

    try:
        known = OwnError(
            exact=gradients(exact),
            own=_own_gradients(call, arguments, output_grads),
            nearby=lambda: map(gradients, nearby_arguments(exact, call.dtype, keep_ties=True)),
            dtype=call.precision,
            summed=max(call.summed, *(result.numel() for result in results)),
            roundings=2 if call.precision == call.dtype else 2 + math.isqrt(call.summed),
        )
    except Exception:
        # The reference refuses such values, or has no gradient for them.
        return
    for number, name in enumerate(call.leaf_names):
        alone = replace(known, exact=known.exact[number], own=known.own[number], nearby=_alone(known, number))
        worse = alone.worst(found[number])
        if worse is None:
            continue
        if worse.kind != "not finite":
            if replace(alone, exact=in_float64([known.own[number]])[0]).worst(found[number]) is None or not has_kinks:
                continue
            sums = _sums_along_ties(call, exact, grads, number, found[number], known.exact[number])
            if sums is not None and abs(sums[0] - sums[1]) <= _CLOSE * (1 + sums[2]):
                continue
            raise _explained(name, subject, worse, sums)
        raise _explained(name, subject, worse, None)


def _alone(known: OwnError, number: int) -> Callable[[], Iterator[Any]]:
    return lambda: (each[number] for each in known.nearby())


def _own_gradients(call: Call, arguments: Sequence[Any], output_grads: Sequence[Tensor]) -> list[Tensor]:
    """Computes the gradients by the reference in the dtype of the call."""
    leaves = call.leaves(arguments)
    results = call.differentiable_results(tree_leaves(call.reference(*leaves)))
    return list(grad_or_zeros(attached(results, leaves_of(leaves)), leaves_of(leaves), output_grads))


def _sums_along_ties(
    call: Call, exact: Sequence[Any], output_grads: Sequence[Tensor], number: int, found: Tensor, expected: Tensor
) -> tuple[float, float, float] | None:
    """Returns the sums of two gradients of one tensor, and a bound of their sizes; None at a kink.

    Moving all elements of a tensor together keeps those equal that are equal. If the reference has the same derivative
    on both sides along that way, only the division of a gradient among equal elements is left open, and not its sum.
    """
    if found.is_complex():
        return None

    def at(step: float) -> float:
        leaves = call.leaves(exact)
        with torch.no_grad():
            leaves_of(leaves)[number].add_(step)
            results = call.differentiable_results(tree_leaves(call.reference(*each_tensor(Tensor.detach, leaves))))
            return sum((result * grad).sum().item() for result, grad in zip(results, output_grads, strict=True))

    before, here, after = at(-_STEP), at(0.0), at(_STEP)
    left, right = (here - before) / _STEP, (after - here) / _STEP
    size = expected.abs().sum().item() + found.double().abs().sum().item()
    if abs(left - right) > _CLOSE * (1 + size):
        return None
    return found.double().sum().item(), expected.sum().item(), size


def _explained(name: str, subject: str, worse: Worse, sums: tuple[float, float, float] | None) -> Mismatch:
    where = f"{worse.count} of {worse.total} elements, the first at {list(worse.index)}"
    if worse.kind == "not finite":
        cause = (
            f"the gradient of {name} is {worse.found} for {subject}, where that of the reference is finite (0/0, or 0 "
            "times inf)"
        )
    elif sums is not None:
        cause = (
            f"ties: for {subject} the gradient of {name} adds up to {sums[0]:.3g} and that of the reference to "
            f"{sums[1]:.3g}; it may be divided otherwise among equal elements, but the sum is the same"
        )
    else:
        cause = (
            f"a kink: for {subject} the gradient of {name} is not that of the reference (if any is right there, say so "
            "with kinks= in Samples)"
        )
    return Mismatch(f"{cause}; {where}", index=worse.index, expected=worse.expected, found=worse.found)


PROPERTY = Property(check)
