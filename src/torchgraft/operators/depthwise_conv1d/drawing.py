"""Convolutions of sequences drawn by machine, as many of them as possible at a border of the code."""

from random import Random

from torchgraft.operators.depthwise_conv1d.case import SequenceCase
from torchgraft.operators.depthwise_conv1d.window import SequenceWindow
from torchgraft.operators.depthwise_conv2d.case import ConvolutionCase
from torchgraft.operators.depthwise_conv2d.drawing import draw_padding, draw_step, shrunk
from torchgraft.sampling import Budget, any_size, movable

_KERNELS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 31, 32, 63, 64)
_MOST_TAPS = 256
_LENGTHS = (7, 8, 15, 16, 31, 32, 33, 64, 128, 256, 500, 512, 1024)
_CHANNELS = (4, 8, 16, 24, 32, 48, 64, 128)
_MOST_CHANNELS = 1024
# Each channel, however short, takes a CPU a convolution in float64.
_ELEMENTS_OF_CHANNEL = 64


def draw_any(random: Random, budget: Budget) -> SequenceCase:
    """A convolution of about as many elements and products as a budget allows, around borders of all its sizes."""
    while True:
        case = shrunk(_draw(random, budget), budget)
        if case is not None:
            return of_image(case)


def of_image(case: ConvolutionCase) -> SequenceCase:
    """The convolution of sequences that one of images of one row is."""
    (batch, channels, _, length), (_, kernel), window = case.input, case.kernel, case.window
    return SequenceCase(
        case.name,
        (batch, channels, length),
        kernel,
        SequenceWindow(window.stride_width, window.padding_left, window.padding_right, window.dilation_width),
        case.multiplier,
        case.bias,
        case.channels_last,
        case.is_told,
    )


def _draw(random: Random, budget: Budget) -> ConvolutionCase:
    """A case of images of one row."""
    most = random.choice((64, 1024, budget.elements))
    length = any_size(random, min(most, budget.elements), _LENGTHS)
    taps = random.choice(_KERNELS) if random.random() < 0.85 else any_size(random, _MOST_TAPS, _KERNELS)
    kernel = movable(random, taps, _MOST_TAPS)
    # What networks are made of, and what most kernels are made for.
    stride, dilation = (1, 1) if random.random() < 0.5 else draw_step(random)
    left, right = draw_padding(random, length, kernel, dilation)
    most_channels = min(budget.elements // length, 32 + budget.elements // _ELEMENTS_OF_CHANNEL, _MOST_CHANNELS)
    channels = any_size(random, most_channels, _CHANNELS)
    batch = any_size(random, max(budget.elements // (length * channels), 1), (8, 16, 32))
    return ConvolutionCase(
        "drawn",
        (0 if random.random() < 0.01 else batch, channels, 1, length),
        (1, kernel),
        SequenceWindow(stride, left, right, dilation).of_image,
        multiplier=1 if random.random() < 0.75 else random.choice((2, 3, 4, any_size(random, 9))),
        bias=random.random() < 0.5,
        channels_last=random.random() < 0.5,
        is_told=random.random() < 0.5,
    )
