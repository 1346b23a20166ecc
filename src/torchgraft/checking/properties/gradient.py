"""The first gradient matches the reference and the finite differences of the operator's own values.

Proves: on each sample and in each dtype, for a random incoming gradient, the gradients of all tensor arguments are
those of the reference in float64. In float64, on small samples, they also match finite differences of the operator's
values. Where the declaration has no gradient formula, PyTorch computes the gradient, and its own errors in the same
dtype are allowed.

Cannot prove: anything about derivatives of gradients; `second_gradient` checks them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.compare import Mismatch, expect
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.gradients import attached, differentiate, leaves_of
from torchgraft.declaration.results import as_tuple

# A numerical gradient takes two evaluations an element.
NUMERICAL_ELEMENTS = 150
# Numerical differences are exact enough in these dtypes alone.
DOUBLE = (torch.float64, torch.complex128)


def check(case: Case) -> None:
    """See the module."""
    case.each(check_gradient, case.table())
    if case.samples.draw is not None:
        case.random_samples(check_gradient, examples=40)
    if case.dtype in DOUBLE:
        case.each(_check_numerically, case.table(empty=False, below=NUMERICAL_ELEMENTS, count=12))


def check_gradient(call: Call) -> None:
    """The gradients of one call against those of the reference."""
    arguments = call.leaves()
    results = expect_gradients(call, tree_leaves(call.function(*arguments)))
    results = attached(results, leaves_of(arguments))
    output_grads = call.output_grads(results)
    found = differentiate(results, leaves_of(arguments), output_grads)
    expected, own = call.expected_gradients(output_grads), call.gradients_by_pytorch(output_grads)
    summed = max(call.summed, *(result.numel() for result in results))
    for place, (name, one, other) in enumerate(zip(call.leaf_names, found, expected, strict=True)):
        if one is None:
            expect(not other.any(), f"the gradient of {name} is missing, and is not zero")
            continue
        by_pytorch = None if own is None else own[place]
        call.expect_close(one, other, summed=summed, of_pytorch=by_pytorch, what=f"the gradient of {name}")


def expect_gradients(call: Call, results: Sequence[Tensor]) -> list[Tensor]:
    """The results that carry a gradient.

    Raises:
        Mismatch: one that should carries none.
    """
    should = call.differentiable_results(results)
    expect(
        all(result.requires_grad for result in should if result.numel()),
        "the result does not require a gradient, although its arguments do",
    )
    return should


def function_of_leaves(
    call: Call, computed_by: Callable[..., Any] | None = None
) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    """The operator, or its stand-in, as a function of the tensors that have gradients, and these tensors in float64."""
    arguments = call.leaves(_in_double(call))
    function = call.of_leaves(computed_by or call.function, arguments)
    return lambda *leaves: tuple(attached(as_tuple(function(*leaves)), leaves)), leaves_of(arguments)


def check_numerically(function: Callable[..., Sequence[Tensor]], leaves: Sequence[Tensor], otherwise: str) -> None:
    """Compares the gradients of a function with differences; what to say where these give something else.

    Args:
        function: all its results carry gradients: PyTorch pairs those that do with all results, one by one.
        leaves: what it takes.
        otherwise: what is wrong where it is.

    Raises:
        Mismatch: the gradients are not those of the values.
    """
    try:
        torch.autograd.gradcheck(function, leaves, fast_mode=True)
    except GradcheckError as error:
        raise Mismatch(f"{otherwise}: {' '.join(str(error).split())[:400]}") from None


def _in_double(call: Call) -> tuple[Any, ...]:
    """Arguments with those too in float64 that the sample makes in another dtype, where the operator takes it so."""

    def widened(name: str, value: Any) -> Any:
        allowed = call.declaration.dtypes_of.get(name)
        return value if allowed is not None and not set(DOUBLE) & set(allowed) else in_float64([value])[0]

    pairs = zip(call.declaration.arguments, call.arguments, strict=True)
    return tuple(widened(argument.name, value) for argument, value in pairs)


def _check_numerically(call: Call) -> None:
    # Where an argument asks for a coarser dtype, differences of the results tell nothing.
    if call.precision in DOUBLE:
        check_unless_at_kink(call, _check_differences)


def _check_differences(call: Call, computed_by: Callable[..., Any] | None) -> None:
    check_numerically(*function_of_leaves(call, computed_by), "numerical differentiation gives another gradient")


def check_unless_at_kink(call: Call, check: Callable[[Call, Callable[..., Any] | None], None]) -> None:
    """Asks a question about differences; a sample at a kink, as with equal maxima, fails the reference too."""
    try:
        check(call, None)
    except Mismatch:
        try:
            check(call, call.reference)
        except Mismatch:
            return
        raise


PROPERTY = Property(check, dtypes=None, sanitized=True)
