"""Inputs of linear_relu: sizes on both sides of a tile in each direction, and no elements at all."""

from random import Random
from typing import Any

import torch
from torch import Tensor

from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

# Rows, units and features.
_SIZES = {
    "one of each": (1, 1, 1),
    "no rows": (0, 3, 5),
    "no units": (3, 0, 5),
    "no features": (3, 5, 0),
    "less than a tile": (13, 17, 19),
    "one more than each small tile": (17, 65, 65),
    "one more than a tile": (65, 66, 33),
    "one more than the largest tile": (129, 130, 34),
}


def _arguments(rows: int, units: int, features: int) -> tuple[Any, ...]:
    return Drawn((rows, features)), Drawn((units, features)), Drawn((units,))


def _draw(random: Random) -> Sample:
    sizes = tuple(random.randint(0, 9) for _ in range(3))
    return Sample(f"drawn {sizes}", _arguments(*sizes))


def _by_pytorch(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(torch.nn.functional.linear(input, weight, bias))


samples = {
    "linear_relu": Samples(
        [Sample(name, _arguments(*sizes)) for name, sizes in _SIZES.items()],
        _draw,
        benchmarks=[
            Benchmark(Sample("16 x 4096 x 4096", _arguments(16, 4096, 4096)), "layers", quick=True),
            Benchmark(Sample("4096 x 4096 x 4096", _arguments(4096, 4096, 4096)), "layers", devices=("cuda",)),
        ],
        rivals={"pytorch": _by_pytorch, "compiled": torch.compile(_by_pytorch)},
        summed=lambda input, weight, bias: max(input.shape[1], 1),
    )
}
