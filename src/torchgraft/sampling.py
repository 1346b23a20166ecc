"""Samples: the inputs on which an operator is checked and measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Drawn:
    """A tensor argument: normally distributed values of a shape, contiguous or channels_last."""

    shape: tuple[int, ...]
    channels_last: bool = False

    def make(self, device: torch.device | str, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """The tensor; the same values on every device, rounded to the dtype."""
        values = torch.randn(self.shape, generator=generator, dtype=torch.float64).to(device, dtype)
        if self.channels_last and len(self.shape) == 4:
            return values.contiguous(memory_format=torch.channels_last)
        return values


@dataclass(frozen=True)
class Sample:
    """One call of an operator: a name for a person, and the arguments, in which `Drawn` stands for a tensor."""

    name: str
    arguments: tuple[Any, ...]

    def make(self, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> tuple[Any, ...]:
        """The arguments; the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        return tuple(
            argument.make(device, dtype, generator) if isinstance(argument, Drawn) else argument
            for argument in self.arguments
        )

    @property
    def tensors(self) -> tuple[Drawn, ...]:
        """The tensor arguments."""
        return tuple(argument for argument in self.arguments if isinstance(argument, Drawn))

    @property
    def elements(self) -> int:
        """How many elements all tensor arguments have together."""
        return sum(torch.Size(tensor.shape).numel() for tensor in self.tensors)


@dataclass(frozen=True)
class Samples:
    """What an operator is checked on.

    Attributes:
        table: named samples, each there for a reason that its name tells.
        draw: any valid sample, from a source of randomness; small enough for a numerical gradient.
        summed: how many products one element of the result is a sum of, from the arguments: errors grow with it.
    """

    table: Sequence[Sample]
    draw: Callable[[Random], Sample]
    summed: Callable[..., int]

    @property
    def smallest(self) -> Sample:
        """The sample with the fewest elements that is not empty."""
        return min((sample for sample in self.table if sample.elements), key=lambda sample: sample.elements)
