"""The kernel of quantize_fp8.

A program owns one row. A row of at most 8192 columns is read once and stays in registers between its largest element
and its codes; a longer one is read twice, a block at a time, the second time mostly from cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from quantize_fp8.operator import LARGEST, SMALLEST_SCALE, quantize_fp8
from torchgraft import wrap_triton

_MOST_COLUMNS = 8192


@triton.jit
def _magnitudes(values):
    # Neither NaN nor infinity says how large a row is.
    magnitudes = tl.abs(values)
    return tl.where(magnitudes < float("inf"), magnitudes, 0.0)


@triton.jit
def _encoded(values, scale, MOST: tl.constexpr):
    # A plain quotient is off by two units in the last place, which would move what lies between two codes.
    quotients = tl.div_rn(values, scale)
    # NaN is neither more nor less than anything, and stays.
    quotients = tl.where(quotients > MOST, MOST, quotients)
    quotients = tl.where(quotients < -MOST, -MOST, quotients)
    return quotients.to(tl.float8e4nv)


@triton.jit
def _quantize(
    input_ptr,
    codes_ptr,
    scale_ptr,
    columns,
    MOST: tl.constexpr,
    LEAST_SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_ONE_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = row * columns
    if IS_ONE_BLOCK:
        column = tl.arange(0, BLOCK)
        inside = column < columns
        values = tl.load(input_ptr + start + column, mask=inside, other=0).to(tl.float32)
        scale = tl.maximum(tl.div_rn(tl.max(_magnitudes(values)), MOST), LEAST_SCALE)
        tl.store(codes_ptr + start + column, _encoded(values, scale, MOST), mask=inside)
    else:
        largest = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, columns, BLOCK):
            column = first + tl.arange(0, BLOCK)
            values = tl.load(input_ptr + start + column, mask=column < columns, other=0).to(tl.float32)
            largest = tl.maximum(largest, _magnitudes(values))
        scale = tl.maximum(tl.div_rn(tl.max(largest), MOST), LEAST_SCALE)
        for first in range(0, columns, BLOCK):
            column = first + tl.arange(0, BLOCK)
            inside = column < columns
            values = tl.load(input_ptr + start + column, mask=inside, other=0).to(tl.float32)
            tl.store(codes_ptr + start + column, _encoded(values, scale, MOST), mask=inside)
    tl.store(scale_ptr + row, scale)


@quantize_fp8.kernel("cuda", triton=True)
def quantize_fp8_rows(input: Tensor) -> tuple[Tensor, Tensor]:
    """One program for each row."""
    columns = input.shape[-1]
    codes = torch.empty(input.shape, dtype=torch.float8_e4m3fn, device=input.device)
    scale = torch.empty(input.shape[:-1], dtype=torch.float32, device=input.device)
    if codes.numel():
        block = min(triton.next_power_of_2(columns), _MOST_COLUMNS)
        wrap_triton(_quantize)[(scale.numel(),)](
            input.contiguous(),
            codes,
            scale,
            columns,
            MOST=LARGEST,
            LEAST_SCALE=SMALLEST_SCALE,
            BLOCK=block,
            IS_ONE_BLOCK=columns <= block,
            num_warps=4 if block <= 2048 else 8,
        )
    return codes, scale
