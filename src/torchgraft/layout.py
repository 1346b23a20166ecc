"""Which memory layout a batch of images has, told as the compiled kernels tell it."""

from torch import Tensor


def is_channels_last(images: Tensor) -> bool:
    """Whether strides of images (N, C, H, W) grow in the order C, W, H, N, and not also in the order W, H, C, N.

    With one channel or one pixel a tensor has both layouts at once; it is then called contiguous. The C++ twin of this
    function is `is_channels_last` in `include/torchgraft/layout.h`: the two must agree, or fake tensors lie.
    """
    if images.is_contiguous():
        return False
    sizes, strides = images.shape, images.stride()
    if strides[1] == 0:
        return False
    least = 0
    for d in (1, 3, 2, 0):
        if sizes[d] == 0 or strides[d] < least:
            return False
        # (N, 1, 1, 1) and an expanded batch fit both orders.
        if d == 0 and least == strides[1]:
            return False
        least = strides[d] * sizes[d]
    return True


def layout_beside(given: Tensor, like: Tensor) -> bool | None:
    """What an operator is told to lay a result out as `like` is, when it computes it from `given`.

    None where the two are laid out alike: the result is to be as `given`, whichever layout a compiler chooses for that
    later. Otherwise whether it is channels_last.
    """
    channels_last = is_channels_last(like)
    return None if channels_last == is_channels_last(given) else channels_last
