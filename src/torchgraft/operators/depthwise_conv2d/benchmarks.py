"""Benchmarks of the three operators, with PyTorch's own convolution beside them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchgraft.operators.depthwise_conv2d.case import ConvolutionCase, same
from torchgraft.operators.depthwise_conv2d.reference import depthwise_conv2d
from torchgraft.operators.depthwise_conv2d.window import Window
from torchgraft.operators.shared import empty_images
from torchgraft.sampling import Benchmark, Budget, Distribution, Large, Sample, log_uniform, rounded


def _case(network: str, batch: int, channels: int, size: int, kernel: int, stride: int = 1) -> ConvolutionCase:
    name = f"{batch},{channels},{size}x{size},k{kernel}" + (f",s{stride}" if stride > 1 else "")
    return ConvolutionCase(f"{name} {network}", (batch, channels, size, size), (kernel, kernel), same(kernel, stride))


def _dilated(batch: int, channels: int, size: int, kernel: int) -> ConvolutionCase:
    padding = kernel - 1
    window = Window(1, 1, padding, padding, padding, padding, 2, 2)
    name = f"{batch},{channels},{size}x{size},k{kernel} dilation 2"
    return ConvolutionCase(name, (batch, channels, size, size), (kernel, kernel), window)


# As they stand in networks, at the batch at which each kind of device trains.
_ON_GPU = (
    _case("MobileNetV2", 128, 32, 112, 3),
    _case("MobileNetV2", 128, 96, 112, 3, 2),
    _case("MobileNetV2", 128, 144, 56, 3),
    _case("MobileNetV2", 128, 384, 14, 3),
    _case("EfficientNet", 128, 240, 28, 5),
    _case("EfficientNet", 128, 240, 28, 5, 2),
    _case("ConvNeXt", 128, 96, 56, 7),
    _case("ConvNeXt", 128, 768, 7, 7),
    _case("RepLKNet", 64, 128, 56, 31),
    _case("RepLKNet", 64, 256, 28, 29),
    _case("RepLKNet", 64, 512, 14, 27),
    _case("RepLKNet", 64, 1024, 7, 13),
)
_ON_CPU = (
    _case("MobileNetV2", 8, 144, 56, 3),
    _case("MobileNetV2", 8, 96, 112, 3, 2),
    _case("EfficientNet", 8, 240, 28, 5),
    _case("ConvNeXt", 8, 96, 56, 7),
    _case("ConvNeXt", 8, 384, 14, 7),
    _case("RepLKNet", 2, 256, 28, 29),
)
# What no table of networks holds: small, odd, alone.
_AWKWARD = (
    _case("one image", 1, 64, 56, 3),
    _case("one image", 1, 768, 7, 7),
    _case("odd sizes", 3, 37, 29, 5),
    _case("few channels", 16, 3, 64, 3),
    ConvolutionCase("8,64,28x28,k5x3 multiplier 2", (8, 64, 28, 28), (5, 3), Window(1, 1, 2, 1, 2, 1), multiplier=2),
    ConvolutionCase("8,64,28x28,k3 dilation 2", (8, 64, 28, 28), (3, 3), Window(1, 1, 2, 2, 2, 2, 2, 2)),
)
# What no kernel was tuned to.
_SWEEP = (
    ConvolutionCase("1,97,56x56,k7", (1, 97, 56, 56), (7, 7), same(7)),
    ConvolutionCase("2,61,113x113,k5", (2, 61, 113, 113), (5, 5), same(5)),
    ConvolutionCase("3,64,200x37,k3", (3, 64, 200, 37), (3, 3), same(3)),
    ConvolutionCase("3,128,200x37,k5,s2", (3, 128, 200, 37), (5, 5), same(5, 2)),
    ConvolutionCase("4,96,56x56,k3 dilation 2", (4, 96, 56, 56), (3, 3), Window(1, 1, 2, 2, 2, 2, 2, 2)),
    ConvolutionCase("4,96,56x56,k5 dilation 4", (4, 96, 56, 56), (5, 5), Window(1, 1, 8, 8, 8, 8, 4, 4)),
    ConvolutionCase("4,64,56x56,k51x5", (4, 64, 56, 56), (51, 5), Window(1, 1, 25, 2, 25, 2)),
    ConvolutionCase("4,96,56x56,k3 multiplier 2", (4, 96, 56, 56), (3, 3), same(3), multiplier=2),
)
# Large kernels with a stride, as where a network halves its images, and with a dilation.
_LARGE_STEPS = (
    _case("strided", 64, 128, 56, 11, 2),
    _case("strided", 64, 128, 56, 13, 2),
    _case("strided", 64, 128, 56, 21, 2),
    _case("strided", 64, 128, 56, 31, 2),
    _case("strided", 64, 256, 28, 13, 2),
    _dilated(64, 128, 56, 11),
    _dilated(64, 128, 56, 13),
    _dilated(64, 128, 56, 21),
    _dilated(64, 128, 56, 31),
    _dilated(64, 256, 28, 13),
)
# More elements than 32 bits count.
_LARGEST = ConvolutionCase("240,96,361x361,k3 3e9 elements", (240, 96, 361, 361), (3, 3), same(3))
_QUICK = {
    "128,144,56x56,k3 MobileNetV2",
    "128,96,56x56,k7 ConvNeXt",
    "8,144,56x56,k3 MobileNetV2",
    "8,96,56x56,k7 ConvNeXt",
}


def of(sample: Callable[[ConvolutionCase], Sample], large: Callable[[Sample], Large]) -> Iterator[Benchmark]:
    """Every row, in both layouts, as a sample of one of the operators.

    Args:
        sample: makes it of a case.
        large: says of a large one how its result is verified.
    """
    for suite, cases, devices in (
        ("networks", _ON_GPU, ("cuda",)),
        ("networks", _ON_CPU, ("cpu",)),
        ("awkward", _AWKWARD, ("cpu", "cuda")),
        ("sweep", _SWEEP, ("cpu", "cuda")),
        ("sweep", _LARGE_STEPS, ("cuda",)),
        ("sweep", (_LARGEST,), ("cuda",)),
    ):
        for case in cases:
            for channels_last in (False, True):
                made = sample(replace(case, channels_last=channels_last))
                parts = large(made) if case is _LARGEST else None
                yield Benchmark(
                    made, suite, devices, quick=case.name in _QUICK, large=parts, operations=case.operations
                )


def draw(random: Random, budget: Budget) -> Benchmark | None:
    """A convolution as networks have it: planes of a resolution that was halved, and the deeper the more channels."""
    level = random.randint(1, 5)
    resolution = 32 * random.randint(5, 20)
    height = width = -(-resolution // 2**level)
    if random.random() < 0.15:
        # Video and detection.
        width = -(-32 * random.randint(5, 24) // 2**level)
    channels = rounded(random, log_uniform(random, 16, min(2048, 128 * 2**level)), 8, 0.85)
    batch = rounded(random, log_uniform(random, 1, 256), 4, 0.7)
    kernel = _draw_kernel(random)
    stride, dilation = random.choices(((1, 1), (2, 1), (1, 2), (1, 3)), (0.65, 0.22, 0.1, 0.03))[0]
    multiplier = 2 if random.random() < 0.03 else 1
    span = dilation * (kernel - 1) + 1
    padding = 0 if random.random() < 0.08 else span // 2
    if span > min(height, width) + 2 * padding or span > 2 * min(height, width) + 1:
        return None
    name = f"{batch},{channels},{height}x{width},k{kernel}" + (f",s{stride}" if stride > 1 else "")
    name += (f",d{dilation}" if dilation > 1 else "") + (f",m{multiplier}" if multiplier > 1 else "")
    case = ConvolutionCase(
        name + ("" if padding else ",p0"),
        (batch, channels, height, width),
        (kernel, kernel),
        Window(stride, stride, *(padding,) * 4, dilation, dilation),
        multiplier,
        bias=random.random() < 0.5,
        channels_last=random.random() < 0.5,
    )
    elements = batch * channels * height * width + case.output.elements
    # Each tap of each output, as a kernel without a case for padding computes it.
    if elements > budget.elements or case.output.elements * kernel * kernel > budget.products:
        return None
    return Benchmark(case.forward(), "drawn", operations=case.operations)


def _draw_kernel(random: Random) -> int:
    """The side of a square kernel: three sides of four are those of most networks, the others up to RepLKNet's 31."""
    if random.random() < 0.72:
        return random.choices((3, 5, 7), (0.5, 0.25, 0.25))[0]
    return 2 * round((log_uniform(random, 9, 31) - 1) / 2) + 1


NETWORKS = Distribution(draw, "pytorch", ("forward", "input_grad", "weight_grad"))


def draw_transposed(random: Random, budget: Budget) -> Benchmark | None:
    """A transposed convolution as networks that segment or generate images have it: it enlarges them."""
    stride = random.choices((1, 2, 4, 8), (0.1, 0.6, 0.15, 0.15))[0]
    kernel = random.choice((3, 4, 5) if stride == 2 else (3, 5)) if stride <= 2 else 2 * stride
    height = width = rounded(random, log_uniform(random, 7, 256 / stride), 8, 0.6)
    if random.random() < 0.3:
        width = rounded(random, 2 * height, 8, 0.6)
    channels = rounded(random, log_uniform(random, 8, min(1024, 2e6 / (height * width))), 8, 0.8)
    batch = rounded(random, log_uniform(random, 1, 64), 4, 0.7)
    padding = max(kernel - stride, 0) // 2
    sides = [(side - 1) * stride + kernel - 2 * padding for side in (height, width)]
    case = ConvolutionCase(
        f"{batch},{channels},{height}x{width},k{kernel}" + (f",s{stride}" if stride > 1 else ""),
        (batch, channels, sides[0], sides[1]),
        (kernel, kernel),
        Window(stride, stride, *(padding,) * 4),
        channels_last=random.random() < 0.4,
    )
    elements = batch * channels * (height * width + sides[0] * sides[1])
    if elements > budget.elements or case.output.elements * kernel * kernel > budget.products:
        return None
    return Benchmark(case.input_grad(), "drawn", operations=case.operations)


def transposed(
    draw: Callable[[Random, Budget], Benchmark | None], function: Callable[..., Tensor], window: Callable[..., Any]
) -> Distribution:
    """Transposed convolutions, as calls of the input gradient that computes them.

    Args:
        draw: makes a call of the input gradient.
        function: of PyTorch, which stands beside it: F.conv_transpose1d, 2d or 3d.
        window: makes a window of the last arguments.
    """

    def rival(input: Tensor, weight: Tensor, channels: int, *sizes_layout_and_window: Any) -> Tensor:
        # Before the window come the sizes of the result, of which PyTorch finds the same, and its layout.
        view = window(*sizes_layout_and_window[weight.dim() - 1 :])
        return function(input, weight, None, view.stride, view.before, 0, channels, view.dilation)

    passes = "forward", "output_grad_grad", "weight_grad"
    return Distribution(draw, "conv_transpose", passes, {"conv_transpose": rival})


TRANSPOSED = transposed(draw_transposed, F.conv_transpose2d, Window)


# Nine to thirteen taps a row were seen to end, fifteen not.
_WIDEST_IN_FLOAT16_ON_CPU = 13


def conv2d(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Tensor:
    """F.conv2d; of padding that differs from side to side, after F.pad."""
    # On a processor that computes in float16, oneDNN's kernel for it runs for ever: PyTorch 2.13.0, rows of 32.
    if input.is_cpu and input.dtype == torch.float16 and weight.shape[-1] > _WIDEST_IN_FLOAT16_ON_CPU:
        raise RuntimeError(f"PyTorch may not end in float16 on CPU, of kernels wider than {_WIDEST_IN_FLOAT16_ON_CPU}")
    view = Window(*window)
    padding = _padding(view)
    if padding is None:
        return depthwise_conv2d(input, weight, bias, *window)
    return F.conv2d(input, weight, bias, view.stride, padding, view.dilation, input.shape[1])


def conv2d_input_grad(
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *window: int,
) -> Tensor:
    """The function that autograd calls for the input of F.conv2d."""
    # Of the input only the shape is read.
    input = empty_images(output_grad, (output_grad.shape[0], channels, height, width), bool(channels_last))
    return _backward(output_grad, input, weight, Window(*window), (True, False, False))[0]


def conv2d_weight_grad(
    output_grad: Tensor, input: Tensor, kernel_height: int, kernel_width: int, *window_and_result: Any
) -> Tensor:
    """The function that autograd calls for the weight of F.conv2d; the result has the dtype of input."""
    *window, _, channels_last = window_and_result
    weight = empty_images(input, (output_grad.shape[1], 1, kernel_height, kernel_width), channels_last)
    return _backward(output_grad, input, weight, Window(*window), (False, True, False))[1]


def _padding(window: Window) -> tuple[int, int] | None:
    """Padding as F.conv2d takes it, where it does."""
    if window.padding_top != window.padding_bottom or window.padding_left != window.padding_right:
        return None
    return window.padding_top, window.padding_left


def _backward(
    output_grad: Tensor, input: Tensor, weight: Tensor, window: Window, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    padding, groups = _padding(window), input.shape[1]
    return torch.ops.aten.convolution_backward(
        output_grad, input, weight, None, window.stride, padding, window.dilation, False, (0, 0), groups, wanted
    )
