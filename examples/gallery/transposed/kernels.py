"""The kernel of transposed in Gluon, where a layout says which element lies in which thread.

A program owns a tile of 64 x 64 elements of one matrix. It reads rows, 16 bytes a thread, changes the layout, which
goes through shared memory, and writes columns, again 16 bytes a thread: all bytes are read and written once, in order.
"""

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from transposed.operator import transposed

_TILE = 64
_WARPS = 4


@gluon.jit
def _transpose(from_ptr, to_ptr, rows, columns, TILE: gl.constexpr, VECTOR: gl.constexpr, WARPS: gl.constexpr):
    # A warp covers a few whole rows of the tile, and then a few whole columns.
    lanes: gl.constexpr = TILE // VECTOR
    by_row: gl.constexpr = gl.BlockedLayout([1, VECTOR], [32 // lanes, lanes], [WARPS, 1], [1, 0])
    by_column: gl.constexpr = gl.BlockedLayout([VECTOR, 1], [lanes, 32 // lanes], [1, WARPS], [0, 1])
    across = gl.cdiv(columns, TILE)
    down = gl.cdiv(rows, TILE)
    tile = gl.program_id(0)
    matrix = (tile // (across * down)).to(gl.int64) * rows * columns
    first_row = tile // across % down * TILE
    first_column = tile % across * TILE

    row = first_row + gl.arange(0, TILE, layout=gl.SliceLayout(1, by_row))[:, None]
    column = first_column + gl.arange(0, TILE, layout=gl.SliceLayout(0, by_row))[None, :]
    place = matrix + row.to(gl.int64) * columns + column
    values = gl.load(from_ptr + place, mask=(row < rows) & (column < columns))

    values = gl.convert_layout(values, by_column)
    row = first_row + gl.arange(0, TILE, layout=gl.SliceLayout(1, by_column))[:, None]
    column = first_column + gl.arange(0, TILE, layout=gl.SliceLayout(0, by_column))[None, :]
    place = matrix + column.to(gl.int64) * rows + row
    gl.store(to_ptr + place, values, mask=(row < rows) & (column < columns))


def _constants(dtype: torch.dtype) -> dict[str, int]:
    return {"TILE": _TILE, "VECTOR": 16 // dtype.itemsize, "WARPS": _WARPS}


def _code(input: Tensor) -> str:
    """Compiles the kernel for an H100 or H200, also where there is none."""
    pointer = {torch.float32: "*fp32", torch.float64: "*fp64", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
    kept, constants = pointer[input.dtype], _constants(input.dtype)
    signature = {"from_ptr": kept, "to_ptr": kept, "rows": "i32", "columns": "i32"}
    source = GluonASTSource(_transpose, {**signature, **dict.fromkeys(constants, "constexpr")}, constants)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": _WARPS})
    code: str = made.asm["ptx"]
    return code


@transposed.kernel("cuda", language="Gluon", fills=True, compile=_code)
def tiles(input: Tensor, output: Tensor) -> None:
    """One program for each tile of each matrix."""
    rows, columns = input.shape[-2:]
    count = triton.cdiv(rows, _TILE) * triton.cdiv(columns, _TILE) * (input.numel() // (rows * columns))
    _transpose[(count,)](input, output, rows, columns, **_constants(input.dtype), num_warps=_WARPS)
