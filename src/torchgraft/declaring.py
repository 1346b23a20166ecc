"""What follows from a declaration, and what in one cannot be served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from torchgraft.declared import Declared
from torchgraft.differentiation import single
from torchgraft.schema import Result
from torchgraft.shapes import Shapes
from torchgraft.sharding import Sharding


def make_output(reference: Callable[..., Any], written: int, results: int) -> Callable[..., Any]:
    """Empty results like a reference's: laid out as these are, unless they overlap themselves."""

    def output(*arguments: Any) -> Any:
        values = reference(*arguments)
        if written:
            values = single(tuple(values[written:])) if results else ()
        return tree_map(torch.empty_like, values)

    return output


def dtypes_of(
    operator: Declared, dtypes: Sequence[torch.dtype] | Mapping[str, Sequence[torch.dtype]] | None
) -> tuple[dict[str, tuple[torch.dtype, ...]], int]:
    """What each tensor argument must be, by name; and the place of the first that has the dtypes of the operator."""
    tensors = {argument.name: place for place, argument in enumerate(operator.arguments) if argument.holds_tensors}
    if not isinstance(dtypes, Mapping):
        return ({} if dtypes is None else dict.fromkeys(tensors, tuple(dtypes))), next(iter(tensors.values()))
    check_names(operator, "dtypes", tuple(dtypes))
    found = {name: tuple(each) for name, each in dtypes.items()}
    real = (
        name for name in tensors if any(dtype.is_floating_point or dtype.is_complex for dtype in found.get(name, ()))
    )
    return found, tensors[next(real, next((name for name in tensors if name in found), next(iter(tensors))))]


def check_names(operator: Declared, what: str, names: Sequence[str], more: Sequence[str] = ()) -> None:
    """Raises ValueError for names that are no tensor arguments, and none of some more."""
    tensors = [argument.name for argument in operator.arguments if argument.holds_tensors]
    if strangers := sorted(set(names) - {*tensors, *more}):
        raise ValueError(f"{operator.qualified_name}: {what} names {strangers}, but its tensor arguments are {tensors}")


def check_random(operator: Declared, names: Sequence[str]) -> tuple[str, ...]:
    """The names; raises ValueError for those of no whole numbers."""
    numbers = {each.name for each in operator.arguments if each.kind in ("int", "SymInt")}
    if strangers := sorted(set(names) - numbers):
        raise ValueError(f"{operator.qualified_name}: random must name arguments of type int, got {strangers}")
    return tuple(names)


def check_kinds(operator: Declared, unsaved: Sequence[str], gradient: object) -> None:
    """Raises ValueError for what cannot be served together."""
    name, has_lists = operator.qualified_name, any(each.is_list for each in operator.arguments if each.holds_tensors)
    if operator.mutates and gradient == "reference":
        raise ValueError(
            f"{name}: gradient='reference' would read arguments after the operator has written to them. Leave gradient"
            " out: a call that needs a gradient then runs the reference"
        )
    if unsaved and not callable(gradient):
        raise ValueError(f"{name}: unsaved needs a gradient function, and gradient is {gradient!r}")
    if unsaved and has_lists:
        raise ValueError(f"{name}: unsaved must be empty if the operator takes lists of tensors, got {list(unsaved)}")
    if operator.mutates and operator.autocast != "none":
        raise ValueError(
            f"{name}: autocast must be 'none' for an operator that writes to its arguments: it would write to copies,"
            f" got {operator.autocast!r}"
        )
    if operator.mutates and operator.gradient and has_lists:
        raise ValueError(
            f"{name}: an operator that writes to its arguments and takes lists of tensors cannot have a gradient"
        )
    if operator.mutates and operator.visible_outputs != operator.output_count:
        raise ValueError(
            f"{name}: an operator that writes to its arguments cannot hide results: leave visible_outputs out"
        )


DERIVE = "derive"


def make_sharding(
    operator: Declared, text: str | None, shapes: Shapes | None, results: Sequence[Result], random: Sequence[str]
) -> Sharding | None:
    """What may be cut over devices, as it is declared; None where it is to be derived.

    Raises:
        ValueError: it makes no sense, or DTensor cannot serve the operator.
    """
    if text is not None and (why := why_unsharded(operator, random)):
        raise ValueError(f"{operator.qualified_name}: {why}, so it cannot be sharded: leave sharding out")
    if text == DERIVE:
        return None
    if text is None:
        return Sharding.of_none(operator.name, operator.arguments, results)
    sharding = Sharding(operator.name, text, operator.arguments, results)
    numbers = {name for _, name, _ in sharding.numbers}
    whole = {each.name for each in operator.arguments if each.kind in ("int", "SymInt")}
    for term, names in zip(sharding.results, shapes.result_names if shapes else (), strict=False):
        for letter, name in zip(term.front, names, strict=False):
            if name in whole - numbers and letter in term.letters:
                raise ValueError(
                    f"{operator.qualified_name}: a result has the size {name} where sharding cuts it along {letter},"
                    f" and each device would be given all of {name}: say {name}={letter} beside the arguments"
                )
    return sharding


def why_unsharded(operator: Declared, random: Sequence[str] = ()) -> str:
    """Why DTensor cannot serve an operator; empty where it can."""
    if operator.mutates:
        return "it writes to its arguments"
    if any(argument.holds_tensors and argument.is_list for argument in operator.arguments) or any(operator.lists):
        return "it takes or gives lists of tensors"
    if any(argument.holds_tensors and argument.keyword_only for argument in operator.arguments):
        return "it has tensors that must be named, which DTensor does not move"
    if random:
        return "its results are random, and every device would draw the same"
    return "sizes of its results depend on what tensors hold" if operator.sizes_from_data else ""


def unknown_size(*, least: int = 0, most: int | None = None) -> Any:
    """A size that depends on what tensors hold, for the `output` of an Operator with `sizes_from_data`.

    Args:
        least: it is at least so large.
        most: it is at most so large; None: nobody knows.

    Returns:
        A size that a compiler carries along.
    """
    return torch.library.get_ctx().new_dynamic_size(min=least, max=most)
