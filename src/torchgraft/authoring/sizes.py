"""Makes the sizes of samples from the shapes in words that `graft new --shapes` is given."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import NamedTuple

from torchgraft.declaration.schema import Schema
from torchgraft.declaration.shapes import Shapes, UnknownSizeError

_REST = "..."
_NAME = re.compile(r"[A-Za-z]\w*")
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
# The same where a single size has a name.
_SIZES_OF_ONE_NAME = (
    ("one element", 1),
    ("no elements", 0),
    ("seven, less than a vector of half types", 7),
    ("eight", 8),
    ("nine", 9),
    ("one more than a block of threads", 257),
    ("more than one thread's share", 33009),
)
# The same for tensors of any shape.
ANY_SHAPES: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("a number", ()),
    ("one element", (1,)),
    ("no elements", (0,)),
    ("no elements in the middle", (3, 0, 2)),
    ("seven elements, less than a vector of half types", (7,)),
    ("eight elements", (8,)),
    ("nine elements", (9,)),
    ("three dimensions", (2, 3, 5)),
    ("one more than a block of threads", (257,)),
    ("more than one thread's share", (3, 11003)),
)
# What to do where words cannot say a size.
_WITHOUT_WORDS = (
    "`graft new` must know each size of a result. Write _ for a size of an argument that words cannot say, such as the "
    "length of cu_seqlens. For one of a result leave --shapes out, and then write output= in operator.py, and shapes= "
    'with _ for that size, as in "n d, _ -> _ d"'
)
# The length of a row of the benchmark, and how many elements a tensor of it has at most.
_BENCHMARK_ROW, _BENCHMARK_ELEMENTS = 1024, 1 << 22


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
        return f"{before} -> {after}".rstrip()

    @property
    def names(self) -> list[str]:
        """The names of sizes, in the order in which the arguments have them.

        `rest`, for `...`, comes first, and behind it names that results alone have, as they are those of numbers.
        """
        words = [word for shape in self.arguments.values() for word in shape]
        names = dict.fromkeys(found[0] for word in words if (found := _NAME.search(word)))
        others = [found[0] for shape in self.results for word in shape if (found := _NAME.search(word))]
        return [
            *([_REST_NAME] if _REST in words else []),
            *(name for name in dict.fromkeys(others) if name not in names),
            *names,
        ]

    def backward(self, grads: Sequence[str], tensors: Sequence[str]) -> Words:
        """The shapes of an operator that computes the gradients of some tensors: its results', and then as before."""
        incoming = dict(zip(grads, self.results, strict=True))
        return Words({**incoming, **self.arguments}, tuple(self.arguments[each] for each in tensors))


def read_words(operator: str, text: str, read: Schema) -> Words:
    """Reads shapes in words.

    Args:
        operator: its name, for errors.
        text: as `shapes` of `torchgraft.Operator`.
        read: what the schema says.

    Raises:
        ValueError: they do not fit the schema, do not tell the shapes of all results, or have a name that Python has.
    """
    try:
        shapes = Shapes(operator, text, read.arguments, read.results)
    except UnknownSizeError as error:
        raise ValueError(f"{error.said}. {_WITHOUT_WORDS}") from None
    if not shapes.tells_results:
        said = f"{operator}: shapes must give every size of each result, without _, got {text!r}"
        raise ValueError(f"{said}. {_WITHOUT_WORDS}")
    before, after = ([tuple(words.replace("()", "").split()) for words in part.split(",")] for part in text.split("->"))
    tensors = [argument.name for argument in read.arguments if argument.holds_tensors]
    words = Words(dict(zip(tensors, before, strict=True)), tuple(after) if read.results else ())
    for name in _NAME.findall(text):
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
    if words.names == [_REST_NAME]:
        return [(name, f"({shape},)") for name, shape in ANY_SHAPES]
    if len(words.names) == 1:
        # A matrix of as many rows as columns would fill the memory.
        shapes = (*words.arguments.values(), *words.results)
        most = _SIZES_OF_ONE_NAME[-2 if max(map(len, shapes)) > 1 else -1][1]
        return [(name, f"({size},)") for name, size in _SIZES_OF_ONE_NAME if size <= most]
    return [(row[0], bracketed(_values(words, *row))) for row in _ROWS]


def benchmark(words: Words) -> tuple[str, str]:
    """The benchmark of a new operator: its name, and the sizes as arguments in Python.

    The other sizes are one power of two, the largest with which no tensor is too large to be measured in a moment.
    """
    row = _BENCHMARK_ROW
    other = _BENCHMARK_ELEMENTS // row
    shapes = (*words.arguments.values(), *words.results)
    while max(_elements(words, shape, other, row) for shape in shapes) > _BENCHMARK_ELEMENTS:
        row, other = (row, other // 2) if other > 1 else (row // 2, other)
    rest = (other, row) if words.names[-1] == _REST_NAME else (other,)
    return f"rows of {row}", ", ".join(_values(words, "", rest, other, row))


def _elements(words: Words, shape: Sequence[str], other: int, row: int) -> int:
    """How many elements a tensor of a shape has, where the last size has one value and all others have another."""
    last, count = words.names[-1], 1
    for word in shape:
        number, name = re.fullmatch(r"(\d*)\*?(\w*|\.\.\.)", word).groups()  # type: ignore[union-attr]
        if name == _REST:
            count *= other * (row if last == _REST_NAME else 1)
        elif name == "_":
            count *= int(_ANY_SIZE)
        else:
            count *= int(number or 1) * (row if name == last else other if name else 1)
    return count


def smallest(words: Words) -> str:
    """The sizes of a sample with one of everything, as arguments in Python."""
    return ", ".join(_values(words, *_ROWS[0]))


def drawn(words: Words) -> list[str]:
    """Sizes that are drawn, each in Python."""
    each = "random.randint(0, 6)"
    rest = f"tuple({each} for _ in range(random.randint(0, 2)))"
    return [rest if name == _REST_NAME else each for name in words.names]


class Source(NamedTuple):
    """The size of a tensor that has a name, or several in front of others.

    Attributes:
        tensor: the name of the argument.
        place: of the size among the others; from the end, so negative, if `...` stands in front of it.
        divisor: what the size is to be divided by; 1 for most.
    """

    tensor: str
    place: int
    divisor: int = 1


def source_of(words: Words, name: str, tensors: Sequence[str]) -> Source | None:
    """The first size of some tensors in which a name occurs; None if there is none."""
    for tensor in tensors:
        shape = words.arguments[tensor]
        for place, word in enumerate(shape):
            times, found = re.fullmatch(r"(?:(\d+)\*)?(.*)", word).groups()  # type: ignore[union-attr]
            if found == name:
                is_behind = _REST in shape[:place]
                return Source(tensor, place - len(shape) if is_behind else place, int(times or 1))
    return None


def rest_of(words: Words, tensors: Sequence[str]) -> tuple[str, int, int] | None:
    """The first of some tensors with `...`, and how many sizes it has in front of that and behind it."""
    for tensor in tensors:
        shape = words.arguments[tensor]
        if _REST in shape:
            at = shape.index(_REST)
            return tensor, at, len(shape) - at - 1
    return None


def _values(words: Words, _: str, rest: tuple[int, ...], other: int, last: int) -> list[str]:
    names = words.names
    found = [str(rest) if name == _REST_NAME else str(other) for name in names]
    if names[-1] != _REST_NAME:
        found[-1] = str(last)
    return found
