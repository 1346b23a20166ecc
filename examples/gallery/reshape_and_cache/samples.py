"""Inputs for reshape_and_cache: tokens that are left out, a full cache, and no tokens at all."""

from random import Random

import torch

from torchgraft.sampling import Benchmark, Drawn, Sample, Samples


def _sample(
    name: str,
    *,
    slots: tuple[int, ...] | None = None,
    tokens: int = 3,
    heads: int = 2,
    head_size: int = 8,
    blocks: int = 3,
    block_size: int = 4,
    width: int = 4,
) -> Sample:
    """A call; without `slots` each token has one of its own, drawn."""
    tokens = tokens if slots is None else len(slots)
    places = Drawn((tokens,), dtype=torch.int64, high=blocks * block_size, distinct=True)
    if slots is not None:
        places = Drawn((tokens,), dtype=torch.int64, values=tuple(map(float, slots)) or None, distinct=True)
    rows = Drawn((tokens, heads, head_size))
    key_cache = Drawn((blocks, heads, head_size // width, block_size, width))
    return Sample(name, (rows, rows, key_cache, Drawn((blocks, heads, head_size, block_size)), places))


def _draw(random: Random) -> Sample:
    blocks, block_size, width = random.randint(1, 4), random.randint(1, 4), random.choice((1, 2, 4))
    slots = random.sample(range(blocks * block_size), random.randint(0, blocks * block_size))
    left_out = tuple(-1 if random.random() < 0.2 else slot for slot in slots)
    return _sample(
        f"drawn {left_out}",
        slots=left_out,
        heads=random.randint(1, 3),
        head_size=width * random.randint(1, 3),
        blocks=blocks,
        block_size=block_size,
        width=width,
    )


_TABLE = (
    _sample("three tokens"),
    _sample("no token", slots=()),
    _sample("one token in the first slot", slots=(0,)),
    _sample("one token in the last slot", slots=(11,)),
    _sample("one token that is left out", slots=(-1,)),
    _sample("tokens that are left out among others", slots=(5, -1, 0, -1, 7)),
    _sample("a full cache", tokens=12),
    _sample("a slot a block", tokens=3, block_size=1),
    _sample("keys of width one", width=1),
    _sample("keys of width sixteen", head_size=32, width=16),
    _sample("no heads", heads=0),
    _sample("more than a thread's share", tokens=150, heads=3, head_size=128, blocks=20, block_size=16, width=8),
)

_BENCHMARKS = (
    Benchmark(
        _sample("a token of 32 heads", tokens=1, heads=32, head_size=128, blocks=64, block_size=16, width=8), "llm"
    ),
    Benchmark(
        _sample("256 tokens of 32 heads", tokens=256, heads=32, head_size=128, blocks=64, block_size=16, width=8),
        "llm",
        quick=True,
    ),
)


def _moved(key: torch.Tensor, value: torch.Tensor, *caches_and_slots: torch.Tensor) -> int:
    # What a call does not write of the caches it need not read.
    return 2 * (key.nbytes + value.nbytes) + caches_and_slots[-1].nbytes


def _by_index(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """PyTorch's indexing."""
    tokens = (slot_mapping >= 0).nonzero().flatten()
    slots, block_size = slot_mapping[tokens], value_cache.shape[3]
    blocks, places = slots // block_size, slots % block_size
    groups, width = key_cache.shape[2], key_cache.shape[4]
    key_cache[blocks, :, :, places] = key[tokens].unflatten(2, (groups, width))
    value_cache[blocks, :, :, places] = value[tokens]


samples = {
    "reshape_and_cache": Samples(_TABLE, _draw, benchmarks=_BENCHMARKS, rivals={"pytorch": _by_index}, moved=_moved)
}
