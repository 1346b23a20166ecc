"""Benchmarks of the three operators, with PyTorch's own convolution beside them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchgraft.layout import is_channels_last
from torchgraft.operators.depthwise_conv2d.benchmarks import transposed
from torchgraft.operators.depthwise_conv2d.layouts import dense_strides
from torchgraft.operators.depthwise_conv3d.case import VolumeCase, same
from torchgraft.operators.depthwise_conv3d.reference import depthwise_conv3d
from torchgraft.operators.depthwise_conv3d.window import VolumeWindow
from torchgraft.sampling import Benchmark, Budget, Distribution, Sample, log_uniform, rounded


def _case(
    network: str,
    input: tuple[int, int, int, int, int],
    kernel: tuple[int, int, int],
    stride: tuple[int, int, int] = (1, 1, 1),
) -> VolumeCase:
    name = f"{','.join(map(str, input))},k{'x'.join(map(str, kernel))}"
    name += "" if stride == (1, 1, 1) else f",s{'x'.join(map(str, stride))}"
    return VolumeCase(f"{name} {network}", input, kernel, same(kernel, stride), bias=network == "MedNeXt")


# As they stand in networks, at the batch at which each kind of device runs them.
_ON_GPU = (
    _case("X3D", (8, 54, 16, 56, 56), (3, 3, 3)),
    _case("X3D", (8, 108, 16, 56, 56), (3, 3, 3), (1, 2, 2)),
    _case("X3D stem", (8, 24, 16, 112, 112), (5, 1, 1)),
    _case("MedNeXt", (2, 32, 96, 96, 96), (3, 3, 3)),
    _case("MedNeXt", (2, 64, 48, 48, 48), (5, 5, 5)),
)
_ON_CPU = (
    _case("X3D", (1, 54, 16, 40, 40), (3, 3, 3)),
    _case("X3D", (1, 108, 16, 40, 40), (3, 3, 3), (1, 2, 2)),
    _case("X3D", (1, 216, 16, 10, 10), (3, 3, 3)),
    _case("X3D stem", (1, 24, 16, 80, 80), (5, 1, 1)),
    _case("MedNeXt", (1, 32, 48, 48, 48), (3, 3, 3)),
    _case("MedNeXt", (1, 64, 24, 24, 24), (5, 5, 5)),
    _case("MedNeXt", (1, 256, 6, 6, 6), (7, 7, 7)),
)
# What no table of networks holds.
_AWKWARD = (
    _case("odd sizes", (3, 37, 9, 23, 31), (3, 3, 3)),
    _case("across planes", (2, 48, 8, 28, 28), (1, 3, 3)),
)
_QUICK = {"1,54,16,40,40,k3x3x3 X3D", "1,64,24,24,24,k5x5x5 MedNeXt", "8,54,16,56,56,k3x3x3 X3D"}


def of(sample: Callable[[VolumeCase], Sample]) -> Iterator[Benchmark]:
    """Every row, in both layouts, as a sample of one of the operators, which `sample` makes of a case."""
    for suite, cases, devices in (
        ("networks", _ON_GPU, ("cuda",)),
        ("networks", _ON_CPU, ("cpu",)),
        ("awkward", _AWKWARD, ("cpu", "cuda")),
    ):
        for case in cases:
            for channels_last in (False, True):
                made = sample(replace(case, channels_last=channels_last))
                yield Benchmark(made, suite, devices, quick=case.name in _QUICK, operations=case.operations)


def draw(random: Random, budget: Budget) -> Benchmark | None:
    """A convolution as networks of videos and of scans have it: the larger a volume, the fewer its channels."""
    is_video = random.random() < 0.5
    side = rounded(random, log_uniform(random, 5, 112 if is_video else 96), 4, 0.7)
    depth = random.choice((4, 8, 16, 32)) if is_video else rounded(random, side * random.uniform(0.5, 1), 4, 0.7)
    channels = rounded(random, log_uniform(random, 16, min(1024, max(17, 2e7 / (depth * side * side)))), 8, 0.9)
    batch = rounded(random, log_uniform(random, 1, 16 if is_video else 4), 2, 0.5)
    if is_video:
        kernel = random.choices(((3, 3, 3), (5, 1, 1), (3, 1, 1), (1, 3, 3)), (0.7, 0.1, 0.1, 0.1))[0]
    else:
        taps = random.choices((3, 5, 7), (0.5, 0.3, 0.2))[0]
        kernel = taps, taps, taps
    stride = (1, 1, 1)
    if random.random() < 0.2:
        stride = (1, 2, 2) if is_video else (2, 2, 2)
    window = same(kernel, stride)
    name = f"{batch},{channels},{depth},{side},{side},k{'x'.join(map(str, kernel))}"
    name += "" if stride == (1, 1, 1) else f",s{'x'.join(map(str, stride))}"
    case = VolumeCase(
        name,
        (batch, channels, depth, side, side),
        kernel,
        window,
        bias=random.random() < 0.5,
        channels_last=random.random() < 0.4,
    )
    elements = batch * channels * depth * side * side + case.output.elements
    taps = kernel[0] * kernel[1] * kernel[2]
    if elements > budget.elements or case.output.elements * taps > budget.products:
        return None
    return Benchmark(case.forward(), "drawn", operations=case.operations)


NETWORKS = Distribution(draw, "pytorch", ("forward", "input_grad", "weight_grad"))


def draw_transposed(random: Random, budget: Budget) -> Benchmark | None:
    """A transposed convolution as networks that segment scans have it: it doubles the sides of a volume."""
    taps, stride = random.choices(((3, 2), (2, 2), (5, 2), (3, 1)), (0.5, 0.2, 0.2, 0.1))[0]
    side = rounded(random, log_uniform(random, 4, 64), 4, 0.7)
    depth = rounded(random, side * random.uniform(0.5, 1), 4, 0.7)
    channels = rounded(random, log_uniform(random, 16, min(512, max(17, 4e6 / (depth * side * side)))), 8, 0.9)
    batch = rounded(random, log_uniform(random, 1, 4), 2, 0.5)
    padding = max(taps - stride, 0) // 2
    sizes = [(size - 1) * stride + taps - 2 * padding for size in (depth, side, side)]
    case = VolumeCase(
        f"{batch},{channels},{depth},{side},{side},k{taps}" + (f",s{stride}" if stride > 1 else ""),
        (batch, channels, sizes[0], sizes[1], sizes[2]),
        (taps, taps, taps),
        VolumeWindow(*(stride,) * 3, *(padding,) * 6),
        channels_last=random.random() < 0.4,
    )
    elements = batch * channels * (depth * side * side + sizes[0] * sizes[1] * sizes[2])
    if elements > budget.elements or case.output.elements * taps**3 > budget.products:
        return None
    return Benchmark(case.input_grad(), "drawn", operations=case.operations)


TRANSPOSED = transposed(draw_transposed, F.conv_transpose3d, VolumeWindow)


def conv3d(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Tensor:
    """F.conv3d; of padding that differs from side to side, after F.pad."""
    view = VolumeWindow(*window)
    if view.is_uneven:
        return depthwise_conv3d(input, weight, bias, *window)
    return F.conv3d(input, weight, bias, view.stride, view.before, view.dilation, input.shape[1])


def conv3d_input_grad(
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    depth: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *window: int,
) -> Tensor:
    """The function that autograd calls for the input of F.conv3d."""
    size = output_grad.shape[0], channels, depth, height, width
    # Of the input only the shape and the layout are read.
    input = output_grad.new_empty_strided(size, dense_strides(size, is_channels_last(output_grad)))
    return _backward(output_grad, input, weight, VolumeWindow(*window), (True, False, False))[0]


def conv3d_weight_grad(
    output_grad: Tensor,
    input: Tensor,
    kernel_depth: int,
    kernel_height: int,
    kernel_width: int,
    *window_and_result: Any,
) -> Tensor:
    """The function that autograd calls for the weight of F.conv3d; the result has the dtype of input."""
    *window, _, _ = window_and_result
    weight = input.new_empty(output_grad.shape[1], 1, kernel_depth, kernel_height, kernel_width)
    return _backward(output_grad, input, weight, VolumeWindow(*window), (False, True, False))[1]


def _backward(
    output_grad: Tensor, input: Tensor, weight: Tensor, window: VolumeWindow, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    padding: Any = None if window.is_uneven else window.before
    groups = input.shape[1]
    return torch.ops.aten.convolution_backward(
        output_grad, input, weight, None, window.stride, padding, window.dilation, False, (0,), groups, wanted
    )
