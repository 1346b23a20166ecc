"""Inputs of transposed: sizes around a tile of 64, one row, one column, batches, and no elements at all."""

from random import Random

import torch
from torch import Tensor

from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

_SHAPES = {
    "one element": (1, 1),
    "one row": (1, 5),
    "one column": (5, 1),
    "no rows": (0, 8),
    "no matrices": (0, 2, 3),
    "three by five": (3, 5),
    "two batches": (2, 3, 4, 7),
    "one row less than a tile": (63, 64),
    "a tile": (64, 64),
    "one column more than a tile": (64, 65),
    "several tiles, two matrices": (2, 130, 70),
}


def _sample(name: str, shape: tuple[int, ...]) -> Sample:
    return Sample(name, (Drawn(shape),))


def _draw(random: Random) -> Sample:
    shape = (*(random.randint(0, 3) for _ in range(random.randint(0, 2))), random.randint(0, 20), random.randint(0, 20))
    return _sample(f"drawn {shape}", shape)


def _pytorch(input: Tensor) -> Tensor:
    return input.mT.contiguous()


samples = {
    "transposed": Samples(
        [_sample(name, shape) for name, shape in _SHAPES.items()],
        _draw,
        benchmarks=[
            Benchmark(_sample("32 of 512 x 128", (32, 512, 128)), "matrices", quick=True),
            Benchmark(_sample("8192 x 8192", (8192, 8192)), "matrices", devices=("cuda",)),
        ],
        rivals={"pytorch": _pytorch, "compiled": torch.compile(_pytorch)},
    )
}
