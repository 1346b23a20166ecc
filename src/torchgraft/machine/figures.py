"""Figures as JSON that a person can read and compare: each row of a table on a line of its own."""

from __future__ import annotations

import json
import math
from typing import Any


def as_json(figures: Any) -> str:
    """Returns figures as the text of a JSON file; null stands for nan and infinity, which JSON does not have.

    Each element of a list of objects takes a line, and so does each entry of an object that holds such a list.
    """
    return _text(_without_nan(figures), "") + "\n"


def _text(value: Any, indent: str) -> str:
    inner = indent + " "
    if isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        return _enclosed("[]", [_text(each, inner) for each in value], indent)
    if isinstance(value, dict) and any(map(_has_rows, value.values())):
        return _enclosed("{}", [f"{json.dumps(key)}: {_text(each, inner)}" for key, each in value.items()], indent)
    return json.dumps(value, allow_nan=False)


def _has_rows(value: Any) -> bool:
    """Whether a list of objects stands in a value."""
    if isinstance(value, dict):
        return any(map(_has_rows, value.values()))
    return isinstance(value, list) and any(isinstance(each, dict) or _has_rows(each) for each in value)


def _enclosed(brackets: str, lines: list[str], indent: str) -> str:
    between = f",\n{indent} "
    return f"{brackets[0]}\n{indent} {between.join(lines)}\n{indent}{brackets[1]}"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
