"""Stride, padding and dilation of volumes: from what people write to the twelve numbers that the operators take."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchgraft.operators.windows import AnyWindow, IntOrSeveral, make_window_of, whole_numbers

IntOrTriple = IntOrSeveral


class _Numbers(NamedTuple):
    stride_depth: int = 1
    stride_height: int = 1
    stride_width: int = 1
    padding_front: int = 0
    padding_top: int = 0
    padding_left: int = 0
    padding_back: int = 0
    padding_bottom: int = 0
    padding_right: int = 0
    dilation_depth: int = 1
    dilation_height: int = 1
    dilation_width: int = 1


class VolumeWindow(_Numbers, AnyWindow):
    """How a kernel moves over a volume, in voxels; twelve of the arguments of all three operators, in order."""

    __slots__ = ()


def make_window(
    stride: IntOrTriple,
    padding: IntOrTriple | str,
    dilation: IntOrTriple,
    kernel_size: Sequence[int],
    name: str = "depthwise_conv3d",
) -> VolumeWindow:
    """The window for arguments as `F.conv3d` takes them, with an odd rest of 'same' at the back, bottom and right.

    `make_window_of` says what each argument is, and what is raised.
    """
    return make_window_of(VolumeWindow, name, stride, padding, dilation, kernel_size)


def triple(name: str, argument: str, value: Any) -> tuple[int, int, int]:
    """A whole number, or three, or one in a tuple or list, as (depth, height, width).

    `whole_numbers` says what is raised.
    """
    depth, height, width = whole_numbers(name, argument, value, 3)
    return depth, height, width
