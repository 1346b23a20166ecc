"""Stride, padding and dilation of convolutions of any rank: from what people write to the numbers that operators take.

The rank is 1 for sequences (N, C, L), 2 for images (N, C, H, W), 3 for volumes.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torchgraft.arguments import whole

IntOrSeveral = int | Sequence[int]

_EXPECTED = {1: "an int or one in a tuple", 2: "an int or a pair of ints", 3: "an int or three ints"}


class AnyWindow:
    """How a kernel moves over images of any rank: a base of tuples of the numbers, in the order of the schemas.

    Such a tuple has four parts: stride, padding before, padding behind, and dilation. Each has a number for each
    direction, the innermost last.
    """

    __slots__ = ()

    def _part(self: Any, which: int) -> tuple[int, ...]:
        rank = len(self) // 4
        return tuple(self[which * rank : (which + 1) * rank])

    @property
    def stride(self) -> tuple[int, ...]:
        """Stride in each direction."""
        return self._part(0)

    @property
    def before(self) -> tuple[int, ...]:
        """Padding before an image in each direction, as at its top and at its left."""
        return self._part(1)

    @property
    def behind(self) -> tuple[int, ...]:
        """Padding behind an image in each direction, as at its bottom and at its right."""
        return self._part(2)

    @property
    def dilation(self) -> tuple[int, ...]:
        """Dilation in each direction."""
        return self._part(3)

    @property
    def padding(self) -> tuple[int, ...]:
        """Padding as `torch.nn.functional.pad` takes it: left, right, and so on outwards."""
        sides = reversed(tuple(zip(self.before, self.behind, strict=True)))
        return tuple(padding for pair in sides for padding in pair)

    @property
    def padded(self) -> bool:
        """Whether there is any padding."""
        return any(self.padding)

    @property
    def is_uneven(self) -> bool:
        """Whether one side is padded more than the other."""
        return self.before != self.behind

    def output_size(self, *size_and_kernel_size: int) -> tuple[int, ...]:
        """Sizes of the output for those of an input, and those of a kernel behind them."""
        rank = len(size_and_kernel_size) // 2
        size, kernel_size = size_and_kernel_size[:rank], size_and_kernel_size[rank:]
        found = zip(size, kernel_size, self.stride, self.before, self.behind, self.dilation, strict=True)
        return tuple(
            (length + before + behind - dilation * (taps - 1) - 1) // stride + 1
            for length, taps, stride, before, behind, dilation in found
        )


_Made = TypeVar("_Made")


def make_window_of(
    kind: Callable[..., _Made],
    name: str,
    stride: IntOrSeveral,
    padding: IntOrSeveral | str,
    dilation: IntOrSeveral,
    kernel_size: Sequence[int],
) -> _Made:
    """The window for arguments as PyTorch's convolutions take them.

    Args:
        kind: makes the window of its numbers.
        name: of the function that was called, for messages.
        stride: steps between outputs, one number or one for each direction.
        padding: zeros on each side, one number or one for each direction; or 'valid' for none, or 'same' for as much as
            keeps the size, an odd rest behind.
        dilation: steps between taps, one number or one for each direction.
        kernel_size: of the kernel, a number for each direction; read for 'same' alone.

    Raises:
        TypeError: something else than whole numbers or a known word.
        ValueError: another number of them, or 'same' with a stride.
    """
    rank = len(kernel_size)
    strides, dilations = (
        whole_numbers(name, "stride", stride, rank),
        whole_numbers(name, "dilation", dilation, rank),
    )
    if not isinstance(padding, str):
        sides = whole_numbers(name, "padding", padding, rank)
        return kind(*strides, *sides, *sides, *dilations)
    if padding == "valid":
        return kind(*strides, *(0,) * (2 * rank), *dilations)
    if padding != "same":
        raise ValueError(f"{name}: padding must be whole numbers, 'valid' or 'same', got {padding!r}")
    if strides != (1,) * rank:
        raise ValueError(f"{name}: padding='same' needs stride 1, got {in_words(strides)}")
    totals = [gap * (size - 1) for gap, size in zip(dilations, kernel_size, strict=True)]
    before = [total // 2 for total in totals]
    behind = [total - front for total, front in zip(totals, before, strict=True)]
    return kind(*strides, *before, *behind, *dilations)


def whole_numbers(name: str, argument: str, value: Any, rank: int) -> tuple[int, ...]:
    """A whole number for each direction: of one number, or of as many in a tuple or list, or of one there.

    Args:
        name: of the function or layer, for the message.
        argument: of it, for the message.
        value: what was passed; `whole` says what a whole number is.
        rank: how many directions there are.

    Raises:
        TypeError: something else than whole numbers.
        ValueError: another number of them.
    """
    if type(value) is int:
        return (value,) * rank
    values = value if isinstance(value, (tuple, list)) else (value,)
    expected = f"{name}: {argument} must be {_EXPECTED[rank]}"
    try:
        found = tuple(whole(name, argument, each) for each in values)
    except TypeError:
        raise TypeError(f"{expected}, got {value!r}") from None
    if len(found) not in (1, rank):
        raise ValueError(f"{expected}, got {value!r}")
    return found * rank if len(found) == 1 else found


def in_words(numbers: Sequence[int]) -> str:
    """Numbers for a message: one alone, or several as a tuple."""
    return str(numbers[0]) if len(numbers) == 1 else str(tuple(numbers))
