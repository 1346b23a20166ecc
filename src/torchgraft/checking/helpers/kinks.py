"""Gradients at kinks, where several are right: among equal maxima one element may get all, or each its share."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.gradients import leaves_of, randn_like

# A step from a tie, along which the reference in float64 is differentiated on both sides.
_STEP = 1e-6
CLOSE = 1e-4
# A gradient that another rule gives at a kink differs by a good share of itself.
_SHARE = 0.01
# The most elements of which the derivatives on both sides are computed.
_ELEMENTS = 64
# In so many directions, and back, elements move in search of kinks.
_TURNS = 4


def check_unless_at_kink(call: Call, check: Callable[[Call, Callable[..., Any] | None], None]) -> None:
    """Asks a question about differences, but for a sample at a kink, as with equal maxima.

    Args:
        call: of the operator.
        check: asks the operator, or what is given in its place.

    Raises:
        Mismatch: the operator fails where there is no kink.
    """
    try:
        check(call, None)
    except Mismatch:
        if not is_at_kink(call, check):
            raise


def is_at_kink(call: Call, check: Callable[[Call, Callable[..., Any] | None], None]) -> bool:
    """Whether the reference bends at the values of a call, or fails the question in the place of the operator."""
    exact = in_float64(call.arguments)
    leaves = call.leaves(exact)
    results = call.differentiable_results(tree_leaves(call.reference(*each_tensor(Tensor.detach, leaves))))
    generator = call.generator()
    weights = [randn_like(each, generator) for each in results]
    directions = [randn_like(each, generator) for each in leaves_of(leaves)]
    left, right = _sides(call, exact, weights, directions)
    if abs(left - right) > CLOSE * (1 + abs(left) + abs(right)):
        return True
    try:
        check(call, _definition_of(call))
    except Mismatch:
        return True
    return False


def _definition_of(call: Call) -> Callable[..., Any]:
    """The reference itself, that of random results too: for one seed it is a function like any other."""
    if not call.declaration.random:
        return call.reference
    return lambda *arguments: call.declaration.visible(call.operator.reference(*arguments))


def divides_otherwise(
    call: Call, number: int, found: Tensor, expected: Tensor, output_grads: Sequence[Tensor], close: Callable[..., None]
) -> bool:
    """Whether a gradient differs from that of the reference only at kinks, and is right there.

    Each element that differs lies between the derivatives of the reference on both sides, which are not the same, and
    all elements have the same sum.

    Args:
        call: of the operator.
        number: of the tensor among those that have gradients.
        found: the gradient.
        expected: that of the reference, in float64.
        output_grads: the incoming gradients.
        close: compares a gradient with the expected one, and raises a Mismatch.
    """
    if found.is_complex() or found.shape != expected.shape or not found.isfinite().all():
        return False
    exact, incoming, values = in_float64(call.arguments), in_float64(output_grads), found.double()
    differs = (values - expected).abs() > _SHARE * torch.maximum(values.abs(), expected.abs())
    places = differs.flatten().nonzero().flatten().tolist()[:_ELEMENTS]
    if not places:
        return False
    try:
        close(torch.where(differs, expected.to(found.dtype), found), expected)
    except Mismatch:
        return False
    sums = sums_along_ties(call, exact, incoming, number, found, expected)
    if sums is None or abs(sums[0] - sums[1]) > _SHARE * (1 + sums[2]):
        return False
    for place in places:
        least, most = sorted(_sides(call, exact, incoming, _direction(call, exact, number, place)))
        value, wanted = values.flatten()[place].item(), expected.flatten()[place].item()
        # Where the reference does not bend, both sides are what is expected.
        slack = abs(value - wanted) / 4
        if not least - slack <= value <= most + slack:
            return False
    return True


def is_right_between_kinks(
    call: Call, number: int, found: Tensor, expected: Tensor, output_grads: Sequence[Tensor], close: Callable[..., None]
) -> bool:
    """Whether a gradient is finite, and that of the reference wherever the reference does not bend.

    That is all that is asked of a sample of which `Samples(kinks=...)` says that any gradient is right at a kink.

    Args:
        call: of the operator.
        number: of the tensor among those that have gradients.
        found: the gradient.
        expected: that of the reference, in float64.
        output_grads: the incoming gradients.
        close: compares a gradient with the expected one, and raises a Mismatch.
    """
    if call.samples.kinks(call.sample) or found.shape != expected.shape or not found.isfinite().all():
        return False
    bends = _bends(call, number, expected, output_grads)
    try:
        close(torch.where(bends, expected.to(found.dtype), found), expected)
    except Mismatch:
        return False
    return True


def _bends(call: Call, number: int, expected: Tensor, output_grads: Sequence[Tensor]) -> Tensor:
    """Where the gradient of the reference in float64 jumps, if every element moves by a step, or by one back.

    In some turns all elements move in one direction, in others each in one of its own, which parts equal ones.
    """
    exact, generator = in_float64(call.arguments), call.generator()
    is_leaf = [has_gradient for _, _, has_gradient in call.named_tensors(exact)]
    bends = torch.zeros(expected.shape, dtype=torch.bool, device=expected.device)
    for turn in range(_TURNS):
        ways = [torch.randint(0, 2, each.shape, generator=generator) * 2.0 - 1 for each in tensors_of(exact)]
        ways = [torch.ones_like(each) if turn == 0 else each for each in ways]

        def moved(step: float, ways: Sequence[Tensor] = ways) -> Tensor:
            steps = iter(zip(ways, is_leaf, strict=True))

            def change(tensor: Tensor) -> Tensor:
                way, may_move = next(steps)
                return tensor + step * way.to(tensor.device) if may_move else tensor

            return call.expected_gradients(output_grads, each_tensor(change, exact))[number]

        one, other = moved(_STEP), moved(-_STEP)
        bends |= (one - other).abs() > CLOSE * (1 + one.abs() + other.abs())
    return bends


def sums_along_ties(
    call: Call, exact: Sequence[Any], output_grads: Sequence[Tensor], number: int, found: Tensor, expected: Tensor
) -> tuple[float, float, float] | None:
    """Returns the sums of two gradients of one tensor, and a bound of their sizes; None at a kink.

    Moving all elements of a tensor together keeps those equal that are equal. If the reference has the same derivative
    on both sides along that way, only the division of a gradient among equal elements is left open, and not its sum.
    """
    if found.is_complex():
        return None
    left, right = _sides(call, exact, output_grads, _direction(call, exact, number, None))
    size = expected.abs().sum().item() + found.double().abs().sum().item()
    if abs(left - right) > CLOSE * (1 + size):
        return None
    return found.double().sum().item(), expected.sum().item(), size


def _direction(call: Call, exact: Sequence[Any], number: int, place: int | None) -> list[Tensor]:
    """One element of a tensor, or all of them together."""
    direction = [torch.zeros_like(each) for each in leaves_of(call.leaves(exact))]
    if place is None:
        direction[number].fill_(1)
    else:
        direction[number].view(-1)[place] = 1
    return direction


def _sides(
    call: Call, exact: Sequence[Any], output_grads: Sequence[Tensor], direction: Sequence[Tensor]
) -> tuple[float, float]:
    """The derivatives of the reference along a direction, on both sides."""

    def at(step: float) -> float:
        leaves = call.leaves(exact)
        with torch.no_grad():
            for leaf, way in zip(leaves_of(leaves), direction, strict=True):
                leaf.add_(way, alpha=step)
            results = call.differentiable_results(tree_leaves(call.reference(*each_tensor(Tensor.detach, leaves))))
            return sum((result * grad).real.sum().item() for result, grad in zip(results, output_grads, strict=True))

    before, here, after = at(-_STEP), at(0.0), at(_STEP)
    return (here - before) / _STEP, (after - here) / _STEP
