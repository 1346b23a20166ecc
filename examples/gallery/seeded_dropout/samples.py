"""Inputs of seeded_dropout: sizes around 1024 counters and a block of 4096 elements, probabilities, seeds."""

from random import Random
from typing import Any

import torch
from torch import Tensor

from torchgraft.sampling import Benchmark, Drawn, Sample, Samples


def _draw(random: Random) -> Sample:
    shape = tuple(random.randint(0, 5) for _ in range(random.randint(0, 3)))
    arguments = (Drawn(shape), random.getrandbits(64) - 2**63, random.choice((0.1, 0.5, 0.9)))
    return Sample(f"drawn {shape}", arguments)


def _by_pytorch(input: Tensor, seed: int, p: float = 0.5) -> Any:
    torch.manual_seed(seed)
    return (lambda: torch.nn.functional.dropout(input, p)), [input]


samples = {
    "seeded_dropout": Samples(
        [
            Sample("scalar", (Drawn(()), 7)),
            Sample("empty", (Drawn((3, 0)), 7)),
            Sample("sixty elements", (Drawn((5, 12)), 7, 0.5)),
            Sample("nothing is dropped", (Drawn((9,)), 7, 0.0)),
            Sample("all is dropped", (Drawn((9,)), 7, 1.0)),
            Sample("a negative seed", (Drawn((4, 16)), -1, 0.25)),
            Sample("a seed of 62 bits", (Drawn((4, 16)), 2**61 + 3, 0.25)),
            Sample("all first words and one second", (Drawn((1025,)), 11, 0.3)),
            Sample("one element less than a block", (Drawn((4095,)), 11, 0.3)),
            Sample("a block", (Drawn((64, 64)), 11, 0.3)),
            Sample("one element more than a block", (Drawn((4097,)), 11, 0.3)),
            Sample("several blocks", (Drawn((3, 3000)), 11, 0.3)),
        ],
        _draw,
        benchmarks=[
            Benchmark(Sample("64 Ki elements", (Drawn((2**16,)), 7, 0.1)), "sizes", quick=True),
            Benchmark(Sample("256 Mi elements", (Drawn((2**28,)), 7, 0.1)), "sizes", devices=("cuda",)),
        ],
        # PyTorch's drops other elements: it is timed, and cannot be verified.
        yardsticks={"pytorch": _by_pytorch},
    )
}
