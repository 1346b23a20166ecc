"""The declarations of depthwise_conv3d and of its two gradients.

Kernels are those of depthwise_conv2d on a CPU, which take volumes, and its own on CUDA.
The gradient of each of the three is made of the other two: derivatives of every order run on kernels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft.arguments import flag, record_call, sizes, whole
from torchgraft.kernels.cpp_autograd import record_as_convolution
from torchgraft.layout import CHANNELS_LAST, is_channels_last, layout_beside
from torchgraft.operator import Operator
from torchgraft.operators.depthwise import (
    bias_grad,
    explain_forward,
    explain_input_grad,
    explain_weight_grad,
    forward_vmap,
    in_one_dtype,
    input_grad_vmap,
    known_kernel_size,
    weight_grad_vmap,
    with_channels,
    without_tensor,
)
from torchgraft.operators.depthwise_conv2d.layouts import (
    dense_strides,
    empty_output_strides,
    input_grad_strides,
    layouts_of,
    strides_of_copy,
    with_strides,
)
from torchgraft.operators.depthwise_conv3d import flops, reference
from torchgraft.operators.depthwise_conv3d.window import IntOrTriple, VolumeWindow, make_window
from torchgraft.operators.shared import check_images


def depthwise_conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrTriple = 1,
    padding: IntOrTriple | str = 0,
    dilation: IntOrTriple = 1,
    groups: int | None = None,
) -> Tensor:
    """Convolves each channel of a batch of volumes with kernels of its own.

    Equal to `torch.nn.functional.conv3d(input, weight, bias, stride, padding, dilation, groups=C)`. Differentiable
    any number of times, through kernels. float16 and bfloat16 are summed in float32.

    Stride, padding, dilation and groups are Python ints, or integers of other kinds, such as NumPy's; as in
    `torch.nn.functional.conv3d`, a bool is none of these.

    Args:
        input: (N, C, D, H, W) or (C, D, H, W), float64, float32, float16 or bfloat16. Contiguous and channels_last_3d
            are both read as they are; other strides are copied first.
        weight: (C * m, 1, KD, KH, KW), on the device of input; m >= 1 kernels a channel. Weight and bias may have
            another of these dtypes: they are then rounded to the dtype of input, and their gradients have their own.
        bias: (C * m), or None.
        stride: voxels between outputs, one number or (depth, height, width).
        padding: zeros around the volume, one number or (depth, height, width); 'valid' for none; 'same' for as much as
            keeps the size, with stride 1.
        dilation: voxels between the taps of a kernel, one number or (depth, height, width).
        groups: the channels that input must have. None: any number of which weight has a multiple.

    Returns:
        (N, C * m, OD, OH, OW), or without N as input, with the strides that `torch.nn.functional.conv3d` gives.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes do not fit together, a stride or dilation is below 1, or a padding is negative.

    Source: `torch.nn.Conv3d` with groups = in_channels.
    """
    # Ints, alone or three in a tuple, are a window as they stand; finding it otherwise takes more than a microsecond.
    # What was found before must not be looked up by values: there 1.0 and True are 1.
    steps: Any = stride if type(stride) is tuple else (stride,) * 3
    sides: Any = padding if type(padding) is tuple else (padding,) * 3
    gaps: Any = dilation if type(dilation) is tuple else (dilation,) * 3
    window: Any = (*steps, *sides, *sides, *gaps)
    if not (len(steps) == len(sides) == len(gaps) == 3 and all(type(number) is int for number in window)):
        if isinstance(padding, str) and not isinstance(weight, Tensor):
            # What stands for a weight has no size yet, on which the padding depends.
            recorded = record_call(depthwise_conv3d, input, weight, bias, stride, padding, dilation, groups)
            if recorded is not None:
                return recorded
        window = make_window(stride, padding, dilation, known_kernel_size(weight, padding, 3))

    try:
        if groups is None:
            without_batch = input.dim() == 4
        else:
            if type(groups) is not int:
                groups = whole("depthwise_conv3d", "groups", groups)
            shape = input.shape
            without_batch = len(shape) == 4
            fits = shape[-4] == groups
            if fits is not True:
                input = with_channels("depthwise_conv3d", input, groups, fits, 3)
    except (AttributeError, IndexError, RuntimeError):  # no tensor, or of too few dimensions
        without_batch = None
    if without_batch is False:
        return convolution.call(input, weight, bias, *window)
    if without_batch is True and isinstance(input, Tensor):
        return convolution(input.unsqueeze(0), weight, bias, *window).squeeze(0)
    rest = weight, bias, stride, padding, dilation, groups
    return without_tensor(depthwise_conv3d, convolution.call, input, rest, window)


def depthwise_conv3d_input_grad(
    output_grad: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    channels_last: bool = False,
    stride: IntOrTriple = 1,
    padding: IntOrTriple | str = 0,
    dilation: IntOrTriple = 1,
) -> Tensor:
    """The gradient of depthwise_conv3d with respect to its input.

    Args:
        output_grad: (N, C * m, OD, OH, OW), the gradient of the output.
        weight: (C * m, 1, KD, KH, KW), which may have another dtype; it is then rounded to that of output_grad.
        input_size: (C, D, H, W) of the input, whole numbers.
        channels_last: whether the result is laid out so, or contiguous.
        stride: as for depthwise_conv3d.
        padding: as for depthwise_conv3d.
        dilation: as for depthwise_conv3d.

    Returns:
        (N, C, D, H, W).

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together.
    """
    name = "depthwise_conv3d_input_grad"
    if isinstance(padding, str) and not isinstance(weight, Tensor):
        rest = input_size, channels_last, stride, padding, dilation
        recorded = record_call(depthwise_conv3d_input_grad, output_grad, weight, *rest)
        if recorded is not None:
            return recorded
    window = make_window(stride, padding, dilation, known_kernel_size(weight, padding, 3), name)
    channels, depth, height, width = sizes(name, "input_size", input_size, "(C, D, H, W)")
    channels_last = flag(name, "channels_last", channels_last)
    return input_grad(output_grad, weight, channels, depth, height, width, channels_last, *window)


def depthwise_conv3d_weight_grad(
    output_grad: Tensor,
    input: Tensor,
    kernel_size: Sequence[int],
    stride: IntOrTriple = 1,
    padding: IntOrTriple | str = 0,
    dilation: IntOrTriple = 1,
    dtype: torch.dtype | None = None,
    channels_last: bool = False,
) -> Tensor:
    """The gradient of depthwise_conv3d with respect to its weight; the same bits at every run.

    Args:
        output_grad: (N, C * m, OD, OH, OW), the gradient of the output.
        input: (N, C, D, H, W).
        kernel_size: (KD, KH, KW), whole numbers.
        stride: as for depthwise_conv3d.
        padding: as for depthwise_conv3d.
        dilation: as for depthwise_conv3d.
        dtype: of the result, float64, float32, float16 or bfloat16; None: that of input. float16 and bfloat16 volumes
            are summed in float32, and a result in float32 is not rounded.
        channels_last: whether the result has the strides of that layout. Elements lie in the same order in both.

    Returns:
        (C * m, 1, KD, KH, KW).

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together.
    """
    name = "depthwise_conv3d_weight_grad"
    kernel: Any = sizes(name, "kernel_size", kernel_size, "(KD, KH, KW)")
    window = make_window(stride, padding, dilation, kernel, name)
    return weight_grad(output_grad, input, *kernel, *window, dtype, flag(name, "channels_last", channels_last))


def _new(like: Tensor, size: Sequence[int], channels_last: bool, dtype: torch.dtype | None = None) -> Tensor:
    """Volumes of a size and a layout, of the dtype and on the device of another tensor; what they hold is undefined."""
    return like.new_empty_strided(size, dense_strides(size, channels_last), dtype=dtype or like.dtype)


def _output(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Tensor:
    check_images("depthwise_conv3d", "input", input, 5)
    check_images("depthwise_conv3d", "weight", weight, 5)
    view = VolumeWindow(*window)
    size = input.shape[0], weight.shape[0], *view.output_size(*input.shape[2:], *weight.shape[2:])
    if size[0] == 0:
        return input.new_empty_strided(size, empty_output_strides(input, size, view))
    return _new(input, size, layouts_of(input, weight, view).output)


def _input_grad_output(
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    depth: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *window: int,
) -> Tensor:
    if channels_last is None:
        channels_last = is_channels_last(output_grad)
    return _new(output_grad, (output_grad.shape[0], channels, depth, height, width), channels_last)


def _weight_grad_output(
    output_grad: Tensor,
    input: Tensor,
    kernel_depth: int,
    kernel_height: int,
    kernel_width: int,
    *window_and_result: Any,
) -> Tensor:
    *_, dtype, channels_last = window_and_result
    return _new(input, (output_grad.shape[1], 1, kernel_depth, kernel_height, kernel_width), channels_last, dtype)


def _gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *window: int,
) -> tuple[Tensor | None, ...]:
    (output_grad,) = output_grads
    view, is_empty = VolumeWindow(*window), input.shape[0] == 0
    _, of_input, of_weight = (False,) * 3 if is_empty else layouts_of(input, weight, view)
    found = None
    if needs_grad[0]:
        layout = layout_beside(output_grad, of_input)
        found = input_grad.call(output_grad, weight, *input.shape[1:], layout, *window)
        if is_empty or view.is_uneven:
            found = with_strides(found, input_grad_strides(input, of_input, view))
    found_of_weight = None
    if needs_grad[1]:
        found_of_weight = weight_grad.call(output_grad, input, *weight.shape[2:], *window, weight.dtype, of_weight)
        if is_empty:
            found_of_weight = with_strides(found_of_weight, strides_of_copy(weight))
    return found, found_of_weight, bias_grad(output_grad, weight.dtype) if needs_grad[2] else None


def _laid_out_as(volumes: Tensor, like: Tensor) -> Tensor:
    """The same volumes in the layout of others, of which they are a gradient: float64 is convolved contiguous."""
    return volumes.contiguous(memory_format=CHANNELS_LAST[5]) if is_channels_last(like) else volumes


def _input_grad_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    depth: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *window: int,
) -> tuple[Tensor | None, ...]:
    # The gradient of an input gradient is as large as an input, and plays its part.
    (input,) = output_grads
    return (
        _laid_out_as(convolution(input, weight, None, *window), output_grad) if needs_grad[0] else None,
        weight_grad(output_grad, input, *weight.shape[2:], *window, weight.dtype, False) if needs_grad[1] else None,
    )


def _weight_grad_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    output_grad: Tensor,
    input: Tensor,
    kernel_depth: int,
    kernel_height: int,
    kernel_width: int,
    *window_and_result: Any,
) -> tuple[Tensor | None, ...]:
    *window, _, _ = window_and_result
    # The gradient of a weight gradient is as large as a weight, and plays its part.
    (weight,) = output_grads
    return (
        _laid_out_as(convolution(input, weight, None, *window), output_grad) if needs_grad[0] else None,
        input_grad(output_grad, weight, *input.shape[1:], layout_beside(output_grad, is_channels_last(input)), *window)
        if needs_grad[1]
        else None,
    )


def _explain(input: Tensor, weight: Tensor, bias: Tensor | None, *numbers: int) -> None:
    explain_forward("depthwise_conv3d", input, weight, VolumeWindow(*numbers))


def _explain_input_grad(
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    depth: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *numbers: int,
) -> None:
    name = "depthwise_conv3d_input_grad"
    explain_input_grad(name, output_grad, weight, channels, (depth, height, width), VolumeWindow(*numbers))


def _explain_weight_grad(
    output_grad: Tensor,
    input: Tensor,
    kernel_depth: int,
    kernel_height: int,
    kernel_width: int,
    *numbers_and_result: Any,
) -> None:
    *numbers, dtype, _ = numbers_and_result
    name, kernel_size = "depthwise_conv3d_weight_grad", (kernel_depth, kernel_height, kernel_width)
    explain_weight_grad(name, output_grad, input, kernel_size, dtype, VolumeWindow(*numbers))


_WINDOW_SCHEMA = (
    "int stride_depth, int stride_height, int stride_width, int padding_front, int padding_top, int padding_left, "
    "int padding_back, int padding_bottom, int padding_right, int dilation_depth, int dilation_height, "
    "int dilation_width"
)

convolution = Operator(
    f"torchgraft::depthwise_conv3d(Tensor input, Tensor weight, Tensor? bias, {_WINDOW_SCHEMA}) -> Tensor",
    reference=reference.depthwise_conv3d,
    # A layer takes a volume without a batch, too, which `_explain` says.
    shapes="..., M 1 _ _ _, M -> ...",
    output=_output,
    gradient=_gradient,
    unsaved=("bias",),
    autocast="lower",
    mixed=("weight", "bias"),
    vmap=forward_vmap,
    sharding="N C _ _ _, C _ _ _ _, C -> N C _ _ _; neighbouring voxels are on another device then",
    strides="reference",
    flops=flops.forward,
    explain=_explain,
)

input_grad = Operator(
    "torchgraft::depthwise_conv3d_input_grad(Tensor output_grad, Tensor weight, SymInt channels, SymInt depth, "
    f"SymInt height, SymInt width, bool? channels_last, {_WINDOW_SCHEMA}) -> Tensor",
    reference=reference.depthwise_conv3d_input_grad,
    shapes="N M _ _ _, M 1 _ _ _ -> N channels depth height width",
    output=_input_grad_output,
    gradient=_input_grad_gradient,
    mixed=("weight",),
    vmap=input_grad_vmap,
    sharding="N C _ _ _, C _ _ _ _, channels=C -> N C _ _ _; neighbouring voxels are on another device then",
    flops=flops.input_grad,
    explain=_explain_input_grad,
)

weight_grad = Operator(
    "torchgraft::depthwise_conv3d_weight_grad(Tensor output_grad, Tensor input, SymInt kernel_depth, "
    f"SymInt kernel_height, SymInt kernel_width, {_WINDOW_SCHEMA}, ScalarType? dtype=None, "
    "bool channels_last=False) -> Tensor",
    reference=reference.depthwise_conv3d_weight_grad,
    shapes="N M _ _ _, N C D H W -> M 1 kernel_depth kernel_height kernel_width",
    output=_weight_grad_output,
    gradient=_weight_grad_gradient,
    vmap=weight_grad_vmap,
    sharding="N C _ _ _, N C _ _ _ -> C _ _ _ _; neighbouring voxels are on another device then",
    flops=flops.weight_grad,
    explain=_explain_weight_grad,
)


def _record(call: Callable[..., Any]) -> Callable[..., Any]:
    """The operator as a convolution of PyTorch's that records its gradient; its kernels are in recorded.h."""

    def record(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Any:
        weight, bias = in_one_dtype(weight, bias)
        return call(input, weight, bias, window[3:9], window[:3], window[9:], input.shape[1])

    return record


record_as_convolution(convolution.names, _record, 3)
