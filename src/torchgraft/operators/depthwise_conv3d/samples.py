"""Inputs for depthwise_conv3d and its gradients: borders of its kernels, each by name.

Kernels for a CPU are those of depthwise_conv2d, whose own samples have more of their borders; here are those of several
planes, and of the kernels for a GPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import torch

from torchgraft.nn import DepthwiseConv3d
from torchgraft.operators.depthwise_conv3d import benchmarks
from torchgraft.operators.depthwise_conv3d.case import PLAIN, VolumeCase, same
from torchgraft.operators.depthwise_conv3d.drawing import draw_any
from torchgraft.operators.depthwise_conv3d.window import VolumeWindow
from torchgraft.sampling import Distribution, Drawn, Large, ModuleSample, ReplacedLayer, Sample, Samples


def _strided(stride: tuple[int, int, int], padding: tuple[int, int, int]) -> VolumeWindow:
    return VolumeWindow(*stride, *padding, *padding)


_BOTH_LAYOUTS = (
    VolumeCase("3x3x3", (2, 3, 4, 6, 7), (3, 3, 3), same((3, 3, 3))),
    VolumeCase("3x3x3 with stride (1, 2, 2) as in X3D", (1, 6, 3, 7, 8), (3, 3, 3), same((3, 3, 3), (1, 2, 2))),
    VolumeCase("5x5x5 as in MedNeXt", (1, 2, 5, 6, 7), (5, 5, 5), same((5, 5, 5))),
    VolumeCase("dilation (2, 1, 3)", (1, 2, 6, 4, 8), (3, 3, 2), VolumeWindow(1, 1, 1, 2, 1, 2, 2, 1, 1, 2, 1, 3)),
    VolumeCase("uneven padding on every side", (1, 2, 3, 4, 5), (3, 2, 3), VolumeWindow(1, 1, 1, 0, 1, 2, 3, 0, 1)),
    VolumeCase("stride above the kernel", (1, 3, 9, 4, 5), (2, 3, 1), VolumeWindow(3, 2, 2, 0, 1, 0, 1, 1, 0)),
    VolumeCase("multiplier 2", (2, 3, 3, 4, 5), (3, 3, 3), same((3, 3, 3)), multiplier=2),
    VolumeCase("17 channels", (1, 17, 3, 4, 5), (3, 3, 3), same((3, 3, 3)), bias=False),
)
_SINGLE = (
    VolumeCase("5x1x1 as in the stem of X3D", (1, 5, 7, 3, 4), (5, 1, 1), same((5, 1, 1))),
    VolumeCase("1x3x3, planes by themselves", (1, 4, 3, 6, 5), (1, 3, 3), same((1, 3, 3)), channels_last=True),
    VolumeCase("7x7x7 as in MedNeXt, on small planes", (1, 3, 3, 4, 5), (7, 7, 7), same((7, 7, 7))),
    # Some planes of the input lie under no tap, others under padding alone.
    VolumeCase("a kernel deeper than the input", (1, 2, 2, 5, 4), (5, 2, 2), VolumeWindow(1, 1, 1, 2, 0, 0, 3, 0, 1)),
    VolumeCase("padding deeper than the kernel", (1, 2, 2, 3, 3), (2, 3, 3), VolumeWindow(2, 1, 1, 4, 1, 1, 3, 1, 1)),
    VolumeCase(
        "stride and dilation with a common factor",
        (1, 2, 9, 5, 6),
        (3, 2, 2),
        VolumeWindow(4, 1, 2, 3, 0, 1, 2, 1, 1, 2),
    ),
    VolumeCase("one plane", (2, 3, 1, 5, 6), (3, 3, 3), same((3, 3, 3)), channels_last=True),
    VolumeCase("one row of each plane", (1, 4, 5, 1, 6), (3, 1, 3), same((3, 1, 3)), channels_last=True),
    VolumeCase("one voxel", (3, 2, 1, 1, 1), (3, 3, 3), same((3, 3, 3))),
    VolumeCase("one channel", (2, 1, 4, 5, 6), (3, 3, 3), same((3, 3, 3))),
    VolumeCase("one channel, multiplier 3", (1, 1, 3, 4, 5), (2, 3, 3), PLAIN, multiplier=3),
    VolumeCase("one tap", (2, 3, 2, 3, 4), (1, 1, 1), PLAIN),
    VolumeCase("empty batch", (0, 3, 4, 5, 6), (3, 3, 3), same((3, 3, 3))),
    # More than 1 MiB of one vector of channels: a CPU takes a few planes and a few rows at a time.
    VolumeCase("slabs and bands are cut", (1, 2, 14, 36, 36), (3, 3, 3), same((3, 3, 3))),
    VolumeCase("many channels", (1, 131, 2, 3, 3), (2, 2, 2), PLAIN, channels_last=True),
)
# Sweeps along depth on a GPU: each kernel and stride, rows in pieces of 16, 8, 4 and 2 bytes, tiles, stretches of
# depth, several volumes in a block.
_SWEEPS = (
    VolumeCase("sweep of rows of whole vectors, in stretches of depth", (1, 2, 19, 5, 16), (3, 3, 3), same((3, 3, 3))),
    VolumeCase("sweep of rows of eight bytes", (1, 2, 4, 9, 12), (3, 3, 3), same((3, 3, 3))),
    VolumeCase("sweep of rows of four bytes", (1, 2, 4, 6, 10), (5, 5, 5), same((5, 5, 5))),
    VolumeCase("sweep of odd rows", (1, 2, 5, 4, 11), (5, 5, 5), same((5, 5, 5), (2, 2, 2))),
    VolumeCase("sweep in tiles of columns", (1, 1, 2, 3, 264), (3, 3, 3), same((3, 3, 3))),
    VolumeCase("sweep in tiles of rows", (2, 1, 2, 67, 56), (3, 3, 3), same((3, 3, 3))),
    VolumeCase("sweep of many small volumes", (3, 7, 2, 3, 4), (3, 3, 3), same((3, 3, 3))),
    VolumeCase("sweep with stride 2", (2, 3, 7, 8, 12), (3, 3, 3), same((3, 3, 3), (2, 2, 2))),
    VolumeCase("sweep with stride (1, 2, 2) in tiles", (1, 2, 3, 38, 72), (3, 3, 3), same((3, 3, 3), (1, 2, 2))),
    VolumeCase(
        "sweep with stride 2 in tiles of rows and columns", (1, 1, 3, 59, 256), (5, 5, 5), same((5, 5, 5), (2, 2, 2))
    ),
    VolumeCase("sweep without padding", (1, 2, 6, 7, 18), (5, 5, 5), PLAIN),
    VolumeCase("sweep of more padding in front", (1, 2, 4, 5, 8), (3, 3, 3), VolumeWindow(1, 1, 1, 2, 2, 2, 0, 1, 0)),
    VolumeCase("sweep of 7x7x7 in tiles", (1, 2, 5, 21, 40), (7, 7, 7), same((7, 7, 7))),
    VolumeCase("sweep of 3x1x1", (1, 3, 6, 4, 9), (3, 1, 1), same((3, 1, 1))),
    VolumeCase("sweep of 5x5x5 with stride 2", (1, 2, 8, 9, 16), (5, 5, 5), same((5, 5, 5), (2, 2, 2)), multiplier=2),
)

# Input gradients by phases of the stride on a GPU, as transposed convolutions are: each width of a kernel, both phases
# in front, rows of whole vectors and odd ones, a stride in some directions only.
_PHASES = (
    VolumeCase("phases of 2x2x2, one tap for each", (2, 3, 4, 6, 16), (2, 2, 2), VolumeWindow(2, 2, 2)),
    VolumeCase("phases of 3x3x3 to odd sizes", (1, 4, 5, 7, 17), (3, 3, 3), VolumeWindow(2, 2, 2)),
    VolumeCase("phases of 4x4x4 to rows of whole vectors", (1, 6, 6, 8, 24), (4, 4, 4), _strided((2, 2, 2), (1, 1, 1))),
    VolumeCase("phases of 5x5x5 to odd sizes", (1, 2, 7, 9, 19), (5, 5, 5), _strided((2, 2, 2), (1, 1, 1))),
    VolumeCase("phases of 7x7x7", (1, 3, 5, 8, 18), (7, 7, 7), _strided((2, 2, 2), (2, 2, 2))),
    VolumeCase("phases of 3x2x6 along width", (2, 2, 2, 4, 13), (3, 2, 6), _strided((1, 1, 2), (1, 0, 3))),
    VolumeCase("phases of 2x7x4 along height", (2, 4, 3, 6, 11), (2, 7, 4), _strided((1, 2, 1), (1, 3, 2))),
    VolumeCase("phases of 5x1x3 along depth and width", (1, 3, 6, 2, 8), (5, 1, 3), _strided((2, 1, 2), (2, 0, 0))),
    VolumeCase(
        "phases of 5x1x1, half of them without taps", (2, 2, 3, 4, 9), (5, 1, 1), _strided((1, 2, 2), (2, 0, 1))
    ),
    VolumeCase("phases under padding alone", (1, 4, 2, 3, 6), (2, 3, 2), _strided((2, 2, 2), (3, 4, 3))),
    VolumeCase("phases of volumes in parts", (1, 2, 8, 18, 71), (2, 3, 3), _strided((2, 2, 2), (0, 1, 0))),
    VolumeCase("phases of channels in groups", (2, 70, 3, 4, 6), (3, 3, 3), VolumeWindow(2, 2, 2, 1, 1, 0, 0, 0, 0)),
    VolumeCase("phases of 7x7x7 of channels in groups", (1, 36, 2, 3, 3), (7, 7, 7), _strided((2, 2, 2), (3, 3, 3))),
)

# Runs of four outputs of a row on a GPU: strides in some directions only, rows in pieces of four, two and one elements,
# runs that are shifted by the padding, a kernel turned around, volumes in parts. Those of phases run there as well.
_RUNS = (
    VolumeCase("runs of 1x3x3 with stride (1, 2, 2)", (2, 3, 3, 9, 16), (1, 3, 3), _strided((1, 2, 2), (0, 1, 1))),
    VolumeCase("runs of rows of words", (2, 3, 2, 6, 22), (2, 2, 2), _strided((2, 2, 2), (0, 0, 0))),
    VolumeCase("runs of odd rows", (1, 3, 4, 7, 21), (1, 3, 3), _strided((1, 2, 2), (0, 1, 1))),
    VolumeCase("runs of 4x4x4, shifted by three", (1, 3, 5, 6, 12), (4, 4, 4), _strided((1, 1, 1), (1, 2, 3))),
    VolumeCase("runs of 3x3x6, shifted by two", (1, 2, 4, 5, 20), (3, 3, 6), _strided((2, 1, 1), (1, 1, 2))),
    VolumeCase(
        "runs of 3x2x5 with stride 2, shifted by one", (1, 2, 5, 6, 24), (3, 2, 5), _strided((1, 1, 2), (1, 0, 2))
    ),
    VolumeCase(
        "runs of 2x1x7 with stride 2, an odd padding", (1, 2, 4, 3, 16), (2, 1, 7), _strided((2, 1, 2), (0, 0, 3))
    ),
    VolumeCase(
        "runs of one tap with stride 2, half over padding", (2, 2, 3, 5, 8), (1, 1, 1), _strided((2, 2, 2), (1, 1, 1))
    ),
    VolumeCase("runs under more padding than taps", (1, 2, 2, 3, 8), (2, 2, 2), _strided((1, 1, 1), (3, 3, 3))),
    VolumeCase("runs that are left over behind the last window", (1, 2, 4, 4, 12), (2, 3, 3), VolumeWindow(1, 1, 2)),
    VolumeCase("runs of volumes in parts", (2, 1, 5, 23, 76), (2, 3, 3), _strided((1, 1, 2), (0, 1, 1))),
    VolumeCase("runs of 1x1x7", (1, 3, 2, 3, 9), (1, 1, 7), same((1, 1, 7))),
    VolumeCase("no runs of 1x1x8", (1, 3, 2, 3, 9), (1, 1, 8), _strided((1, 1, 1), (0, 0, 4))),
    VolumeCase("sweep of more products than small volumes have", (1, 3, 9, 43, 43), (7, 7, 7), same((7, 7, 7))),
)


def _cases() -> Iterator[VolumeCase]:
    for number, case in enumerate(_BOTH_LAYOUTS):
        yield case
        # A gradient that is not told otherwise is laid out as what it is made of: here.
        yield replace(case, name=f"{case.name}, channels_last", channels_last=True, is_told=number % 2 == 0)
    yield from _SINGLE
    yield from _SWEEPS
    for number, case in enumerate(_PHASES):
        yield case
        yield replace(case, name=f"{case.name}, channels_last", channels_last=True, is_told=number % 2 == 0)
    yield from _RUNS


def _draw_case(random: Random) -> VolumeCase:
    kernel, size, before, behind, dilation = [], [], [], [], []
    for _ in range(3):
        gap, taps, length, side = random.randint(1, 2), random.randint(1, 4), random.randint(1, 7), random.randint(0, 3)
        # Padding behind, at least as much as the kernel needs to fit.
        behind.append(max(random.randint(0, 3), gap * (taps - 1) + 1 - length - side))
        kernel.append(taps)
        size.append(length)
        before.append(side)
        dilation.append(gap)
    (depth, height, width), (deep, tall, wide) = size, kernel
    stride = [random.randint(1, 3) for _ in range(3)]
    return VolumeCase(
        "drawn",
        (random.randint(0, 2), random.randint(1, 5), depth, height, width),
        (deep, tall, wide),
        VolumeWindow(*stride, *before, *behind, *dilation),
        multiplier=random.randint(1, 3),
        bias=random.random() < 0.5,
        channels_last=random.random() < 0.5,
        is_told=random.random() < 0.5,
    )


def _taps(weight: Any) -> int:
    return int(weight.shape[2] * weight.shape[3] * weight.shape[4])


def _taps_summed(input: Any, weight: Any, *rest: Any) -> int:
    return _taps(weight)


def _input_grad_summed(output_grad: Any, weight: Any, channels: int, *rest: Any) -> int:
    return int(_taps(weight) * (weight.shape[0] // channels))


def _outputs_summed(output_grad: Any, *rest: Any) -> int:
    return int(output_grad.shape[0] * _taps(output_grad))


def _is_defined(sample: Sample) -> bool:
    """Whether no tap lies over padding: there PyTorch's own implementations disagree about NaN times nothing."""
    return not VolumeWindow(*sample.arguments[-len(PLAIN) :]).padded


def _is_never_defined(sample: Sample) -> bool:
    """For the gradients: at the border of a volume even a convolution without padding has taps over nothing."""
    return False


def _weight_grad_in_parts(sample: Sample) -> Large:
    return Large(sample, batched=(0, 1), combine="sum")


_MODULES = (
    ModuleSample("3x3x3 with padding", lambda: DepthwiseConv3d(3, 3, padding=1), (Drawn((2, 3, 4, 5, 6)),)),
    ModuleSample(
        "every option",
        lambda: DepthwiseConv3d(
            2, (2, 3, 3), (1, 2, 2), (1, 2, 2), (2, 1, 1), bias=False, channel_multiplier=3, padding_mode="replicate"
        ),
        (Drawn((2, 2, 4, 6, 5), channels_last=True),),
    ),
)


def _replaced(name: str, bias: bool) -> ReplacedLayer:
    return ReplacedLayer(
        name,
        "nn.Conv3d",
        partial(DepthwiseConv3d, 8, 3, padding=1, bias=bias),
        partial(torch.nn.Conv3d, 8, 8, 3, padding=1, groups=8, bias=bias),
        (2, 8, 4, 8, 8),
    )


_REPLACED = (_replaced("DepthwiseConv3d", bias=True), _replaced("DepthwiseConv3d, no bias", bias=False))

# The last volume lies beyond what 32 bits can index.
_LARGE = tuple(
    VolumeCase(
        f"more than 2**31 elements{name}", (130, 64, 16, 128, 128), (3, 3, 3), same((3, 3, 3)), channels_last=last
    )
    for name, last in (("", False), (", channels_last", True))
)


def _samples(
    make: Callable[[VolumeCase], Sample],
    summed: Callable[..., int],
    non_finite: Callable[[Sample], bool],
    rival: Callable[..., Any],
    large: Callable[[Sample], Large] = Large,
    modules: tuple[ModuleSample, ...] = (),
    replaced: tuple[ReplacedLayer, ...] = (),
    networks: Distribution | None = None,
) -> Samples:
    return Samples(
        tuple(make(case) for case in _cases()),
        lambda random: make(_draw_case(random)),
        stress=lambda random, budget: make(draw_any(random, budget)),
        summed=summed,
        large=tuple(large(make(case)) for case in _LARGE),
        non_finite=non_finite,
        modules=modules,
        replaced=replaced,
        benchmarks=tuple(benchmarks.of(make)),
        rivals={"pytorch": rival},
        networks=networks,
    )


samples = {
    # Its gradients are passes of the rows that are drawn of it. A transposed convolution is an input gradient.
    "depthwise_conv3d": _samples(
        VolumeCase.forward,
        _taps_summed,
        _is_defined,
        benchmarks.conv3d,
        modules=_MODULES,
        replaced=_REPLACED,
        networks=benchmarks.NETWORKS,
    ),
    "depthwise_conv3d_input_grad": _samples(
        VolumeCase.input_grad,
        _input_grad_summed,
        _is_never_defined,
        benchmarks.conv3d_input_grad,
        networks=benchmarks.TRANSPOSED,
    ),
    "depthwise_conv3d_weight_grad": _samples(
        VolumeCase.weight_grad,
        _outputs_summed,
        _is_never_defined,
        benchmarks.conv3d_weight_grad,
        _weight_grad_in_parts,
    ),
}
