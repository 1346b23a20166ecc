"""Names the declaration of an Operator for compilers' caches, so that these tell one declaration from another.

The name follows from everything that compiled code takes for granted about a call; `fingerprint` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from torchgraft.kernels import python_kernels
from torchgraft.operator.fingerprint import fingerprint
from torchgraft.version import __version__

# An Operator and its class, which this module cannot import: it is imported by theirs.
_Operator = Any

# The attributes that an Operator sets itself.
_OWN = frozenset(
    (
        *("_argument_count", "_complete", "_definitions", "_library", "_named_for", "_schemas", "_sharding"),
        *("autograd", "call", "declaration", "declaration_word", "identity", "module", "names"),
    )
)
_shipped: dict[str, Any] = {}


def note_what_is_shipped(kind: type[_Operator]) -> None:
    """Remembers the attributes of the class, so that attributes which a user adds can be found."""
    _shipped.update(vars(kind))


def word_of(operator: _Operator, kind: type[_Operator]) -> str:
    """Returns the name of an operator's declaration, from its functions and the operators that these may call.

    Args:
        operator: is to be compiled.
        kind: the class Operator.
    """
    # Functions of a declaration may call other operators, and the names of these may be out of date.
    meanings: dict[str, tuple[Any, Callable[[], Any]]] = {"Operator": (kind, partial(_put_into, kind))}
    meanings.update((name, (each, partial(_meaning, each))) for name, each in kind.registered.items())
    return fingerprint(_taken_for_granted(operator), meanings)


def _put_into(kind: type[_Operator]) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if _shipped.get(name) is not value}


def _taken_for_granted(operator: _Operator) -> tuple[Any, ...]:
    """Everything that compiled code takes for granted about a call."""
    said, kernels = operator.declaration, python_kernels.seen_by_compilers(operator.qualified_name)
    results = said.sizes_of, said.knows_output, said.primary, said.sizes_from_data, said.visible_outputs
    # A sharding that is not declared is derived from the reference.
    sharding = said.reference if said.sharding is None else said.sharding.text
    schema = operator._schemas[1][0]
    return __version__, schema, results, torch.get_default_dtype, kernels, sharding


def _meaning(operator: _Operator) -> tuple[Any, ...]:
    said = operator.declaration  # results of a call in Python follow from this where tensors have no data
    gradient = said.gradient, said.saved_places
    meaning = said.reference, gradient, said.autocast, said.kernels, said.compile, said.dtypes_of
    # A user may keep more in an Operator, or in a class that inherits from it.
    kept = {name: value for name, value in vars(operator).items() if name not in _OWN}
    return _taken_for_granted(operator), meaning, type(operator), kept
