"""The kernel of linear_relu.

A program owns a tile of the result. It reads ROWS rows of the input and COLUMNS rows of the weight, DEPTH features at a
time, and adds up their products in float32, and in float64 for float64. Which tiles are fastest depends on the sizes
and on the GPU, so they are tuned.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from linear_relu.operator import linear_relu
from torchgraft import wrap_triton

# Few rows, as when a model writes one token after the other; large layers; and one between.
_TILES = [
    triton.Config({"ROWS": 64, "COLUMNS": 64, "DEPTH": 32}, num_warps=4, num_stages=3),
    triton.Config({"ROWS": 16, "COLUMNS": 64, "DEPTH": 64}, num_warps=4, num_stages=3),
    triton.Config({"ROWS": 128, "COLUMNS": 128, "DEPTH": 32}, num_warps=8, num_stages=3),
]


@triton.autotune(configs=_TILES, key=["rows", "units", "features"])
@triton.jit
def _forward(
    input_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    rows,
    units,
    features,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    unit = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)).to(tl.int64)[None, :]
    kept = output_ptr.dtype.element_ty
    computed = tl.float64 if kept == tl.float64 else tl.float32
    sums = tl.zeros((ROWS, COLUMNS), computed)
    for first in range(0, features, DEPTH):
        feature = first + tl.arange(0, DEPTH)
        across, down = feature[None, :], feature[:, None]
        left = tl.load(input_ptr + row * features + across, mask=(row < rows) & (across < features), other=0)
        right = tl.load(weight_ptr + unit * features + down, mask=(unit < units) & (down < features), other=0)
        # Without input_precision, products of float32 would be those of TF32.
        sums = tl.dot(left, right, sums, input_precision="ieee", out_dtype=sums.dtype)
    sums += tl.load(bias_ptr + unit, mask=unit < units, other=0).to(computed)
    result = tl.maximum(sums, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(output_ptr + row * units + unit, result.to(kept), mask=(row < rows) & (unit < units))


@linear_relu.kernel("cuda", name="tiles", triton=True)
def tiles(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One program for each tile of the result."""
    rows, features = input.shape
    units = weight.shape[0]
    output = torch.empty((rows, units), dtype=input.dtype, device=input.device)
    if output.numel():

        def grid(tile: dict[str, int]) -> tuple[int, int]:
            return triton.cdiv(rows, tile["ROWS"]), triton.cdiv(units, tile["COLUMNS"])

        arguments = (input.contiguous(), weight.contiguous(), bias.contiguous(), output, rows, units, features)
        wrap_triton(_forward)[grid](*arguments)
    return output
