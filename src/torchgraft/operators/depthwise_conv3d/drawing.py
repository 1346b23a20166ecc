"""Convolutions of volumes drawn by machine, as many of them as possible at a border of the code."""

from random import Random

from torchgraft.operators.depthwise_conv2d.drawing import draw_padding, draw_step, shrunk
from torchgraft.operators.depthwise_conv3d.case import PLAIN, VolumeCase
from torchgraft.operators.depthwise_conv3d.window import VolumeWindow
from torchgraft.sampling import Budget, any_size, movable

_KERNELS = (1, 2, 3, 4, 5, 7, 9, 13)
_MOST_TAPS = 17
_SIDES = (4, 7, 8, 14, 16, 24, 28, 32, 56)
_SIDE = 64
_CHANNELS = (4, 8, 16, 24, 32, 48, 64, 128)
# The most that is drawn. Each channel, however small, takes a CPU a convolution in float64.
_MOST_CHANNELS, _ELEMENTS_OF_CHANNEL = 1024, 256


def draw_any(random: Random, budget: Budget) -> VolumeCase:
    """A convolution of about as many elements and products as a budget allows, around borders of all its sizes."""
    while True:
        case = shrunk(_draw(random, budget), budget)
        if case is not None:
            return case


def _draw(random: Random, budget: Budget) -> VolumeCase:
    room, size = budget.elements, []
    for _ in range(3):
        length = any_size(random, max(1, min(_SIDE, room)), _SIDES)
        size.append(length)
        room //= length
    depth, height, width = random.sample(size, 3)
    channels = any_size(
        random, max(1, min(room, 32 + budget.elements // _ELEMENTS_OF_CHANNEL, _MOST_CHANNELS)), _CHANNELS
    )
    batch = any_size(random, max(room // channels, 1), (8, 16))
    kernel = _draw_kernel(random)
    # What networks are made of, and what most kernels are made for.
    steps = [(1, 1)] * 3 if random.random() < 0.5 else [draw_step(random) for _ in range(3)]
    sides = zip((depth, height, width), kernel, steps, strict=True)
    padding = [draw_padding(random, length, taps, dilation) for length, taps, (_, dilation) in sides]
    window = VolumeWindow(
        *(stride for stride, _ in steps),
        *(before for before, _ in padding),
        *(behind for _, behind in padding),
        *(dilation for _, dilation in steps),
    )
    if random.random() < 0.03:
        kernel, window = (1, 1, 1), PLAIN
    return VolumeCase(
        "drawn",
        (0 if random.random() < 0.01 else batch, channels, depth, height, width),
        kernel,
        window,
        multiplier=1 if random.random() < 0.75 else random.choice((2, 3, any_size(random, 5))),
        bias=random.random() < 0.5,
        channels_last=random.random() < 0.5,
        is_told=random.random() < 0.5,
    )


def _draw_kernel(random: Random) -> tuple[int, int, int]:
    """Sides of a kernel: all alike, or one of them along depth or across a plane alone, or any."""
    side = movable(random, random.choice(_KERNELS), _MOST_TAPS)
    kind = random.random()
    if kind < 0.5:
        return side, side, side
    if kind < 0.6:
        return side, 1, 1
    if kind < 0.7:
        return 1, side, side
    return side, movable(random, random.choice(_KERNELS), _MOST_TAPS), random.choice(_KERNELS)
