"""Inputs for linear: any number of leading dimensions, and sizes of nothing and one."""

import math
from functools import partial
from random import Random

import torch
import torch.nn.functional as F

from torchgraft.nn import Linear
from torchgraft.sampling import (
    Benchmark,
    Budget,
    Distribution,
    Drawn,
    ModuleSample,
    ReplacedLayer,
    Sample,
    Samples,
    any_size,
    log_uniform,
    rounded,
)


def _sample(name: str, leading: tuple[int, ...], features: int, outputs: int, *, bias: bool = True) -> Sample:
    return Sample(
        name,
        (Drawn((*leading, features)), Drawn((outputs, features)), Drawn((outputs,)) if bias else None),
    )


_TABLE = (
    _sample("one row", (1,), 3, 2),
    _sample("one vector", (), 5, 4),
    _sample("rows", (7,), 12, 5),
    _sample("no bias", (7,), 12, 5, bias=False),
    _sample("a batch of sequences", (2, 5), 8, 3),
    _sample("four leading dimensions", (2, 1, 3, 2), 4, 6),
    _sample("one feature in, one out", (9,), 1, 1),
    _sample("odd sizes", (13,), 17, 19),
    _sample("empty batch", (0,), 4, 3),
    _sample("empty in the middle", (2, 0, 3), 4, 3),
    _sample("more than a tile", (131,), 65, 33),
)


def _draw(random: Random) -> Sample:
    leading = tuple(random.randint(0, 4) for _ in range(random.randint(0, 3)))
    sizes = random.randint(1, 9), random.randint(1, 9)
    return _sample(f"drawn {leading}, {sizes}", leading, *sizes, bias=random.random() < 0.5)


def _stress(random: Random, budget: Budget) -> Sample:
    features = any_size(random, min(budget.elements, 4096))
    outputs = any_size(random, min(budget.elements // features, 4096))
    # Of all leading dimensions together.
    rows = min(budget.products // (features * outputs), budget.elements // (features + outputs))
    leading: list[int] = []
    for _ in range(random.randint(0, 3)):
        leading.append(any_size(random, rows // math.prod(leading)))
    if leading and random.random() < 0.02:
        leading[random.randrange(len(leading))] = 0
    return _sample(
        f"drawn {(*leading, features)} to {outputs}", tuple(leading), features, outputs, bias=random.random() < 0.5
    )


def _draw_of_networks(random: Random, budget: Budget) -> Benchmark | None:
    """A layer as networks have it: of tokens or images in a batch, and as wide as embeddings are."""
    rows = rounded(random, log_uniform(random, 1, 16384), 8, 0.7)
    features, outputs = (rounded(random, log_uniform(random, 64, 4096), 64, 0.85) for _ in range(2))
    if rows * (features + outputs) + features * outputs > budget.elements or rows * features * outputs > (
        _PRODUCTS_OF_MATRICES * budget.products
    ):
        return None
    name = f"{rows}x{features} to {outputs}"
    return Benchmark(_sample(name, (rows,), features, outputs, bias=random.random() < 0.7), "drawn")


# So many times as many as others, as libraries of matrix products take less time for each.
_PRODUCTS_OF_MATRICES = 4

samples = {
    "linear": Samples(
        _TABLE,
        _draw,
        stress=_stress,
        summed=lambda input, weight, bias: int(weight.shape[1]),
        modules=(
            ModuleSample("with a bias", lambda: Linear(5, 3), (Drawn((4, 5)),)),
            ModuleSample("without", lambda: Linear(5, 3, bias=False), (Drawn((2, 3, 5)),)),
        ),
        replaced=(ReplacedLayer("Linear", "nn.Linear", partial(Linear, 8, 8), partial(torch.nn.Linear, 8, 8), (2, 8)),),
        benchmarks=(
            Benchmark(_sample("64x256 to 256", (64,), 256, 256), "layers"),
            Benchmark(_sample("8x128x768 to 3072", (8, 128), 768, 3072), "layers", ("cpu",), quick=True),
            Benchmark(_sample("32x512x768 to 3072", (32, 512), 768, 3072), "layers", ("cuda",), quick=True),
            Benchmark(_sample("8192x4096 to 4096", (8192,), 4096, 4096), "layers", ("cuda",)),
        ),
        rivals={"pytorch": F.linear},
        networks=Distribution(_draw_of_networks, "pytorch"),
    )
}
