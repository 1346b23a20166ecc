"""Checks that the names in a declaration are names of arguments or results that a parameter of it can be about."""

from __future__ import annotations

from collections.abc import Sequence

from torchgraft.declaration.schema import Argument


def check_names(
    operator: str, arguments: Sequence[Argument], parameter: str, names: Sequence[str], more: Sequence[str] = ()
) -> None:
    """Raises ValueError if a name is neither that of a tensor argument nor in `more`.

    Args:
        operator: its qualified name, for the message.
        arguments: of its schema.
        parameter: the parameter of the declaration that has the names.
        names: the names in it.
        more: other names that it may have.
    """
    tensors = [argument.name for argument in arguments if argument.holds_tensors]
    if strangers := sorted(set(names) - {*tensors, *more}):
        raise ValueError(f"{operator}: {parameter} names {strangers}, but its tensor arguments are {tensors}")


def check_results(operator: str, visible: Sequence[str], parameter: str, names: Sequence[str]) -> None:
    """Raises ValueError if a name is not that of a visible result, or if `names` is a text and no list of names."""
    named = [name for name in visible if name]
    if isinstance(names, str) or (strangers := sorted(set(names) - set(named))):
        wrong = repr(names) if isinstance(names, str) else strangers
        hint = "" if named else ": name them in the schema, as in '-> (Tensor output)'"
        raise ValueError(
            f"{operator}: {parameter} names {wrong}, but the names of its visible results are {named}{hint}"
        )


def check_random(operator: str, arguments: Sequence[Argument], names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of arguments that determine random results. Raises ValueError if one is not an int argument."""
    numbers = {each.name for each in arguments if each.kind in ("int", "SymInt")}
    if strangers := sorted(set(names) - numbers):
        raise ValueError(f"{operator}: random must name arguments of type int, got {strangers}")
    return tuple(names)
