"""Inputs of softmax: widths around a tile of 512 columns, rows, ranks, elements of minus infinity, and none at all."""

import functools
from collections.abc import Callable
from random import Random
from typing import Any

import torch

from softmax.operator import softmax_backward
from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

_SHAPES = {
    "one column": (1,),
    "no rows": (0, 8),
    "rows without columns": (3, 0),
    "a few columns": (3, 5),
    "three dimensions": (2, 3, 17),
    "one column less than a tile": (2, 511),
    "a tile": (2, 512),
    "one column more than a tile": (2, 513),
    "several tiles": (3, 1100),
}
_MASKED = Drawn((4, 600), values=(-torch.inf,) * 590 + (1.0, -2.0, 0.5, 3.0, *(-torch.inf,) * 6))


def _forward(shape: tuple[int, ...]) -> tuple[Any, ...]:
    return (Drawn(shape),)


def _backward(shape: tuple[int, ...]) -> tuple[Any, ...]:
    return Drawn(shape), Drawn(shape)


def _draw(arguments: Callable[[tuple[int, ...]], tuple[Any, ...]], random: Random) -> Sample:
    shape = (*(random.randint(0, 4) for _ in range(random.randint(0, 2))), random.randint(0, 40))
    return Sample(f"drawn {shape}", arguments(shape))


def _samples(arguments: Callable[[tuple[int, ...]], tuple[Any, ...]], rival: Callable[..., Any]) -> Samples:
    masked = Sample("a tile of minus infinity before the first number", (*arguments((4, 600))[:-1], _MASKED))
    return Samples(
        [*(Sample(name, arguments(shape)) for name, shape in _SHAPES.items()), masked],
        functools.partial(_draw, arguments),
        summed=lambda *tensors: max(tensors[0].shape[-1], 1),
        benchmarks=[
            Benchmark(Sample("512 x 4096", arguments((512, 4096))), "rows", quick=True),
            Benchmark(Sample("8192 x 8192", arguments((8192, 8192))), "rows", devices=("cuda",)),
        ],
        rivals={"pytorch": rival, "compiled": torch.compile(rival)},
    )


samples = {
    "softmax": _samples(_forward, functools.partial(torch.softmax, dim=-1)),
    "softmax_backward": _samples(_backward, softmax_backward.reference),
}
