"""Stride, padding and dilation: from what people write to the eight numbers that the operators take."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchgraft.arguments import whole

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
    def is_uneven(self) -> bool:
        """Whether one side is padded more than the other."""
        return self.padding_top != self.padding_bottom or self.padding_left != self.padding_right

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


def make_window(
    stride: IntOrPair,
    padding: IntOrPair | str,
    dilation: IntOrPair,
    kernel_size: Sequence[int],
    name: str = "depthwise_conv2d",
) -> Window:
    """The window for arguments as `F.conv2d` takes them.

    Args:
        stride: pixels between outputs, one number or (height, width).
        padding: zeros on each side, one number or (height, width); or 'valid' for none, or 'same' for as much as keeps
            the size, an odd rest at the bottom and at the right.
        dilation: pixels between taps, one number or (height, width).
        kernel_size: (height, width) of the kernel; read for 'same' alone.
        name: of the function that was called, for messages.

    Raises:
        TypeError: something else than whole numbers or a known word.
        ValueError: a pair that is none, or 'same' with a stride.
    """
    strides, dilations = pair(name, "stride", stride), pair(name, "dilation", dilation)
    if not isinstance(padding, str):
        top, left = pair(name, "padding", padding)
        return Window(*strides, top, left, top, left, *dilations)
    if padding == "valid":
        return Window(*strides, 0, 0, 0, 0, *dilations)
    if padding != "same":
        raise ValueError(f"{name}: padding must be whole numbers, 'valid' or 'same', got {padding!r}")
    if strides != (1, 1):
        raise ValueError(f"{name}: padding='same' needs stride 1, got {strides}")
    total_height, total_width = (gap * (size - 1) for gap, size in zip(dilations, kernel_size, strict=True))
    top, left = total_height // 2, total_width // 2
    return Window(*strides, top, left, total_height - top, total_width - left, *dilations)


def pair(name: str, argument: str, value: Any) -> tuple[int, int]:
    """A whole number, or two, or one in a tuple or list: (height, width).

    Args:
        name: of the function or layer, for the message.
        argument: of it, for the message.
        value: what was passed; `whole` says what a whole number is.

    Raises:
        TypeError: something else than whole numbers.
        ValueError: another number of them.
    """
    if type(value) is int:
        return value, value
    if type(value) is tuple and len(value) == 2 and type(value[0]) is int and type(value[1]) is int:
        return value
    values = value if isinstance(value, (tuple, list)) else (value,)
    expected = f"{name}: {argument} must be an int or a pair of ints"
    try:
        found = [whole(name, argument, each) for each in values]
    except TypeError:
        raise TypeError(f"{expected}, got {value!r}") from None
    if len(found) not in (1, 2):
        raise ValueError(f"{expected}, got {value!r}")
    return found[0], found[-1]
