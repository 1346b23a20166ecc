"""The declarations of rms_norm, add_rms_norm and their gradient."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torchgraft import Operator
from torchgraft.operator import gradient_by_reference

from rms_norm import reference


def _explain(name: str, epsilon: float) -> None:
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"{name}: epsilon must be a finite number and not negative, got {epsilon}")


def _gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    input: Tensor,
    weight: Tensor,
    epsilon: float,
) -> Sequence[Tensor | None]:
    grads = rms_norm_backward_operator(output_grads[0], None, input, None, weight, epsilon)
    return [grad if needed else None for grad, needed in zip(grads, needs_grad, strict=False)]


def _add_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    input: Tensor,
    residual: Tensor,
    weight: Tensor,
    epsilon: float,
) -> Sequence[Tensor | None]:
    output_grad, total_grad = output_grads
    if output_grad is None:
        input_grad, weight_grad = total_grad, torch.zeros_like(weight)
    else:
        input_grad, weight_grad = rms_norm_backward_operator(output_grad, total_grad, input, residual, weight, epsilon)
    # A sum has the same gradient for both of its parts.
    grads = (input_grad, input_grad, weight_grad)
    return [grad if needed else None for grad, needed in zip(grads, needs_grad, strict=False)]


rms_norm_operator = Operator(
    "rms_norm::rms_norm(Tensor input, Tensor weight, float epsilon=1e-6) -> Tensor",
    reference=reference.rms_norm,
    shapes="... columns, columns -> ... columns",
    gradient=_gradient,
    autocast="promote",
    explain=lambda input, weight, epsilon: _explain("rms_norm", epsilon),
)

add_rms_norm_operator = Operator(
    "rms_norm::add_rms_norm(Tensor input, Tensor residual, Tensor weight, float epsilon=1e-6)"
    " -> (Tensor output, Tensor total)",
    reference=reference.add_rms_norm,
    shapes="... columns, ... columns, columns -> ... columns, ... columns",
    gradient=_add_gradient,
    autocast="promote",
    explain=lambda input, residual, weight, epsilon: _explain("add_rms_norm", epsilon),
)

rms_norm_backward_operator = Operator(
    "rms_norm::rms_norm_backward(Tensor output_grad, Tensor? total_grad, Tensor input, Tensor? residual, Tensor weight,"
    " float epsilon) -> (Tensor input_grad, Tensor weight_grad)",
    reference=reference.rms_norm_backward,
    shapes="... columns, ... columns, ... columns, ... columns, columns -> ... columns, columns",
    # Second derivatives are rarely asked for, and are made of PyTorch's operators.
    gradient=gradient_by_reference(reference.rms_norm_backward, 5),
    explain=lambda output_grad, total_grad, input, residual, weight, epsilon: _explain("rms_norm_backward", epsilon),
)
