"""How an operator may be spread over devices, in letters: `"N C _ _, C _ _ _, C -> N C _ _"`.

This module needs only the sizes of tensors; `torchgraft.operator.dtensor` passes its results to PyTorch's DTensor.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchgraft.declaration.schema import Argument, SchemaResult
from torchgraft.declaration.shapes import Shapes

_REST, _NEVER, _ANY = "...", "_", "*"
_LETTER = re.compile(r"[A-Za-z]\w*")

# The placement of a tensor along one dimension of a mesh: the number of the dimension along which it is sharded, or one
# of these. A partial tensor lies in summands, one on each device.
REPLICATED, PARTIAL = "replicated", "partial"
Placement = int | str

# Chosen in place of a letter: nothing is cut, and every device computes everything.
_WHOLE = ""


class ShardingError(ValueError):
    """The placements of tensors are not among those that an operator allows."""


class Cut(NamedTuple):
    """One way to spread a call over a mesh.

    Attributes:
        letters: the letter that is cut along each dimension of the mesh; empty if none is.
        arguments: the placements of each tensor argument, along each dimension of the mesh; None for one that is None.
        results: the placements of each result.
    """

    letters: tuple[str, ...]
    arguments: tuple[tuple[Placement, ...] | None, ...]
    results: tuple[tuple[Placement, ...], ...]


class _Term(NamedTuple):
    """The dimensions of a tensor: those in front of `...` and those behind it; without `...` all are in front."""

    front: tuple[str, ...]
    back: tuple[str, ...]
    has_rest: bool
    is_added: bool = False
    is_any: bool = False

    @property
    def letters(self) -> list[str]:
        return [letter for letter in (*self.front, *self.back) if letter != _NEVER]

    def dimensions(self, rank: int) -> dict[str, int] | None:
        """The dimension of each letter in a tensor of a rank; None if that is too many or too few dimensions."""
        if self.is_any:
            return {}
        more = rank - len(self.front) - len(self.back)
        if more < 0 or (more > 0 and not self.has_rest):
            return None
        rest = tuple(f"{_REST}{number}" for number in range(more))
        letters = enumerate((*self.front, *rest, *self.back))
        return {letter: dimension for dimension, letter in letters if letter != _NEVER}


class Sharding:
    """Which dimensions of an operator's tensors may be cut, each device then computing its own part.

    Args:
        operator: its name, for errors.
        text: a term for each tensor argument, `->`, and one for each result. A term has a word for each dimension: a
            letter (or a longer name) if it may be cut, `_` or a number if it may not, and `...` for any number of
            dimensions that may all be cut. `()` is a term without dimensions, and `*` one with any dimensions, none of
            which may be cut. All dimensions with the same letter are cut together. A result that has the letter is cut
            too; a result that lacks it is partial: the results of all devices are yet to be added. `+` before a term
            says that this argument is added to the result, once. `name=C` says that an int argument is a size of C, so
            that each device gets its own share of it. The text after `;` is the reason why other dimensions may not be
            cut.
        arguments: of the schema.
        results: of the schema.

    Raises:
        ValueError: it does not give one term for each tensor, or it contradicts itself.
    """

    def __init__(
        self, operator: str, text: str, arguments: Sequence[Argument], results: Sequence[SchemaResult]
    ) -> None:
        self.operator = operator
        said, _, reason = text.partition(";")
        self.text, self.reason = " ".join(said.split()), reason.strip()
        before, arrow, after = self.text.partition("->")
        self.tensors = [(place, each.name) for place, each in enumerate(arguments) if each.holds_tensors]
        whole = {each.name: place for place, each in enumerate(arguments) if each.kind in ("int", "SymInt")}
        words = [word.strip() for word in before.split(",")]
        numbers = [word.partition("=") for word in words if "=" in word]
        self.arguments = [self._read(word) for word in words if "=" not in word]
        self.results = [self._read(word.strip()) for word in after.split(",")] if after.strip() else []
        if not arrow or len(self.arguments) != len(self.tensors) or len(self.results) != len(results):
            counts = f"{len(self.tensors)} for the tensor arguments, '->' and {len(results)} for the results"
            raise ValueError(f"{operator}: sharding must give its dimensions of each tensor: {counts}, got {text!r}")
        known = {letter for term in self.arguments for letter in term.letters}
        strangers = {letter for term in self.results for letter in term.letters} - known
        for name, _, letter in numbers:
            if name.strip() not in whole:
                raise ValueError(
                    f"{operator}: sharding names {name.strip()!r}, but no int argument has this name, in {text!r}"
                )
            strangers |= {letter.strip()} - known
        if strangers:
            raise ValueError(
                f"{operator}: sharding must use only letters of its arguments after '->' and '=',"
                f" got {sorted(strangers)} in {text!r}"
            )
        if any(term.has_rest for term in self.results) and not any(term.has_rest for term in self.arguments):
            raise ValueError(f"{operator}: sharding has '...' in a result, but in no argument: {text!r}")
        self.numbers = [(whole[name.strip()], name.strip(), letter.strip()) for name, _, letter in numbers]

    def _read(self, text: str) -> _Term:
        is_added = text.startswith("+")
        words = text.removeprefix("+").split()
        if words == [_ANY]:
            return _Term((), (), False, is_added, True)
        words = [] if words == ["()"] else [_NEVER if word.isdigit() else word for word in words]
        for word in words:
            if word not in (_REST, _NEVER) and not _LETTER.fullmatch(word):
                raise ValueError(
                    f"{self.operator}: a dimension in sharding must be a letter, a number, '_' or '...', got {word!r}"
                )
        letters = [word for word in words if word != _NEVER]
        if len(set(letters)) < len(letters) or not (words or text.strip() == "()"):
            raise ValueError(
                f"{self.operator}: a tensor in sharding must be () or dimensions, with each letter once at most,"
                f" got {text!r}"
            )
        at = words.index(_REST) if _REST in words else len(words)
        return _Term(tuple(words[:at]), tuple(words[at + 1 :]), _REST in words, is_added)

    def __str__(self) -> str:
        return self.text

    @property
    def cuts(self) -> bool:
        """Whether anything may be cut."""
        return any(term.letters or term.has_rest for term in self.arguments)

    @classmethod
    def of_none(cls, operator: str, arguments: Sequence[Argument], results: Sequence[SchemaResult]) -> Sharding:
        """The sharding of an operator that declares none: no tensor may be cut."""
        tensors = ", ".join(_ANY for each in arguments if each.holds_tensors)
        reason = f"none is declared; `graft shard {operator}` finds what may be cut"
        return cls(operator, f"{tensors} -> {', '.join(_ANY for _ in results)}; {reason}", arguments, results)

    def of(self, shapes: Sequence[Sequence[Any] | None], values: Sequence[Any] = ()) -> ShardedCall:
        """The sharding of one call.

        Args:
            shapes: the sizes of each tensor argument; None for one that is None.
            values: all arguments, for the numbers among them that are sizes.

        Raises:
            ShardingError: a tensor has another number of dimensions than its term.
        """
        dimensions = []
        for (_, name), term, shape in zip(self.tensors, self.arguments, shapes, strict=True):
            found = {} if shape is None else term.dimensions(len(shape))
            if found is None:
                raise ShardingError(
                    f"{self.operator}: {name} has the shape {tuple(shape or ())}, but its sharding {self.text!r} is for"
                    " another number of dimensions: `...` in a sharding stands for any number"
                )
            dimensions.append(found)
        sizes: dict[str, list[Any]] = {}
        for found, shape in zip(dimensions, shapes, strict=True):
            for letter, dimension in found.items():
                sizes.setdefault(letter, []).append((shape or ())[dimension])
        for place, _, letter in self.numbers:
            if place < len(values) and letter in sizes:
                sizes[letter].append(values[place])
        return ShardedCall(self, tuple(shapes), tuple(dimensions), sizes)


class ShardedCall(NamedTuple):
    """A Sharding, for tensors of certain sizes.

    Attributes:
        sharding: of the operator.
        shapes: the sizes of each tensor argument; None for one that is None.
        dimensions: for each tensor argument, the dimension of each letter.
        sizes: for each letter, the sizes of all dimensions that it stands for, and the int arguments that are its size.
    """

    sharding: Sharding
    shapes: tuple[Sequence[Any] | None, ...]
    dimensions: tuple[dict[str, int], ...]
    sizes: dict[str, list[Any]]

    def cuts(self, mesh: Sequence[int], ranks: Sequence[int]) -> Iterator[Cut]:
        """Yields every way to spread the call over a mesh that the sharding allows and these sizes permit.

        Args:
            mesh: how many devices it has along each dimension.
            ranks: the number of dimensions of each result. A result whose rank does not fit its term has no elements,
                and is replicated.
        """
        for letters in itertools.product((*self.sizes, _WHOLE), repeat=len(mesh)):
            if all(self.permits(letter, parts_of(letter, letters, mesh)) for letter in {*letters} - {_WHOLE}):
                yield self.cut(letters, ranks)

    def permits(self, letter: str, parts: Sequence[int]) -> bool:
        """Whether each device gets a part of the letter's dimensions, and the parts of all tensors fit together."""
        sizes = self.sizes[letter]
        least = min(sizes)
        if all(size == least for size in sizes):
            return bool(least > 0) and min(_shares(least, parts)) > 0
        # Sizes C and 2 * C stay aligned on each device only if both are divided evenly.
        return bool(least > 0) and least % math.prod(parts) == 0 and all(size % least == 0 for size in sizes)

    def cut(self, letters: Sequence[str], ranks: Sequence[int]) -> Cut:
        """Returns the placements of arguments and results if these letters are cut, one along each mesh dimension."""
        sharding = self.sharding
        results = [term.dimensions(rank) for term, rank in zip(sharding.results, ranks, strict=True)]
        arguments = []
        for term, dimensions, shape in zip(sharding.arguments, self.dimensions, self.shapes, strict=True):
            where = []
            for each in letters:
                # An argument that is added to partial results must be partial, or every device would add all of it.
                in_parts = term.is_added and not any(found and each in found for found in results)
                where.append(
                    REPLICATED if each == _WHOLE else dimensions.get(each, PARTIAL if in_parts else REPLICATED)
                )
            arguments.append(None if shape is None else tuple(where))
        return Cut(
            tuple(letters),
            tuple(arguments),
            tuple(
                tuple(REPLICATED if each == _WHOLE or found is None else found.get(each, PARTIAL) for each in letters)
                for found in results
            ),
        )

    def refuse_others(self, placements: Sequence[Sequence[Any] | None]) -> None:
        """Raises an error if a tensor is sharded along a dimension that has no letter.

        Args:
            placements: of each tensor argument, along each dimension of the mesh.

        Raises:
            ShardingError: the message names the argument, the dimension, and the dimensions that may be sharded.
        """
        sharding = self.sharding
        for (_, name), dimensions, where in zip(sharding.tensors, self.dimensions, placements, strict=True):
            for each in where or ():
                if each in (REPLICATED, PARTIAL) or each in dimensions.values():
                    continue
                named = [
                    f"{dimension} ({letter})" if letter[:3] != _REST else str(dimension)
                    for letter, dimension in sorted(dimensions.items(), key=lambda item: item[1])
                ]
                allowed = f"shard it along dimension {' or '.join(named)}, or replicate it" if named else "replicate it"
                because = f" ({sharding.reason})" if sharding.reason else ""
                raise ShardingError(
                    f"{sharding.operator}: {name} is sharded along dimension {each}, which its sharding "
                    f"{sharding.text.partition(';')[0].strip()!r} does not allow{because}: {allowed}"
                )

    def gathered(self, placements: Sequence[Sequence[Any] | None], mesh: Sequence[int]) -> str:
        """Returns why a tensor that is sharded along a letter is gathered; empty if these sizes permit the cut."""
        for (_, name), dimensions, where in zip(self.sharding.tensors, self.dimensions, placements, strict=True):
            letters = {dimension: letter for letter, dimension in dimensions.items()}
            cut = [letters.get(each, _WHOLE) if isinstance(each, int) else _WHOLE for each in where or ()]
            for letter in {*cut} - {_WHOLE}:
                parts = parts_of(letter, cut, mesh)
                if not self.permits(letter, parts):
                    sizes = ", ".join(map(str, dict.fromkeys(self.sizes[letter])))
                    count = math.prod(parts)
                    return f"{name} is gathered: sizes {sizes} cannot be cut into {count} parts that fit together"
        return ""

    def numbers(
        self, letters: Sequence[str], mesh: Sequence[int], values: Sequence[Any], at: Sequence[int]
    ) -> Mapping[int, Any]:
        """Returns the int arguments that a device gets in place of the call's, by their places among the arguments.

        Args:
            letters: the letter that is cut along each dimension of the mesh.
            mesh: how many devices it has along each dimension.
            values: all arguments.
            at: the device's place in the mesh.
        """
        found = {}
        for place, _, letter in self.sharding.numbers:
            size = values[place]
            for each, count, coordinate in zip(letters, mesh, at, strict=True):
                size = share(size, count, coordinate) if each == letter else size
            found[place] = size
        return found


def share(size: Any, parts: int, place: int) -> Any:
    """Returns one device's share of a size. Sizes are cut as `torch.chunk` does, so the last devices may get less."""
    most = -(-size // parts)
    return max(0, min(most, size - most * place))


def _shares(size: int, parts: Sequence[int]) -> set[int]:
    """Returns the sizes of all parts if a size is cut, and then each part is cut again."""
    found = {size}
    for count in parts:
        found = {share(each, count, place) for each in found for place in range(count)}
    return found


def parts_of(letter: str, letters: Sequence[str], mesh: Sequence[int]) -> list[int]:
    """Returns the number of devices along each dimension of the mesh that cuts a letter."""
    return [count for each, count in zip(letters, mesh, strict=True) if each == letter]


def moved(here: Sequence[Any], there: Sequence[Any], mesh: Sequence[int], size: float) -> float:
    """Returns the bytes that a device sends to change the placement of a tensor; infinite if no collective does it.

    Args:
        here: the placement now, along each dimension of the mesh.
        there: the placement that is wanted.
        mesh: how many devices there are along each dimension.
        size: the bytes of all of the tensor.
    """
    held = size / math.prod(count for each, count in zip(here, mesh, strict=True) if isinstance(each, int))
    total = 0.0
    for one, other, count in zip(here, there, mesh, strict=True):
        share_of_others = (count - 1) / count
        if one == other or (one == REPLICATED and other != REPLICATED):
            # Nothing is sent: a device keeps a part of a replicated tensor, or makes summands of it.
            held = held / count if one != other and isinstance(other, int) else held
        elif other == PARTIAL:
            return math.inf
        elif one == PARTIAL:
            # All-reduce is reduce-scatter and all-gather.
            total += held * share_of_others * (1 if isinstance(other, int) else 2)
            held = held / count if isinstance(other, int) else held
        elif other == REPLICATED:
            total += held * (count - 1)
            held *= count
        else:
            total += held * share_of_others
    return total


DERIVE = "derive"


def read_sharding(
    operator: str,
    text: str | None,
    arguments: Sequence[Argument],
    results: Sequence[SchemaResult],
    shapes: Shapes | None = None,
    sizes_from_data: bool = False,
    random: Sequence[str] = (),
) -> Sharding | None:
    """The sharding that is declared; None if it is to be derived.

    Args:
        operator: its qualified name, for messages.
        text: as declared.
        arguments: of its schema.
        results: of its schema.
        shapes: its sizes in words.
        sizes_from_data: as declared.
        random: as declared.

    Raises:
        ValueError: the text is wrong, or DTensor does not support the operator.
    """
    name = operator.partition("::")[2]
    if text is not None and (why := why_unsharded(arguments, results, sizes_from_data, random)):
        raise ValueError(f"{operator}: {why}, so it cannot be sharded: leave sharding out")
    if text == DERIVE:
        return None
    if text is None:
        return Sharding.of_none(name, arguments, results)
    sharding = Sharding(name, text, arguments, results)
    numbers = {number for _, number, _ in sharding.numbers}
    whole = {each.name for each in arguments if each.kind in ("int", "SymInt")}
    for term, names in zip(sharding.results, shapes.result_names if shapes else (), strict=False):
        for letter, size in zip(term.front, names, strict=False):
            if size in whole - numbers and letter in term.letters:
                raise ValueError(
                    f"{operator}: a result has the size {size} where sharding cuts it along {letter}, and each device"
                    f" would be given all of {size}: write {size}={letter} after the arguments"
                )
    return sharding


def why_unsharded(
    arguments: Sequence[Argument], results: Sequence[SchemaResult], sizes_from_data: bool, random: Sequence[str]
) -> str:
    """Returns why DTensor does not support an operator; empty if it does.

    Args:
        arguments: of its schema.
        results: of its schema.
        sizes_from_data: as declared.
        random: as declared.
    """
    if any(argument.mutated for argument in arguments):
        return "it writes to its arguments"
    if any(each.holds_tensors and each.is_list for each in arguments) or any(each.is_list for each in results):
        return "it takes or returns lists of tensors"
    if any(argument.holds_tensors and argument.keyword_only for argument in arguments):
        return "it has keyword-only tensors, which DTensor does not redistribute"
    if random:
        return "its results are random, and every device would draw the same"
    return "sizes of its results depend on the values of tensors" if sizes_from_data else ""
