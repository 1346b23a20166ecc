"""Results of an operator: one or several, and lists of them, as one tuple and back again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def as_tuple(results: Any) -> tuple[Any, ...]:
    """One result as a tuple of one; several as they are."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def single(results: tuple[Any, ...]) -> Any:
    """The reverse of `as_tuple`."""
    return results[0] if len(results) == 1 else results


def flat_results(results: Any) -> tuple[Any, ...]:
    """Results one by one, those in a list too."""
    flat: list[Any] = []
    for result in as_tuple(results):
        flat.extend(result if isinstance(result, (tuple, list)) else (result,))
    return tuple(flat)


def nested(values: Sequence[Any], lists: Sequence[bool]) -> tuple[Any, ...]:
    """Values that stand for results one by one, arranged as the results: the reverse of `flat_results`.

    Args:
        values: one for each tensor among the results.
        lists: for each result, whether it is a list; at most one is.
    """
    found, rest = [], list(values)
    for number, is_list in enumerate(lists):
        length = len(rest) - (len(lists) - number - 1) if is_list else 1
        found.append(rest[:length] if is_list else rest[0])
        rest = rest[length:]
    return tuple(found)
