"""The declarations of depthwise_conv2d and of its two gradients.

The operator is bilinear in input and weight, so the gradient of each of the three is made of the other two (and a sum,
for the bias): derivatives of every order run on kernels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft.arguments import flag, record_call, sizes, whole
from torchgraft.kernels.cpp_autograd import record_as_convolution
from torchgraft.layout import is_channels_last, layout_beside
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
from torchgraft.operators.depthwise_conv2d import flops, reference
from torchgraft.operators.depthwise_conv2d.layouts import (
    empty_output_strides,
    input_grad_strides,
    is_transposed_channels_last,
    layouts_of,
    strides_of_copy,
    with_strides,
)
from torchgraft.operators.depthwise_conv2d.window import IntOrPair, Window, make_window
from torchgraft.operators.shared import check_images, empty_images


def depthwise_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrPair = 1,
    padding: IntOrPair | str = 0,
    dilation: IntOrPair = 1,
    groups: int | None = None,
) -> Tensor:
    """Convolves each channel of a batch of images with kernels of its own.

    Equal to `torch.nn.functional.conv2d(input, weight, bias, stride, padding, dilation, groups=C)`. Differentiable
    any number of times, through kernels. float16 and bfloat16 are summed in float32.

    Stride, padding, dilation and groups are Python ints, or integers of other kinds, such as NumPy's; as in
    `torch.nn.functional.conv2d`, a bool is none of these.

    Args:
        input: (N, C, H, W) or (C, H, W), float64, float32, float16 or bfloat16. Contiguous and channels_last are both
            read as they are; other strides are copied first.
        weight: (C * m, 1, KH, KW), on the device of input; m >= 1 kernels a channel. Weight and bias may have another
            of these dtypes: they are then rounded to the dtype of input, and their gradients have their own.
        bias: (C * m), or None.
        stride: pixels between outputs, one number or (height, width).
        padding: zeros around the image, a number or (height, width); 'valid': none; 'same': keeps the size (stride 1).
        dilation: pixels between the taps of a kernel, one number or (height, width).
        groups: the channels that input must have. None: any number of which weight has a multiple.

    Returns:
        (N, C * m, OH, OW), or without N as input, with the strides that `torch.nn.functional.conv2d` gives.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes do not fit together, a stride or dilation is below 1, or a padding is negative.

    Source: `torch.nn.Conv2d` with groups = in_channels.
    """
    # Three ints, or six, are a window as they stand; finding it otherwise takes more than a microsecond. What was found
    # before must not be looked up by values: there 1.0 and True are 1.
    window: Any  # eight ints, once it is found
    if int is type(stride) is type(padding) is type(dilation):
        window = stride, stride, padding, padding, padding, padding, dilation, dilation
    else:
        try:
            stride_height, stride_width = stride if type(stride) is tuple else (stride, stride)
            top, left = padding if type(padding) is tuple else (padding, padding)
            down, right = dilation if type(dilation) is tuple else (dilation, dilation)
            six_ints = (
                int is type(stride_height) is type(stride_width) is type(top) is type(left) is type(down) is type(right)
            )
            window = (stride_height, stride_width, top, left, top, left, down, right) if six_ints else None
        except ValueError:  # a tuple of one number, or of three
            window = None
    if window is None:
        if isinstance(padding, str) and not isinstance(weight, Tensor):
            # What stands for a weight has no size yet, on which the padding depends.
            recorded = record_call(depthwise_conv2d, input, weight, bias, stride, padding, dilation, groups)
            if recorded is not None:
                return recorded
        window = make_window(stride, padding, dilation, known_kernel_size(weight, padding, 2))

    try:
        if groups is None:
            without_batch = input.dim() == 3
        else:
            if type(groups) is not int:
                groups = whole("depthwise_conv2d", "groups", groups)
            shape = input.shape
            without_batch = len(shape) == 3
            fits = shape[-3] == groups
            if fits is not True:
                input = with_channels("depthwise_conv2d", input, groups, fits, 2)
    except (AttributeError, IndexError, RuntimeError):  # no tensor, or of too few dimensions
        without_batch = None
    if without_batch is False:
        return convolution.call(input, weight, bias, *window)
    if without_batch is True and isinstance(input, Tensor):
        return convolution(input.unsqueeze(0), weight, bias, *window).squeeze(0)
    rest = weight, bias, stride, padding, dilation, groups
    return without_tensor(depthwise_conv2d, convolution.call, input, rest, window)


def depthwise_conv2d_input_grad(
    output_grad: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    channels_last: bool = False,
    stride: IntOrPair = 1,
    padding: IntOrPair | str = 0,
    dilation: IntOrPair = 1,
) -> Tensor:
    """The gradient of depthwise_conv2d with respect to its input.

    Args:
        output_grad: (N, C * m, OH, OW), the gradient of the output.
        weight: (C * m, 1, KH, KW), which may have another dtype; it is then rounded to that of output_grad.
        input_size: (C, H, W) of the input, whole numbers.
        channels_last: whether the result is laid out so, or contiguous.
        stride: as for depthwise_conv2d.
        padding: as for depthwise_conv2d.
        dilation: as for depthwise_conv2d.

    Returns:
        (N, C, H, W).

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together.
    """
    name = "depthwise_conv2d_input_grad"
    if isinstance(padding, str) and not isinstance(weight, Tensor):
        rest = input_size, channels_last, stride, padding, dilation
        recorded = record_call(depthwise_conv2d_input_grad, output_grad, weight, *rest)
        if recorded is not None:
            return recorded
    window = make_window(stride, padding, dilation, known_kernel_size(weight, padding, 2), name)
    channels, height, width = sizes(name, "input_size", input_size, "(C, H, W)")
    channels_last = flag(name, "channels_last", channels_last)
    return input_grad(output_grad, weight, channels, height, width, channels_last, *window)


def depthwise_conv2d_weight_grad(
    output_grad: Tensor,
    input: Tensor,
    kernel_size: Sequence[int],
    stride: IntOrPair = 1,
    padding: IntOrPair | str = 0,
    dilation: IntOrPair = 1,
    dtype: torch.dtype | None = None,
    channels_last: bool = False,
) -> Tensor:
    """The gradient of depthwise_conv2d with respect to its weight; the same bits at every run.

    Args:
        output_grad: (N, C * m, OH, OW), the gradient of the output.
        input: (N, C, H, W).
        kernel_size: (KH, KW), whole numbers.
        stride: as for depthwise_conv2d.
        padding: as for depthwise_conv2d.
        dilation: as for depthwise_conv2d.
        dtype: of the result, float64, float32, float16 or bfloat16; None: that of input. float16 and bfloat16 images
            are summed in float32, and a result in float32 is not rounded.
        channels_last: whether the result has the strides of that layout. Elements lie in the same order in both.

    Returns:
        (C * m, 1, KH, KW).

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together.
    """
    name = "depthwise_conv2d_weight_grad"
    height, width = sizes(name, "kernel_size", kernel_size, "(KH, KW)")
    window = make_window(stride, padding, dilation, (height, width), name)
    return weight_grad(output_grad, input, height, width, *window, dtype, flag(name, "channels_last", channels_last))


def _output(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Tensor:
    check_images("depthwise_conv2d", "input", input)
    check_images("depthwise_conv2d", "weight", weight)
    view = Window(*window)
    size = input.shape[0], weight.shape[0], *view.output_size(*input.shape[2:], *weight.shape[2:])
    if size[0] == 0:
        return input.new_empty_strided(size, empty_output_strides(input, size, view))
    return empty_images(input, size, layouts_of(input, weight, view).output)


def _input_grad_output(
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *window: int,
) -> Tensor:
    if channels_last is None:
        channels_last = is_channels_last(output_grad)
    return empty_images(output_grad, (output_grad.shape[0], channels, height, width), channels_last)


def _weight_grad_output(
    output_grad: Tensor, input: Tensor, kernel_height: int, kernel_width: int, *window_and_result: Any
) -> Tensor:
    *_, dtype, channels_last = window_and_result
    return empty_images(input, (output_grad.shape[1], 1, kernel_height, kernel_width), channels_last, dtype)


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
    view, is_empty = Window(*window), input.shape[0] == 0
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


def _input_grad_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *window: int,
) -> tuple[Tensor | None, ...]:
    # The gradient of an input gradient is as large as an input, and plays its part.
    (input,) = output_grads
    return (
        convolution(input, weight, None, *window) if needs_grad[0] else None,
        weight_grad(output_grad, input, *weight.shape[2:], *window, weight.dtype, False) if needs_grad[1] else None,
    )


def _weight_grad_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    output_grad: Tensor,
    input: Tensor,
    kernel_height: int,
    kernel_width: int,
    *window_and_result: Any,
) -> tuple[Tensor | None, ...]:
    *window, _, _ = window_and_result
    # The gradient of a weight gradient is as large as a weight, and plays its part.
    (weight,) = output_grads
    found = None
    if needs_grad[1]:
        view = Window(*window)
        if is_empty := input.shape[0] == 0:
            of_input = is_channels_last(input)
        else:
            of_input = is_transposed_channels_last(output_grad, weight, input.shape, input.shape[1], view)
        found = input_grad(output_grad, weight, *input.shape[1:], layout_beside(output_grad, of_input), *window)
        if view.is_uneven and not is_empty:
            found = with_strides(found, input_grad_strides(input, of_input, view))
    return convolution(input, weight, None, *window) if needs_grad[0] else None, found


def _explain(input: Tensor, weight: Tensor, bias: Tensor | None, *numbers: int) -> None:
    explain_forward("depthwise_conv2d", input, weight, Window(*numbers))


def _explain_input_grad(
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    height: int,
    width: int,
    channels_last: bool | None,
    *numbers: int,
) -> None:
    name = "depthwise_conv2d_input_grad"
    explain_input_grad(name, output_grad, weight, channels, (height, width), Window(*numbers))


def _explain_weight_grad(
    output_grad: Tensor, input: Tensor, kernel_height: int, kernel_width: int, *numbers_and_result: Any
) -> None:
    *numbers, dtype, _ = numbers_and_result
    name, kernel_size = "depthwise_conv2d_weight_grad", (kernel_height, kernel_width)
    explain_weight_grad(name, output_grad, input, kernel_size, dtype, Window(*numbers))


_WINDOW_SCHEMA = (
    "int stride_height, int stride_width, int padding_top, int padding_left, int padding_bottom, int padding_right, "
    "int dilation_height, int dilation_width"
)

convolution = Operator(
    f"torchgraft::depthwise_conv2d(Tensor input, Tensor weight, Tensor? bias, {_WINDOW_SCHEMA}) -> Tensor",
    reference=reference.depthwise_conv2d,
    # A layer takes an image without a batch, too, which `_explain` says.
    shapes="..., M 1 _ _, M -> ...",
    output=_output,
    gradient=_gradient,
    unsaved=("bias",),
    autocast="lower",
    mixed=("weight", "bias"),
    vmap=forward_vmap,
    sharding="N C _ _, C _ _ _, C -> N C _ _; neighbouring pixels are on another device then",
    strides="reference",
    flops=flops.forward,
    explain=_explain,
)

input_grad = Operator(
    "torchgraft::depthwise_conv2d_input_grad(Tensor output_grad, Tensor weight, SymInt channels, SymInt height, "
    f"SymInt width, bool? channels_last, {_WINDOW_SCHEMA}) -> Tensor",
    reference=reference.depthwise_conv2d_input_grad,
    shapes="N M _ _, M 1 _ _ -> N channels height width",
    output=_input_grad_output,
    gradient=_input_grad_gradient,
    mixed=("weight",),
    vmap=input_grad_vmap,
    sharding="N C _ _, C _ _ _, channels=C -> N C _ _; neighbouring pixels are on another device then",
    flops=flops.input_grad,
    explain=_explain_input_grad,
)

weight_grad = Operator(
    "torchgraft::depthwise_conv2d_weight_grad(Tensor output_grad, Tensor input, SymInt kernel_height, "
    f"SymInt kernel_width, {_WINDOW_SCHEMA}, ScalarType? dtype=None, bool channels_last=False) -> Tensor",
    reference=reference.depthwise_conv2d_weight_grad,
    shapes="N M _ _, N C H W -> M 1 kernel_height kernel_width",
    output=_weight_grad_output,
    gradient=_weight_grad_gradient,
    vmap=weight_grad_vmap,
    sharding="N C _ _, N C _ _ -> C _ _ _; neighbouring pixels are on another device then",
    flops=flops.weight_grad,
    explain=_explain_weight_grad,
)


def _record(call: Callable[..., Any]) -> Callable[..., Any]:
    """The operator as a convolution of PyTorch's that records its gradient; its kernels are in recorded.h."""

    def record(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Any:
        weight, bias = in_one_dtype(weight, bias)
        return call(input, weight, bias, window[2:6], window[:2], window[6:], input.shape[1])

    return record


record_as_convolution(convolution.names, _record, 2)
