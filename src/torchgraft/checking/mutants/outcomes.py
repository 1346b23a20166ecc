"""Counts of what became of mutants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from torchgraft.checking.mutants.folders import Outcome


def count(outcomes: Iterable[tuple[str, Outcome]], *, by_kind: bool = False) -> dict[str, Counter[str]]:
    """Counts the outcomes of mutants by status: for each file or each kind of change, and for all.

    Args:
        outcomes: each with the name of its folder.
        by_kind: whether a row is a kind of change.
    """
    rows: dict[str, Counter[str]] = {}
    total = Counter[str]()
    for name, outcome in outcomes:
        row = outcome.mutant.kind if by_kind else f"{name}/{outcome.mutant.file}"
        rows.setdefault(row, Counter())[outcome.status] += 1
        total[outcome.status] += 1
    return {**dict(sorted(rows.items())), "all": total}


def share_killed(counts: Counter[str]) -> str:
    """The share of mutants that are told apart, of those that compile and are not known to be equivalent."""
    differing = counts["killed"] + counts["survived"] + counts["not reached"]
    return f"{100 * counts['killed'] / differing:.1f} %" if differing else ""
