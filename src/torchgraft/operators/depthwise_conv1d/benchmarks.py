"""Benchmarks of the three operators, with PyTorch's own convolution beside them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchgraft.operators.depthwise_conv1d.case import SequenceCase, causal, same
from torchgraft.operators.depthwise_conv1d.reference import depthwise_conv1d
from torchgraft.operators.depthwise_conv1d.window import SequenceWindow
from torchgraft.operators.depthwise_conv2d.benchmarks import transposed
from torchgraft.sampling import Benchmark, Budget, Distribution, Sample, log_uniform, rounded


def _case(network: str, input: tuple[int, int, int], kernel: int, window: SequenceWindow) -> SequenceCase:
    name = f"{','.join(map(str, input))},k{kernel}"
    name += f",s{window.stride_length}" if window.stride_length > 1 else ""
    name += f",d{window.dilation_length}" if window.dilation_length > 1 else ""
    return SequenceCase(f"{name} {network}", input, kernel, window)


# As they stand in networks, at the batch at which each kind of device runs them.
_ON_GPU = (
    _case("Conformer", (32, 256, 800), 15, same(15)),
    _case("Conformer", (16, 512, 500), 31, same(31)),
    _case("Mamba", (8, 4096, 2048), 4, causal(4)),
    _case("Conv-TasNet", (4, 512, 3200), 3, same(3, dilation=64)),
    _case("codec", (8, 256, 16000), 7, same(7)),
    _case("strided", (8, 256, 16000), 5, same(5, 2)),
    _case("long", (8, 768, 1500), 128, SequenceWindow(1, 64, 63)),
)
_ON_CPU = (
    _case("Conformer", (8, 256, 500), 15, same(15)),
    _case("Conformer", (8, 256, 500), 31, same(31)),
    _case("Mamba", (2, 1536, 512), 4, causal(4)),
    _case("Conv-TasNet", (2, 512, 2001), 3, same(3, dilation=1)),
    _case("Conv-TasNet", (2, 512, 2001), 3, same(3, dilation=128)),
    _case("codec", (2, 32, 16006), 7, same(7)),
    _case("strided", (4, 128, 2000), 5, same(5, 2)),
)
# What no table of networks holds: short, odd, long kernels.
_AWKWARD = (
    _case("one sequence", (1, 64, 49), 9, same(9)),
    _case("odd sizes", (3, 37, 1201), 5, same(5)),
    _case("long kernel", (2, 64, 1500), 127, same(127)),
)
_QUICK = {"8,256,500,k15 Conformer", "2,1536,512,k4 Mamba", "32,256,800,k15 Conformer", "8,4096,2048,k4 Mamba"}


def of(sample: Callable[[SequenceCase], Sample]) -> Iterator[Benchmark]:
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
    """A convolution as networks have it: the longer a sequence, the fewer its channels."""
    length = rounded(random, log_uniform(random, 40, 16000), 50, 0.3)
    channels = rounded(random, log_uniform(random, 32, min(8192, 4e6 / length)), 16, 0.9)
    batch = rounded(random, log_uniform(random, 1, 64), 4, 0.6)
    kind = random.random()
    if kind < 0.4:
        kernel, is_causal = random.choice((3, 4, 4)), True
    elif kind < 0.9:
        kernel, is_causal = random.choices((3, 5, 7, 9, 15, 31), (0.3, 0.1, 0.2, 0.15, 0.15, 0.1))[0], False
    else:
        kernel, is_causal = 2 * round((log_uniform(random, 33, 255) - 1) / 2) + 1, False
    stride, dilation = 1, 1
    if not is_causal and kernel <= 7:
        stride, dilation = random.choices(((1, 1), (2, 1), (1, 2 ** random.randint(1, 7))), (0.6, 0.1, 0.3))[0]
    window = causal(kernel) if is_causal else same(kernel, stride, dilation)
    if dilation * (kernel - 1) + 1 > length:
        return None
    name = f"{batch},{channels},{length},k{kernel}" + (f",s{stride}" if stride > 1 else "")
    name += (f",d{dilation}" if dilation > 1 else "") + (",causal" if is_causal else "")
    case = SequenceCase(
        name,
        (batch, channels, length),
        kernel,
        window,
        bias=random.random() < 0.5,
        channels_last=random.random() < (0.8 if is_causal else 0.25),
    )
    elements = batch * channels * length + case.output.elements
    if elements > budget.elements or case.output.elements * kernel > budget.products:
        return None
    return Benchmark(case.forward(), "drawn", operations=case.operations)


NETWORKS = Distribution(draw, "pytorch", ("forward", "input_grad", "weight_grad"))


def draw_transposed(random: Random, budget: Budget) -> Benchmark | None:
    """A transposed convolution as codecs and vocoders have it: it makes a sequence several times as long."""
    stride = random.choices((1, 2, 4, 5, 8), (0.1, 0.4, 0.2, 0.1, 0.2))[0]
    kernel = random.choice((3, 4, 12)) if stride <= 2 else 2 * stride
    length = rounded(random, log_uniform(random, 40, 16000 / stride), 50, 0.3)
    channels = rounded(random, log_uniform(random, 16, min(2048, 4e6 / (length * stride))), 16, 0.9)
    batch = rounded(random, log_uniform(random, 1, 64), 4, 0.6)
    padding = max(kernel - stride, 0) // 2
    case = SequenceCase(
        f"{batch},{channels},{length},k{kernel}" + (f",s{stride}" if stride > 1 else ""),
        (batch, channels, (length - 1) * stride + kernel - 2 * padding),
        kernel,
        SequenceWindow(stride, padding, padding),
        channels_last=random.random() < 0.25,
    )
    elements = batch * channels * length * (1 + stride)
    if elements > budget.elements or case.output.elements * kernel > budget.products:
        return None
    return Benchmark(case.input_grad(), "drawn", operations=case.operations)


TRANSPOSED = transposed(draw_transposed, F.conv_transpose1d, SequenceWindow)


def conv1d(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Tensor:
    """F.conv1d; of padding that differs from side to side, after F.pad."""
    view = SequenceWindow(*window)
    if view.is_uneven:
        return depthwise_conv1d(input, weight, bias, *window)
    return F.conv1d(input, weight, bias, view.stride, view.before, view.dilation, input.shape[1])


def conv1d_input_grad(
    output_grad: Tensor, weight: Tensor, channels: int, length: int, channels_last: bool | None, *window: int
) -> Tensor:
    """The function that autograd calls for the input of F.conv1d."""
    # Of the input only the shape is read.
    input = output_grad.new_empty(output_grad.shape[0], channels, length)
    return _backward(output_grad, input, weight, SequenceWindow(*window), (True, False, False))[0]


def conv1d_weight_grad(output_grad: Tensor, input: Tensor, kernel_size: int, *window_and_result: Any) -> Tensor:
    """The function that autograd calls for the weight of F.conv1d; the result has the dtype of input."""
    *window, _, _ = window_and_result
    weight = input.new_empty(output_grad.shape[1], 1, kernel_size)
    return _backward(output_grad, input, weight, SequenceWindow(*window), (False, True, False))[1]


def _backward(
    output_grad: Tensor, input: Tensor, weight: Tensor, window: SequenceWindow, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    padding: Any = None if window.is_uneven else window.before
    groups = input.shape[1]
    return torch.ops.aten.convolution_backward(
        output_grad, input, weight, None, window.stride, padding, window.dilation, False, (0,), groups, wanted
    )
