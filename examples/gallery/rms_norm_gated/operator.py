"""The declaration of rms_norm_gated, and of the operator that computes its gradients."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft import Operator
from torchgraft.operator import FLOATING


def _reference(input: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = torch.promote_types(input.dtype, torch.float32)
    gate = gate.to(wide)
    gated = input.to(wide) * gate * torch.sigmoid(gate)
    scale = torch.rsqrt(gated.square().mean(-1, keepdim=True) + epsilon)
    return (gated * scale * weight.to(wide)).to(input.dtype)


def _explain(*arguments: Any) -> None:
    if not 0 <= arguments[-1] < math.inf:
        raise ValueError(f"rms_norm_gated: epsilon must be a finite number and not negative, got {arguments[-1]}")


def _gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Any,
    input: Tensor,
    gate: Tensor,
    weight: Tensor,
    epsilon: float,
) -> tuple[Tensor, ...]:
    input_grad, gate_grad, weight_grads = rms_norm_gated_backward(output_grads[0], input, gate, weight, epsilon)
    rows = torch.atleast_2d(weight_grads).flatten(0, -2)
    return input_grad, gate_grad, rows.sum(0).to(weight.dtype)


rms_norm_gated = Operator(
    "gallery::rms_norm_gated(Tensor input, Tensor gate, Tensor weight, float epsilon=1e-5) -> Tensor",
    reference=_reference,
    shapes="... columns, ... columns, columns -> ... columns",
    gradient=_gradient,
    kernels={"cuda": FLOATING},
    explain=_explain,
)


def _backward_reference(
    output_grad: Tensor, input: Tensor, gate: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of input and gate, and for each row what it adds to the gradient of weight, in float32."""
    wide = torch.promote_types(input.dtype, torch.float32)
    value, gate, grad = input.to(wide), gate.to(wide), output_grad.to(wide)
    sigmoid = torch.sigmoid(gate)
    silu = gate * sigmoid
    gated = value * silu
    scale = torch.rsqrt(gated.square().mean(-1, keepdim=True) + epsilon)
    normalized, weighted = gated * scale, grad * weight.to(wide)
    gated_grad = scale * (weighted - normalized * (weighted * normalized).mean(-1, keepdim=True))
    gate_grad = gated_grad * value * (sigmoid + silu * (1 - sigmoid))
    return (gated_grad * silu).to(input.dtype), gate_grad.to(input.dtype), grad * normalized


def _backward_output(
    output_grad: Tensor, input: Tensor, gate: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    wide = torch.promote_types(input.dtype, torch.float32)
    new = input.new_empty
    return new(input.shape), new(input.shape), new(input.shape, dtype=wide)


rms_norm_gated_backward = Operator(
    "gallery::rms_norm_gated_backward(Tensor output_grad, Tensor input, Tensor gate, Tensor weight, float epsilon)"
    " -> (Tensor, Tensor, Tensor)",
    reference=_backward_reference,
    output=_backward_output,
    shapes="... columns, ... columns, ... columns, columns -> ... columns, ... columns, ... columns",
    # Second derivatives are rare, and need no kernel.
    gradient="reference",
    kernels={"cuda": FLOATING},
    explain=_explain,
)
