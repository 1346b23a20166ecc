"""The first gradient matches the reference and the finite differences of the operator's own values.

Proves: on each sample and in each dtype, for a random incoming gradient, the gradients of all tensor arguments are
those of the reference in float64. In float64, on small samples, they also match finite differences of the operator's
values. Where the declaration has no gradient formula, PyTorch computes the gradient, and its own errors in the same
dtype are allowed. At a kink, as among equal maxima, an element may have any value between the derivatives on its two
sides, as long as all elements have the sum that they have in the reference; on a sample of which `Samples(kinks=...)`
says that any gradient is right there, it may have any finite value.

Cannot prove: anything about derivatives of gradients; `second_gradient` checks them.

Mend: compare the formula with the derivative of the reference. It returns one gradient for each tensor argument, in the
order of the schema. If the kernel is right, `gradient_by_reference` proves that only the formula is wrong.

Example: the formula says of one argument that it has no gradient.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.differences import DOUBLE, NUMERICAL_ELEMENTS, check_differences
from torchgraft.checking.helpers.kinks import check_unless_at_kink, divides_otherwise, is_right_between_kinks
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.compare import Mismatch, expect
from torchgraft.checking.tensors.gradients import attached, differentiate, leaves_of

# Most roundings by which a gradient is off that is computed from rounded results.
_ROUNDINGS = 16


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
        close = partial(call.expect_close, summed=summed, of_pytorch=by_pytorch, what=f"the gradient of {name}")
        try:
            close(one, other)
        except Mismatch as wrong:
            at = call, place, one, other, output_grads, close
            if divides_otherwise(*at) or is_right_between_kinks(*at):
                continue
            if why := _of_steps(other) or _of_rounded_results(call, one, other):
                raise wrong.explained(f"{wrong}; {why}") from wrong
            raise


def _of_steps(expected: Tensor) -> str:
    """How a gradient that passes a step on purpose is defined, if that of the reference is zero; empty if it is not."""
    if expected.any():
        return ""
    return (
        "that of the reference is zero everywhere; if it is to pass a step, the reference has to define it, as"
        " `hard.detach() + (soft - soft.detach())` does"
    )


def _of_rounded_results(call: Call, found: Tensor, expected: Tensor) -> str:
    """Why a gradient may be off by a few roundings of two bytes: its formula reads results that were rounded to them.

    Empty if it reads none, or if it is further off.
    """
    declaration = call.declaration
    names = [declaration.results[place].name for place in declaration.saved_places]
    if call.dtype not in (torch.float16, torch.bfloat16) or not names:
        return ""
    largest = expected.abs().amax().clamp(min=1)
    if (found.double() - expected).abs().amax() > _ROUNDINGS * torch.finfo(call.dtype).eps * largest:
        return ""
    dtype = str(call.dtype).removeprefix("torch.")
    return (
        f"the formula reads {' and '.join(map(str, names))} (`saved_outputs`), rounded to {dtype}: keep what it needs"
        " in float32, as a hidden result, or compute it again from the arguments"
    )


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


def _check_numerically(call: Call) -> None:
    # Where an argument asks for a coarser dtype, differences of the results tell nothing.
    if call.precision in DOUBLE:
        check_unless_at_kink(call, check_differences)


PROPERTY = Property(check, dtypes=None, sanitized=True)
