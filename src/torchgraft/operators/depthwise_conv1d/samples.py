"""Inputs for depthwise_conv1d and its gradients: borders of its kernels, each by name.

Kernels are those of depthwise_conv2d, whose own samples have more of their borders; here are those of one row.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import torch

from torchgraft.nn import DepthwiseConv1d
from torchgraft.operators.depthwise_conv1d import benchmarks
from torchgraft.operators.depthwise_conv1d.case import PLAIN, SequenceCase, causal, same
from torchgraft.operators.depthwise_conv1d.drawing import draw_any
from torchgraft.operators.depthwise_conv1d.window import SequenceWindow
from torchgraft.sampling import Distribution, Drawn, Large, ModuleSample, ReplacedLayer, Sample, Samples

_BOTH_LAYOUTS = (
    SequenceCase("three taps", (2, 3, 11), 3, same(3)),
    SequenceCase("four taps, causal, as in Mamba", (2, 24, 37), 4, causal(4)),
    SequenceCase("fifteen taps as in conformers", (2, 17, 49), 15, same(15)),
    SequenceCase("31 taps", (2, 5, 33), 31, same(31)),
    SequenceCase("a kernel longer than a vector, and than the sequence", (1, 2, 40), 65, same(65)),
    SequenceCase("dilation 4 as in Conv-TasNet", (2, 6, 35), 3, same(3, dilation=4)),
    SequenceCase("dilation longer than the sequence", (1, 2, 9), 3, same(3, dilation=12)),
    SequenceCase("stride 2", (2, 5, 20), 5, same(5, 2)),
    SequenceCase("stride 2 and dilation 3, even length", (2, 3, 26), 4, SequenceWindow(2, 5, 4, 3)),
    SequenceCase("stride longer than the kernel", (2, 3, 17), 2, SequenceWindow(5, 1, 0)),
    SequenceCase("stride longer than the sequence", (2, 3, 4), 3, SequenceWindow(7, 1, 1)),
    SequenceCase("even kernel, padded as 'same'", (2, 3, 12), 4, SequenceWindow(1, 1, 2)),
    SequenceCase("causal, padded before alone", (2, 8, 19), 4, SequenceWindow(1, 3, 0)),
    SequenceCase("padded behind alone", (1, 2, 13), 5, SequenceWindow(1, 0, 4)),
    SequenceCase("padding longer than the kernel", (1, 3, 5), 3, SequenceWindow(1, 6, 5)),
    SequenceCase("no padding, eight channels", (1, 8, 21), 4, PLAIN),
    SequenceCase("one tap", (2, 3, 7), 1, PLAIN),
    SequenceCase("multiplier 2", (2, 3, 18), 3, same(3), multiplier=2),
    SequenceCase("one channel, multiplier 4", (2, 1, 17), 3, same(3), multiplier=4),
    SequenceCase("no bias", (2, 3, 9), 3, same(3), bias=False),
    SequenceCase("one element", (3, 4, 1), 3, same(3)),
    SequenceCase("empty batch", (0, 3, 9), 3, same(3)),
)

_SINGLE = (
    # Longer than what a thread takes along, and than a tile of a GPU.
    SequenceCase("a long row", (1, 2, 4103), 7, same(7)),
    SequenceCase("a long row of one channel", (2, 1, 2050), 31, same(31)),
    SequenceCase("a long row, channels_last", (1, 18, 1030), 4, causal(4), channels_last=True),
    SequenceCase("a long row with stride 2", (1, 3, 2051), 5, same(5, 2)),
    SequenceCase("a long row with dilation 128", (1, 3, 2001), 3, same(3, dilation=128)),
    # As many as leave threads on every GPU several results, of which some have no neighbour.
    SequenceCase("a long row of 131 channels, channels_last", (1, 131, 4131), 7, same(7), channels_last=True),
    SequenceCase("31 taps with stride 2, channels_last", (2, 12, 83), 31, same(31, 2), channels_last=True),
    SequenceCase("19 taps with stride 4, channels_last", (1, 36, 150), 19, same(19, 4), channels_last=True),
    SequenceCase("stride 4, dilation 6, channels_last", (2, 5, 97), 9, same(9, 4, 6), channels_last=True),
    # With a stride of 1 so many taps are computed in the other layout.
    SequenceCase(
        "256 taps with stride 2, channels_last", (1, 40, 300), 256, SequenceWindow(2, 255, 0), channels_last=True
    ),
    SequenceCase(
        "257 taps with stride 2, channels_last", (1, 3, 300), 257, SequenceWindow(2, 256, 0), channels_last=True
    ),
    SequenceCase("many short sequences", (33, 20, 3), 3, same(3), channels_last=True),
    SequenceCase("1030 channels", (1, 1030, 5), 4, causal(4), channels_last=True),
)


def _cases() -> Iterator[SequenceCase]:
    for number, case in enumerate(_BOTH_LAYOUTS):
        yield case
        # A gradient that is not told otherwise is laid out as what it is made of: here.
        yield replace(case, name=f"{case.name}, channels_last", channels_last=True, is_told=number % 2 == 0)
    yield from _SINGLE


def _draw_case(random: Random) -> SequenceCase:
    dilation, kernel, length, left = (
        random.randint(1, 3),
        random.randint(1, 6),
        random.randint(1, 20),
        random.randint(0, 5),
    )
    # Padding behind, at least as much as the kernel needs to fit.
    right = max(random.randint(0, 5), dilation * (kernel - 1) + 1 - length - left)
    return SequenceCase(
        "drawn",
        (random.randint(0, 3), random.randint(1, 5), length),
        kernel,
        SequenceWindow(random.randint(1, 4), left, right, dilation),
        multiplier=random.randint(1, 3),
        bias=random.random() < 0.5,
        channels_last=random.random() < 0.5,
        is_told=random.random() < 0.5,
    )


def _taps_summed(input: Any, weight: Any, *rest: Any) -> int:
    return int(weight.shape[2])


def _input_grad_summed(output_grad: Any, weight: Any, channels: int, *rest: Any) -> int:
    return int(weight.shape[2] * (weight.shape[0] // channels))


def _outputs_summed(output_grad: Any, *rest: Any) -> int:
    return int(output_grad.shape[0] * output_grad.shape[2])


def _is_defined(sample: Sample) -> bool:
    """Whether no tap lies over padding: there PyTorch's own implementations disagree about NaN times nothing."""
    return not SequenceWindow(*sample.arguments[-len(PLAIN) :]).padded


def _is_never_defined(sample: Sample) -> bool:
    """For the gradients: at the border of a sequence even a convolution without padding has taps over nothing."""
    return False


def _weight_grad_in_parts(sample: Sample) -> Large:
    return Large(sample, batched=(0, 1), combine="sum")


_MODULES = (
    ModuleSample("three taps with padding", lambda: DepthwiseConv1d(3, 3, padding=1), (Drawn((2, 3, 17)),)),
    ModuleSample(
        "every option",
        lambda: DepthwiseConv1d(2, 3, 2, 2, 2, bias=False, channel_multiplier=3, padding_mode="reflect"),
        (Drawn((2, 2, 18), channels_last=True),),
    ),
)


def _replaced(name: str, bias: bool) -> ReplacedLayer:
    return ReplacedLayer(
        name,
        "nn.Conv1d",
        partial(DepthwiseConv1d, 8, 3, padding=1, bias=bias),
        partial(torch.nn.Conv1d, 8, 8, 3, padding=1, groups=8, bias=bias),
        (2, 8, 16),
    )


_REPLACED = (_replaced("DepthwiseConv1d", bias=True), _replaced("DepthwiseConv1d, no bias", bias=False))

# The last sequence lies beyond what 32 bits can index.
_LARGE = tuple(
    SequenceCase(f"more than 2**31 elements{name}", (130, 64, 2**18), 3, same(3), channels_last=channels_last)
    for name, channels_last in (("", False), (", channels_last", True))
)


def _samples(
    make: Callable[[SequenceCase], Sample],
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
    "depthwise_conv1d": _samples(
        SequenceCase.forward,
        _taps_summed,
        _is_defined,
        benchmarks.conv1d,
        modules=_MODULES,
        replaced=_REPLACED,
        networks=benchmarks.NETWORKS,
    ),
    "depthwise_conv1d_input_grad": _samples(
        SequenceCase.input_grad,
        _input_grad_summed,
        _is_never_defined,
        benchmarks.conv1d_input_grad,
        networks=benchmarks.TRANSPOSED,
    ),
    "depthwise_conv1d_weight_grad": _samples(
        SequenceCase.weight_grad,
        _outputs_summed,
        _is_never_defined,
        benchmarks.conv1d_weight_grad,
        _weight_grad_in_parts,
    ),
}
