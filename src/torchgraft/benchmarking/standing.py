"""Finds the stale rows: those measured at an earlier commit, whose sources have changed since.

A row without a hash of its sources is stale too: it may have been measured at any commit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchgraft.benchmarking.provenance import OF_MODELS, sources_of
from torchgraft.benchmarking.rows import Row
from torchgraft.operator import Operator


def sources_now(row: Row, device: str) -> str:
    """Returns the hash that a row would get if it were measured now; empty if its sources are not here."""
    ran = row.provenance.kernels
    if row.direction == "training":
        return sources_of().of_module(OF_MODELS, device, ran=ran)
    namespace, _, name = row.operator.rpartition("::")
    operator = Operator.registered.get(row.operator)
    if namespace and operator is None:
        return ""
    sources = sources_of(operator.module) if operator else sources_of()
    return sources.of_operator(name, device, gradients=row.direction != "forward", ran=ran)


@dataclass(frozen=True)
class Standing:
    """Which rows are current and which are stale; a row in neither list is of an operator without sources here."""

    current: tuple[Row, ...]
    stale: tuple[Row, ...]

    def __str__(self) -> str:
        if not self.stale:
            return "No source that decides these times has changed since they were measured." if self.current else ""
        count, again = len(self.stale), "`make results` measures them again."
        if not self.current:
            which = "All rows were" if count > 1 else "The row was"
            return f"{which} measured at an earlier commit. {again}"
        total = count + len(self.current)
        return f"{count} of {total} rows were measured at an earlier commit: {by_suite(self.stale)}. {again}"


def standing(rows: Iterable[Row], device: str) -> Standing:
    """Returns which rows are current and which are stale: the one definition, for reports, pages and `make results`."""
    current: list[Row] = []
    stale: list[Row] = []
    for row in rows:
        if now := sources_now(row, device):
            (current if now == row.provenance.sources else stale).append(row)
    return Standing(tuple(current), tuple(stale))


def by_suite(rows: Sequence[Row]) -> str:
    """Returns the operators and suites of rows, each with the number of its rows."""
    counts = Counter(f"{row.operator}, {row.suite}" for row in rows)
    return "; ".join(f"{name} ({count})" for name, count in counts.items())


def other_tools(row: Row, compiler: str, torch_version: str) -> str:
    """Names another compiler or PyTorch with which a row was measured; empty if there is none, or it is not known."""
    now = {"PyTorch ": (row.provenance.torch, torch_version), "": (row.provenance.compiler, compiler)}
    return ", ".join(f"{what}{then}" for what, (then, here) in now.items() if then and here and then != here)


def tools(rows: Iterable[Row]) -> str:
    """Names the compilers and the versions of PyTorch with which rows were measured, for a person to read."""
    versions: Counter[str] = Counter()
    for row in rows:
        compiler = f"compiled by {row.provenance.compiler}" if row.provenance.compiler else ""
        beside = f"PyTorch {row.provenance.torch}" if row.provenance.torch else ""
        if said := ", ".join(filter(None, (compiler, beside))):
            versions[said] += 1
    if len(versions) < 2:
        return "".join(versions)
    return "; ".join(f"{said} ({count} {'row' if count == 1 else 'rows'})" for said, count in versions.items())
