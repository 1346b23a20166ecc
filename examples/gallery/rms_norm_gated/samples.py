"""Inputs of rms_norm_gated: widths around powers of two, rows, ranks, a large epsilon, and no elements at all."""

import functools
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from rms_norm_gated.operator import rms_norm_gated_backward
from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

_SHAPES = {
    "one element": (1, 1),
    "no rows": (0, 8),
    "rows without columns": (3, 0),
    "one row without a dimension of its own": (24,),
    "fifteen columns": (4, 15),
    "sixteen columns": (4, 16),
    "seventeen columns, three dimensions": (2, 3, 17),
    "one column more than a warp reads at once": (2, 1025),
}


def _forward(shape: tuple[int, ...], epsilon: float = 1e-5) -> tuple[Any, ...]:
    return Drawn(shape), Drawn(shape), Drawn(shape[-1:]), epsilon


def _backward(shape: tuple[int, ...], epsilon: float = 1e-5) -> tuple[Any, ...]:
    return (Drawn(shape), *_forward(shape, epsilon))


def _draw(arguments: Callable[..., tuple[Any, ...]], random: Random) -> Sample:
    shape = (*(random.randint(0, 4) for _ in range(random.randint(0, 2))), random.randint(0, 40))
    return Sample(f"drawn {shape}", arguments(shape, random.choice((1e-5, 0.5))))


def _composition(input: Tensor, gate: Tensor, weight: Tensor, epsilon: float = 1e-5) -> Tensor:
    gated = input * torch.nn.functional.silu(gate)
    return torch.nn.functional.rms_norm(gated, weight.shape, weight, epsilon)


def _samples(arguments: Callable[..., tuple[Any, ...]], rival: Callable[..., Any]) -> Samples:
    return Samples(
        [
            *(Sample(name, arguments(shape)) for name, shape in _SHAPES.items()),
            Sample("a large epsilon", arguments((4, 16), 2.0)),
        ],
        functools.partial(_draw, arguments),
        # One sum of squares for each row.
        summed=lambda *values: max(values[0].shape[-1], 1),
        benchmarks=[
            Benchmark(Sample("512 x 4096", arguments((512, 4096))), "layers", quick=True),
            Benchmark(Sample("8192 x 8192", arguments((8192, 8192))), "layers", devices=("cuda",)),
        ],
        rivals={"pytorch": rival, "compiled": torch.compile(rival)},
    )


samples = {
    "rms_norm_gated": _samples(_forward, _composition),
    "rms_norm_gated_backward": _samples(_backward, rms_norm_gated_backward.reference),
}
