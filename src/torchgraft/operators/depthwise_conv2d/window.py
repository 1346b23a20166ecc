"""Stride, padding and dilation: from what people write to the eight numbers that the operators take."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

IntOrPair = int | Sequence[int]


class Window(NamedTuple):
    """How a kernel moves over an image, in pixels; the last arguments of all three operators, in their order."""

    stride_height: int = 1
    stride_width: int = 1
    padding_top: int = 0
    padding_left: int = 0
    padding_bottom: int = 0
    padding_right: int = 0
    dilation_height: int = 1
    dilation_width: int = 1

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Padding as `torch.nn.functional.pad` takes it: left, right, top, bottom."""
        return self.padding_left, self.padding_right, self.padding_top, self.padding_bottom

    @property
    def padded(self) -> bool:
        """Whether there is any padding."""
        return any(self.padding)

    @property
    def stride(self) -> tuple[int, int]:
        """Stride in height and width."""
        return self.stride_height, self.stride_width

    @property
    def dilation(self) -> tuple[int, int]:
        """Dilation in height and width."""
        return self.dilation_height, self.dilation_width

    def output_size(self, height: int, width: int, kernel_height: int, kernel_width: int) -> tuple[int, int]:
        """Height and width of the output for those of an input and a kernel."""
        rows = height + self.padding_top + self.padding_bottom - self.dilation_height * (kernel_height - 1) - 1
        columns = width + self.padding_left + self.padding_right - self.dilation_width * (kernel_width - 1) - 1
        return rows // self.stride_height + 1, columns // self.stride_width + 1


def make_window(stride: IntOrPair, padding: IntOrPair | str, dilation: IntOrPair, kernel_size: Sequence[int]) -> Window:
    """The window for arguments as `F.conv2d` takes them.

    Args:
        stride: pixels between outputs, one number or (height, width).
        padding: zeros on each side, one number or (height, width); or 'valid' for none, or 'same' for as much as keeps
            the size, an odd rest at the bottom and at the right.
        dilation: pixels between taps, one number or (height, width).
        kernel_size: (height, width) of the kernel; read for 'same' alone.

    Raises:
        TypeError: something else than whole numbers or a known word.
        ValueError: a pair that is none, or 'same' with a stride.
    """
    strides, dilations = _pair("stride", stride), _pair("dilation", dilation)
    if not isinstance(padding, str):
        top, left = _pair("padding", padding)
        return Window(*strides, top, left, top, left, *dilations)
    if padding == "valid":
        return Window(*strides, 0, 0, 0, 0, *dilations)
    if padding != "same":
        raise ValueError(f"depthwise_conv2d: padding must be whole numbers, 'valid' or 'same', got {padding!r}")
    if strides != (1, 1):
        raise ValueError(f"depthwise_conv2d: padding='same' needs stride 1, got {strides}")
    total_height, total_width = (gap * (size - 1) for gap, size in zip(dilations, kernel_size, strict=True))
    top, left = total_height // 2, total_width // 2
    return Window(*strides, top, left, total_height - top, total_width - left, *dilations)


def _pair(name: str, value: IntOrPair) -> tuple[int, int]:
    values = (value, value) if isinstance(value, (int, torch.SymInt)) else value
    if not isinstance(values, (tuple, list)) or not all(
        isinstance(each, (int, torch.SymInt)) and not isinstance(each, bool) for each in values
    ):
        raise TypeError(f"depthwise_conv2d: {name} must be an int or a pair of ints, got {value!r}")
    if len(values) == 1:
        return values[0], values[0]
    if len(values) != 2:
        raise ValueError(f"depthwise_conv2d: {name} must be an int or a pair of ints, got {value!r}")
    return values[0], values[1]
