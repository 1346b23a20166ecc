"""Decomposes operators into PyTorch's own, for tools that know no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchgraft.operator import Operator


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The reference of every operator of this process, by its overloads in `torch.ops`.

    With these, an exported program calls only PyTorch's own operators, which ONNX, other backends and quantisation
    know: `program.run_decompositions({**torch.export.default_decompositions(), **torchgraft.decompositions()})`.

    Operators that write to their arguments are left out, because a decomposition must not write.
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
