"""Results of a benchmark: rows, the machine, and a comparison with another run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, get_args, get_type_hints

from torchgraft.benchmarking.doubts import doubts
from torchgraft.benchmarking.load import Load
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.rows import Row
from torchgraft.machine.documents import with_format
from torchgraft.machine.environment import Environment
from torchgraft.machine.figures import as_json


@dataclass(frozen=True)
class Card:
    """The state of a device while it was measured.

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
        load: what was known of other programs; None of a report from before that was asked.
        drawn: how many calls of each operator were drawn, and by which seed; None of rows that a table lists.
    """

    environment: Environment
    card: Card
    roofs: Roofs
    rows: tuple[Row, ...]
    quick: bool
    seconds: float
    unmeasured: int = 0
    load: Load | None = None
    drawn: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON; `report_from_dict` reads it."""
        figures = asdict(self)
        rows = figures.pop("rows")
        return with_format("bench", {**figures, "unit": "seconds", "doubts": self.doubts, "rows": list(rows)})

    def as_json(self) -> str:
        """The text of a file of JSON, a row a line."""
        return as_json(self.as_dict())

    @property
    def doubts(self) -> list[str]:
        """Why its figures may not be trusted, each with what to do."""
        return doubts(self.rows, self.environment.device, self.load, self.unmeasured)

    @property
    def suites(self) -> dict[tuple[str, str], list[Row]]:
        """Rows by operator and suite, in their order."""
        suites: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            suites.setdefault((row.operator, row.suite), []).append(row)
        return suites


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
    """Compares each row that both runs hold: 'faster', 'slower', 'same' within noise, or 'lost'.

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
            return f"the two runs cannot be compared: {what} {one} in the old run, {other} in the new one"
    return ""


def _own_noise(row: Row) -> float:
    assert row.time is not None
    apart = max(abs(row.noise.low - 1), abs(row.noise.high - 1)) if row.noise else 0.0
    return max(row.time.spread, apart)


def regressions(changes: Sequence[Change]) -> list[Change]:
    """The rows that are slower beyond noise, or have no time any more."""
    return [change for change in changes if change.verdict in ("slower", "lost")]
