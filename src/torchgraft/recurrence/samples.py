"""Samples of a recurrence, made from its cell: small sizes, sizes around vectors, long sequences, saturated gates.

Weights are drawn as small as a layer's, so that most cells forget their rounding errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any

from torch import Tensor

from torchgraft.recurrence.cell import Cell
from torchgraft.sampling import Benchmark, Budget, Drawn, Sample, Samples, any_size

# Gradients of input, weight_ih, weight_hh and the biases that are wanted.
_ALL = (True,) * 4
_TO_DATA, _TO_WEIGHTS = (True, False, False, False), (False, True, True, True)

# Steps, batch, features and units of a sequence; whether it has biases, and runs backward.
_TABLE: dict[str, tuple[int, int, int, int, bool, bool]] = {
    "one of everything": (1, 1, 1, 1, True, False),
    "one step": (1, 3, 2, 4, True, False),
    "two steps back": (2, 3, 2, 4, True, True),
    "empty batch": (3, 0, 2, 4, True, False),
    "no bias": (3, 2, 3, 5, False, False),
    "no bias, back": (3, 2, 3, 5, False, True),
    "one sequence": (7, 1, 3, 9, True, False),
    "one more than a vector": (4, 3, 5, 17, True, False),
    "more rows than threads": (2, 37, 3, 6, True, True),
    "rows that threads share out": (2, 70, 3, 65, True, False),
    "one more than a piece of units": (2, 2, 1, 1025, True, False),
    "one unit more than two blocks": (3, 5, 3, 129, True, True),
    "as many units as a cluster": (3, 3, 2, 512, True, False),
    "one unit more than a cluster": (2, 2, 2, 513, True, False),
    "more rows than a cluster holds": (3, 67, 2, 70, True, False),
    "a long sequence": (60, 2, 3, 8, True, False),
}
# The sequence that `graft bench` measures: steps, batch, features and units.
_TIMED, _TIMED_SIZES = "100 steps of 32 rows, 128 features, 256 units", (100, 32, 128, 256)

_MANY_STEPS = 50


class _Draws:
    """Draws the tensors of a recurrence's calls."""

    def __init__(self, cell: Cell, ranges: Mapping[str, tuple[float, float]]) -> None:
        self.cell, self._ranges = cell, ranges

    def sequence(
        self,
        name: str,
        sizes: Sequence[int],
        *,
        bias: bool = True,
        reverse: bool = False,
        keep: bool = True,
        bias_scale: float | None = None,
    ) -> Sample:
        """A call of the recurrence; `bias_scale` is the standard deviation of its biases, instead of a layer's."""
        _, _, _, units = sizes
        of_biases = _weight_scale(units) if bias_scale is None else bias_scale
        given = Drawn((self.cell.gates * units,), scale=of_biases) if bias else None
        biases = [given] * (1 + self.cell.gates_apart)
        return Sample(name, (*self._common(sizes), *biases, *self._own(sizes), reverse, keep))

    def gradients(
        self,
        name: str,
        sizes: Sequence[int],
        *,
        reverse: bool = False,
        wanted: Sequence[bool] = _ALL,
        of: tuple[bool, bool] = (True, True),
    ) -> Sample:
        """A call of its gradients: from gradients of the output, and of the final states."""
        cell, (steps, batch, _, units) = self.cell, sizes
        gates = [Drawn((steps, batch, cell.gates * units))] * (1 + cell.gates_apart)
        # All states are one tensor: each is in the range that every one of them allows.
        limits = [self._ranges[name] for name in cell.state_names if name in self._ranges]
        low, high = (max(low for low, _ in limits), min(high for _, high in limits)) if limits else (None, None)
        states = Drawn((cell.states, steps, batch, units), low=low, high=high)
        incoming = (
            Drawn((steps, batch, units)) if of[0] else None,
            *[Drawn((batch, units)) if of[1] else None] * cell.states,
        )
        return Sample(name, (*self._common(sizes), *self._own(sizes), *gates, states, *incoming, reverse, *wanted))

    def _common(self, sizes: Sequence[int]) -> tuple[Drawn, Drawn, Drawn]:
        steps, batch, features, units = sizes
        gates = self.cell.gates * units
        # Of few units as of sixteen: a large weight would make the error of a step grow from step to step. Of many
        # steps it is never larger than in a layer: some cells are chaotic beyond, and any rounding becomes all.
        of_messages = _weight_scale(max(units, 16))
        bound = math.sqrt(3) * of_messages if steps >= _MANY_STEPS else None
        return (
            Drawn((steps, batch, features)),
            Drawn((gates, features), scale=_weight_scale(max(units, features))),
            Drawn((gates, units), scale=of_messages, low=None if bound is None else -bound, high=bound),
        )

    def _own(self, sizes: Sequence[int]) -> list[Drawn]:
        _, batch, _, units = sizes
        return [
            *(self._within(name, (units,), 0.1) for name in self.cell.parameter_names),
            *(self._within(name, (batch, units), 1.0) for name in self.cell.state_names),
        ]

    def _within(self, name: str, shape: tuple[int, ...], scale: float) -> Drawn:
        low, high = self._ranges.get(name, (None, None))
        return Drawn(shape, scale=scale, low=low, high=high)


def sequence_samples(cell: Cell, ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})) -> Samples:
    """Samples of the operator of a recurrence.

    Args:
        cell: of the recurrence.
        ranges: the least and the largest value of states and parameters that cannot be every number.
    """
    draws = _Draws(cell, ranges)
    table = [
        draws.sequence(name, sizes, bias=bias, reverse=reverse) for name, (*sizes, bias, reverse) in _TABLE.items()
    ]
    # Biases shut most gates and open the others, many beyond where exp() overflows. Large inputs would do so too, and
    # cancel each other in a state or in the gradient of a weight: where those are small, rounding errors are large.
    saturated = draws.sequence("saturated gates", (5, 3, 4, 9), bias_scale=100.0)
    some = [
        draws.sequence("nothing kept", (3, 2, 3, 5), keep=False),
        draws.sequence("nothing kept, one step back", (1, 2, 3, 5), reverse=True, keep=False),
        draws.sequence("nothing kept, in pieces", (27, 70, 2, 120), keep=False),
        draws.sequence("nothing kept, in pieces back", (5, 300, 2, 33), reverse=True, keep=False),
    ]

    def drawn(random: Random, sizes: Sequence[int]) -> Sample:
        bias, reverse, keep = (random.random() < part for part in (0.7, 0.5, 0.6))
        return draws.sequence(f"drawn {tuple(sizes)}", sizes, bias=bias, reverse=reverse, keep=keep)

    benchmarks = [Benchmark(draws.sequence(_TIMED, _TIMED_SIZES), "sequences", quick=True)]
    return Samples(
        [*table, saturated, *some],
        lambda random: drawn(random, _few(random)),
        stress=lambda random, budget: drawn(random, _any_sizes(random, budget, cell.gates, 40)),
        summed=_summed,
        backward_work=2,
        benchmarks=benchmarks,
        # A shut gate gives a message of zero, or of 1e-50 in float64: times infinity, NaN or infinity.
        non_finite=lambda sample: sample is not saturated,
    )


def gradient_samples(cell: Cell, ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})) -> Samples:
    """Samples of the operator of its gradients; the arguments are those of `sequence_samples`."""
    draws = _Draws(cell, ranges)
    table = [draws.gradients(name, sizes, reverse=reverse) for name, (*sizes, _, reverse) in _TABLE.items()]
    some = [
        draws.gradients("of the output alone, to data", (2, 2, 4, 5), of=(True, False), wanted=_TO_DATA),
        draws.gradients("of the final states alone, to weights", (2, 2, 4, 5), of=(False, True), wanted=_TO_WEIGHTS),
        draws.gradients("to states alone, back", (2, 2, 4, 5), wanted=(False,) * 4, reverse=True),
    ]

    def drawn(random: Random, sizes: Sequence[int]) -> Sample:
        wanted = [random.random() < 0.7 for _ in _ALL]
        of = (True, random.random() < 0.7)
        return draws.gradients(f"drawn {tuple(sizes)}", sizes, reverse=random.random() < 0.5, wanted=wanted, of=of)

    return Samples(
        [*table, *some],
        lambda random: drawn(random, _few(random)),
        stress=lambda random, budget: drawn(random, _any_sizes(random, budget, cell.gates, 12)),
        summed=_summed,
        benchmarks=[Benchmark(draws.gradients(_TIMED, _TIMED_SIZES), "sequences", quick=True)],
    )


def _weight_scale(size: int) -> float:
    """The standard deviation of weights as PyTorch's layers draw them: uniformly, up to 1 / sqrt(size)."""
    return 1 / math.sqrt(3 * size)


def _few(random: Random) -> tuple[int, int, int, int]:
    return random.randint(1, 5), random.randint(0, 4), random.randint(1, 4), random.randint(1, 6)


def _any_sizes(random: Random, budget: Budget, gates: int, most_steps: int) -> tuple[int, int, int, int]:
    units = any_size(random, min(math.isqrt(min(budget.products, budget.elements) // gates), 1100))
    features = any_size(random, min(budget.elements // (gates * units), 1100))
    rows = min(
        budget.products // (gates * units * (units + features)), budget.elements // (3 * gates * units + features)
    )
    steps = any_size(random, min(rows, most_steps))
    batch = 0 if random.random() < 0.02 else any_size(random, min(max(rows // steps, 1), 600))
    return steps, batch, features, units


def _summed(input: Tensor, weight_ih: Tensor, weight_hh: Tensor, *others: Any) -> int:
    # What a step's sums err by goes on to the next.
    return int(input.shape[0] * (max(weight_hh.shape[0], input.shape[1]) + input.shape[2]))
