"""Gradients against differences of the values that a function gives."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from torchgraft.checking.call import Call
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.gradients import attached, leaves_of
from torchgraft.declaration.results import as_tuple

# A numerical gradient takes two evaluations an element.
NUMERICAL_ELEMENTS = 150
# Numerical differences are exact enough in these dtypes alone.
DOUBLE = (torch.float64, torch.complex128)


class _OtherSizesError(Exception):
    """A step changes the sizes of results, which depend on values: there is no difference."""


def function_of_leaves(
    call: Call, computed_by: Callable[..., Any] | None = None
) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    """The operator, or its stand-in, as a function of the tensors that have gradients, and these tensors in float64."""
    arguments = call.leaves(_in_double(call))
    function = call.of_leaves(computed_by or call.function, arguments)
    first: list[Sequence[torch.Size]] = []

    def compute(*leaves: Tensor) -> tuple[Tensor, ...]:
        results = tuple(attached(as_tuple(function(*leaves)), leaves))
        first.append([each.shape for each in results])
        if call.declaration.sizes_from_data and first[-1] != first[0]:
            raise _OtherSizesError
        return results

    return compute, leaves_of(arguments)


def check_numerically(function: Callable[..., Sequence[Tensor]], leaves: Sequence[Tensor], otherwise: str) -> None:
    """Compares the gradients of a function with differences; what to say where these give something else.

    Args:
        function: all its results carry gradients: PyTorch pairs those that do with all results, one by one.
        leaves: what it takes.
        otherwise: what is wrong where it is.

    Raises:
        Mismatch: the gradients are not those of the values, whose sizes stay as they are for steps in all directions.
    """
    try:
        torch.autograd.gradcheck(function, leaves, fast_mode=True)
    except _OtherSizesError:
        return
    except GradcheckError as error:
        figures, _, _ = " ".join(str(error).split()).partition(" The above quantities")
        raise Mismatch(f"{otherwise}: {figures[:400]}") from None


def _in_double(call: Call) -> tuple[Any, ...]:
    """Arguments with those too in float64 that the sample makes in another dtype, where the operator takes it so."""

    def widened(name: str, value: Any) -> Any:
        allowed = call.declaration.dtypes_of.get(name)
        return value if allowed is not None and not set(DOUBLE) & set(allowed) else in_float64([value])[0]

    pairs = zip(call.declaration.arguments, call.arguments, strict=True)
    return tuple(widened(argument.name, value) for argument, value in pairs)


def check_differences(call: Call, computed_by: Callable[..., Any] | None) -> None:
    """Compares the gradients of the operator, or of its stand-in, with differences of its values."""
    otherwise = "numerical differentiation gives another gradient"
    if call.declaration.random:
        otherwise += ", for the same random numbers (a formula that draws them again passes on every argument)"
    check_numerically(*function_of_leaves(call, computed_by), otherwise)
