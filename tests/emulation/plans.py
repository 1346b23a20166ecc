"""Asks launches of every operator on devices of many compute capabilities: each must be one that the device takes.

To be run under `emulate.environment(..., launches=...)`, where nothing is computed. What a device refuses is printed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import cycle
from random import Random
from typing import Any

import torch

from torchgraft import Operator
from torchgraft.checking.subject import subject_of
from torchgraft.operators.depthwise_conv2d.case import Case, same
from torchgraft.operators.depthwise_conv2d.window import Window
from torchgraft.sampling import Drawn, Sample

DEVICES = (75, 80, 86, 89, 90, 100, 120)
DTYPES = (torch.float16, torch.float32, torch.float16, torch.bfloat16)
_PASSES = {
    "depthwise_conv2d": Case.forward,
    "depthwise_conv2d_input_grad": Case.input_grad,
    "depthwise_conv2d_weight_grad": Case.weight_grad,
}

# Whose tiles take the most shared memory: of kernels on tensor cores, by rooms bands, diagonals and slide.
_LARGE_TILES = (
    Case("batch: one channel of two sixteens", (128, 512, 16, 16), (27, 27), same(27)),
    Case("batch: planes of 24x24", (64, 512, 24, 24), (27, 27), same(27)),
    Case("batch: many taps", (64, 264, 24, 24), (31, 31), same(31)),
    Case("batch: planes of 14x14", (160, 264, 14, 14), (27, 27), same(27)),
    Case("large: an image that fits hardly", (4, 64, 200, 200), (51, 51), same(51)),
    Case("planes: narrow and high", (64, 64, 307, 21), (7, 5), Window(1, 1, 0, 4, 3, 6)),
    Case("channels last: narrow and high", (16, 8, 445, 24), (4, 8), Window(1, 1, 0, 7, 0, 0), channels_last=True),
    Case("channels last: images side by side", (64, 8, 14, 8), (6, 8), Window(1, 1, 3, 3, 2, 4), channels_last=True),
    Case("weight gradient: rows of 127", (256, 24, 2, 127), (3, 9), Window(1, 1, 2, 8, 36, 4)),
    Case(
        "weight gradient: planes of seven rows", (32, 16, 7, 7), (10, 3), Window(1, 1, 0, 0, 9, 6), channels_last=True
    ),
    Case("weight gradient: slides", (64, 64, 112, 112), (7, 7), same(7, 2), channels_last=True),
)


def draw_cases(count: int, random: Random) -> Iterator[Case]:
    """Convolutions, most of stride 1 and with sizes around those of tiles."""
    for index in range(count):
        kernel = (
            random.choice((1, 3, 5, 6, 7, 8, 9, 11, 13, 17, 27, 31, 51)),
            random.choice((1, 3, 5, 7, 8, 13, 31, 57)),
        )
        if random.random() < 0.6:
            kernel = kernel[0], kernel[0]
        size = (
            random.choice((1, 7, 8, 14, 17, 24, 28, 33, 56, 65, 112, 300)),
            random.choice((4, 7, 13, 21, 28, 56, 127)),
        )
        front = [random.choice((0, taps // 2, taps - 1)) for taps in kernel]
        behind = [
            max(random.choice((0, taps // 2, taps - 1, 2 * taps)), taps - pixels - first)
            for taps, pixels, first in zip(kernel, size, front, strict=True)
        ]
        stride = random.choice((1, 1, 1, 2))
        yield Case(
            f"drawn {index}",
            (random.choice((1, 8, 17, 64)), random.choice((8, 24, 33, 256)), *size),
            kernel,
            Window(stride, stride, *front, *behind),
            channels_last=random.random() < 0.5,
        )


def empty(argument: Any, dtype: torch.dtype) -> Any:
    """A tensor that holds nothing in the place of one that would be drawn."""
    if not isinstance(argument, Drawn):
        return argument
    layout = torch.channels_last if argument.channels_last and len(argument.shape) == 4 else torch.contiguous_format
    return torch.empty(argument.shape, dtype=dtype, memory_format=layout)


def calls() -> Iterator[tuple[Operator, Sample]]:
    """All operators with kernels, and what they are asked."""
    for operator in Operator.registered.values():
        if operator.kernels == "reference":
            continue
        samples = subject_of(operator).samples
        yield from ((operator, sample) for sample in samples.named if not sample.tf32)
        # Host functions of lltm multiply matrices, which is done here too.
        if not operator.name.startswith("lltm"):
            yield from ((operator, benchmark.sample) for benchmark in samples.benchmarks if benchmark.large is None)
    for case in (*_LARGE_TILES, *draw_cases(60, Random(0))):
        for name, make in _PASSES.items():
            yield Operator.registered[f"torchgraft::{name}"], make(case)


def main() -> int:
    """The command."""
    torch.set_num_threads(1)
    refused = 0
    dtypes = cycle(DTYPES)
    for operator, sample in calls():
        for device in DEVICES:
            os.environ["TORCHGRAFT_EMULATED_ARCHITECTURE"] = str(device)
            dtype = next(dtypes)
            try:
                operator.raw(*(empty(argument, dtype) for argument in sample.arguments))
            except RuntimeError as error:
                refused += 1
                reason = str(error).partition("\n")[0]
                print(f"{operator.name} on {device} in {dtype}: {sample.name}: {reason}")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
