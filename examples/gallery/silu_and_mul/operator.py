"""The declaration of silu_and_mul, and of the operator that computes its gradient."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft import Operator
from torchgraft.operator import FLOATING


def _reference(input: Tensor) -> Tensor:
    gate, up = input.chunk(2, -1)
    # The formula of torch.nn.functional.silu has no second derivative in forward mode.
    return gate * torch.sigmoid(gate) * up


def _gradient(needs_grad: Sequence[bool], output_grads: Sequence[Tensor], saved: Any, input: Tensor) -> tuple[Tensor]:
    return (silu_and_mul_backward(output_grads[0], input),)


def _vmap(operator: Any, batch_size: int, in_dims: Sequence[Any], input: Tensor) -> tuple[Tensor, int]:
    # Rows are independent, so a batch is more rows.
    return operator(input.movedim(in_dims[0], 0)), 0


silu_and_mul = Operator(
    "gallery::silu_and_mul(Tensor input) -> Tensor",
    reference=_reference,
    shapes="... 2*d -> ... d",
    gradient=_gradient,
    vmap=_vmap,
    # The exponential, two sums, a quotient and a product for each result.
    flops=lambda input_shape: 5 * math.prod(input_shape) // 2,
    kernels={"cuda": FLOATING},
)


def _backward_reference(output_grad: Tensor, input: Tensor) -> Tensor:
    # Second derivatives go through here, and add up several terms: in half precision each would be rounded.
    wide = torch.promote_types(input.dtype, torch.float32)
    gate, up = input.to(wide).chunk(2, -1)
    grad, sigmoid = output_grad.to(wide), torch.sigmoid(gate)
    gate_grad = grad * up * (sigmoid * (1 + gate * (1 - sigmoid)))
    return torch.cat((gate_grad, grad * (gate * sigmoid)), -1).to(input.dtype)


silu_and_mul_backward = Operator(
    "gallery::silu_and_mul_backward(Tensor output_grad, Tensor input) -> Tensor",
    reference=_backward_reference,
    shapes="... d, ... 2*d -> ... 2*d",
    # Second derivatives are rare, and need no kernel.
    gradient="reference",
    kernels={"cuda": FLOATING},
)
