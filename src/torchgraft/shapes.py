"""Shapes in words: `"... d, d -> ... d"` says which sizes of tensors are the same, and what sizes results have."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchgraft.differentiation import single
from torchgraft.schema import Argument, Result

_REST, _ANY = "...", "_"
_SIZE = re.compile(r"(?:(\d+)\*)?([A-Za-z]\w*)|(\d+)")


class _Size(NamedTuple):
    """A size in words: so many times what a name stands for, or a number alone."""

    times: int
    name: str = ""

    def __str__(self) -> str:
        return self.name if self.times == 1 and self.name else f"{self.times}*{self.name}".rstrip("*")


# Of a tensor: sizes, `...` for any number of them, once, and `_` for any one.
_Shape = tuple[_Size | str, ...]


class Shapes:
    """The sizes of an operator's tensors, by names.

    Args:
        operator: its name, for errors.
        text: a shape for each tensor argument, `->`, and one for each result; within it sizes, separated by spaces. A
            name stands for one size wherever it is, and that of a whole-number argument for its value; `2*d` is twice a
            name, `_` any size, `...` any sizes in a row, everywhere the same ones, and `()` no size at all. Of a result
            `_` says that its size is not told here, as `...` does where no argument has it. Lists are not looked at.
        arguments: of the schema.
        results: of the schema.

    Raises:
        ValueError: it does not say one shape for each tensor, or a result has a size that no argument has.
    """

    def __init__(self, operator: str, text: str, arguments: Sequence[Argument], results: Sequence[Result]) -> None:
        self.text, self._operator = text, operator
        before, arrow, after = text.partition("->")
        tensors = [(place, argument) for place, argument in enumerate(arguments) if argument.holds_tensors]
        shapes, self._results = self._read(before), self._read(after)
        if not arrow or len(shapes) != len(tensors) or len(self._results) != len(results):
            expected = f"{len(tensors)} of tensor arguments, '->' and {len(results)} of results"
            raise ValueError(f"{operator}: shapes must be {expected}, got {text!r}")
        pairs = list(zip(tensors, shapes, strict=True))
        self._tensors = [(place, argument.name, shape) for (place, argument), shape in pairs]
        self._numbers = [
            (place, argument.name)
            for place, argument in enumerate(arguments)
            if argument.kind in ("int", "SymInt") and not argument.is_list
        ]
        # What stands in a list, or may be None, tells no size of a result.
        telling = [shape for (_, argument), shape in pairs if argument.is_tensor and not argument.optional]
        known = {size.name for shape in telling for size in shape if isinstance(size, _Size)}
        sizes = [size for shape in self._results for size in shape]
        strangers = (
            {size.name for size in sizes if isinstance(size, _Size)} - known - {name for _, name in self._numbers}
        )
        if strangers - {""}:
            raise ValueError(
                f"{operator}: no argument that is always there tells {sorted(strangers - {''})} of shapes, {text!r}"
            )
        tells_rest = any(_REST in shape for shape in telling) or _REST not in sizes
        self.tells_results = tells_rest and _ANY not in sizes and not any(result.is_list for result in results)

    def _read(self, text: str) -> list[_Shape]:
        shapes = []
        for words in text.split(",") if text.strip() else ():
            found: list[_Size | str] = []
            for word in () if words.strip() == "()" else words.split():
                if word in (_REST, _ANY):
                    found.append(word)
                elif size := _SIZE.fullmatch(word):
                    times, name, number = size.groups()
                    found.append(_Size(int(number or times or 1), name or ""))
                else:
                    raise ValueError(f"{self._operator}: {word!r} of shapes is no size, as n, 4, 2*n, _ and ... are")
            if found.count(_REST) > 1 or (not found and words.strip() != "()"):
                raise ValueError(
                    f"{self._operator}: {words.strip()!r} of shapes must have sizes, and '...' once at most"
                )
            shapes.append(tuple(found))
        return shapes

    def explain(self, *arguments: Any) -> None:
        """Raises ValueError where a tensor has other sizes than it must."""
        self._bind(arguments)

    def make_output(self, primary: int) -> Callable[..., Any]:
        """What gives empty results: contiguous, of the dtype and device of the argument in a place."""

        def output(*arguments: Any) -> Any:
            sizes, rest = self._bind(arguments)
            like = arguments[primary]
            shapes = (
                [each for size in shape for each in (rest if size == _REST else (_value(size, sizes),))]
                for shape in self._results
            )
            return single(tuple(like.new_empty(shape) for shape in shapes))

        return output

    def _bind(self, arguments: Sequence[Any]) -> tuple[dict[str, Any], Sequence[Any]]:
        """What each name stands for, and `...`."""
        sizes = {name: arguments[place] for place, name in self._numbers}
        origins = dict.fromkeys(sizes, "")
        rest: Sequence[Any] | None = None
        for place, name, shape in self._tensors:
            tensor = arguments[place]
            if not isinstance(tensor, Tensor):
                continue
            found = list(tensor.shape)
            expected = list(shape)
            own_rest: list[Any] | None = None
            if _REST in expected and len(found) >= len(expected) - 1:
                first, many = expected.index(_REST), len(found) - len(expected) + 1
                own_rest = found[first : first + many]
                del found[first : first + many]
                del expected[first]
            fits = len(found) == len(expected) and (rest is None or own_rest is None or own_rest == rest)
            bound: dict[str, Any] = {}
            for size, value in zip(expected, found, strict=False):
                if isinstance(size, _Size) and size.name not in {**sizes, **bound, "": None}:
                    fits = fits and value % size.times == 0
                    bound[size.name] = value // size.times
                fits = fits and (size == _ANY or value == _value(size, {**sizes, **bound}))
            if not fits:
                raise ValueError(self._refusal(name, tensor, shape, sizes, origins, rest))
            sizes |= bound
            origins |= dict.fromkeys(bound, name)
            rest = own_rest if rest is None else rest
        return sizes, rest or ()

    def _refusal(
        self,
        name: str,
        tensor: Tensor,
        shape: _Shape,
        sizes: dict[str, Any],
        origins: dict[str, str],
        rest: Sequence[Any] | None,
    ) -> str:
        known = dict.fromkeys(size.name for size in shape if isinstance(size, _Size) and size.name in sizes)
        said = [f"{each} is {sizes[each]}{f' as in {origins[each]}' if origins[each] else ''}" for each in known]
        said += [f"... is {', '.join(map(str, rest)) or 'nothing'}"] if _REST in shape and rest is not None else []
        where = f", where {' and '.join(said)}," if said else ","
        comma = "," if len(shape) == 1 else ""
        words = ", ".join(map(str, shape))
        return f"{self._operator}: {name} must have the shape ({words}{comma}){where} got {tuple(tensor.shape)}"


def _value(size: _Size | str, sizes: dict[str, Any]) -> Any:
    assert isinstance(size, _Size)
    return size.times * sizes[size.name] if size.name else size.times
