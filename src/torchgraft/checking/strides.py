"""The same values in memory of every awkward kind."""

from __future__ import annotations

import torch
from torch import Tensor


def in_awkward_strides(tensor: Tensor) -> dict[str, Tensor]:
    """Tensors equal to one, each laid out in another way, by what is awkward about it.

    What lies between their elements is NaN, so that a kernel that reads it shows it.
    """
    if tensor.dim() == 0:
        return {"cut out of a larger tensor": torch.stack([torch.full_like(tensor, torch.nan), tensor])[1]}
    kinds = {
        "offset by one element": _offset(tensor),
        "cut out of a larger tensor": _cut(tensor),
        "dimensions in reverse order": _reversed(tensor),
        "every other element": _every_other(tensor),
    }
    if tensor.dim() >= 2:
        kinds["last two dimensions transposed"] = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if tensor.dim() == 4:
        kinds["channels_last"] = tensor.contiguous(memory_format=torch.channels_last)
        wide = torch.full_like(kinds["channels_last"], torch.nan).repeat(1, 2, 1, 1)
        wide = wide.contiguous(memory_format=torch.channels_last)
        wide[:, : tensor.shape[1]] = tensor
        kinds["channels cut out of channels_last"] = wide[:, : tensor.shape[1]]
        # Of two bytes each, two are what asynchronous copies need.
        for elements in (1, 2):
            pixels = _offset(tensor.permute(0, 2, 3, 1), elements)
            kinds[f"channels_last, offset by {elements}"] = pixels.permute(0, 3, 1, 2)
    return kinds


def _offset(tensor: Tensor, elements: int = 1) -> Tensor:
    # Nothing starts on a boundary of sixteen bytes.
    room = torch.full((tensor.numel() + elements,), torch.nan, dtype=tensor.dtype, device=tensor.device)
    return room[elements:].view(tensor.shape).copy_(tensor)


def _cut(tensor: Tensor) -> Tensor:
    room = torch.full([size + 3 for size in tensor.shape], torch.nan, dtype=tensor.dtype, device=tensor.device)
    return room[tuple(slice(2, 2 + size) for size in tensor.shape)].copy_(tensor)


def _reversed(tensor: Tensor) -> Tensor:
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def _every_other(tensor: Tensor) -> Tensor:
    room = torch.full((*tensor.shape[:-1], 2 * tensor.shape[-1]), torch.nan, dtype=tensor.dtype, device=tensor.device)
    return room[..., ::2].copy_(tensor)
