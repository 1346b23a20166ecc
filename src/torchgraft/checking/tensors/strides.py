"""Lays out the same values in memory in every awkward way."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor

from torchgraft.layout import CHANNELS_LAST


def significant_strides(tensor: Tensor) -> tuple[int, ...]:
    """Returns the strides that matter: not those of dimensions of one element, nor those of empty tensors."""
    if not tensor.numel():
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)


def overwrite(tensor: Tensor, values: Tensor) -> None:
    """Writes values into a tensor; several of its elements may lie at one place if those of the values do too."""
    if tensor.numel() and tensor.stride() == values.stride():
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        # What lies between the elements is copied with them.
        tensor, values = (each.as_strided((last + 1,), (1,)) for each in (tensor, values))
    tensor.copy_(values)


def in_awkward_strides(tensor: Tensor) -> dict[str, Tensor]:
    """Makes tensors equal to one, each laid out in another way, by what is awkward about it.

    What lies between their elements is NaN, so that a kernel that reads it shows it.
    """
    return {kind: make() for kind, make in _kinds(tensor).items()}


def in_any_strides(tensor: Tensor, random: Random) -> Tensor:
    """Returns the tensor itself, or makes one equal to it that is laid out in a random other way."""
    if random.random() < _AS_IT_IS:
        return tensor
    kinds = _kinds(tensor)
    # A tensor may begin at any element: a vector of several elements is aligned at few of them.
    kinds["offset by a few elements"] = partial(_offset, tensor, random.randint(1, _FEW))
    if tensor.dim() in CHANNELS_LAST:
        kinds["channels_last, offset by a few elements"] = partial(_pixels_offset, tensor, random.randint(1, _FEW))
    return random.choice(list(kinds.values()))()


def in_ambiguous_strides(tensor: Tensor, random: Random) -> Tensor:
    """Makes a tensor of the same sizes in random strides, often in strides that more than one layout has.

    It may be expanded, so its values are others; the stride of a dimension of one element may be any number.
    """
    choice = random.random()
    if tensor.dim() in CHANNELS_LAST and choice < _USUAL:
        layout = random.choice((torch.contiguous_format, CHANNELS_LAST[tensor.dim()]))
        return tensor.clone(memory_format=layout)
    if choice < 0.6:
        changed = in_any_strides(tensor, random)
    elif choice < 0.8:
        ones = tuple(slice(0, 1) if random.random() < 0.4 else slice(None) for _ in tensor.shape)
        changed = in_any_strides(tensor[ones], random).expand(tensor.shape)
    else:
        order = random.sample(range(tensor.dim()), tensor.dim())
        changed = _contiguous(tensor.permute(order)).permute([order.index(d) for d in range(tensor.dim())])
    if not tensor.numel() or random.random() < 0.5:
        return changed
    strides = [
        random.randrange(2 * _FEW) if size == 1 else stride
        for size, stride in zip(changed.shape, changed.stride(), strict=True)
    ]
    return changed.as_strided(changed.shape, strides)


# The share of images that are contiguous or channels_last, if any strides will do.
_USUAL = 0.4
# The share of tensors that keep their strides.
_AS_IT_IS = 0.3
# Tensors are offset by at most so many elements: eight elements of two bytes are sixteen bytes.
_FEW = 8


def _kinds(tensor: Tensor) -> dict[str, Callable[[], Tensor]]:
    if tensor.dim() == 0:
        return {"cut out of a larger tensor": partial(_part, tensor, (2,), 1)}
    *outer, last = tensor.shape
    middle = tuple(slice(2, 2 + size) for size in tensor.shape)
    order = tuple(reversed(range(tensor.dim())))
    kinds: dict[str, Callable[[], Tensor]] = {
        "offset by one element": partial(_offset, tensor),
        "cut out of a larger tensor": partial(_part, tensor, [size + 3 for size in tensor.shape], middle),
        # The memory is always new, as an operator may write to it.
        "dimensions in reverse order": lambda: _contiguous(tensor.permute(order)).permute(order),
        "every other element": partial(_part, tensor, (*outer, 2 * last), (..., slice(None, None, 2))),
    }
    if tensor.dim() >= 2:
        kinds["last two dimensions transposed"] = lambda: _contiguous(tensor.transpose(-1, -2)).transpose(-1, -2)
    if tensor.dim() in CHANNELS_LAST:
        kinds["channels_last"] = lambda: tensor.clone(memory_format=CHANNELS_LAST[tensor.dim()])
        kinds["channels cut out of channels_last"] = partial(_channels_cut, tensor)
        # Asynchronous copies need four bytes: two elements of half types.
        for elements in (1, 2):
            kinds[f"channels_last, offset by {elements}"] = partial(_pixels_offset, tensor, elements)
    return kinds


def _contiguous(tensor: Tensor) -> Tensor:
    """Makes a contiguous copy, even of a contiguous tensor."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _poison(tensor: Tensor) -> float:
    """The value between elements, which shows in results made of it: NaN, or an index beyond everything."""
    if tensor.is_floating_point() or tensor.is_complex():
        return torch.nan
    return 1 if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max


def _part(tensor: Tensor, size: Sequence[int], place: Any) -> Tensor:
    """Copies a tensor to a place in a larger one."""
    return tensor.new_full(size, _poison(tensor))[place].copy_(tensor)


def _offset(tensor: Tensor, elements: int = 1) -> Tensor:
    # The copy starts on no boundary of sixteen bytes.
    return tensor.new_full((tensor.numel() + elements,), _poison(tensor))[elements:].view(tensor.shape).copy_(tensor)


def _pixels_offset(tensor: Tensor, elements: int) -> Tensor:
    return _offset(tensor.movedim(1, -1), elements).movedim(-1, 1)


def _channels_cut(tensor: Tensor) -> Tensor:
    pixels = tensor.movedim(1, -1)
    *outer, channels = pixels.shape
    return _part(pixels, (*outer, 2 * channels), (..., slice(channels))).movedim(-1, 1)
