"""Kernels of silu_and_mul, forward and gradient.

A program owns one row of the result and BLOCK of its columns; every element is read once and written once. Arithmetic
is in float32, and in float64 for float64.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from silu_and_mul.operator import silu_and_mul, silu_and_mul_backward
from torchgraft import wrap_triton

_MOST_COLUMNS = 1024


@triton.jit
def _widened(values):
    return values if values.dtype == tl.float64 else values.to(tl.float32)


@triton.jit
def _divided(one, other):
    # In float32 a plain quotient is off by two units in the last place.
    return one / other if one.dtype == tl.float64 else tl.div_rn(one, other)


@triton.jit
def _forward(input_ptr, output_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    inside = column < columns
    gate_ptr = input_ptr + 2 * row * columns + column
    gate = _widened(tl.load(gate_ptr, mask=inside))
    up = _widened(tl.load(gate_ptr + columns, mask=inside))
    result = _divided(gate, 1 + tl.exp(-gate)) * up
    tl.store(output_ptr + row * columns + column, result.to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(output_grad_ptr, input_ptr, input_grad_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    inside = column < columns
    place = 2 * row * columns + column
    gate = _widened(tl.load(input_ptr + place, mask=inside))
    up = _widened(tl.load(input_ptr + place + columns, mask=inside))
    grad = _widened(tl.load(output_grad_ptr + row * columns + column, mask=inside))
    sigmoid = _divided(tl.full((BLOCK,), 1, gate.dtype), 1 + tl.exp(-gate))
    gate_grad = grad * up * (sigmoid * (1 + gate * (1 - sigmoid)))
    up_grad = grad * (gate * sigmoid)
    kept = input_grad_ptr.dtype.element_ty
    tl.store(input_grad_ptr + place, gate_grad.to(kept), mask=inside)
    tl.store(input_grad_ptr + place + columns, up_grad.to(kept), mask=inside)


def _grid(columns: int, elements: int) -> tuple[tuple[int, int], dict[str, Any]]:
    """The grid of programs, and what is fixed when a kernel is compiled."""
    block = min(triton.next_power_of_2(columns), _MOST_COLUMNS)
    return (elements // columns, triton.cdiv(columns, block)), {"BLOCK": block, "num_warps": 4}


@silu_and_mul.kernel("cuda", triton=True)
def silu_and_mul_rows(input: Tensor) -> Tensor:
    """One program for each row and each block of columns."""
    columns = input.shape[-1] // 2
    output = torch.empty((*input.shape[:-1], columns), dtype=input.dtype, device=input.device)
    if output.numel():
        grid, constants = _grid(columns, output.numel())
        wrap_triton(_forward)[grid](input.contiguous(), output, columns, **constants)
    return output


@silu_and_mul_backward.kernel("cuda", triton=True)
def silu_and_mul_backward_rows(output_grad: Tensor, input: Tensor) -> Tensor:
    """One program for each row and each block of columns."""
    columns = input.shape[-1] // 2
    input_grad = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    if input_grad.numel():
        grid, constants = _grid(columns, output_grad.numel())
        wrap_triton(_backward)[grid](output_grad.contiguous(), input.contiguous(), input_grad, columns, **constants)
    return input_grad
