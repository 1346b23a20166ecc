"""The declaration of kept_backward: what PyTorch must know about it, and nothing about how it is computed."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchgraft import Operator, gradient_by_reference
from torchgraft.operator import FLOATING

from kept_backward import reference

kept_backward_backward_operator = Operator(
    "kept_backward::kept_backward_backward(Tensor output_grad, Tensor input, float factor) -> Tensor",
    reference=reference.kept_backward_backward,
    shapes="..., ... -> ...",
    gradient=gradient_by_reference(reference.kept_backward_backward, 2),
    dtypes=FLOATING,
    kernels={"cpu": FLOATING},
)


def _kept_backward_output(input: Tensor, factor: float) -> Tensor:
    return torch.empty_like(input)


def _kept_backward_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    input: Tensor,
    factor: float,
) -> tuple[Tensor]:
    return (kept_backward_backward_operator(output_grads[0], input, factor),)


kept_backward_operator = Operator(
    "kept_backward::kept_backward(Tensor input, float factor) -> Tensor",
    reference=reference.kept_backward,
    output=_kept_backward_output,
    gradient=_kept_backward_gradient,
    dtypes=FLOATING,
    kernels={"cpu": FLOATING},
)
