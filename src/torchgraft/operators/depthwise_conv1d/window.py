"""Stride, padding and dilation of sequences: from what people write to the four numbers that the operators take."""

from collections.abc import Sequence
from typing import NamedTuple

from torchgraft.operators.depthwise_conv2d.window import Window
from torchgraft.operators.windows import AnyWindow, IntOrSeveral, make_window_of

IntOrOne = IntOrSeveral


class _Numbers(NamedTuple):
    stride_length: int = 1
    padding_left: int = 0
    padding_right: int = 0
    dilation_length: int = 1


class SequenceWindow(_Numbers, AnyWindow):
    """How a kernel moves over a sequence, in its elements; four of the arguments of all three operators, in order."""

    __slots__ = ()

    @property
    def of_image(self) -> Window:
        """The window of an image of one row."""
        stride, left, right, dilation = self
        return Window(1, stride, 0, left, 0, right, 1, dilation)


def make_window(
    stride: IntOrOne,
    padding: IntOrOne | str,
    dilation: IntOrOne,
    kernel_size: Sequence[int],
    name: str = "depthwise_conv1d",
) -> SequenceWindow:
    """The window for arguments as `F.conv1d` takes them, with an odd rest of 'same' at the right.

    `make_window_of` says what each argument is, and what is raised.
    """
    return make_window_of(SequenceWindow, name, stride, padding, dilation, kernel_size)
