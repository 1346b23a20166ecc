"""The second gradient matches the reference and the finite differences of the first gradient.

Proves: in float64, on small samples, the gradients of the gradients, with respect to the arguments and to the incoming
gradient, are those of the reference, and match finite differences of the first gradient.

Cannot prove: anything about third derivatives. If the gradients of an operator are made of operators, it has third
derivatives too.

Mend: make the gradient of operations that autograd records: no detach(), no .data, no numbers taken out of tensors. A
backward operator needs a gradient of its own, as by `gradient_by_reference`.

Example: the gradient is right, and made of an operator whose gradient is wrong.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.differences import (
    DOUBLE,
    NUMERICAL_ELEMENTS,
    check_numerically,
    function_of_leaves,
)
from torchgraft.checking.helpers.kinks import check_unless_at_kink, is_at_kink
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.gradients import attached, grad_or_zeros, leaves_of, randn_like


def check(case: Case) -> None:
    """See the module."""
    check_against_reference(case)
    if case.dtype in DOUBLE:
        case.each(_check_numerically, case.table(empty=False, below=NUMERICAL_ELEMENTS, count=8))


def check_against_reference(case: Case) -> None:
    """Without what PyTorch's gradgradcheck asks."""
    case.each(check_second_gradient, case.table(empty=False, small=True, count=12))


def check_second_gradient(call: Call) -> None:
    """Compares the second gradients of a call with those of its reference."""
    found = _second_gradients(call, call.function)
    expected = _second_gradients(call, call.reference)
    names = call.leaf_names
    results = len(found) - len(names)
    names += ["the incoming gradient" if results == 1 else f"incoming gradient {i + 1}" for i in range(results)]
    summed = max(1, call.sample.elements) * call.summed
    try:
        for name, one, other in zip(names, found, expected, strict=True):
            call.expect_close(one, other, summed=summed, scale=10.0, what=f"the second gradient with respect to {name}")
    except Mismatch:
        # At a kink the gradient of the reference has no derivative either.
        if call.precision not in DOUBLE or not is_at_kink(call, _check_differences):
            raise


def _second_gradients(call: Call, function: Callable[..., Any]) -> Sequence[Tensor]:
    arguments = call.leaves()
    tensors = leaves_of(arguments)
    results = attached(call.differentiable_results(tree_leaves(function(*arguments))), tensors)
    generator = call.generator()
    output_grads = [randn_like(result, generator).requires_grad_() for result in results]
    first = grad_or_zeros(results, tensors, output_grads, create_graph=True)
    directions = [randn_like(gradient, generator) for gradient in first]
    pairs = zip(first, directions, strict=True)
    along = torch.stack([(gradient * direction.conj()).real.sum() for gradient, direction in pairs])
    # A gradient that is constant, as that of a sum, has none itself.
    if not along.requires_grad:
        return [torch.zeros_like(each) for each in (*tensors, *output_grads)]
    return grad_or_zeros([along.sum()], (*tensors, *output_grads))


def _check_numerically(call: Call) -> None:
    # Numerical differences are exact enough in these dtypes alone, as for the first gradient.
    if call.precision in DOUBLE:
        check_unless_at_kink(call, _check_differences)


def _check_differences(call: Call, computed_by: Callable[..., Any] | None) -> None:
    function, leaves = function_of_leaves(call, computed_by)
    output_grads = [randn_like(result, call.generator()).requires_grad_() for result in function(*leaves)]

    def gradients(*values: Tensor) -> list[Tensor]:
        """The first gradients, of the arguments and then of what comes in."""
        found = grad_or_zeros(
            function(*values[: len(leaves)]), values[: len(leaves)], values[len(leaves) :], create_graph=True
        )
        return attached(found, values)

    # gradgradcheck is not used: it takes a constant gradient, such as one of zeros, for the next one.
    check_numerically(gradients, [*leaves, *output_grads], "numerical differentiation gives another second gradient")


PROPERTY = Property(check, dtypes=DOUBLE)
