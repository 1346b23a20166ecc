"""Inputs of kept_kinds: none, one element, and sizes on either side of what a vector and a thread take."""

from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

_SHAPES = {
    "a number": (),
    "one element": (1,),
    "no elements": (0,),
    "no elements in the middle": (3, 0, 2),
    "seven elements, less than a vector of half types": (7,),
    "eight elements": (8,),
    "nine elements": (9,),
    "three dimensions": (2, 3, 5),
    "one more than a block of threads": (257,),
    "more than one thread's share": (3, 11003),
}


def _kept_kinds(shape: tuple[int, ...]) -> tuple[Any, ...]:
    return (
        Drawn(shape),
        Drawn(shape),
        [Drawn(shape), Drawn(shape)],
        3,
        (1, 2),
        (1.0, 2.0),
        False,
        "mean",
        torch.float32,
        torch.device("cpu"),
        1e-05,
    )


def _draw(arguments: Callable[[tuple[int, ...]], tuple[Any, ...]], random: Random) -> Sample:
    shape = tuple(random.randint(0, 6) for _ in range(random.randint(1, 3)))
    return Sample(f"drawn {shape}", arguments(shape))


def _samples(arguments: Callable[[tuple[int, ...]], tuple[Any, ...]], *more: Sample) -> Samples:
    return Samples(
        [*(Sample(name, arguments(shape)) for name, shape in _SHAPES.items()), *more],
        lambda random: _draw(arguments, random),
        benchmarks=[Benchmark(Sample("4 Mi elements", arguments((2**22,))), "sizes", quick=True)],
    )


samples = {
    "kept_kinds": _samples(
        _kept_kinds,
        Sample(
            "with None where it may be",
            (Drawn((5,)), None, [Drawn((5,)), Drawn((5,))], 3, (1, 2), (1.0, 2.0), False, "mean", None, None, 1e-05),
        ),
    ),
}
