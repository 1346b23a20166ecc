"""Transforms of torch.func, applied to an operator and to its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.compiling import TRACING, compiled, fresh_compiler, in_short, quiet_pytorch
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import of_tensors
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_float64, is_number
from torchgraft.checking.tensors.gradients import leaves_of

Function = Callable[..., Any]
Tensors = tuple[Tensor, ...]
# The most elements of a sample: the Jacobian of a Jacobian has the square of it, and more.
_ELEMENTS = 200
# A derivative that is zero by definition may be as large as this by the reference's rounding.
_LEAST_LOSS = 1e-6


def check_samples(
    case: Case,
    count: int,
    eager: Callable[[Both], None],
    compiled: Callable[[Both], None],
    *,
    of_gradients: bool = True,
) -> None:
    """Checks a few of the smallest samples, and the largest one or two of them compiled too.

    Args:
        case: what is asked about.
        count: how many samples.
        eager: checks one.
        compiled: checks one under a compiler.
        of_gradients: whether the question is about gradients alone.

    Raises:
        NotApplicable: the operator has no dtype in which derivatives of derivatives can be compared, or no gradient.
    """

    def check_compiled(call: Call) -> None:
        with fresh_compiler():
            compiled(Both(call))

    if torch.finfo(case.dtype).eps > torch.finfo(torch.float32).eps:
        raise NotApplicable(f"{case.dtype} is not precise enough to compare second derivatives")
    if case.dtype.is_complex and of_gradients:
        raise NotApplicable("torch.func computes Jacobians of real numbers only")
    if case.declaration.random:
        raise NotApplicable("its results are random, and torch.func may not allow its reference to draw")
    if case.declaration.mutates:
        raise NotApplicable("it writes to its arguments, which torch.func does not transform")
    try:
        samples = case.table(empty=False, below=_ELEMENTS, count=count)
    except NotApplicable:
        samples = case.table(empty=False)[:1]
    if of_gradients and not case.call(samples[0]).leaf_names:
        raise NotApplicable("no argument has a gradient")
    case.each(lambda call: eager(Both(call)), samples)
    case.each(check_compiled, samples[-1:] if case.quick else samples[-2:])


def moved_tensors(call: Call, arguments: Sequence[Any]) -> list[Tensor]:
    """Chooses the tensors that are transformed: those that have gradients, or else all that hold numbers.

    Raises:
        NotApplicable: there are none.
    """
    if call.leaf_names:
        return leaves_of(call.leaves(arguments))
    numbers = [tensor for _, tensor, _ in call.named_tensors(arguments) if is_number(tensor)]
    if not numbers:
        raise NotApplicable("no argument holds real or complex numbers")
    return numbers


class Both:
    """The operator of a call and its reference, as functions of its tensors alone, and those tensors.

    Attributes:
        call: of the operator.
        is_differentiable: whether a result has a gradient.
        tensors: in the dtype of the call.
        exact: the same in float64, for the reference.
        names: of the arguments that they are.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        arguments = call.arguments
        self.tensors: Tensors = tuple(tensor.detach() for tensor in moved_tensors(call, arguments))
        self.is_differentiable = bool(call.leaf_names)
        if self.is_differentiable:
            self.operated = call.of_leaves(call.function, arguments)
            self.referred = call.of_leaves(call.reference, in_float64(arguments))
            self.names = call.leaf_names
        else:
            chosen = [is_number(tensor) for _, tensor, _ in call.named_tensors(arguments)]
            self.operated = of_tensors(call.function, arguments, chosen)
            self.referred = of_tensors(call.reference, in_float64(arguments), chosen)
            self.names = [name for name, tensor, _ in call.named_tensors(arguments) if is_number(tensor)]
        self.exact = in_float64(self.tensors)

    def compiled(self, function: Function, transformed: Function) -> Function:
        """Compiles the transformed operator; returns the transformed reference, which is the expectation, as it is."""
        return compiled(transformed, backend=TRACING) if function is self.operated else transformed

    def expect_same(self, transform: Function, what: str, *, lost: str = "") -> None:
        """Compares `transform(function, tensors)` of the operator with that of the reference.

        Args:
            transform: gives tensors.
            what: it is, for the message.
            lost: what to say where everything is zero and should not be.
        """
        with quiet_pytorch():
            expected = tree_leaves(transform(self.referred, self.exact))
            try:
                found = tree_leaves(transform(self.operated, self.tensors))
            except Mismatch:
                raise
            except Exception as error:
                raise Mismatch(f"{what} fails: {type(error).__name__}: {in_short(error)}") from error
        largest = max((leaf.double().abs().max().item() for leaf in expected if leaf.numel() and lost), default=0.0)
        if lost and largest > _LEAST_LOSS and not any(leaf.any() for leaf in found):
            raise Mismatch(f"{what}: {lost}", expected=f"up to {largest:.3g}", found="only zeros, and no error")
        # Each result is computed from results, through several sums, so rounding errors add up.
        summed = max(1, self.call.sample.elements) * self.call.summed
        self.call.expect_close(found, expected, summed=summed, scale=100.0, what=what)


def squares(function: Function) -> Function:
    """Wraps a function: its results become a scalar that has second derivatives wherever they have first ones."""

    def scalar(*tensors: Tensor) -> Tensor:
        results = tree_leaves(function(*tensors))
        return torch.stack([(result * result.conj()).real.sum() for result in results]).sum()

    return scalar
