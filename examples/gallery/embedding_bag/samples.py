"""Inputs for embedding_bag: bags that are empty, one bag of all, rows that come twice, and no bags at all."""

from random import Random

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag as pytorchs_embedding_bag

from torchgraft.sampling import Benchmark, Drawn, Packed, Sample, Samples


def _bags(counts: tuple[int, ...], rows: int) -> tuple[Drawn, Drawn]:
    """Indices and offsets of bags that hold so many each."""
    return Drawn((sum(counts),), dtype=torch.int64, high=max(rows, 1)), Packed(counts).starts()


def _sample(name: str, rows: int, columns: int, counts: tuple[int, ...], mode: str) -> Sample:
    return Sample(name, (Drawn((rows, columns)), *_bags(counts, rows), mode))


def _sample_backward(name: str, rows: int, columns: int, counts: tuple[int, ...], mode: str) -> Sample:
    return Sample(name, (Drawn((len(counts), columns)), *_bags(counts, rows), rows, mode))


_SIZES = (
    ("one row", 1, 1, (1,), "sum"),
    ("one mean", 4, 3, (3,), "mean"),
    ("three sums", 5, 4, (2, 1, 3), "sum"),
    ("three means", 5, 4, (2, 1, 3), "mean"),
    ("empty bags", 5, 4, (0, 2, 0, 0, 3, 0), "mean"),
    ("empty bags alone", 5, 4, (0, 0), "sum"),
    ("no bags", 5, 4, (), "mean"),
    ("no columns", 5, 0, (2, 1), "mean"),
    ("no rows", 0, 4, (0,), "sum"),
    ("more indices than rows", 2, 5, (7, 9), "mean"),
    ("more columns than a vector has, and one", 6, 33, (4, 3), "sum"),
    ("more than a thread's share", 60, 128, (31,) * 40, "mean"),
)


def _draw_sizes(random: Random) -> tuple[str, int, int, tuple[int, ...], str]:
    counts = tuple(random.randint(0, 4) for _ in range(random.randint(0, 5)))
    return f"drawn {counts}", random.randint(1, 6), random.randint(0, 5), counts, random.choice(("sum", "mean"))


_BENCHMARKS = (
    Benchmark(_sample("256 bags of 32 rows of 128", 100_000, 128, (32,) * 256, "sum"), "bags", quick=True),
    Benchmark(_sample("2048 bags of 32 rows of 64", 1_000_000, 64, (32,) * 2048, "mean"), "bags"),
)


def _pytorch(weight: Tensor, indices: Tensor, offsets: Tensor, mode: str) -> Tensor:
    return pytorchs_embedding_bag(indices, weight, offsets, mode=mode)


def _moved(weight: Tensor, indices: Tensor, offsets: Tensor, mode: str) -> int:
    # A row is read for each index, and no other.
    read = indices.numel() + offsets.numel()
    return read * weight.shape[1] * weight.element_size() + indices.nbytes + offsets.nbytes


samples = {
    "embedding_bag": Samples(
        tuple(_sample(*sizes) for sizes in _SIZES),
        lambda random: _sample(*_draw_sizes(random)),
        summed=lambda weight, indices, offsets, mode: max(indices.shape[0], 1),
        benchmarks=_BENCHMARKS,
        rivals={"pytorch": _pytorch},
        moved=_moved,
    ),
    "embedding_bag_backward": Samples(
        tuple(_sample_backward(*sizes) for sizes in _SIZES),
        lambda random: _sample_backward(*_draw_sizes(random)),
        summed=lambda grad, indices, offsets, rows, mode: max(indices.shape[0], 1),
    ),
}
