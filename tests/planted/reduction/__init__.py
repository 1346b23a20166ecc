"""Reductions: the sum of each row of a matrix. Each kernel is in the file of its operator's name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from planted import kernels
from planted.bug import Bug
from torchgraft import Operator
from torchgraft.sampling import Drawn, Sample, Samples

BUGS: list[Bug] = []


def _gradient(needs_grad: Sequence[bool], grads: Sequence[Tensor], saved: Any, input: Tensor) -> tuple[Tensor]:
    return (torch.ones_like(input) * grads[0].unsqueeze(1),)


def _declare(name: str) -> Operator:
    def explain(input: Tensor) -> None:
        if input.dim() != 2:
            raise ValueError(f"{name}: input must have 2 dimensions, got {input.dim()}")

    return Operator(
        f"{kernels.NAMESPACE}::{name}(Tensor input) -> Tensor",
        reference=lambda input: input.sum(1),
        output=lambda input: input.new_empty(input.shape[0]),
        gradient=_gradient,
        flops=math.prod,
        explain=explain,
    )


def _plant(
    name: str, wrong: str, caught_by: str, *, devices: tuple[str, ...] = ("cpu",), by_chance: bool = False
) -> None:
    BUGS.append(Bug(_declare(name), wrong, caught_by, devices, by_chance=by_chance))


row_sum = _declare("row_sum")

_plant("sum_in_storage_type", "sums are kept in float16 and bfloat16", "value")
_plant("sum_in_any_order", "the order of a sum depends on which thread is done first", "determinism")
_plant(
    "races_between_threads", "threads add to one number without waiting for each other", "determinism", by_chance=True
)
_plant(
    "races_from_65536_on",
    "threads add to one number without waiting, in rows longer than those of all samples",
    "determinism",
    by_chance=True,
)
_plant("races_in_shared_memory", "threads of a block add to one number without waiting", "value", devices=("cuda",))


def _draw(random: Random) -> Sample:
    shape = random.randint(0, 4), random.randint(0, 9)
    return Sample(f"drawn {shape}", (Drawn(shape),))


samples = Samples(
    (
        Sample("one element", (Drawn((1, 1)),)),
        Sample("no rows", (Drawn((0, 3)),)),
        Sample("rows of nothing", (Drawn((3, 0)),)),
        Sample("three rows", (Drawn((3, 7)),)),
        Sample("a long row", (Drawn((2, 1031)),)),
        Sample("rows for several threads", (Drawn((2, 20011)),)),
    ),
    _draw,
    summed=lambda input: int(input.shape[1]),
)

kernels.load()
