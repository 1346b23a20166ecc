"""Inputs of segment_sum: segments without rows, one segment of all rows, no segments, no columns."""

from random import Random

import torch
from torch import Tensor

from torchgraft.sampling import Benchmark, Drawn, Packed, Sample, Samples

_SEGMENTS = {
    "one row": ((1,), 1),
    "one segment of all rows": ((7,), 3),
    "three segments": ((2, 1, 3), 4),
    "segments without rows": ((0, 2, 0, 0, 3, 0), 5),
    "no rows at all": ((0, 0), 4),
    "no segments": ((), 4),
    "no columns": ((2, 1), 0),
    "more columns than a cache line": ((4, 3), 33),
}


def _forward(counts: tuple[int, ...], columns: int) -> tuple[Drawn, Drawn]:
    return Drawn((sum(counts), columns)), Packed(counts).starts()


def _backward(counts: tuple[int, ...], columns: int) -> tuple[Drawn, Drawn, int]:
    return Drawn((len(counts), columns)), Packed(counts).starts(), sum(counts)


def _draw(random: Random) -> tuple[tuple[int, ...], int]:
    return tuple(random.randint(0, 4) for _ in range(random.randint(0, 5))), random.randint(0, 5)


def _pytorch(values: Tensor, starts: Tensor) -> Tensor:
    return torch.segment_reduce(values, "sum", offsets=torch.cat((starts, starts.new_tensor([len(values)]))), axis=0)


_LARGE = (64,) * 2048, 128

samples = {
    "segment_sum": Samples(
        [Sample(name, _forward(*sizes)) for name, sizes in _SEGMENTS.items()],
        lambda random: Sample("drawn", _forward(*_draw(random))),
        summed=lambda values, starts: max(values.shape[0], 1),
        benchmarks=[Benchmark(Sample("2048 segments of 64 rows of 128", _forward(*_LARGE)), "segments", quick=True)],
        rivals={"pytorch": _pytorch},
    ),
    "segment_sum_backward": Samples(
        [Sample(name, _backward(*sizes)) for name, sizes in _SEGMENTS.items()],
        lambda random: Sample("drawn", _backward(*_draw(random))),
        benchmarks=[Benchmark(Sample("2048 segments of 64 rows of 128", _backward(*_LARGE)), "segments", quick=True)],
    ),
}
