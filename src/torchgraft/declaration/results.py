"""Converts results of an operator (one, several, or lists of tensors) into one tuple, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def as_tuple(results: Any) -> tuple[Any, ...]:
    """Returns one result in a tuple, and several results as a tuple."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def single(results: tuple[Any, ...]) -> Any:
    """Returns the result itself if there is only one: the reverse of `as_tuple`."""
    return results[0] if len(results) == 1 else results


def flat_results(results: Any) -> tuple[Any, ...]:
    """Returns all tensors among the results in one tuple, including those in a list."""
    flat: list[Any] = []
    for result in as_tuple(results):
        flat.extend(result if isinstance(result, (tuple, list)) else (result,))
    return tuple(flat)


def nested(values: Sequence[Any], lists: Sequence[bool]) -> tuple[Any, ...]:
    """Arranges values, one for each tensor among the results, as the results are: the reverse of `flat_results`.

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
