"""Inputs of rotary_embedding: heads and columns around powers of two, and around what one program turns."""

from random import Random

import torch

from rotary_embedding.operator import rotary_embedding
from torchgraft.sampling import Benchmark, Drawn, Sample, Samples


def _sample(
    name: str,
    tokens: int,
    heads: tuple[int, int],
    columns: int,
    *,
    known: int = 16,
    interleaved: bool = False,
    inverse: bool = False,
) -> Sample:
    # Any numbers do for cosines and sines: what is computed is linear in them.
    table = Drawn((known, columns // 2), dtype=torch.float32)
    query, key = (Drawn((tokens, each, columns)) for each in heads)
    positions = Drawn((tokens,), dtype=torch.int64, high=known)
    return Sample(name, (query, key, positions, table, table, interleaved, inverse))


def _draw(random: Random) -> Sample:
    tokens, columns = random.randint(0, 4), 2 * random.randint(1, 6)
    heads = random.randint(0, 3), random.randint(1, 3)
    interleaved, inverse = random.random() < 0.5, random.random() < 0.5
    name = f"drawn {tokens} x {heads} x {columns}"
    return _sample(name, tokens, heads, columns, interleaved=interleaved, inverse=inverse)


samples = {
    "rotary_embedding": Samples(
        [
            _sample("one pair", 1, (1, 1), 2),
            _sample("no tokens", 0, (2, 1), 8),
            _sample("no heads of the query", 2, (0, 1), 8),
            _sample("grouped queries", 3, (4, 2), 8),
            _sample("pairs of neighbours", 3, (4, 2), 8, interleaved=True),
            _sample("turned back", 3, (3, 2), 10, inverse=True),
            _sample("pairs of neighbours, turned back", 3, (3, 2), 10, interleaved=True, inverse=True),
            _sample("one position", 5, (1, 1), 4, known=1),
            _sample("one head less than a block", 1, (15, 7), 128),
            _sample("a block of heads", 1, (16, 16), 128),
            _sample("one head more than a block", 1, (17, 1), 128),
            _sample("several blocks of heads", 1, (40, 8), 80),
            _sample("more pairs than a block", 1, (2, 1), 2050, interleaved=True),
        ],
        _draw,
        summed=lambda *arguments: 2,
        benchmarks=[
            Benchmark(_sample("512 tokens of 32 + 8 heads", 512, (32, 8), 128, known=4096), "layers", quick=True),
            Benchmark(
                _sample("16384 tokens of 64 + 8 heads", 16384, (64, 8), 128, known=32768), "layers", devices=("cuda",)
            ),
        ],
        rivals={
            "pytorch": lambda *arguments: _composition(*arguments),
            "compiled": torch.compile(lambda *arguments: _composition(*arguments)),
        },
    )
}


def _composition(*arguments: torch.Tensor | bool) -> tuple[torch.Tensor, torch.Tensor]:
    *tensors, interleaved, inverse = arguments
    return rotary_embedding.reference(*tensors, interleaved, inverse)
