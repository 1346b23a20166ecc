"""torch.func differentiates the operator: grad, vjp, jacrev, hessian, and nested gradients, eager and compiled.

Proves: in float64, on a few small samples, each transform gives the same as for the reference, with respect to all
tensors.

Cannot prove: anything about other ways to nest transforms. The Operator asks only whether a transform is active and
whether one carries tangents, so the checked ones stand for the others.

Mend: the formula must be made of PyTorch's operations and of operators: no numbers taken out of tensors, no writing in
place, no branches on values.

Example: torch.func.grad fails: RuntimeError: Cannot access data pointer of Tensor that doesn't have storage.
"""

from typing import Any

import torch
from torch.func import grad, hessian, jacrev, vjp
from torch.utils._pytree import tree_map

from torchgraft.checking.case import Case
from torchgraft.checking.helpers.transforming import Both, Function, Tensors, check_samples, squares
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.tensors.gradients import attached, grad_or_zeros

_LOST = "the gradient is lost without an error: all of it is zero"


def check(case: Case) -> None:
    """See the module."""
    check_samples(case, 4, _check_eager, _check_compiled)


def _check_eager(both: Both) -> None:
    for name, transform in _TRANSFORMS.items():
        both.expect_same(transform, name, lost=_LOST)


def _check_compiled(both: Both) -> None:
    def compiled_gradient(function: Function, tensors: Tensors) -> Any:
        return both.compiled(function, grad(squares(function), _all(tensors)))(*tensors)

    both.expect_same(compiled_gradient, "torch.func.grad under torch.compile", lost=_LOST, is_compiled=True)


def _all(tensors: Tensors) -> tuple[int, ...]:
    return tuple(range(len(tensors)))


def _vjp(function: Function, tensors: Tensors) -> Any:
    results, pull = vjp(function, *tensors)[:2]
    # The cosine is pulled back, as a pull-back of the results themselves would hide a wrong sign.
    return results, pull(tree_map(torch.cos, results))


def _autograd_of_grad(function: Function, tensors: Tensors) -> Any:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    # A gradient that depends on no input, as that of a constant, has a gradient of zero.
    return grad_or_zeros(attached([squares(grad(squares(function), _all(tensors)))(*leaves)], leaves), leaves)


_TRANSFORMS = {
    "torch.func.grad": lambda function, tensors: grad(squares(function), _all(tensors))(*tensors),
    "torch.func.vjp": _vjp,
    "torch.func.jacrev": lambda function, tensors: jacrev(function, _all(tensors))(*tensors),
    "torch.func.hessian": lambda function, tensors: hessian(squares(function), _all(tensors))(*tensors),
    "torch.func.grad of torch.func.grad": lambda function, tensors: grad(
        squares(grad(squares(function), _all(tensors))), _all(tensors)
    )(*tensors),
    "torch.func.jacrev of torch.func.jacrev": lambda function, tensors: jacrev(
        jacrev(squares(function), _all(tensors)), _all(tensors)
    )(*tensors),
    "autograd through torch.func.grad": _autograd_of_grad,
}

PROPERTY = Property(check, dtypes=(torch.float64,), imports=COMPILER)
