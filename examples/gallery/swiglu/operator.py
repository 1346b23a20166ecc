"""The declaration of swiglu, and of the operator that computes its gradients."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft import Operator
from torchgraft.operator import FLOATING


def _reference(gate: Tensor, up: Tensor) -> Tensor:
    wide = torch.promote_types(gate.dtype, torch.float32)
    gate, up, kept = gate.to(wide), up.to(wide), gate.dtype
    # The formula of torch.nn.functional.silu has no second derivative in forward mode.
    return (gate * torch.sigmoid(gate) * up).to(kept)


def _gradient(
    needs_grad: Sequence[bool], output_grads: Sequence[Tensor], saved: Any, gate: Tensor, up: Tensor
) -> tuple[Tensor, Tensor]:
    gate_grad, up_grad = swiglu_backward(output_grads[0], gate, up)
    return gate_grad, up_grad


swiglu = Operator(
    "gallery::swiglu(Tensor gate, Tensor up) -> Tensor",
    reference=_reference,
    shapes="..., ... -> ...",
    gradient=_gradient,
    # The exponential, two sums, a quotient and a product for each result.
    flops=lambda gate_shape, up_shape: 5 * math.prod(gate_shape),
    kernels={"cuda": FLOATING},
)


def _backward_reference(output_grad: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(gate.dtype, torch.float32)
    grad, gate, up, kept = output_grad.to(wide), gate.to(wide), up.to(wide), gate.dtype
    sigmoid = torch.sigmoid(gate)
    gate_grad = grad * up * (sigmoid * (1 + gate * (1 - sigmoid)))
    return gate_grad.to(kept), (grad * (gate * sigmoid)).to(kept)


swiglu_backward = Operator(
    "gallery::swiglu_backward(Tensor output_grad, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    reference=_backward_reference,
    shapes="..., ..., ... -> ..., ...",
    # Second derivatives are rare, and need no kernel.
    gradient="reference",
    kernels={"cuda": FLOATING},
)
