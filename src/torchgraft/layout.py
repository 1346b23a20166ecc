"""Which memory layout a batch of images has, as compiled kernels tell it, and what decides PyTorch's layouts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchgraft._private import pytorch

# PyTorch's names of the layout, by the dimensions of a tensor.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggests_channels_last(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether PyTorch takes images (N, C, H, W) for channels_last: strides grow in the order C, W, H, N.

    Volumes (N, C, D, H, W) are that in the order C, W, H, D, N. Of sequences (N, C, L) it says the same as of images of
    one row.

    Images may be that although they are contiguous, as those of one pixel. The C++ twin of this function is
    `suggests_channels_last` in `include/torchgraft/layout.h`: the two must agree, or fake tensors lie.
    """
    if strides[1] == 0:
        return False
    least = 0
    for d in (1, *range(len(sizes) - 1, 1, -1), 0):
        if sizes[d] == 0 or strides[d] < least:
            return False
        # (N, 1, 1, 1) and an expanded batch fit both orders.
        if d == 0 and least == strides[1]:
            return False
        least = strides[d] * sizes[d]
    return True


def is_channels_last(images: Tensor) -> bool:
    """Whether images (N, C, H, W) are channels_last, or a slice of such images, and not also contiguous.

    Volumes (N, C, D, H, W) are that too, and sequences (N, C, L) if they lie as images of one row would. With one
    channel or one pixel a tensor has both layouts at once; it is then called contiguous. The C++ twin of this
    function is `is_channels_last` in `include/torchgraft/layout.h`.
    """
    return not images.is_contiguous() and suggests_channels_last(images.shape, images.stride())


def order_of_dimensions(sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Dimensions from the innermost out, as PyTorch orders those of what it makes from a tensor.

    Those that are expanded, with a stride of zero, stay where they are. The C++ twin of this function is
    `order_of_dimensions` in `include/torchgraft/layout.h`.
    """
    order = list(reversed(range(len(sizes))))
    for i in range(1, len(order)):
        at = i
        for before in reversed(range(i)):
            inner, outer = order[before], order[at]
            if strides[inner] == 0 or strides[outer] == 0:
                continue
            if strides[inner] < strides[outer]:
                break
            if strides[inner] == strides[outer] and sizes[inner] <= sizes[outer]:
                continue
            order[before], order[at] = order[at], order[before]
            at = before
    return order


def layout_beside(given: Tensor, channels_last: bool) -> bool | None:
    """The layout that an operator is told for a result that it computes from `given`.

    None where `given` lies so: the result is to be as `given`, whichever layout a compiler chooses for that later.
    Otherwise whether it is channels_last.
    """
    return None if channels_last == is_channels_last(given) else channels_last


@pytorch.constant_when_traced
def onednn_takes(dtype: torch.dtype) -> bool:
    """Whether PyTorch computes with bfloat16 or float16 in oneDNN on this processor."""
    with pytorch.without_modes():
        return pytorch.is_of_onednn(dtype)


@pytorch.constant_when_traced
def thread_count() -> int:
    """How many threads PyTorch computes with on a CPU."""
    return torch.get_num_threads()
