"""Inputs of cross_entropy: numbers of classes around a block of 4096, every reduction, and rows that do not count."""

from random import Random
from typing import Any

import torch
from torch import Tensor

from torchgraft.sampling import Benchmark, Drawn, Sample, Samples

# Name, rows, classes, ignore_index, reduction.
_CASES = (
    ("one class", 1, 1, -100, "sum"),
    ("no rows", 0, 5, -100, "sum"),
    ("no rows, each by itself", 0, 5, -100, "none"),
    ("the mean", 4, 7, -100, "mean"),
    ("each by itself", 4, 16, -100, "none"),
    ("the mean of rows that count", 9, 3, 1, "mean"),
    ("the sum of rows that count", 9, 3, 2, "sum"),
    ("rows that do not count, each by itself", 9, 3, 0, "none"),
    ("one class less than a block", 1, 4095, -100, "sum"),
    ("a block", 1, 4096, -100, "sum"),
    ("one class more than a block", 1, 4097, -100, "sum"),
    ("several blocks", 2, 9001, -100, "mean"),
)


def _target(rows: int, classes: int) -> Drawn:
    return Drawn((rows,), dtype=torch.int64, high=classes)


def _forward(name: str, rows: int, classes: int, ignore_index: int, reduction: str) -> Sample:
    return Sample(name, (Drawn((rows, classes)), _target(rows, classes), ignore_index, reduction))


def _backward(name: str, rows: int, classes: int, ignore_index: int, reduction: str) -> Sample:
    grad = Drawn((rows,) if reduction == "none" else ())
    arguments = (grad, Drawn((rows, classes)), _target(rows, classes), Drawn((rows,)), ignore_index, reduction)
    return Sample(name, arguments)


def _case(random: Random) -> tuple[str, int, int, int, str]:
    rows, classes = random.randint(1, 6), random.randint(1, 20)
    reduction = random.choice(("mean", "sum", "none"))
    return f"drawn {rows} x {classes}, {reduction}", rows, classes, random.choice((-100, classes + 3)), reduction


def _composition(input: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    return torch.nn.functional.cross_entropy(input, target, ignore_index=ignore_index, reduction=reduction)


def _samples(make: Any, rivals: dict[str, Any]) -> Samples:
    return Samples(
        [make(*case) for case in _CASES],
        lambda random: make(*_case(random)),
        summed=_summed,
        benchmarks=[
            Benchmark(make("512 x 32000", 512, 32000, -100, "mean"), "vocabularies", quick=True),
            Benchmark(make("8192 x 128256", 8192, 128256, -100, "mean"), "vocabularies", devices=("cuda",)),
        ],
        rivals=rivals,
    )


def _summed(*arguments: Any) -> int:
    """How many exponentials and losses are added up."""
    return sum(next(each for each in arguments if isinstance(each, Tensor) and each.dim() == 2).shape)


samples = {
    "cross_entropy": _samples(_forward, {"pytorch": _composition, "compiled": torch.compile(_composition)}),
    # PyTorch's own starts from probabilities; this is measured against its reference.
    "cross_entropy_backward": _samples(_backward, {}),
}
