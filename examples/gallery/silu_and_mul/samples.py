"""Inputs of silu_and_mul: widths around a block of 1024 columns, rows, ranks, and no elements at all."""

import functools
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from silu_and_mul.operator import silu_and_mul_backward
from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

_SHAPES = {
    "one column": (2,),
    "empty rows": (0, 8),
    "rows without columns": (3, 0),
    "a power of two": (3, 16),
    "three dimensions": (2, 3, 14),
    "one column less than a block": (1, 2046),
    "a block": (1, 2048),
    "one column more than a block": (1, 2050),
    "several blocks": (2, 4400),
}


def _forward(shape: tuple[int, ...]) -> tuple[Any, ...]:
    return (Drawn(shape),)


def _backward(shape: tuple[int, ...]) -> tuple[Any, ...]:
    return Drawn((*shape[:-1], shape[-1] // 2)), Drawn(shape)


def _draw(arguments: Callable[[tuple[int, ...]], tuple[Any, ...]], random: Random) -> Sample:
    shape = (*(random.randint(0, 4) for _ in range(random.randint(0, 2))), 2 * random.randint(0, 9))
    return Sample(f"drawn {shape}", arguments(shape))


def _samples(arguments: Callable[[tuple[int, ...]], tuple[Any, ...]], reference: Callable[..., Any]) -> Samples:
    return Samples(
        [Sample(name, arguments(shape)) for name, shape in _SHAPES.items()],
        functools.partial(_draw, arguments),
        benchmarks=[
            Benchmark(Sample("512 x 11008", arguments((512, 2 * 11008))), "activations", quick=True),
            Benchmark(Sample("4096 x 14336", arguments((4096, 2 * 14336))), "activations", devices=("cuda",)),
        ],
        rivals={"pytorch": reference, "compiled": torch.compile(reference)},
    )


def _composition(input: Tensor) -> Tensor:
    gate, up = input.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


samples = {
    "silu_and_mul": _samples(_forward, _composition),
    "silu_and_mul_backward": _samples(_backward, silu_and_mul_backward.reference),
}
