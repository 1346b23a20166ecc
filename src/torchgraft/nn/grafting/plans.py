"""Plans: how the next calls of a grafted convolution go to a kernel, found once for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from torchgraft._private import pytorch
from torchgraft.operator import Operator
from torchgraft.operator.call import variable_of
from torchgraft.operators.depthwise_conv1d.operator import convolution as convolution_1d
from torchgraft.operators.depthwise_conv2d.operator import convolution as convolution_2d
from torchgraft.operators.depthwise_conv3d.operator import convolution as convolution_3d

# By the number of spatial dimensions.
_OPERATORS: dict[int, Operator] = {1: convolution_1d, 2: convolution_2d, 3: convolution_3d}

# The facts and the way, as `make_plan` returns them.
Plan = tuple[tuple[Any, ...], tuple[Any, ...]]


def make_plan(layer: Any, rank: int, input: Any, weight: Any, theirs: Callable[..., Tensor]) -> Plan | None:
    """Makes the plan of a layer for calls like the one that it gets now.

    The plan is of plain tuples, which Python takes apart in one instruction each.

    Args:
        layer: a convolution of PyTorch's class of this rank, with a group for each channel.
        rank: how many spatial dimensions it has.
        input: of the call.
        weight: of the call.
        theirs: the method `_conv_forward` of PyTorch's class.

    Returns:
        First the facts, which hold as long as these are the same objects; equal ones are not enough, because 1.0 equals
        1: stride, padding, dilation, padding mode, groups and in_channels of the layer, the dtype of the weight, the
        kind of device, whether that is a GPU, the variable of the operator's call that finds the recorder, and the
        recorder that it finds.

        Then the way: PyTorch's convolution that records a gradient, the padding as it takes it, the operator's kernel,
        the numbers of its window, the function that explains errors of both, how many dimensions an input with a batch
        has, the name of PyTorch's function, and `theirs`. All are None if such calls have no short way; no input has
        None dimensions.

        None if there is no plan for tensors of this kind.
    """
    is_plain = type(input) is Tensor and type(weight) in (Tensor, nn.Parameter)
    if not is_plain or input.device.type not in pytorch.DEVICE_KEYS:
        return None
    device, call = input.device.type, _OPERATORS[rank].call
    recorder_of, kernel, recover = (variable_of(call, name) for name in ("recorder_of", "kernel", "recover"))
    if recorder_of is None or kernel is None or recover is None:
        return None
    recorder = recorder_of.cell_contents(device)
    steps = layer.stride, layer.padding, layer.dilation
    has_short_way = (
        recorder is not None
        and layer.padding_mode == "zeros"
        and type(layer.groups) is int
        and all(type(each) is tuple and len(each) == rank and {*map(type, each)} == {int} for each in steps)
    )
    facts = (
        *steps,
        layer.padding_mode,
        layer.groups,
        layer.in_channels,
        weight.dtype,
        device,
        device == "cuda",
        recorder_of,
        recorder,
    )
    if not has_short_way:
        return facts, (None,) * 8
    sides = layer.padding * 2
    window = *layer.stride, *sides, *layer.dilation
    convolve = pytorch.recorded_convolution(device)
    callees = convolve, sides, kernel.cell_contents, window, recover.cell_contents
    return facts, (*callees, rank + 2, f"conv{rank}d", theirs)
