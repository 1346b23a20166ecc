"""Transforms of torch.func, applied to an operator and to its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.compiling import TRACING, compiled, fresh_compiler, in_short, quiet_pytorch
from torchgraft.checking.helpers.differences import check_differences
from torchgraft.checking.helpers.kinks import is_at_kink
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import of_tensors
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import holds_numbers, in_float64, is_number

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
        NotApplicable: the operator has no dtype in which derivatives of derivatives can be compared, or no gradient, or
            PyTorch cannot transform its reference.
    """
    compared = 0

    def ask(check: Callable[[Both], None], call: Call) -> None:
        nonlocal compared
        both = Both(call)
        check(both)
        compared += both.compared

    def check_compiled(call: Call) -> None:
        with fresh_compiler():
            ask(compiled, call)

    if holds_numbers(case.dtype) and torch.finfo(case.dtype).eps > torch.finfo(torch.float32).eps:
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
    case.each(partial(ask, eager), samples)
    case.each(check_compiled, samples[-1:] if case.quick else samples[-2:])
    if not compared:
        raise NotApplicable("PyTorch has no such derivatives of what its reference is made of")


def moved_tensors(call: Call, arguments: Sequence[Any]) -> list[Tensor]:
    """Returns the tensors that are transformed; the leaves among them need a gradient."""
    arguments = call.leaves(arguments, required=False)
    tensors = [tensor for _, tensor, _ in call.named_tensors(arguments)]
    return [tensor for tensor, is_moved in zip(tensors, _which_are_moved(call, arguments), strict=True) if is_moved]


def _which_are_moved(call: Call, arguments: Sequence[Any]) -> list[bool]:
    """Chooses tensors to transform: those that have gradients, or else all that hold numbers, or else all."""
    named = list(call.named_tensors(arguments))
    have_gradients, hold_numbers = [each for *_, each in named], [is_number(tensor) for _, tensor, _ in named]
    return next((chosen for chosen in (have_gradients, hold_numbers) if any(chosen)), [True] * len(named))


class Both:
    """The operator of a call and its reference, as functions of its tensors alone, and those tensors.

    Attributes:
        call: of the operator.
        is_differentiable: whether a result has a gradient.
        tensors: in the dtype of the call.
        exact: the same in float64, for the reference.
        names: of the arguments that they are.
        compared: how many transforms were compared.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        arguments = call.arguments
        self.tensors: Tensors = tuple(tensor.detach() for tensor in moved_tensors(call, arguments))
        self.is_differentiable = bool(call.leaf_names)
        chosen = _which_are_moved(call, arguments)
        self.names = [name for name, is_moved in zip(call.tensor_names, chosen, strict=True) if is_moved]

        def of_moved(function: Function, arguments: Sequence[Any]) -> Function:
            if self.is_differentiable:
                return call.of_leaves(function, arguments)
            return of_tensors(function, arguments, chosen)

        self.operated = of_moved(call.function, arguments)
        self.referred = of_moved(call.reference, in_float64(arguments))
        # As the operator is called, to find out what PyTorch can do with it.
        self._in_its_place = of_moved(call.reference, arguments)
        self.exact = in_float64(self.tensors)
        self.compared = 0

    def compiled(self, function: Function, transformed: Function) -> Function:
        """Compiles the transformed operator; returns the transformed reference, which is the expectation, as it is."""
        return transformed if function is self.referred else compiled(transformed, backend=TRACING)

    def expect_same(
        self,
        transform: Function,
        what: str,
        *,
        lost: str = "",
        is_compiled: bool = False,
        differentiates: bool = True,
    ) -> None:
        """Compares `transform(function, tensors)` of the operator with that of the reference.

        What PyTorch cannot do with the reference is not asked of the operator.

        Args:
            transform: gives tensors.
            what: it is, for the message.
            lost: what to say where everything is zero and should not be.
            is_compiled: whether it compiles the operator, and not the reference.
            differentiates: whether it gives derivatives, of which several are right at a kink.
        """
        with quiet_pytorch():
            try:
                expected = tree_leaves(transform(self.referred, self.exact))
            except NotImplementedError:
                # PyTorch has no such derivative of what the reference is made of.
                return
            try:
                found = tree_leaves(transform(self.operated, self.tensors))
            except Exception as error:
                if (is_compiled or isinstance(error, NotImplementedError)) and self._fails(transform):
                    return
                if isinstance(error, Mismatch):
                    raise
                raise Mismatch(f"{what} fails: {type(error).__name__}: {in_short(error)}") from error
        self.compared += 1
        largest = max((leaf.double().abs().max().item() for leaf in expected if leaf.numel() and lost), default=0.0)
        if lost and largest > _LEAST_LOSS and not any(leaf.any() for leaf in found):
            raise Mismatch(f"{what}: {lost}", expected=f"up to {largest:.3g}", found="only zeros, and no error")
        # Each result is computed from results, through several sums, so rounding errors add up.
        summed = max(1, self.call.sample.elements) * self.call.summed
        dtype = self.call.precision_of_gradients
        try:
            self.call.expect_close(found, expected, summed=summed, scale=100.0, what=what, dtype=dtype)
        except Mismatch:
            if not (differentiates and self.is_differentiable and is_at_kink(self.call, check_differences)):
                raise

    def _fails(self, transform: Function) -> bool:
        """Whether PyTorch cannot transform the reference either, in the place of the operator."""
        try:
            with fresh_compiler():
                transform(self._in_its_place, self.tensors)
        except Exception:
            return True
        return False


def squares(function: Function) -> Function:
    """Wraps a function: its results become a scalar that has second derivatives wherever they have first ones."""

    def scalar(*tensors: Tensor) -> Tensor:
        results = tree_leaves(function(*tensors))
        return torch.stack([(result * result.conj()).real.sum() for result in results]).sum()

    return scalar
