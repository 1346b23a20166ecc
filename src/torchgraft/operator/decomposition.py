"""Operators as what they are made of, for tools that know PyTorch's own alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchgraft.operator import Operator


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The reference of every operator of this process, by its overloads in `torch.ops`.

    What ONNX, other backends and quantisation find in an exported program is then PyTorch's own operators:
    `program.run_decompositions({**torch.export.default_decompositions(), **torchgraft.decompositions()})`.

    Operators that write to their arguments are left out, as they are no functions.
    """
    return {
        overload: function
        for operator in Operator.registered.values()
        if not operator.declaration.mutates
        for overload, function in (
            (operator.public, operator.declaration.filled(operator.declaration.reference)),
            (operator.raw, operator.declaration.reference),
        )
    }
