"""Finds the rows to measure again: the stale ones (standing.py), and new ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from torchgraft.benchmarking.models import MODELS, plan_models
from torchgraft.benchmarking.provenance import Provenance, provenance_of_models
from torchgraft.benchmarking.results import BenchReport
from torchgraft.benchmarking.rows import Row
from torchgraft.benchmarking.standing import other_tools, standing
from torchgraft.benchmarking.suite import LAYOUTS, Planned, Wanted, plan
from torchgraft.checking.subject import find_subjects


@dataclass(frozen=True)
class Renewal:
    """The rows of a report by what must be measured again.

    Attributes:
        stale: were measured at an earlier commit, or have no hash and may have been.
        by_other_tools: are current, and were measured with another compiler or another PyTorch than are here.
        gone: are measured no more: no benchmark has such a row.
    """

    stale: tuple[Row, ...]
    by_other_tools: tuple[Row, ...]
    gone: tuple[Row, ...]


def judge(report: BenchReport, here: Provenance) -> Renewal:
    """Sorts the rows of a report by what must be measured again; reads sources alone, and measures nothing.

    Args:
        report: was measured before.
        here: with its compiler and its PyTorch rows would be measured now.
    """
    found = standing(report.rows, report.environment.device)
    names = {subject.name for subject in find_subjects([])} | set(MODELS)
    gone = [row for row in report.rows if row.operator not in names]
    with_others = [row for row in found.current if other_tools(row, here.compiler, here.torch)]
    return Renewal(found.stale, tuple(with_others), tuple(gone))


def here(device: str) -> Provenance:
    """With which compiler and which PyTorch rows are measured here."""
    return replace(provenance_of_models(device), sources="")


def plan_again(rows: Sequence[Row], device: torch.device) -> list[Planned]:
    """Rows to be measured again, against the same rivals and yardsticks; without those that are no longer measured."""
    planned: list[Planned] = []
    known = {subject.name for subject in find_subjects([])}
    for name in dict.fromkeys(row.operator for row in rows):
        own = [row for row in rows if row.operator == name]
        wanted = Wanted(device, dtypes=_dtypes(own), layouts=LAYOUTS)
        if name in MODELS:
            candidates = plan_models([name], wanted)
        elif name in known:
            beside = dict.fromkeys(each for row in own for each in (*row.rivals, *row.yardsticks))
            directions = tuple(dict.fromkeys(row.direction for row in own))
            [subject] = find_subjects([name])
            # A rival that the operator no longer has is not asked for.
            has = {*subject.samples.rivals, *subject.samples.yardsticks, "reference", "compile", "cuda_graph"}
            against = tuple(each for each in beside if each in has) or None
            candidates = plan([subject], replace(wanted, directions=directions, against=against))
        else:
            continue
        keys = {row.key for row in own}
        planned += [each for each in candidates if each.key in keys]
    return planned


def plan_new(report: BenchReport | None, device: torch.device) -> list[Planned]:
    """Rows that `graft bench --models` has on a device and a report has not."""
    wanted = Wanted(device)
    keys = {row.key for row in report.rows} if report else set()
    every = [*plan(find_subjects([]), wanted), *plan_models([], wanted)]
    return [each for each in every if each.key not in keys]


def without(report: BenchReport, rows: Iterable[Row]) -> BenchReport:
    """A report without some of its rows."""
    keys = {row.key for row in rows}
    return replace(report, rows=tuple(row for row in report.rows if row.key not in keys))


def _dtypes(rows: Sequence[Row]) -> tuple[torch.dtype, ...]:
    # What may be computed in tf32 is float32.
    names = dict.fromkeys("float32" if row.dtype == "tf32" else row.dtype for row in rows)
    return tuple(getattr(torch, name) for name in names)
