"""Shapes in words: `"... d, d -> ... d"` says which sizes of tensors are the same, and what sizes results have."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchgraft.declaration.results import single
from torchgraft.declaration.schema import Argument, SchemaResult

_REST, _ANY = "...", "_"
_SIZE = re.compile(r"(?:(\d+)\*)?([A-Za-z]\w*)|(\d+)")


class UnknownSizeError(ValueError):
    """A size that words cannot say, or that no argument gives.

    Args:
        said: what is wrong, for everybody.
        advice: what to do, for who writes a declaration in Python.
    """

    def __init__(self, said: str, advice: str = "") -> None:
        super().__init__(f"{said}; {advice}" if advice else said)
        self.said = said


def _counted(number: int, what: str) -> str:
    return f"one shape for its {what}" if number == 1 else f"{number} shapes for its {what}s"


class _Size(NamedTuple):
    """A size in words: a multiple of a named size, a number, or any size."""

    times: int
    name: str = ""

    def __str__(self) -> str:
        return self.name if self.times == 1 and self.name else f"{self.times}*{self.name}".rstrip("*")

    def of(self, sizes: dict[str, Any]) -> Any:
        """Returns the size, from the sizes that the names stand for."""
        return self.times * sizes[self.name] if self.name else self.times


class _Shape(NamedTuple):
    """The shape of a tensor: sizes in front of `...`, and behind it; without `...` all are in front."""

    front: tuple[_Size, ...]
    back: tuple[_Size, ...]
    has_rest: bool

    @property
    def sizes(self) -> tuple[_Size, ...]:
        return self.front + self.back

    @property
    def names(self) -> set[str]:
        return {size.name for size in self.sizes} - {"", _ANY}

    def __str__(self) -> str:
        words = [*map(str, self.front), *([_REST] if self.has_rest else []), *map(str, self.back)]
        return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


class Shapes:
    """The sizes of an operator's tensors, by names.

    Args:
        operator: its name, for errors.
        text: a shape for each tensor argument, then `->` (also if there are no results), then a shape for each result.
            Commas separate shapes, and spaces the sizes of one shape. A name stands for the same size wherever it
            occurs; the name of an int argument stands for its value. `2*d` is twice the size `d`, `_` any size, `...`
            any number of sizes, everywhere the same ones, and `()` the shape without sizes. In a result, `_` leaves a
            size open, and so does `...` if no argument has it. Lists are not checked.
        arguments: of the schema.
        results: of the schema.

    Raises:
        ValueError: it does not give one shape for each tensor, or a result has a size that no argument has.
    """

    def __init__(
        self, operator: str, text: str, arguments: Sequence[Argument], results: Sequence[SchemaResult]
    ) -> None:
        self._operator, self.text = operator, text
        before, arrow, after = text.partition("->")
        tensors = [(place, argument) for place, argument in enumerate(arguments) if argument.holds_tensors]
        shapes, self._results = self._read(before), self._read(after)
        if not arrow or len(shapes) != len(tensors) or len(self._results) != len(results):
            expected = f"{_counted(len(tensors), 'tensor argument')}, '->' and {_counted(len(results), 'result')}"
            raise ValueError(f"{operator}: shapes must give {expected}, got {text!r}")
        pairs = list(zip(tensors, shapes, strict=True))
        self._tensors = [(place, argument.name, shape) for (place, argument), shape in pairs]
        self._numbers = [
            (place, argument.name)
            for place, argument in enumerate(arguments)
            if argument.kind in ("int", "SymInt") and not argument.is_list
        ]
        # Tensors in a list, and those that may be None, cannot give the size of a result.
        telling = [shape for (_, argument), shape in pairs if argument.is_tensor and not argument.optional]
        known = {name for _, name in self._numbers}.union(*(shape.names for shape in telling))
        if strangers := sorted(set[str]().union(*(shape.names for shape in self._results)) - known):
            raise UnknownSizeError(
                f"{operator}: shapes must take the sizes of results from required tensors or ints, and nothing gives"
                f" {strangers}, got {text!r}",
                "write _ for such a size, and say output=",
            )
        tells_rest = any(shape.has_rest for shape in telling)
        self.tells_results = not any(result.is_list for result in results) and all(
            (tells_rest or not shape.has_rest) and all(size.name != _ANY for size in shape.sizes)
            for shape in self._results
        )

    @property
    def result_names(self) -> list[tuple[str, ...]]:
        """The names of the sizes in front of `...`, for each result; empty for a size that is no name alone."""
        return [tuple(size.name if size.times == 1 else "" for size in shape.front) for shape in self._results]

    @property
    def rests(self) -> dict[int, tuple[int, int]]:
        """The places of the arguments that have `...`, and how many sizes stand before it and behind it."""
        return {place: (len(shape.front), len(shape.back)) for place, _, shape in self._tensors if shape.has_rest}

    def _read(self, text: str) -> list[_Shape]:
        return [self._read_one(words.strip()) for words in text.split(",")] if text.strip() else []

    def _read_one(self, text: str) -> _Shape:
        words = [] if text == "()" else text.split()
        if words.count(_REST) > 1 or not (words or text == "()"):
            raise ValueError(
                f"{self._operator}: a shape in shapes must be () or sizes, with '...' once at most, got {text!r}"
            )
        at = words.index(_REST) if _REST in words else len(words)
        front, back = (tuple(map(self._read_size, part)) for part in (words[:at], words[at + 1 :]))
        return _Shape(front, back, _REST in words)

    def _read_size(self, word: str) -> _Size:
        if word == _ANY:
            return _Size(1, _ANY)
        size = _SIZE.fullmatch(word)
        if size is None:
            raise UnknownSizeError(f"{self._operator}: a size in shapes must be like n, 4, 2*n, _ or ..., got {word!r}")
        times, name, number = size.groups()
        return _Size(int(number or times or 1), name or "")

    def explain(self, *arguments: Any) -> None:
        """Raises ValueError if the sizes of a tensor do not fit."""
        self._bind(arguments)

    def make_output(self, primary: int) -> Callable[..., Any]:
        """Builds the function that returns contiguous empty results like the argument at a place."""

        def output(*arguments: Any) -> Any:
            sizes, rest = self._bind(arguments)
            like = arguments[primary]
            shapes = (
                (*(size.of(sizes) for size in front), *(rest if has_rest else ()), *(size.of(sizes) for size in back))
                for front, back, has_rest in self._results
            )
            return single(tuple(like.new_empty(shape) for shape in shapes))

        return output

    def _bind(self, arguments: Sequence[Any]) -> tuple[dict[str, Any], Sequence[Any]]:
        """Returns the sizes that names and `...` stand for. Raises ValueError if the sizes of a tensor do not fit."""
        sizes = {name: arguments[place] for place, name in self._numbers}
        rest: Sequence[Any] | None = None
        for place, name, shape in self._tensors:
            tensor = arguments[place]
            if not isinstance(tensor, Tensor):
                continue
            front, back, has_rest = shape
            found, before, after = tensor.shape, len(front), len(back)
            many = len(found) - before - after
            fits = many == 0 or (many > 0 and has_rest)
            own_rest = found[before : before + many] if has_rest else ()
            fits = fits and (rest is None or not has_rest or own_rest == rest)
            bound: dict[str, Any] = {}
            beside = (*found[:before], *found[before + many :]) if fits else ()
            for size, value in zip(shape.sizes, beside, strict=False):
                times, known = size
                if known == _ANY:
                    continue
                if known and known not in sizes and known not in bound:
                    fits = fits and value % times == 0
                    bound[known] = value // times if times > 1 else value
                elif value != (times * (sizes[known] if known in sizes else bound[known]) if known else times):
                    fits = False
            if not fits:
                raise ValueError(self._refusal(name, tensor, shape, sizes, rest))
            sizes.update(bound)
            rest = own_rest if has_rest and rest is None else rest
        return sizes, rest or ()

    def _refusal(
        self, name: str, tensor: Tensor, shape: _Shape, sizes: dict[str, Any], rest: Sequence[Any] | None
    ) -> str:
        """Returns the message about a tensor whose sizes do not fit those of the tensors before it."""
        numbers = {number for _, number in self._numbers}
        said = []
        for known in dict.fromkeys(size.name for size in shape.sizes if size.name in sizes):
            origin = next(other for _, other, before in self._tensors if known in before.names)
            said.append(f"{known} is {sizes[known]}{'' if known in numbers else f' as in {origin}'}")
        if shape.has_rest and rest is not None:
            said.append(f"... is {', '.join(map(str, rest)) or 'nothing'}")
        where = f", where {' and '.join(said)}," if said else ","
        return f"{self._operator}: {name} must have the shape {shape}{where} got {tuple(tensor.shape)}"
