"""Empty results of an operator, made from its reference if neither `output` nor `shapes` gives their sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from torchgraft.declaration.results import single


def output_like_reference(reference: Callable[..., Any], written: int, results: int) -> Callable[..., Any]:
    """Builds the function that returns empty results like those of a reference, with its strides unless they overlap.

    Args:
        reference: returns the new values of the arguments that are written to, and then the results.
        written: how many arguments are written to.
        results: how many results the schema has.
    """

    def output(*arguments: Any) -> Any:
        values = reference(*arguments)
        if written:
            values = single(tuple(values[written:])) if results else ()
        return tree_map(torch.empty_like, values)

    return output


def unknown_size(*, least: int = 0, most: int | None = None) -> Any:
    """A size that depends on the values of tensors, for the `output` of an Operator with `sizes_from_data`.

    Args:
        least: the smallest value that it can have.
        most: the largest value that it can have; None: not known.

    Returns:
        A symbolic size, which a compiler keeps as an unknown.
    """
    return torch.library.get_ctx().new_dynamic_size(min=least, max=most)
