"""Rows by what became of their sources: whether they were measured on those that lie here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchgraft.benchmarking.provenance import OF_MODELS, sources_of
from torchgraft.benchmarking.rows import Row
from torchgraft.operator import Operator


def sources_now(row: Row, device: str) -> str:
    """The hash that a row would have, were it measured here and now; empty where its sources are not at hand."""
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
    """Rows by what became of their sources; of those in neither list nobody can tell."""

    current: tuple[Row, ...]
    stale: tuple[Row, ...]

    def __str__(self) -> str:
        if not self.stale:
            return "All rows were measured on these sources." if self.current else ""
        count, again = len(self.stale), "`make results` measures them again."
        if not self.current:
            which = "All rows were" if count > 1 else "The row was"
            return f"{which} measured on earlier sources. {again}"
        total = count + len(self.current)
        return f"{count} of {total} rows were measured on earlier sources: {by_suite(self.stale)}. {again}"


def standing(rows: Iterable[Row], device: str) -> Standing:
    """Which rows were measured on the sources that lie here, and which on others."""
    current: list[Row] = []
    stale: list[Row] = []
    for row in rows:
        if row.provenance.sources and (now := sources_now(row, device)):
            (current if now == row.provenance.sources else stale).append(row)
    return Standing(tuple(current), tuple(stale))


def by_suite(rows: Sequence[Row]) -> str:
    """Operators and suites, each with the number of its rows."""
    counts = Counter(f"{row.operator}, {row.suite}" for row in rows)
    return "; ".join(f"{name} ({count})" for name, count in counts.items())


def other_tools(row: Row, compiler: str, torch_version: str) -> str:
    """With what else than this compiler and PyTorch a row was measured, as far as it says; empty where with these."""
    now = {"PyTorch ": (row.provenance.torch, torch_version), "": (row.provenance.compiler, compiler)}
    return ", ".join(f"{what}{then}" for what, (then, here) in now.items() if then and here and then != here)


def tools(rows: Iterable[Row]) -> str:
    """With what rows were compiled and measured, as far as they say, for a person to read."""
    versions: Counter[str] = Counter()
    for row in rows:
        compiler = f"compiled by {row.provenance.compiler}" if row.provenance.compiler else ""
        beside = f"PyTorch {row.provenance.torch}" if row.provenance.torch else ""
        if said := ", ".join(filter(None, (compiler, beside))):
            versions[said] += 1
    if len(versions) < 2:
        return "".join(versions)
    return "; ".join(f"{said} ({count} {'row' if count == 1 else 'rows'})" for said, count in versions.items())
