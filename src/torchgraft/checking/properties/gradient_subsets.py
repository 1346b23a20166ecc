"""Only the gradients that are asked for are computed, and each is the same whichever others are.

Proves: for every subset of the tensor arguments, gradients are those of the full set; the formula returns None for what
is not needed; and nothing is recorded where no argument needs a gradient, under no_grad or in inference mode.

Cannot prove: that no time is spent on a gradient that is thrown away before the formula returns.
"""

import itertools

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Call, Case, differentiable, tensors_of
from torchgraft.checking.comparing import expect
from torchgraft.checking.properties.gradient import tensor_places
from torchgraft.checking.property import Property
from torchgraft.differentiation import as_tuple


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_subsets, case.table(small=True, empty=False, count=4))
    case.each(_check_formula, case.table(small=True, empty=False, count=4))
    case.each(_check_nothing_recorded, case.table(small=True, empty=False, count=1))


def _check_subsets(call: Call) -> None:
    places = tensor_places(call)
    full = _gradients(call, places)
    for count in range(1, len(places)):
        for chosen in itertools.combinations(places, count):
            names = ", ".join(call.operator.arguments[place].name for place in chosen)
            for place, found in zip(chosen, _gradients(call, chosen), strict=True):
                what = f"the gradient of {call.operator.arguments[place].name}, asked for {names} alone,"
                expected = full[places.index(place)].double()
                call.expect_close(found, expected, summed=call.sample.elements, what=what)


def _gradients(call: Call, places: tuple[int, ...] | list[int]) -> tuple[Tensor, ...]:
    arguments = call.arguments
    leaves = [arguments[place].requires_grad_() for place in places]
    results = tree_leaves(call.operator(*arguments))
    return torch.autograd.grad(
        results,
        leaves,
        call.output_grads(results),
        allow_unused=True,
        materialize_grads=True,
    )


def _check_formula(call: Call) -> None:
    operator = call.operator
    if operator.gradient is None:
        return
    arguments = call.arguments
    results = as_tuple(operator.raw(*arguments))
    visible, hidden = results[: operator.visible_outputs], results[operator.visible_outputs :]
    places = tensor_places(call)
    for chosen in itertools.chain.from_iterable(itertools.combinations(places, n) for n in range(1, len(places))):
        needed = [place in chosen for place in range(len(operator.arguments))]
        gradients = operator.gradient(needed, [torch.ones_like(each) for each in visible], hidden, *arguments)
        expect(
            len(gradients) == operator.tensor_count,
            "the formula returns the wrong number of gradients",
            expected=operator.tensor_count,
            found=len(gradients),
        )
        for place, gradient in enumerate(gradients):
            name = operator.arguments[place].name
            if place in chosen:
                expect(gradient is not None, f"the formula returns no gradient of {name}, which is needed")
            else:
                expect(gradient is None, f"the formula computes the gradient of {name}, which is not needed")


def _check_nothing_recorded(call: Call) -> None:
    for result in tree_leaves(call.operator(*call.arguments)):
        expect(not result.requires_grad, "a result requires a gradient although no argument does")
    arguments = differentiable(call.arguments)
    with torch.no_grad():
        for result in tree_leaves(call.operator(*arguments)):
            expect(not result.requires_grad, "a result requires a gradient under torch.no_grad()")
    with torch.inference_mode():
        for result in tree_leaves(call.operator(*call.arguments)):
            expect(result.is_inference(), "a result of inference mode is not an inference tensor")
    expect(all(tensor.grad is None for tensor in tensors_of(arguments)), "an argument has a gradient without backward")


PROPERTY = Property(check)
