"""The kernels of softmax in TileLang, for a CPU and for a GPU.

TileLang's target 'c' makes one loop over the rows, and has no tiles in registers, so the programs for the CPU are
others than those for a GPU, where 128 threads own a row and read it twice, a tile of 512 columns at a time: first for
the largest element and the sum, which is scaled whenever a larger element comes, then for the result. Arithmetic is in
float32, and in float64 for float64. A thread of a CPU adds a whole row, so its sums are in float64.
"""

import functools
from collections.abc import Callable
from typing import Any

import tilelang
import tilelang.language as T
import torch
from torch import Tensor

from softmax.operator import softmax, softmax_backward

_THREADS = 128
_TILE = 4 * _THREADS


def _names(dtype: torch.dtype) -> tuple[str, str]:
    """TileLang's names of a dtype, and of the dtype in which it is computed."""
    return str(dtype).removeprefix("torch."), "float64" if dtype == torch.float64 else "float32"


def _forward_on_cpu(dtype: torch.dtype) -> Any:
    kept, wide = _names(dtype)
    rows, columns = T.dynamic("rows"), T.dynamic("columns")

    @T.prim_func
    def forward(X: T.Tensor((rows, columns), kept), Y: T.Tensor((rows, columns), kept)):
        with T.Kernel(rows, threads=1) as row:
            top = T.alloc_local((1,), wide)
            total = T.alloc_local((1,), "float64")
            top[0] = -T.infinity(wide)
            total[0] = 0
            for c in T.serial(columns):
                top[0] = T.max(top[0], T.cast(X[row, c], wide))
            for c in T.serial(columns):
                total[0] += T.cast(T.exp(T.cast(X[row, c], wide) - top[0]), "float64")
            for c in T.serial(columns):
                Y[row, c] = T.cast(T.exp(T.cast(X[row, c], wide) - top[0]) / T.cast(total[0], wide), kept)

    return forward


def _backward_on_cpu(dtype: torch.dtype) -> Any:
    kept, wide = _names(dtype)
    rows, columns = T.dynamic("rows"), T.dynamic("columns")

    @T.prim_func
    def backward(
        G: T.Tensor((rows, columns), kept), X: T.Tensor((rows, columns), kept), D: T.Tensor((rows, columns), kept)
    ):
        with T.Kernel(rows, threads=1) as row:
            top = T.alloc_local((1,), wide)
            total = T.alloc_local((1,), "float64")
            product = T.alloc_local((1,), "float64")
            power = T.alloc_local((1,), wide)
            top[0] = -T.infinity(wide)
            total[0] = 0
            product[0] = 0
            for c in T.serial(columns):
                top[0] = T.max(top[0], T.cast(X[row, c], wide))
            for c in T.serial(columns):
                power[0] = T.exp(T.cast(X[row, c], wide) - top[0])
                total[0] += T.cast(power[0], "float64")
                product[0] += T.cast(power[0], "float64") * T.cast(G[row, c], "float64")
            for c in T.serial(columns):
                power[0] = T.exp(T.cast(X[row, c], wide) - top[0]) / T.cast(total[0], wide)
                D[row, c] = T.cast(power[0] * (T.cast(G[row, c], wide) - T.cast(product[0] / total[0], wide)), kept)

    return backward


def _forward_on_gpu(dtype: torch.dtype) -> Any:
    kept, wide = _names(dtype)
    rows, columns = T.dynamic("rows"), T.dynamic("columns")

    @T.prim_func
    def forward(X: T.Tensor((rows, columns), kept), Y: T.Tensor((rows, columns), kept)):
        with T.Kernel(rows, threads=_THREADS) as row:
            x = T.alloc_fragment((1, _TILE), wide)
            top = T.alloc_fragment((1,), wide)
            before = T.alloc_fragment((1,), wide)
            part = T.alloc_fragment((1,), wide)
            total = T.alloc_fragment((1,), wide)
            T.fill(top, -T.infinity(wide))
            T.fill(total, 0)
            for tile in T.serial(T.ceildiv(columns, _TILE)):
                for _, c in T.Parallel(1, _TILE):
                    x[0, c] = T.if_then_else(
                        tile * _TILE + c < columns, T.cast(X[row, tile * _TILE + c], wide), -T.infinity(wide)
                    )
                before[0] = top[0]
                T.reduce_max(x, top, dim=1, clear=False)
                for _, c in T.Parallel(1, _TILE):
                    # As long as all elements were -infinity, nothing is subtracted: the difference would be NaN.
                    x[0, c] = T.exp(x[0, c] - T.if_then_else(top[0] == -T.infinity(wide), T.cast(0, wide), top[0]))
                T.reduce_sum(x, part, dim=1)
                total[0] = part[0] + T.if_then_else(
                    before[0] == -T.infinity(wide), T.cast(0, wide), total[0] * T.exp(before[0] - top[0])
                )
            for tile in T.serial(T.ceildiv(columns, _TILE)):
                for _, c in T.Parallel(1, _TILE):
                    if tile * _TILE + c < columns:
                        Y[row, tile * _TILE + c] = T.cast(
                            T.exp(T.cast(X[row, tile * _TILE + c], wide) - top[0]) / total[0], kept
                        )

    return forward


def _backward_on_gpu(dtype: torch.dtype) -> Any:
    kept, wide = _names(dtype)
    rows, columns = T.dynamic("rows"), T.dynamic("columns")

    @T.prim_func
    def backward(
        G: T.Tensor((rows, columns), kept), X: T.Tensor((rows, columns), kept), D: T.Tensor((rows, columns), kept)
    ):
        with T.Kernel(rows, threads=_THREADS) as row:
            x = T.alloc_fragment((1, _TILE), wide)
            g = T.alloc_fragment((1, _TILE), wide)
            top = T.alloc_fragment((1,), wide)
            part = T.alloc_fragment((1,), wide)
            total = T.alloc_fragment((1,), wide)
            product = T.alloc_fragment((1,), wide)
            T.fill(top, -T.infinity(wide))
            T.fill(total, 0)
            T.fill(product, 0)
            for tile in T.serial(T.ceildiv(columns, _TILE)):
                for _, c in T.Parallel(1, _TILE):
                    x[0, c] = T.if_then_else(
                        tile * _TILE + c < columns, T.cast(X[row, tile * _TILE + c], wide), -T.infinity(wide)
                    )
                T.reduce_max(x, top, dim=1, clear=False)
            for tile in T.serial(T.ceildiv(columns, _TILE)):
                for _, c in T.Parallel(1, _TILE):
                    x[0, c] = T.if_then_else(
                        tile * _TILE + c < columns,
                        T.exp(T.cast(X[row, tile * _TILE + c], wide) - top[0]),
                        T.cast(0, wide),
                    )
                    g[0, c] = T.if_then_else(
                        tile * _TILE + c < columns, x[0, c] * T.cast(G[row, tile * _TILE + c], wide), T.cast(0, wide)
                    )
                T.reduce_sum(x, part, dim=1)
                total[0] += part[0]
                T.reduce_sum(g, part, dim=1)
                product[0] += part[0]
            for tile in T.serial(T.ceildiv(columns, _TILE)):
                for _, c in T.Parallel(1, _TILE):
                    if tile * _TILE + c < columns:
                        D[row, tile * _TILE + c] = T.cast(
                            T.exp(T.cast(X[row, tile * _TILE + c], wide) - top[0])
                            / total[0]
                            * (T.cast(G[row, tile * _TILE + c], wide) - product[0] / total[0]),
                            kept,
                        )

    return backward


@functools.cache
def _compiled(program: Callable[[torch.dtype], Any], dtype: torch.dtype, target: str, architecture: str = "") -> Any:
    named: Any = {"kind": target, "arch": architecture} if architecture else target
    return tilelang.compile(program(dtype), target=named)


def _run(program: Callable[[torch.dtype], Any], target: str, *tensors: Tensor) -> None:
    """Runs a program on tensors of rows, the last of which it fills."""
    rows = [tensor.view(-1, tensor.shape[-1]) for tensor in tensors]
    if target == "c" and rows[0].dtype == torch.bfloat16:
        # TileLang 0.1.15 has no bfloat16 for this target.
        rows = [each.float() for each in rows]
    _compiled(program, rows[0].dtype, target)(*rows)
    if rows[-1].dtype != tensors[-1].dtype:
        tensors[-1].view(-1, tensors[-1].shape[-1]).copy_(rows[-1])


def _source(program: Callable[[torch.dtype], Any], *tensors: Tensor) -> str:
    """Compiles a program for an H100 or H200, also where there is none; TileLang calls nvcc."""
    code: str = _compiled(program, tensors[0].dtype, "cuda", "sm_90").get_kernel_source()
    return code


for operator, on_cpu, on_gpu in (
    (softmax, _forward_on_cpu, _forward_on_gpu),
    (softmax_backward, _backward_on_cpu, _backward_on_gpu),
):
    declared = functools.partial(operator.kernel, name="rows", language="TileLang", fills=True)
    declared("cpu")(functools.partial(_run, on_cpu, "c"))
    declared("cuda", compile=functools.partial(_source, on_gpu))(functools.partial(_run, on_gpu, "cuda"))
