"""Convolutions drawn by machine, as many of them as possible at a border of the code: see `draw_any`."""

import math
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from torchgraft.operators.depthwise_conv2d.case import PLAIN, ConvolutionCase
from torchgraft.operators.depthwise_conv2d.window import Window
from torchgraft.sampling import Budget, any_size, movable

# Where kernels or their shapes change: `cuda/policy.h` and the tiles of either device's kernels.
_KERNELS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 14, 17, 25, 27, 31)
_RARE_KERNELS = (33, 41, 49, 51, 56, 57, 58, 63)
_MOST_TAPS = 63
_PLANES = (7, 8, 14, 16, 24, 28, 32, 56, 64, 112, 128)
_CHANNELS = (4, 8, 16, 24, 32, 40, 48, 64, 96, 128)
_BATCHES = (8, 12, 16, 32)
# The largest of what is mostly drawn: of sides of an image, and of channels. Each channel, however small, takes a CPU a
# convolution in float64, and many kernels a block: so most of many elements lie in images.
_SIDE, _MOST_CHANNELS, _ELEMENTS_OF_CHANNEL = 300, 1024, 128
# How many times as large as its budget images with their padding may be.
_MOST_PADDED = 32


def draw_any(random: Random, budget: Budget) -> ConvolutionCase:
    """A convolution of about as many elements and products as a budget allows, around borders of all its sizes."""
    while True:
        case = shrunk(_draw(random, budget), budget)
        if case is not None:
            return case


def _draw_whole_planes(random: Random, budget: Budget) -> ConvolutionCase:
    """A case with one of the few sizes of planes that some kernels move whole."""
    side = random.choice((7, 14, 28))
    taps = random.choice((3, 5, 7))
    kernel, before, behind = (taps, taps), (taps // 2, taps // 2), (taps // 2, taps // 2)
    if side < 28 and random.random() < 0.3:
        # Every result meets every source, and padding alone on one side or both.
        before = side - 1 + any_size(random, 9) - 1, side - 1 + any_size(random, 9) - 1
        behind = side - 1 + any_size(random, 9) - 1, side - 1 + any_size(random, 9) - 1
        kernel = before[0] + behind[0] + 1, before[1] + behind[1] + 1
    channels = any_size(random, min(_MOST_CHANNELS, max(budget.elements // (side * side), 1)), _CHANNELS)
    batch = max(budget.elements // (side * side * channels), 1)
    return ConvolutionCase(
        "drawn",
        (batch if random.random() < 0.5 else any_size(random, batch, _BATCHES), channels, side, side),
        kernel,
        Window(1, 1, *before, *behind),
        bias=random.random() < 0.5,
        channels_last=random.random() < 0.1,
        is_told=random.random() < 0.5,
    )


def _draw(random: Random, budget: Budget) -> ConvolutionCase:
    if random.random() < 0.06:
        return _draw_whole_planes(random, budget)
    # What networks are made of, and what most kernels are made for.
    is_plain = random.random() < 0.5
    kernel = _draw_kernel(random)
    stride, dilation = ((1, 1), (1, 1)) if is_plain else _draw_steps(random)
    height, width = _draw_plane(random, budget.elements)
    most_channels = _MOST_CHANNELS if random.random() < 0.01 else 32 + budget.elements // _ELEMENTS_OF_CHANNEL
    most_channels = min(budget.elements // (height * width), most_channels, _MOST_CHANNELS)
    channels = any_size(random, most_channels, _CHANNELS)
    rest = max(budget.elements // (height * width * channels), 1)
    batch = rest if random.random() < 0.6 else any_size(random, rest, _BATCHES)
    top, bottom = draw_padding(random, height, kernel[0], dilation[0])
    left, right = draw_padding(random, width, kernel[1], dilation[1])
    window = Window(*stride, top, left, bottom, right, *dilation)
    if random.random() < 0.03:
        kernel, window = (1, 1), PLAIN
    return ConvolutionCase(
        "drawn",
        (0 if random.random() < 0.01 else batch, channels, height, width),
        kernel,
        window,
        multiplier=1 if random.random() < 0.75 else random.choice((2, 3, 4, any_size(random, 9))),
        bias=random.random() < 0.5,
        channels_last=random.random() < 0.5,
        is_told=random.random() < 0.5,
    )


def _draw_kernel(random: Random) -> tuple[int, int]:
    def side() -> int:
        kind = random.random()
        if kind < 0.45:
            return random.choice((3, 5, 6, 7))
        if kind < 0.9:
            return random.choice(_KERNELS)
        return any_size(random, 31) if kind < 0.97 else random.choice(_RARE_KERNELS)

    first = movable(random, side(), _MOST_TAPS)
    return first, first if random.random() < 0.6 else movable(random, side(), _MOST_TAPS)


def draw_step(random: Random) -> tuple[int, int]:
    """Stride and dilation of one direction, a dilation that the stride divides or not."""
    stride = random.choice((1, 1, 2, 2, 3, 4, any_size(random, 12)))
    return stride, random.choice((1, 1, 1, 2, 3, 4, stride, 2 * stride, any_size(random, 12)))


def _draw_steps(random: Random) -> tuple[tuple[int, int], tuple[int, int]]:
    """Stride and dilation of both directions: alike or not."""
    (height, tall), (width, wide) = draw_step(random), draw_step(random)
    if random.random() < 0.6:
        width = height
    if random.random() < 0.6:
        wide = tall
    return (height, width), (tall, wide)


def _draw_plane(random: Random, elements: int) -> tuple[int, int]:
    # Few images are long and narrow, as rows that are longer than a tile.
    most = elements if random.random() < 0.05 else _SIDE
    height = any_size(random, min(most, elements), _PLANES)
    room = elements // height
    width = height if random.random() < 0.3 else any_size(random, min(most, room), _PLANES)
    width = max(1, min(width, room))
    return (height, width) if random.random() < 0.5 else (width, height)


def draw_padding(random: Random, size: int, kernel: int, dilation: int) -> tuple[int, int]:
    """Padding before and behind an image, of any kind: each within the window or beyond it, as much as it needs."""
    span = dilation * (kernel - 1) + 1

    def within() -> int:
        return random.randint(0, span - 1)

    def beyond() -> int:
        return random.randint(span, 2 * span + 8)

    kind = random.random()
    if kind < 0.35:
        before, behind = span // 2, span // 2
    elif kind < 0.45:
        before, behind = 0, 0
    elif kind < 0.65:
        before, behind = within(), within()
    elif kind < 0.85:
        before, behind = within(), beyond()
    else:
        before, behind = beyond(), within() if random.random() < 0.5 else beyond()
    before, behind = (movable(random, padding + 1, 2 * span + 9) - 1 for padding in (before, behind))
    missing = span - size - before - behind
    return before, behind + max(missing, 0)


# A case of images or of volumes.
_Case = TypeVar("_Case", bound=Any)


def shrunk(case: _Case, budget: Budget) -> _Case | None:
    """The same with fewer images and channels, so that a budget has room for it; None where it has for no such one."""
    batch, channels, *size = case.input
    pixels, taps = math.prod(case.window.output_size(*size, *case.kernel)), math.prod(case.kernel)
    of_plane = pixels * taps * case.multiplier
    elements_of_plane = pixels * case.multiplier + math.prod(size)
    # Of input and output, which padding or a multiplier makes large, and of images with their padding, which PyTorch's
    # own convolutions make.
    padded = case.multiplier * math.prod(map(sum, zip(size, case.window.before, case.window.behind, strict=True)))
    most = min(
        budget.products // of_plane,
        3 * budget.elements // elements_of_plane,
        _MOST_PADDED * budget.elements // padded,
    )
    # And of weights.
    most_channels = min(most, budget.elements // (taps * case.multiplier))
    if most_channels < 1:
        return None
    channels = min(channels, most_channels)
    return replace(case, input=(min(batch, most // channels), channels, *size))
