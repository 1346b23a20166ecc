"""Arguments that causal_conv1d and its step of decoding share: their dtypes, their checks, and results like them."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from torchgraft.operator import FLOATING
from torchgraft.operators.shared import require

# The widest weight; sizes.h has the same.
MOST_TAPS = 256

Activation = Literal["silu"] | None

_INDICES = {
    "seq_idx": (torch.int32,),
    "cu_seqlens": (torch.int32, torch.int64),
    "cache_seqlens": (torch.int32,),
    "state_indices": (torch.int32,),
}


def is_silu(name: str, activation: Any) -> bool:
    """Whether an activation is SiLU and not None; raises ValueError for any other."""
    if activation is None:
        return False
    if not (isinstance(activation, str) and activation == "silu"):
        raise ValueError(f"{name}: activation must be None or 'silu', got {activation!r}")
    return True


def _has_channels_last(tensor: Tensor) -> bool:
    """Whether neighbouring channels are neighbours in memory, and neighbouring times are not."""
    return tensor.stride(1) == 1 and tensor.stride(2) != 1


def like(tensor: Tensor, rows: int | None = None, length: int | None = None) -> Tensor:
    """An empty tensor (rows, channels, length), laid out as a kernel lays out what belongs to another tensor.

    Channels are neighbours in memory if they are in that tensor. The C++ twin is `empty_of` in host.h.
    """
    batch, channels, own = tensor.shape
    rows, length = batch if rows is None else rows, own if length is None else length
    if _has_channels_last(tensor):
        return tensor.new_empty(rows, length, channels).transpose(1, 2)
    return tensor.new_empty(rows, channels, length)


def check_dims(name: str, input: Tensor, weight: Tensor) -> None:
    """Refuses tensors of another number of dimensions while an output is made up, where sizes may be symbols."""
    torch._check(input.dim() == 3, lambda: f"{name}: input must have 3 dimensions, got {input.dim()}")
    torch._check(weight.dim() == 2, lambda: f"{name}: weight must have 2 dimensions, got {weight.dim()}")


def require_width(name: str, weight: Tensor) -> int:
    """The width of a weight. Raises ValueError if no kernel has so many taps."""
    width = weight.shape[1]
    require(1 <= width <= MOST_TAPS, name, f"weight must have a width of 1 to {MOST_TAPS}, got {width}")
    return width


def contents(indices: Tensor | None) -> list[int]:
    """The values of a tensor of indices; none if they are on a device that would have to be waited for."""
    if indices is None or indices.device.type != "cpu":
        return []
    try:
        return indices.tolist()
    except RuntimeError:  # a tensor that stands for others, as a DTensor does
        return []


def dtypes_of(*names: str) -> dict[str, Sequence[torch.dtype]]:
    """The dtypes that each of these arguments may have."""
    return {name: _INDICES.get(name, FLOATING) for name in names}
