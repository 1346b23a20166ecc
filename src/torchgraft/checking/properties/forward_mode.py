"""Forward-mode differentiation carries tangents through the operator and loses none.

Proves: in float64, on a few small samples, the results are those of the reference for torch.func.jvp of all tensors at
once and of each alone, jacfwd, dual numbers, a tangent that is carried on through backward, and jvp under
torch.compile. jacfwd also gives what the reference gives in reverse mode, so that the check notices a tangent that the
reference itself loses.

Cannot prove: anything about forward mode inside transforms other than backward; `functional_gradients` checks a
Hessian, which is one of these.

Mend: tangents come from the reference: compute in differentiable PyTorch there, without detach() and without
torch.no_grad().

Example: in forward mode its reference gives tangents of zero.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor
from torch.func import jacfwd, jacrev, jvp
from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Case
from torchgraft.checking.helpers.transforming import Both, Function, Tensors, check_samples, squares
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.tensors.arguments import with_places_left
from torchgraft.checking.tensors.gradients import grad_or_zeros

_LOST = "the tangent is lost without an error: all of it is zero, as for a constant"


def check(case: Case) -> None:
    """See the module."""
    check_samples(case, 4, _check_eager, _check_compiled)


def _check_eager(both: Both) -> None:
    places = range(len(both.names))
    both.expect_same(partial(_jvp, places), "torch.func.jvp", lost=_LOST)
    for place, name in enumerate(both.names):
        both.expect_same(partial(_jvp, [place]), f"torch.func.jvp with respect to {name} alone", lost=_LOST)

    def jacobian(function: Function, tensors: Tensors) -> Any:
        # The reference is differentiated in reverse mode, as it may lose tangents in forward mode too.
        transform = jacrev if function is both.referred else jacfwd
        return transform(function, tuple(places))(*tensors)

    both.expect_same(jacobian, "torch.func.jacfwd", lost=_LOST)
    both.expect_same(_dual_numbers, "torch.autograd.forward_ad", lost=_LOST)
    both.expect_same(_backward_of_dual_numbers, "backward of torch.autograd.forward_ad", lost=_LOST)


def _check_compiled(both: Both) -> None:
    def compiled_jvp(function: Function, tensors: Tensors) -> Any:
        def of_all(*values: Tensor) -> Any:
            return jvp(function, values[: len(tensors)], values[len(tensors) :])[1]

        return both.compiled(function, of_all)(*tensors, *_tangents(tensors))

    both.expect_same(compiled_jvp, "torch.func.jvp under torch.compile", lost=_LOST, is_compiled=True)


def _tangents(tensors: Tensors) -> Tensors:
    # Any direction that no argument points in.
    return tuple(torch.cos(3 * tensor) for tensor in tensors)


def _jvp(places: Sequence[int], function: Function, tensors: Tensors) -> Any:
    """Computes the tangents of the results with respect to the tensors in some places."""
    chosen, tangents = (tuple(each[place] for place in places) for each in (tensors, _tangents(tensors)))
    # The value is compared by others, and would hide that the tangent is zero.
    return jvp(with_places_left(function, tensors, places), chosen, tangents)[1]


def _dual_numbers(function: Function, tensors: Tensors) -> Any:
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(tensors, _tangents(tensors), strict=True)]
        return [_tangent_of(result) for result in tree_leaves(function(*duals))]


def _backward_of_dual_numbers(function: Function, tensors: Tensors) -> Any:
    """The tangent of a gradient: forward over reverse."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(leaves, _tangents(tensors), strict=True)]
        value = squares(function)(*duals)
        return [_tangent_of(gradient) for gradient in grad_or_zeros([value], leaves)]


def _tangent_of(tensor: Tensor) -> Tensor:
    primal, tangent = forward_ad.unpack_dual(tensor)
    return torch.zeros_like(primal) if tangent is None else tangent.clone()


# Kernels carry no tangents: the reference answers, also where there are kernels.
PROPERTY = Property(check, dtypes=(torch.float64,), of_kernels=False, imports=COMPILER)
