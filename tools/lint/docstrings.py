"""Finds docstrings whose first word hides what a function gives: `make lint`.

A docstring begins with a verb, or with the noun that is returned: "Returns the strides" or "The strides", not "What the
strides are". Only the folders of HELD are checked, and nothing in FROZEN.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FORBIDDEN = ("What", "Of", "That", "As")
HELD = ("src", "tools", "tests", "benchmarks", "examples")
# Packages of earlier releases, as they were.
FROZEN = "tests/packages/0.1.0"

_Documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def find_in(text: str) -> Iterator[tuple[int, str]]:
    """The line and the first word of each docstring of a module that begins with a forbidden word."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _Documented) and (docstring := ast.get_docstring(node)):
            word = docstring.split()[0].rstrip(",:")
            if word in FORBIDDEN:
                yield node.body[0].lineno, word


def find(root: Path, held: Iterable[str]) -> list[str]:
    """Messages about the docstrings below a root, and about held paths that are not there."""
    messages = []
    for name in held:
        place = root / name
        paths = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        paths = [path for path in paths if not path.is_relative_to(root / FROZEN)]
        if not place.exists():
            messages.append(f"{name}: is not there; correct HELD in tools/lint/docstrings.py")
            continue
        for path in paths:
            for line, word in find_in(path.read_text()):
                where = f"{path.relative_to(root)}:{line}"
                messages.append(f"{where}: begin with a verb, or with the noun that is returned, not with {word!r}")
    return messages


def main() -> int:
    """Prints the messages; 1 if there are any."""
    messages = find(ROOT, HELD)
    for each in messages:
        print(each)
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())
