"""The declaration of softmax, and of the operator that computes its gradient from the result."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft import Operator
from torchgraft.operator import FLOATING


def _reference(input: Tensor) -> Tensor:
    wide = torch.promote_types(input.dtype, torch.float32)
    return torch.softmax(input.to(wide), -1).to(input.dtype)


def _gradient(needs_grad: Sequence[bool], output_grads: Sequence[Tensor], saved: Any, input: Tensor) -> tuple[Tensor]:
    return (softmax_backward(output_grads[0], input),)


softmax = Operator(
    "gallery::softmax(Tensor input) -> Tensor",
    reference=_reference,
    shapes="... columns -> ... columns",
    gradient=_gradient,
    vmap=lambda operator, batch_size, in_dims, input: (operator(input.movedim(in_dims[0], 0)), 0),
    kernels={"cpu": FLOATING, "cuda": FLOATING},
)


def _backward_reference(output_grad: Tensor, input: Tensor) -> Tensor:
    wide = torch.promote_types(input.dtype, torch.float32)
    output, grad = torch.softmax(input.to(wide), -1), output_grad.to(wide)
    return (output * (grad - (output * grad).sum(-1, keepdim=True))).to(input.dtype)


softmax_backward = Operator(
    "gallery::softmax_backward(Tensor output_grad, Tensor input) -> Tensor",
    reference=_backward_reference,
    shapes="... columns, ... columns -> ... columns",
    # Second derivatives are rare, and need no kernel.
    gradient="reference",
    kernels={"cpu": FLOATING, "cuda": FLOATING},
)
