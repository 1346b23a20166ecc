"""Checks of names that a declaration has: each must be that of an argument which it can be about."""

from __future__ import annotations

from collections.abc import Sequence

from torchgraft.declaration.schema import Argument


def check_names(
    operator: str, arguments: Sequence[Argument], parameter: str, names: Sequence[str], more: Sequence[str] = ()
) -> None:
    """Raises ValueError if a name is neither a tensor argument nor one of some more.

    Args:
        operator: its qualified name, for the message.
        arguments: of its schema.
        parameter: the parameter of the declaration that has the names.
        names: what it has.
        more: other names that it may have.
    """
    tensors = [argument.name for argument in arguments if argument.holds_tensors]
    if strangers := sorted(set(names) - {*tensors, *more}):
        raise ValueError(f"{operator}: {parameter} names {strangers}, but its tensor arguments are {tensors}")


def check_random(operator: str, arguments: Sequence[Argument], names: Sequence[str]) -> tuple[str, ...]:
    """The names of arguments that determine random results; raises ValueError if one is no argument of type int."""
    numbers = {each.name for each in arguments if each.kind in ("int", "SymInt")}
    if strangers := sorted(set(names) - numbers):
        raise ValueError(f"{operator}: random must name arguments of type int, got {strangers}")
    return tuple(names)
