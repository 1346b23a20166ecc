"""Helpers of several declarations: checks of sizes, new images, and a rule for vmap."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def require(condition: bool, name: str, problem: str) -> None:
    """Raises a ValueError, with the name of the operator, where a condition is not met."""
    if not condition:
        raise ValueError(f"{name}: {problem}")


def require_shape(name: str, argument: str, tensor: Tensor | None, expected: Sequence[int], why: str) -> None:
    """Raises a ValueError where a tensor has another shape than it must; None is let through.

    Args:
        name: of the operator, for the message.
        argument: of it, for the message.
        tensor: that argument.
        expected: its shape.
        why: what follows the shape in the message, as ', as weight'.
    """
    if tensor is not None and tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name}: {argument} must be {tuple(expected)}{why}, got {tuple(tensor.shape)}")


def check_images(name: str, argument: str, tensor: Tensor, dim: int = 4) -> None:
    """The same while an output is made up, where sizes may be symbols: a tensor must have so many dimensions."""
    torch._check(tensor.dim() == dim, lambda: f"{name}: {argument} must have {dim} dimensions, got {tensor.dim()}")


def empty_images(like: Tensor, size: Sequence[int], channels_last: bool, dtype: torch.dtype | None = None) -> Tensor:
    """Images of a size and a layout, of the dtype and on the device of another tensor; what they hold is undefined."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return torch.empty(size, dtype=dtype or like.dtype, device=like.device, memory_format=layout)


def batch_as_channels(into: Sequence[int], results: Sequence[int]) -> Callable[..., tuple[Any, Any]]:
    """A vmap rule of what treats each channel by itself: a batch is one call with more channels.

    Args:
        into: the dimension of channels of each tensor, as an operator's first arguments are; one that is None stays so.
        results: the dimension of channels of each result.
    """

    def vmap(operator: Any, batch_size: int, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Any, Any]:
        folded = [
            _fold(value, dim, batch_size, place) if isinstance(value, Tensor) else value
            for value, dim, place in zip(arguments, in_dims, into, strict=False)
        ]
        found = operator(*folded, *arguments[len(into) :])
        if isinstance(found, Tensor):
            return found.unflatten(results[0], (batch_size, -1)), results[0]
        split = (each.unflatten(dim, (batch_size, -1)) for each, dim in zip(found, results, strict=True))
        return tuple(split), tuple(results)

    return vmap


def _fold(tensor: Tensor, batch_dim: int | None, batch_size: int, into: int) -> Tensor:
    """Merges vmap's batch dimension into another."""
    if batch_dim is None:
        shape = list(tensor.shape)
        tensor = tensor.unsqueeze(into).expand(*shape[:into], batch_size, *shape[into:])
    else:
        tensor = tensor.movedim(batch_dim, into)
    return tensor.flatten(into, into + 1)
