"""The kernels of rms_norm_gated in Helion.

A tile is a row, with all of its columns in registers. Helion would tune rows, warps and stages at the first call of a
problem on a GPU, for minutes; here a configuration is given. Arithmetic is in float32, and in float64 for float64.

Five things are so because Helion 1.5.0 went wrong otherwise, on an H200. Sizes are static: with dynamic ones a kernel
wrote one column of 24 where a call before had one. `epsilon` is a constant, since a number is handed over in float32,
also to arithmetic in float64. `torch.sigmoid` and `torch.sqrt` of float64 are only as exact as float32, so that they
are not used. A quotient and `torch.rsqrt` of float32 are not rounded to the nearest; one of each row multiplies all of
its elements, so those two are in float64. Indices have 64 bits, as 2**31 elements and more may lie between two rows.
"""

import helion
import helion.language as hl
import torch
from torch import Tensor

from rms_norm_gated.operator import rms_norm_gated, rms_norm_gated_backward

_CONFIGURATION = helion.Config(block_sizes=[1], num_warps=8)


@helion.kernel(config=_CONFIGURATION, static_shapes=True, index_dtype=torch.int64)
def _forward(input: Tensor, gate: Tensor, weight: Tensor, epsilon: hl.constexpr, wide: hl.constexpr) -> Tensor:
    rows, columns = input.size()
    output = torch.empty([rows, columns], dtype=input.dtype, device=input.device)
    for row in hl.tile(rows):
        g = gate[row, :].to(wide)
        gated = input[row, :].to(wide) * (g / (1 + torch.exp(-g)))
        mean_square = (gated * gated).sum(-1).to(torch.float64) / columns
        scale = torch.rsqrt(mean_square + epsilon).to(wide)[:, None]
        output[row, :] = (gated * scale * weight[:].to(wide)[None, :]).to(input.dtype)
    return output


@helion.kernel(config=_CONFIGURATION, static_shapes=True, index_dtype=torch.int64)
def _backward(
    output_grad: Tensor, input: Tensor, gate: Tensor, weight: Tensor, epsilon: hl.constexpr, wide: hl.constexpr
) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = input.size()
    input_grad = torch.empty([rows, columns], dtype=input.dtype, device=input.device)
    gate_grad = torch.empty([rows, columns], dtype=input.dtype, device=input.device)
    weight_grads = torch.empty([rows, columns], dtype=wide, device=input.device)
    for row in hl.tile(rows):
        value, g, grad = input[row, :].to(wide), gate[row, :].to(wide), output_grad[row, :].to(wide)
        sigmoid = 1 / (1 + torch.exp(-g))
        silu = g * sigmoid
        gated = value * silu
        mean_square = (gated * gated).sum(-1).to(torch.float64) / columns
        scale = torch.rsqrt(mean_square + epsilon).to(wide)[:, None]
        normalized = gated * scale
        weighted = grad * weight[:].to(wide)[None, :]
        mean = ((weighted * normalized).sum(-1) / columns)[:, None]
        gated_grad = scale * (weighted - normalized * mean)
        input_grad[row, :] = (gated_grad * silu).to(input.dtype)
        gate_grad[row, :] = (gated_grad * value * (sigmoid + silu * (1 - sigmoid))).to(input.dtype)
        weight_grads[row, :] = grad * normalized
    return input_grad, gate_grad, weight_grads


def _rows(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(-1, tensor.shape[-1])


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


@rms_norm_gated.kernel("cuda", language="Helion")
def rows(input: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Normalizes each row."""
    if not input.numel():
        return torch.empty(input.shape, dtype=input.dtype, device=input.device)
    found: Tensor = _forward(_rows(input), _rows(gate), weight.detach(), epsilon, _wide(input))
    return found.view(input.shape)


@rms_norm_gated_backward.kernel("cuda", language="Helion")
def rows_backward(
    output_grad: Tensor, input: Tensor, gate: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients of each row."""
    if not input.numel():
        new = input.new_empty
        return new(input.shape), new(input.shape), new(input.shape, dtype=_wide(input))
    rows = (_rows(each) for each in (output_grad, input, gate))
    input_grad, gate_grad, weight_grads = _backward(*rows, weight.detach(), epsilon, _wide(input))
    return input_grad.view(input.shape), gate_grad.view(input.shape), weight_grads.view(input.shape)
