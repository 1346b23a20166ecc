"""Inputs of fused_add_rms_norm: widths around a block of 8192 columns and powers of two, rows, ranks, no rows."""

from random import Random

import torch
from torch import Tensor

from torchgraft.sampling import Benchmark, Drawn, Sample, Samples


def _sample(name: str, shape: tuple[int, ...], epsilon: float = 1e-6) -> Sample:
    return Sample(name, (Drawn(shape), Drawn(shape), Drawn(shape[-1:]), epsilon))


def _draw(random: Random) -> Sample:
    shape = (*(random.randint(0, 4) for _ in range(random.randint(0, 2))), random.randint(0, 40))
    return _sample(f"drawn {shape}", shape, random.choice((1e-6, 1e-5, 0.5)))


def _composition(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float = 1e-6) -> None:
    residual += input
    input.copy_(torch.nn.functional.rms_norm(residual, weight.shape, weight, epsilon))


samples = {
    "fused_add_rms_norm": Samples(
        [
            _sample("one element", (1, 1)),
            _sample("no rows", (0, 8)),
            _sample("rows without columns", (3, 0)),
            _sample("one row without a dimension of its own", (24,)),
            _sample("fifteen columns", (4, 15)),
            _sample("sixteen columns", (4, 16), 1e-5),
            _sample("seventeen columns, three dimensions", (2, 3, 17)),
            _sample("a large epsilon", (4, 16), 2.0),
            _sample("one column less than a block", (1, 8191)),
            _sample("a block", (1, 8192)),
            _sample("one column more than a block", (1, 8193)),
            _sample("several blocks", (2, 16400)),
        ],
        _draw,
        # One sum of squares for each row.
        summed=lambda input, residual, weight, epsilon: input.shape[-1],
        benchmarks=[
            Benchmark(_sample("512 x 4096", (512, 4096)), "layers", quick=True),
            Benchmark(_sample("8192 x 8192", (8192, 8192)), "layers", devices=("cuda",)),
        ],
        rivals={"pytorch": _composition, "compiled": torch.compile(_composition)},
    )
}
