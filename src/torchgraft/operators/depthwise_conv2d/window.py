"""Stride, padding and dilation of images: from what people write to the eight numbers that the operators take."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchgraft.operators.windows import AnyWindow, IntOrSeveral, make_window_of, whole_numbers

IntOrPair = IntOrSeveral


class _Numbers(NamedTuple):
    stride_height: int = 1
    stride_width: int = 1
    padding_top: int = 0
    padding_left: int = 0
    padding_bottom: int = 0
    padding_right: int = 0
    dilation_height: int = 1
    dilation_width: int = 1


class Window(_Numbers, AnyWindow):
    """How a kernel moves over an image, in pixels; the last arguments of all three operators, in their order."""

    __slots__ = ()


def make_window(
    stride: IntOrPair,
    padding: IntOrPair | str,
    dilation: IntOrPair,
    kernel_size: Sequence[int],
    name: str = "depthwise_conv2d",
) -> Window:
    """The window for arguments as `F.conv2d` takes them, with an odd rest of 'same' at the bottom and at the right.

    `make_window_of` says what each argument is, and what is raised.
    """
    return make_window_of(Window, name, stride, padding, dilation, kernel_size)


def pair(name: str, argument: str, value: Any) -> tuple[int, int]:
    """A whole number, or two, or one in a tuple or list, as (height, width); `whole_numbers` says what is raised."""
    height, width = whole_numbers(name, argument, value, 2)
    return height, width
