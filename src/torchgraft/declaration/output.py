"""Empty results of an operator: made from its reference if nothing else says their sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map

from torchgraft.declaration.results import single


def output_like_reference(reference: Callable[..., Any], written: int, results: int) -> Callable[..., Any]:
    """A function that returns empty results like those of a reference, in its layout unless they overlap themselves.

    Args:
        reference: returns the new values of what is written to, and then the results.
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
    """A size that depends on what tensors hold, for the `output` of an Operator with `sizes_from_data`.

    Args:
        least: it is at least so large.
        most: it is at most so large; None: nobody knows.

    Returns:
        A size that a compiler carries along.
    """
    return torch.library.get_ctx().new_dynamic_size(min=least, max=most)
