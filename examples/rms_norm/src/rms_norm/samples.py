"""Inputs of the operators: widths around every border of the kernels, few and many rows, none, and ranks."""

from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm as pytorchs_rms_norm
from torchgraft.sampling import Benchmark, Budget, Drawn, Sample, Samples, any_size

_TABLE: dict[str, tuple[tuple[int, ...], float]] = {
    "one element": ((1, 1), 0.5),
    "no rows": ((0, 8), 1e-6),
    "rows without columns": ((3, 0), 1e-6),
    "one row without a dimension of its own": ((24,), 1e-6),
    "a large epsilon": ((4, 16), 2.0),
    "fifteen columns, of which no vector is full": ((4, 15), 1e-5),
    "seventeen columns, three dimensions": ((2, 3, 17), 1e-6),
    "a vector of each kind and an element": ((5, 64 + 16 + 1), 1e-6),
    "rows of threads that share a block, the last block not full": ((69, 64), 1e-6),
    "rows for several chunks, the last one not full": ((269, 33), 1e-6),
    "an odd width of several warps": ((3, 1001), 1e-6),
    "five warps of sixteen bytes a thread": ((2, 1280), 1e-6),
}
# What the kernels for CUDA stream; on a CPU it is but wide.
_LARGE = {"more than caches hold": ((513, 4096), 1e-6)}
_WIDE = {"the widest row in registers": (2, 16384), "a row that is streamed": (3, 16392), "and an odd one": (2, 2049)}


def _forward(shape: tuple[int, ...], epsilon: float) -> tuple[Any, ...]:
    return Drawn(shape), Drawn(shape[-1:]), epsilon


def _forward_add(shape: tuple[int, ...], epsilon: float) -> tuple[Any, ...]:
    return Drawn(shape), Drawn(shape), Drawn(shape[-1:]), epsilon


def _backward(shape: tuple[int, ...], epsilon: float) -> tuple[Any, ...]:
    return Drawn(shape), None, Drawn(shape), None, Drawn(shape[-1:]), epsilon


def _backward_add(shape: tuple[int, ...], epsilon: float) -> tuple[Any, ...]:
    return Drawn(shape), Drawn(shape), Drawn(shape), Drawn(shape), Drawn(shape[-1:]), epsilon


def _table(arguments: Any, suffix: str = "") -> list[Sample]:
    wide = {name: (shape, 1e-6) for name, shape in _WIDE.items()}
    return [Sample(name + suffix, arguments(*given)) for name, given in {**_TABLE, **wide}.items()]


def _drawn(random: Random, arguments: Any, shape: tuple[int, ...]) -> Sample:
    # A sum of two numbers may be as small as its error: where a row has few, epsilon keeps that from being scaled up.
    epsilon = 0.5 if shape[-1] < 4 else random.choice((1e-6, 1e-5, 0.5))
    return Sample(f"drawn {shape}", arguments(shape, epsilon))


def _large(arguments: Any) -> list[Sample]:
    return [Sample(name, arguments(*given)) for name, given in _LARGE.items()]


def _draw(random: Random, arguments: Any) -> Sample:
    shape = (*(random.randint(0, 4) for _ in range(random.randint(0, 2))), random.randint(0, 40))
    return _drawn(random, arguments, shape)


def _stress(random: Random, budget: Budget, arguments: Any) -> Sample:
    columns = any_size(random, budget.elements // 4, _BORDERS)
    shape = (any_size(random, budget.elements // 4 // columns, _ROWS), columns)
    return _drawn(random, arguments, shape)


# Where threads take four vectors and not two, a row another warp, and where it is streamed: in vectors of an element
# and of sixteen bytes; and how many rows are in a block, or in all chunks of a CPU.
_BORDERS = (64, 512, 1024, 2048, 4096, 8192, 16384)
_ROWS = (4, 8, 16, 32, 64, 128, 256)

_BENCHMARK_SHAPES = ((65536, 128), (16384, 1024), (4096, 4096), (4096, 5120), (2048, 8192), (16, 4096))


def _benchmarks(arguments: Any, devices: tuple[str, ...] = ("cpu", "cuda")) -> list[Benchmark]:
    return [
        Benchmark(Sample(f"{rows} x {columns}", arguments((rows, columns), 1e-6)), "layers", devices, columns == 4096)
        for rows, columns in _BENCHMARK_SHAPES
    ]


def _pytorch(input: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return pytorchs_rms_norm(input, weight.shape, weight, epsilon)


def _pytorch_add(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    total = input + residual
    return pytorchs_rms_norm(total, weight.shape, weight, epsilon), total


def _columns(input: Tensor, *rest: Any) -> int:
    return max(input.shape[-1], 1)


def _elements(input: Tensor, *rest: Any) -> int:
    # A row's sums have its columns, and the weight's gradient all rows.
    return max(input.numel(), 1)


def _samples(arguments: Any, rival: Any) -> Samples:
    return Samples(
        _table(arguments),
        lambda random: _draw(random, arguments),
        stress=lambda random, budget: _stress(random, budget, arguments),
        gpu_table=_large(arguments),
        summed=_columns,
        benchmarks=_benchmarks(arguments),
        rivals={"pytorch": rival, "compiled": torch.compile(rival)},
    )


samples = {
    "rms_norm": _samples(_forward, _pytorch),
    "add_rms_norm": _samples(_forward_add, _pytorch_add),
    "rms_norm_backward": Samples(
        [*_table(_backward), *_table(_backward_add, ", added")],
        lambda random: _draw(random, random.choice((_backward, _backward_add))),
        stress=lambda random, budget: _stress(random, budget, random.choice((_backward, _backward_add))),
        gpu_table=_large(_backward_add),
        summed=_elements,
    ),
}
