"""Makes the sizes of samples from the shapes in words that `graft new --shapes` is given."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import NamedTuple

from torchgraft.declaration.schema import Schema
from torchgraft.declaration.shapes import Shapes

_REST = "..."
# What a sample calls the sizes that `...` stands for, and a size that has no name.
_REST_NAME, _ANY_SIZE = "rest", "3"

# Why a sample is there, what `...` stands for in it, the sizes in front of the last one, and the last one, along which
# memory runs.
_ROWS = (
    ("one of everything", (), 1, 1),
    ("nothing along the last size", (3,), 2, 0),
    ("nothing along the others", (0, 2), 0, 5),
    ("seven, less than a vector of half types", (), 2, 7),
    ("eight", (2,), 3, 8),
    ("nine", (2, 3), 1, 9),
    ("one more than a block of threads", (3,), 2, 257),
    ("more than one thread's share", (3,), 3, 11003),
)
_BENCHMARK = ("rows of 1024", (4096,), 64, 1024)


class Words(NamedTuple):
    """Shapes in words, of an operator or of its gradient.

    Attributes:
        arguments: the sizes of each tensor argument, as words.
        results: those of each result.
    """

    arguments: dict[str, tuple[str, ...]]
    results: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        before, after = (
            ", ".join(" ".join(words) or "()" for words in shapes) for shapes in (self.arguments.values(), self.results)
        )
        return f"{before} -> {after}"

    @property
    def names(self) -> list[str]:
        """The names of sizes, in the order in which the arguments have them; `rest`, for `...`, comes first."""
        words = [word for shape in self.arguments.values() for word in shape]
        found = [found[0] for word in words if (found := re.search(r"[A-Za-z]\w*", word))]
        return [*([_REST_NAME] if _REST in words else []), *dict.fromkeys(found)]

    def backward(self) -> Words:
        """The shapes of an operator that computes the gradient: of the result's gradient, and then as before."""
        return Words({"output_grad": self.results[0], **self.arguments}, tuple(self.arguments.values()))


def read_words(operator: str, text: str, read: Schema) -> Words:
    """Reads shapes in words.

    Args:
        operator: its name, for errors.
        text: as `shapes` of `torchgraft.Operator`.
        read: what the schema says.

    Raises:
        ValueError: they do not fit the schema, do not tell the shapes of all results, or have a name that Python has.
    """
    if not Shapes(operator, text, read.arguments, read.results).tells_results:
        raise ValueError(f"{operator}: shapes must give every size of each result, without _, got {text!r}")
    before, after = ([tuple(words.replace("()", "").split()) for words in part.split(",")] for part in text.split("->"))
    tensors = [argument.name for argument in read.arguments if argument.holds_tensors]
    words = Words(dict(zip(tensors, before, strict=True)), tuple(after))
    for name in re.findall(r"[A-Za-z]\w*", text):
        if keyword.iskeyword(name) or name in (_REST_NAME, *tensors):
            raise ValueError(f"{operator}: a size cannot be named {name}: rename it in --shapes")
    if not words.names:
        raise ValueError(f"{operator}: shapes must have at least one size with a name, or '...', got {text!r}")
    return words


def bracketed(words: Sequence[str]) -> str:
    """Words as a shape is written in Python."""
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


def expression(words: Sequence[str]) -> str:
    """The shape in Python, of the sizes by their names."""
    found = []
    for word in words:
        text = f"*{_REST_NAME}" if word == _REST else _ANY_SIZE if word == "_" else word.replace("*", " * ")
        found.append(text)
    return bracketed(found)


def parameters(words: Words) -> list[str]:
    """The parameters of a function that makes the arguments of a sample."""
    return [f"{name}: {'tuple[int, ...]' if name == _REST_NAME else 'int'}" for name in words.names]


def rows(words: Words) -> list[tuple[str, str]]:
    """The samples of the table: what a sample is there for, and its sizes in Python.

    Args:
        words: the shapes.
    """
    found: dict[str, str] = {}
    for row in _ROWS:
        # Where there are few names, rows may be the same.
        found.setdefault(bracketed(_values(words, *row)), row[0])
    return [(name, text) for text, name in found.items()]


def benchmark(words: Words) -> tuple[str, str]:
    """The benchmark of a new operator: its name, and the sizes as arguments in Python."""
    return _BENCHMARK[0], ", ".join(_values(words, *_BENCHMARK))


def smallest(words: Words) -> str:
    """The sizes of a sample with one of everything, as arguments in Python."""
    return ", ".join(_values(words, *_ROWS[0]))


def drawn(words: Words) -> str:
    """Sizes that are drawn, in Python."""
    each = "random.randint(0, 6)"
    rest = f"tuple({each} for _ in range(random.randint(0, 2)))"
    return bracketed([rest if name == _REST_NAME else each for name in words.names])


def _values(words: Words, _: str, rest: tuple[int, ...], other: int, last: int) -> list[str]:
    names = words.names
    found = [str(rest) if name == _REST_NAME else str(other) for name in names]
    if names[-1] != _REST_NAME:
        found[-1] = str(last)
    return found
