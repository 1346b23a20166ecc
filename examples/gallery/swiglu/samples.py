"""Inputs of swiglu: sizes around vectors of 16 bytes and a block of 256 threads, ranks, and no elements at all."""

import functools
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor

from swiglu.operator import swiglu_backward
from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

_SHAPES = {
    "one element": (1,),
    "no elements": (3, 0),
    "no dimensions": (),
    "seven elements": (7,),
    "a vector": (2, 8),
    "three dimensions": (2, 3, 5),
    "one vector less than a block": (255, 8),
    "a block of vectors": (256, 8),
    "one element more than a block of vectors": (2049,),
}


def _draw(tensors: int, random: Random) -> Sample:
    shape = tuple(random.randint(0, 9) for _ in range(random.randint(0, 3)))
    return Sample(f"drawn {shape}", (Drawn(shape),) * tensors)


def _samples(tensors: int, rival: Callable[..., Any]) -> Samples:
    def sample(name: str, shape: tuple[int, ...]) -> Sample:
        return Sample(name, (Drawn(shape),) * tensors)

    return Samples(
        [sample(name, shape) for name, shape in _SHAPES.items()],
        functools.partial(_draw, tensors),
        benchmarks=[
            Benchmark(sample("512 x 11008", (512, 11008)), "activations", quick=True),
            Benchmark(sample("4096 x 14336", (4096, 14336)), "activations", devices=("cuda",)),
        ],
        rivals={"pytorch": rival, "compiled": torch.compile(rival)},
    )


def _composition(gate: Tensor, up: Tensor) -> Tensor:
    return torch.nn.functional.silu(gate) * up


samples = {
    "swiglu": _samples(2, _composition),
    "swiglu_backward": _samples(3, swiglu_backward.reference),
}
