"""What a benchmark found: rows, the machine, and what became of them since another run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, get_args, get_type_hints

from torchgraft.benchmarking.explaining import Served
from torchgraft.benchmarking.provenance import Provenance
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.timing import Ratio, Time
from torchgraft.environment import Environment

# How a rival's name begins that is a kernel of the operator itself.
KERNEL = "kernel "


@dataclass(frozen=True)
class RivalResult:
    """What stands beside us: its time, and how many times ours it is; or why there is none."""

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

    @property
    def key(self) -> tuple[str, ...]:
        """What names the row in another run."""
        return self.operator, self.suite, self.sample, self.dtype, self.layout, self.direction

    @property
    def share(self) -> float:
        """Of the floor: 1 at the roof, 0.5 at twice the least time; nan where there is no time."""
        return self.floor / self.time.median if self.time else math.nan

    @property
    def loses_to(self) -> list[str]:
        """The rivals that are faster, beyond noise."""
        return [name for name, rival in self.rivals.items() if rival.ratio and rival.ratio.high < 1.0]


@dataclass(frozen=True)
class Card:
    """What a device did while it was measured.

    Attributes:
        clocks: megahertz of the multiprocessors, before and after; empty where they cannot be read.
        temperatures: degrees Celsius, before and after.
    """

    name: str
    clocks: tuple[int, ...] = ()
    temperatures: tuple[int, ...] = ()


@dataclass(frozen=True)
class BenchReport:
    """All rows of a run, and where they were measured.

    Attributes:
        unmeasured: how many rows more were planned when the run was stopped.
    """

    environment: Environment
    card: Card
    roofs: Roofs
    rows: tuple[Row, ...]
    quick: bool
    seconds: float
    unmeasured: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `report_from_dict` reads it."""
        figures = asdict(self)
        rows = figures.pop("rows")
        return {**figures, "unit": "seconds", "rows": list(rows)}

    def as_json(self, indent: int | None = 2) -> str:
        """The text of a file of JSON, which has no nan: null stands in its place."""
        separators = (",", ":") if indent is None else None
        return json.dumps(_without_nan(self.as_dict()), indent=indent, separators=separators, allow_nan=False)

    @property
    def suites(self) -> dict[tuple[str, str], list[Row]]:
        """Rows by operator and suite, in their order."""
        suites: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            suites.setdefault((row.operator, row.suite), []).append(row)
        return suites


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def report_from_dict(figures: Mapping[str, Any]) -> BenchReport:
    """A report that was written as JSON. What later versions no longer know is passed over, as a commit."""
    report: BenchReport = _read(BenchReport, figures)
    return report


def _read(kind: Any, value: Any) -> Any:
    """A value of a type, from what JSON made of it."""
    if value is None:
        # JSON has no nan.
        return math.nan if kind is float else None
    kinds = get_args(kind)
    if isinstance(kind, UnionType):
        return _read(kinds[0], value)
    if isinstance(kind, type) and is_dataclass(kind):
        types = _types(kind)
        return kind(**{name: _read(types[name], each) for name, each in value.items() if name in types})
    if isinstance(value, Mapping):
        return {kinds[0](key): _read(kinds[1], each) for key, each in value.items()}
    return tuple(_read(kinds[0], each) for each in value) if isinstance(value, list | tuple) else value


_types = cache(get_type_hints)


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; nan of nothing."""
    logarithms = [math.log(value) for value in values if value > 0]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


@dataclass(frozen=True)
class Change:
    """A row in two runs: how many times as long it takes in the newer, and what that means."""

    row: Row
    ratio: float
    noise: float
    verdict: str


def compare(old: BenchReport, new: BenchReport) -> list[Change]:
    """What became of each row that both runs hold: 'faster', 'slower', 'same' within noise, or 'lost'.

    The noise of a comparison is what both runs said of their own: how far the same kernel was from itself, and how
    far the rounds lay apart; three in a hundred at the least, as two processes never find a machine the same.
    """
    before = {row.key: row for row in old.rows}
    changes = []
    for row in new.rows:
        other = before.get(row.key)
        if other is None or other.time is None:
            continue
        if row.time is None:
            changes.append(Change(row, math.inf, 0.0, "lost"))
            continue
        ratio = row.time.median / other.time.median
        noise = max(0.03, _own_noise(row) + _own_noise(other))
        verdict = "same" if abs(math.log(ratio)) <= math.log1p(noise) else "slower" if ratio > 1 else "faster"
        changes.append(Change(row, ratio, noise, verdict))
    return changes


def join(reports: Sequence[BenchReport]) -> BenchReport:
    """One report of several runs on one machine; of a row that several hold, the last.

    It says where the last was measured, under the roofs of all; of what sources, each row says itself.
    """
    found = [report.roofs for report in reports]
    roofs = replace(
        found[-1],
        multiply_add={name: rate for each in found for name, rate in each.multiply_add.items()},
        matrix={name: rate for each in found for name, rate in each.matrix.items()},
    )
    rows = {row.key: row for report in reports for row in report.rows}
    return replace(
        reports[-1],
        roofs=roofs,
        rows=tuple(rows.values()),
        quick=any(report.quick for report in reports),
        seconds=sum(report.seconds for report in reports),
        unmeasured=0,
    )


def why_not_comparable(old: BenchReport, new: BenchReport) -> str:
    """Why times of two runs say nothing about each other; empty where they do."""
    facts = {"device": "measured on", "chip": "measured on"}
    if old.environment.device == "cpu":
        facts["threads"] = "CPU threads:"
    for name, what in facts.items():
        one, other = getattr(old.environment, name), getattr(new.environment, name)
        if one != other:
            return f"the two runs cannot be compared: {what} {one} in the old, {other} in the new"
    return ""


def _own_noise(row: Row) -> float:
    assert row.time is not None
    apart = max(abs(row.noise.low - 1), abs(row.noise.high - 1)) if row.noise else 0.0
    return max(row.time.spread, apart)


def regressions(changes: Sequence[Change]) -> list[Change]:
    """What is slower beyond noise, or has no time any more."""
    return [change for change in changes if change.verdict in ("slower", "lost")]
