"""Names: the two names under which PyTorch knows an operator, as docs/design/calls.md describes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from torchgraft.declaration import Declaration
from torchgraft.declaration.schema import REQUIRED, Argument, by_name, positional_signature

# The kinds of numbers that AOTInductor hands to an operator when the package runs, and not when it is made.
_HANDED_OVER = ("int", "SymInt", "Scalar")


@dataclass(frozen=True, eq=False)
class Names:
    """The overloads in `torch.ops` of a declared operator.

    Attributes:
        declaration: what they stand for.
        public: `namespace::name`, which autograd knows.
        raw: `namespace::_name`, which autograd does not know; it takes all arguments by position.
        recorders: by kind of device, a function of all arguments that computes the operator and records its gradient
            without Python.
    """

    declaration: Declaration
    public: Any
    raw: Any
    recorders: dict[str, Callable[..., Any]] = field(default_factory=dict)

    @cached_property
    def call_public(self) -> Callable[..., Any]:
        """Calls the public name; takes all arguments in the order of the schema."""
        return by_name(self.public, self.declaration.arguments)


def schemas_of(declaration: Declaration) -> tuple[tuple[str, tuple[torch.Tag, ...]], ...]:
    """The schemas of the public and of the raw name, as PyTorch defines them, each with its tags."""
    text = declaration.schema
    return (
        (declaration.name + text[text.index("(") :], tags_of(declaration.arguments)),
        (f"_{declaration.name}{positional_signature(text)}", tags_of(())),
    )


def tags_of(arguments: Sequence[Argument]) -> tuple[torch.Tag, ...]:
    """The tags of one name, which tell compilers about it.

    Args:
        arguments: of its schema; none if no argument of the name has a default.
    """
    # Kernels take any layout, so a compiler may keep that in which it has something: models of contiguous images run in
    # channels_last where that suits their other convolutions.
    layout = torch.Tag.flexible_layout
    for each in arguments:
        has_default = each.default is not REQUIRED and each.default is not None
        if each.keyword_only and each.kind in _HANDED_OVER and has_default:
            # With that tag AOTInductor forgets an integer that must be named and equals its default: its package then
            # fails, for PyTorch's own custom operators too. With this one Inductor fills all arguments in.
            layout = torch.Tag.needs_exact_strides
    return torch.Tag.pt2_compliant_tag, layout
