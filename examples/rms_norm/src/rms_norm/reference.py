"""The meaning of the operators: their kernels are compared with this."""

import torch
from torch import Tensor


def _widened(tensor: Tensor) -> Tensor:
    # float16 and bfloat16 are computed in float32: their sum is not rounded before it is normalized.
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _scaled(total: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + epsilon)
    return total * scale, scale


def rms_norm(input: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Equation 4 of Zhang and Sennrich, Root Mean Square Layer Normalization (2019)."""
    normalized, _ = _scaled(_widened(input), epsilon)
    return (normalized * _widened(weight)).to(input.dtype)


def add_rms_norm(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The sum of input and residual, normalized; and the sum."""
    total = _widened(input) + _widened(residual)
    normalized, _ = _scaled(total, epsilon)
    return (normalized * _widened(weight)).to(input.dtype), total.to(input.dtype)


def rms_norm_backward(
    output_grad: Tensor,
    total_grad: Tensor | None,
    input: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """The gradients of what is normalized and of the weight."""
    total = _widened(input) if residual is None else _widened(input) + _widened(residual)
    normalized, scale = _scaled(total, epsilon)
    grad = _widened(output_grad)
    weighted = grad * _widened(weight)
    input_grad = scale * (weighted - normalized * (weighted * normalized).mean(-1, keepdim=True))
    if total_grad is not None:
        input_grad = input_grad + _widened(total_grad)
    weight_grad = (grad * normalized).reshape(-1, weight.shape[0]) if weight.shape[0] else grad.new_zeros(1, 0)
    return input_grad.to(input.dtype), weight_grad.sum(0).to(weight.dtype)
