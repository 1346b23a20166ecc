"""The kernel of fused_add_rms_norm.

A program owns one row. A row of at most 8192 columns is read once and stays in registers between the sum of squares and
the result; a longer one is read twice, a block at a time, the second time mostly from cache. Arithmetic is in float32,
and in float64 for float64.
"""

import struct

import triton
import triton.language as tl
from torch import Tensor

from fused_add_rms_norm.operator import fused_add_rms_norm
from torchgraft import wrap_triton

_MOST_COLUMNS = 8192


@triton.jit
def _widened(values):
    return values if values.dtype == tl.float64 else values.to(tl.float32)


@triton.jit
def _write(input_ptr, residual_ptr, weight_ptr, place, column, inside, total, scale):
    # The weight is read before anything is written: it may be the input itself.
    weight = _widened(tl.load(weight_ptr + column, mask=inside))
    tl.store(residual_ptr + place, total.to(residual_ptr.dtype.element_ty), mask=inside)
    tl.store(input_ptr + place, (total * scale * weight).to(input_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["epsilon_bits"])
def _add_and_normalize(
    input_ptr,
    residual_ptr,
    weight_ptr,
    columns,
    epsilon_bits,
    BLOCK: tl.constexpr,
    IS_ONE_BLOCK: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * columns
    epsilon = epsilon_bits.to(tl.int64).to(tl.float64, bitcast=True)
    if IS_ONE_BLOCK:
        column = tl.arange(0, BLOCK)
        inside = column < columns
        place = start + column
        total = _widened(tl.load(input_ptr + place, mask=inside, other=0))
        total += _widened(tl.load(residual_ptr + place, mask=inside, other=0))
        scale = tl.rsqrt(tl.sum(total * total) / columns + epsilon.to(total.dtype))
        _write(input_ptr, residual_ptr, weight_ptr, place, column, inside, total, scale)
    else:
        squares = _widened(tl.zeros((BLOCK,), input_ptr.dtype.element_ty))
        for first in range(0, columns, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < columns
            total = _widened(tl.load(input_ptr + start + column, mask=inside, other=0))
            total += _widened(tl.load(residual_ptr + start + column, mask=inside, other=0))
            squares += total * total
        scale = tl.rsqrt(tl.sum(squares) / columns + epsilon.to(squares.dtype))
        for first in range(0, columns, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < columns
            total = _widened(tl.load(input_ptr + start + column, mask=inside, other=0))
            total += _widened(tl.load(residual_ptr + start + column, mask=inside, other=0))
            _write(input_ptr, residual_ptr, weight_ptr, start + column, column, inside, total, scale)


@fused_add_rms_norm.kernel("cuda", triton=True)
def fused_add_rms_norm_rows(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
    """One program for each row."""
    if not input.numel():
        return
    columns = input.shape[-1]
    block = min(triton.next_power_of_2(columns), _MOST_COLUMNS)
    # Copies stand for what is not contiguous.
    rows, sums = input.contiguous(), residual.contiguous()
    wrap_triton(_add_and_normalize)[(input.numel() // columns,)](
        rows,
        sums,
        weight.contiguous(),
        columns,
        # Triton takes Python's numbers in float32; the bits of a float64 arrive as they are.
        struct.unpack("<q", struct.pack("<d", epsilon))[0],
        BLOCK=block,
        IS_ONE_BLOCK=columns <= block,
        num_warps=4 if block <= 2048 else 8,
    )
    for written, copy in ((input, rows), (residual, sums)):
        if copy is not written:
            written.copy_(copy)
