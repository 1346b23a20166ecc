"""Reads a schema: its arguments as plain values, which compilers can trace, and functions that arrange a call by it.

An operator's tensors may stand anywhere among its arguments, and some of them in lists. Autograd supports neither: it
takes tensors one by one. `Arrangement` takes the tensors out of the arguments for it, and puts them back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchgraft._private import pytorch

# The default of an argument that has none.
REQUIRED: Any = ...

_DEFAULT = re.compile(r"\s*=\s*(?:\[[^\]]*\]|\"[^\"]*\"|'[^']*'|[^,)\s]+)")


class Argument(NamedTuple):
    """An argument of a schema, as plain values: compilers cannot trace PyTorch's own description of it.

    Attributes:
        name: as in the schema.
        kind: 'Tensor', 'int', 'float', 'bool', 'str', 'ScalarType', 'Device', 'Generator' or another word of the
            schema; for a list, the kind of its elements.
        optional: whether it may be None.
        is_list: whether it is a list.
        length: how many elements a list must have, as in `int[2]`; None: any number.
        optional_elements: whether elements of a list may be None.
        mutated: whether the operator writes to it.
        keyword_only: whether it must be named.
        default: the value if a call leaves it out, a `torch.dtype` for a ScalarType; `REQUIRED` if no call may.
    """

    name: str
    kind: str
    optional: bool = False
    is_list: bool = False
    length: int | None = None
    optional_elements: bool = False
    mutated: bool = False
    keyword_only: bool = False
    default: Any = REQUIRED

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor or an optional tensor, not a list."""
        return self.kind == "Tensor" and not self.is_list

    @property
    def holds_tensors(self) -> bool:
        """Whether it is a tensor or a list of tensors."""
        return self.kind == "Tensor"


class SchemaResult(NamedTuple):
    """A result of a schema.

    Attributes:
        name: as in the schema; empty if it has none.
        is_list: whether it is a list of tensors.
    """

    name: str
    is_list: bool


class Schema(NamedTuple):
    """The arguments and results of an operator, in order."""

    arguments: tuple[Argument, ...]
    results: tuple[SchemaResult, ...]


def read_schema(text: str) -> Schema:
    """Reads a schema.

    Args:
        text: `namespace::name(Tensor input, ..., *, float eps=1e-5) -> Tensor`.

    Raises:
        ValueError: PyTorch cannot read it, or an Operator does not support it; the message says why and what to do.
    """
    name = text.partition("(")[0].strip()
    try:
        parsed = pytorch.parse_schema(text)
    except RuntimeError as error:
        raise ValueError(f"{name}: PyTorch cannot read the schema {text!r}: {str(error).strip()}") from None
    arguments = tuple(map(_describe, parsed.arguments))
    names = [argument.name for argument in arguments]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        raise ValueError(f"{name}: {', '.join(twice)} is the name of several arguments: give each a name of its own")
    if not any(argument.holds_tensors for argument in arguments):
        raise ValueError(f"{name}: a schema needs at least one tensor argument: the kernel is chosen by its device")
    for number, result in enumerate(parsed.returns):
        kind, place = str(result.type), result.name or f"result {number}"
        if result.alias_info is not None:
            raise ValueError(
                f"{name}: {place} is one of the arguments, and torch.compile does not support that: remove it from the"
                " schema's results (write `-> ()` if no result is left), and use the argument after the call"
            )
        if kind not in ("Tensor", "List[Tensor]"):
            advice = "a tensor without elements" if kind.startswith("Optional") else "a tensor of one element"
            raise ValueError(
                f"{name}: {place} is {kind}, but results must be tensors or lists of tensors: return {advice}"
            )
    results = tuple(SchemaResult(result.name or "", str(result.type) == "List[Tensor]") for result in parsed.returns)
    if sum(result.is_list for result in results) > 1:
        raise ValueError(f"{name}: at most one result can be a list of tensors: join the lists into one")
    if not results and not any(argument.mutated for argument in arguments):
        raise ValueError(
            f"{name}: the schema must have a result, or mark an argument as written to, as `Tensor(a!) out` does"
        )
    return Schema(arguments, results)


# The schema's words for types that PyTorch names differently.
_KINDS = {"SymIntType": "SymInt", "NumberType": "Scalar"}


def _describe(argument: Any) -> Argument:
    """Describes an argument of PyTorch's FunctionSchema."""
    kind, optional = _without(argument.real_type, "OptionalType")
    kind, is_list = _without(kind, "ListType")
    kind, optional_elements = _without(kind, "OptionalType") if is_list else (kind, False)
    word = _KINDS.get(kind.kind(), str(kind))
    return Argument(
        name=argument.name,
        kind=word,
        optional=optional,
        is_list=is_list,
        length=argument.N,
        optional_elements=optional_elements,
        mutated=argument.alias_info is not None and argument.alias_info.is_write,
        keyword_only=argument.kwarg_only,
        default=_as_passed(word, argument.default_value) if argument.has_default_value() else REQUIRED,
    )


def _as_passed(kind: str, default: Any) -> Any:
    """Returns a default as a caller would pass it. PyTorch gives defaults of some kinds as numbers."""
    if isinstance(default, list):
        return [_as_passed(kind, each) for each in default]
    make = pytorch.MADE_OF_NUMBERS.get(kind)
    return default if make is None or default is None else make(default)


def _without(kind: Any, outer: str) -> tuple[Any, bool]:
    """The type inside an optional type or a list, and whether there is one."""
    is_outer = kind.kind() == outer
    return (kind.getElementType() if is_outer else kind), is_outer


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yields the tensors among values, including those in lists."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def positional_signature(text: str) -> str:
    """Returns a schema without its name and its defaults, in which all arguments are passed by position.

    When PyTorch calls a function written in Python, it leaves out arguments that equal their defaults. The raw name
    (`namespace::_name`, docs/design/calls.md) has this signature, so its functions always get all arguments.
    """
    opened = text.index("(")
    arguments, arrow, results = text[opened:].rpartition("->")
    return re.sub(r"([(,])\s*\*\s*,", r"\1", _DEFAULT.sub("", arguments)) + arrow + results


def make_complete(name: str, arguments: Sequence[Argument]) -> Callable[..., tuple[Any, ...]]:
    """Builds the function that returns all arguments of a call in the order of the schema, with their defaults.

    Args:
        name: of the operator, for messages.
        arguments: of its schema.
    """
    most = sum(not argument.keyword_only for argument in arguments)
    known = dict.fromkeys(argument.name for argument in arguments)

    def complete(values: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        if len(values) > most:
            raise TypeError(f"{name} takes {most} arguments by position, got {len(values)}")
        for stranger in named:
            if stranger not in known:
                raise TypeError(f"{name} has no argument {stranger}, only {', '.join(known)}")
        found = list(values)
        for place, argument in enumerate(arguments):
            if place < len(values):
                if argument.name in named:
                    raise TypeError(f"{name}: {argument.name} is given twice, by position and by name")
            elif argument.name in named:
                found.append(named[argument.name])
            elif argument.default is REQUIRED:
                raise TypeError(f"{name}: {argument.name} is missing, and has no default")
            else:
                found.append(argument.default)
        return tuple(found)

    return complete


def by_name(function: Callable[..., Any], arguments: Sequence[Argument], before: int = 0) -> Callable[..., Any]:
    """Wraps a function so that it takes all arguments by position; it passes keyword-only arguments on by name.

    Args:
        function: as its author wrote it.
        arguments: of the schema.
        before: how many arguments the function takes before those of the schema.
    """
    named = [argument.name for argument in arguments if argument.keyword_only]
    if not named:
        return function
    positional = before + len(arguments) - len(named)

    def call(*values: Any) -> Any:
        return function(*values[:positional], **dict(zip(named, values[positional:], strict=True)))

    return call


class Arrangement(NamedTuple):
    """Where the tensors of an operator stand among its arguments.

    Attributes:
        first: the number of tensors if they all come first; otherwise None.
        tensors: returns all tensors among the arguments, those in lists one by one.
        others: returns all arguments that are not tensors; a list of tensors is replaced by its length, or by None.
        together: makes the arguments again from what `tensors` and `others` return.
        by_argument: groups values, one for each tensor, by argument: a list of values for a list of tensors.
        flat: the reverse of `by_argument`; None for a list of tensors becomes one None for each of its tensors.
    """

    first: int | None
    tensors: Callable[[Sequence[Any]], Sequence[Any]]
    others: Callable[[Sequence[Any]], tuple[Any, ...]]
    together: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]
    by_argument: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
    flat: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


def arrange(arguments: Sequence[Argument]) -> Arrangement:
    """Finds where the tensors of a schema stand. Compilers can trace the functions: they are closures over numbers."""
    places = [place for place, argument in enumerate(arguments) if argument.holds_tensors]
    if any(arguments[place].is_list for place in places):
        return _arrange_lists(arguments)
    rest = [place for place in range(len(arguments)) if place not in places]
    count = len(places)

    def same(values: Sequence[Any], others: Sequence[Any]) -> Sequence[Any]:
        return values

    if places == list(range(count)):
        return Arrangement(
            count,
            lambda values: values[:count],
            lambda values: tuple(values[count:]),
            lambda tensors, others: (*tensors, *others),
            same,
            same,
        )
    in_order = _taking([places.index(i) if i in places else count + rest.index(i) for i in range(len(arguments))])
    return Arrangement(
        None, _taking(places), _taking(rest), lambda tensors, others: in_order((*tensors, *others)), same, same
    )


def _taking(places: Sequence[int]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Builds the function that takes the values at some places."""
    return lambda values: tuple([values[place] for place in places])


def _arrange_lists(arguments: Sequence[Argument]) -> Arrangement:
    """The arrangement of arguments if some of them are lists of tensors."""
    single, listed = "single", "listed"
    kinds = [(listed if each.is_list else single) if each.holds_tensors else "" for each in arguments]

    def tensors(values: Sequence[Any]) -> list[Any]:
        found = []
        for kind, value in zip(kinds, values, strict=True):
            if kind == single:
                found.append(value)
            elif kind == listed and value is not None:
                found.extend(value)
        return found

    def others(values: Sequence[Any]) -> tuple[Any, ...]:
        found = []
        for kind, value in zip(kinds, values, strict=True):
            if kind != single:
                found.append(value if not kind or value is None else len(value))
        return tuple(found)

    def together(tensors: Sequence[Any], others: Sequence[Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        tensor, other = 0, 0
        for kind in kinds:
            if kind == single:
                found.append(tensors[tensor])
                tensor += 1
                continue
            value = others[other]
            other += 1
            if kind == listed and value is not None:
                length = int(value)
                value, tensor = list(tensors[tensor : tensor + length]), tensor + length
            found.append(value)
        return tuple(found)

    def by_argument(values: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        return [value for kind, value in zip(kinds, together(values, others), strict=True) if kind]

    def flat(values: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        lengths = [
            other for kind, other in zip((kind for kind in kinds if kind != single), others, strict=True) if kind
        ]
        found: list[Any] = []
        for kind, value in zip((kind for kind in kinds if kind), values, strict=True):
            if kind == single:
                found.append(value)
            else:
                length = lengths.pop(0) or 0
                found.extend([None] * length if value is None else value)
        return found

    return Arrangement(None, tensors, others, together, by_argument, flat)
