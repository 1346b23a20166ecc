"""A row of a benchmark: one operator on one input in one dtype, and what stands beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchgraft.benchmarking.explaining import Served
from torchgraft.benchmarking.provenance import Provenance
from torchgraft.benchmarking.timing import Ratio, Time

# How a rival's name begins that is a kernel of the operator itself.
KERNEL = "kernel "


@dataclass(frozen=True)
class RivalResult:
    """A rival: its time, and how many times ours it is; or why there is none."""

    time: Time | None
    ratio: Ratio | None
    problem: str


@dataclass(frozen=True)
class Row:
    """One operator on one input in one dtype.

    Attributes:
        time: ours; on a GPU with a cold second-level cache. None where it was refused.
        warm: ours with what it reads in the cache; None on the CPU.
        host: seconds until a call returns to Python, on a GPU; None on the CPU.
        moved: bytes that must be read and written.
        operations: floating-point operations that must be done.
        floor: the least seconds that the device's roofs allow; nan of a model, which has no floor.
        bound: which of them: 'memory', 'compute' or 'launch'; empty where there is no floor.
        noise: the same kernel against itself.
        rivals: what else computes the same, by name: also the operator's own kernels where these were asked for.
        yardsticks: what computes something else of the same sizes, by name; its result is not verified.
        problem: why there is no time.
        fallbacks: why no kernel ran, where none did.
        served: what serves a call of ours and of each rival, by name, where that was asked for.
        provenance: of which sources it was measured, and with which tools.
        chosen: the kernels that the operator's library chose by its rules; empty if it has none to choose from, and in
            rows of versions that did not record it. A kernel's name is its path in the operator's folder.
        others: how many processors other programs kept busy while it was timed; None where that is not known.
    """

    operator: str
    suite: str
    sample: str
    dtype: str
    layout: str
    direction: str
    time: Time | None
    warm: Time | None
    host: float | None
    moved: int
    operations: int
    floor: float
    bound: str
    noise: Ratio | None
    rivals: Mapping[str, RivalResult] = field(default_factory=dict)
    yardsticks: Mapping[str, RivalResult] = field(default_factory=dict)
    problem: str = ""
    fallbacks: tuple[str, ...] = ()
    served: Mapping[str, tuple[Served, ...]] = field(default_factory=dict)
    provenance: Provenance = field(default_factory=Provenance)
    chosen: tuple[str, ...] = ()
    others: float | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """The key that names the row in another run."""
        return self.operator, self.suite, self.sample, self.dtype, self.layout, self.direction

    @property
    def share(self) -> float:
        """The share of the floor: 1 at the roof, 0.5 at twice the least time; nan if there is no time."""
        return self.floor / self.time.median if self.time else math.nan

    @property
    def loses_to(self) -> list[str]:
        """The rivals that are faster, beyond noise."""
        return [name for name, rival in self.rivals.items() if rival.ratio and rival.ratio.high < 1.0]
