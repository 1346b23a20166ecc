"""The declarations of depthwise_conv1d and of its two gradients.

A sequence (N, C, L) is an image (N, C, 1, L), and kernels are those of depthwise_conv2d. As there, the gradient of each
of the three operators is made of the other two: derivatives of every order run on kernels.
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
from torchgraft.operators.depthwise_conv1d import flops, reference
from torchgraft.operators.depthwise_conv1d.window import IntOrOne, SequenceWindow, make_window
from torchgraft.operators.depthwise_conv2d.layouts import (
    dense_strides,
    empty_output_strides,
    input_grad_strides,
    layouts_of,
    strides_of_copy,
    with_strides,
)
from torchgraft.operators.shared import check_images
from torchgraft.operators.windows import whole_numbers


def depthwise_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrOne = 1,
    padding: IntOrOne | str = 0,
    dilation: IntOrOne = 1,
    groups: int | None = None,
) -> Tensor:
    """Convolves each channel of a batch of sequences with kernels of its own.

    Equal to `torch.nn.functional.conv1d(input, weight, bias, stride, padding, dilation, groups=C)`. Differentiable
    any number of times, through kernels. float16 and bfloat16 are summed in float32.

    Stride, padding, dilation and groups are Python ints, or integers of other kinds, such as NumPy's; as in
    `torch.nn.functional.conv1d`, a bool is none of these.

    Args:
        input: (N, C, L) or (C, L), float64, float32, float16 or bfloat16, in any strides.
        weight: (C * m, 1, K), on the device of input; m >= 1 kernels a channel. Weight and bias may have another of
            these dtypes: they are then rounded to the dtype of input, and their gradients have their own.
        bias: (C * m), or None.
        stride: elements between outputs, a number, alone or in a tuple.
        padding: zeros on both sides, a number, alone or in a tuple; 'valid' for none; 'same' for as much as keeps the
            length, with stride 1.
        dilation: elements between the taps of a kernel, a number, alone or in a tuple.
        groups: the channels that input must have. None: any number of which weight has a multiple.

    Returns:
        (N, C * m, OL), or without N as input, with the strides that `torch.nn.functional.conv1d` gives: it is
        contiguous for inputs of any strides.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes do not fit together, a stride or dilation is below 1, or a padding is negative.

    Source: `torch.nn.Conv1d` with groups = in_channels.
    """
    # Three ints, alone or in tuples, are a window as they stand; finding it otherwise takes more than a microsecond.
    # What was found before must not be looked up by values: there 1.0 and True are 1.
    window: Any  # four ints, once it is found
    if int is type(stride) is type(padding) is type(dilation):
        window = stride, padding, padding, dilation
    else:
        try:
            (step,) = stride if type(stride) is tuple else (stride,)
            (side,) = padding if type(padding) is tuple else (padding,)
            (gap,) = dilation if type(dilation) is tuple else (dilation,)
            window = (step, side, side, gap) if int is type(step) is type(side) is type(gap) else None
        except ValueError:  # a tuple of several numbers, or of none
            window = None
    if window is None:
        if isinstance(padding, str) and not isinstance(weight, Tensor):
            # What stands for a weight has no size yet, on which the padding depends.
            recorded = record_call(depthwise_conv1d, input, weight, bias, stride, padding, dilation, groups)
            if recorded is not None:
                return recorded
        window = make_window(stride, padding, dilation, known_kernel_size(weight, padding, 1))

    try:
        if groups is None:
            without_batch = input.dim() == 2
        else:
            if type(groups) is not int:
                groups = whole("depthwise_conv1d", "groups", groups)
            shape = input.shape
            without_batch = len(shape) == 2
            fits = shape[-2] == groups
            if fits is not True:
                input = with_channels("depthwise_conv1d", input, groups, fits, 1)
    except (AttributeError, IndexError, RuntimeError):  # no tensor, or of too few dimensions
        without_batch = None
    if without_batch is False:
        return convolution.call(input, weight, bias, *window)
    if without_batch is True and isinstance(input, Tensor):
        return convolution(input.unsqueeze(0), weight, bias, *window).squeeze(0)
    rest = weight, bias, stride, padding, dilation, groups
    return without_tensor(depthwise_conv1d, convolution.call, input, rest, window)


def depthwise_conv1d_input_grad(
    output_grad: Tensor,
    weight: Tensor,
    input_size: Sequence[int],
    channels_last: bool = False,
    stride: IntOrOne = 1,
    padding: IntOrOne | str = 0,
    dilation: IntOrOne = 1,
) -> Tensor:
    """The gradient of depthwise_conv1d with respect to its input.

    Args:
        output_grad: (N, C * m, OL), the gradient of the output.
        weight: (C * m, 1, K), which may have another dtype; it is then rounded to that of output_grad.
        input_size: (C, L) of the input, whole numbers.
        channels_last: whether the result lies as a contiguous (N, L, C) would, or is contiguous.
        stride: as for depthwise_conv1d.
        padding: as for depthwise_conv1d.
        dilation: as for depthwise_conv1d.

    Returns:
        (N, C, L).

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together.
    """
    name = "depthwise_conv1d_input_grad"
    if isinstance(padding, str) and not isinstance(weight, Tensor):
        rest = input_size, channels_last, stride, padding, dilation
        recorded = record_call(depthwise_conv1d_input_grad, output_grad, weight, *rest)
        if recorded is not None:
            return recorded
    window = make_window(stride, padding, dilation, known_kernel_size(weight, padding, 1), name)
    channels, length = sizes(name, "input_size", input_size, "(C, L)")
    return input_grad(output_grad, weight, channels, length, flag(name, "channels_last", channels_last), *window)


def depthwise_conv1d_weight_grad(
    output_grad: Tensor,
    input: Tensor,
    kernel_size: IntOrOne,
    stride: IntOrOne = 1,
    padding: IntOrOne | str = 0,
    dilation: IntOrOne = 1,
    dtype: torch.dtype | None = None,
    channels_last: bool = False,
) -> Tensor:
    """The gradient of depthwise_conv1d with respect to its weight; the same bits at every run.

    Args:
        output_grad: (N, C * m, OL), the gradient of the output.
        input: (N, C, L).
        kernel_size: taps of a kernel, a number, alone or in a tuple.
        stride: as for depthwise_conv1d.
        padding: as for depthwise_conv1d.
        dilation: as for depthwise_conv1d.
        dtype: of the result, float64, float32, float16 or bfloat16; None: that of input. float16 and bfloat16 sequences
            are summed in float32, and a result in float32 is not rounded.
        channels_last: whether the result has the strides of that layout. Elements lie in the same order in both.

    Returns:
        (C * m, 1, K).

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together.
    """
    name = "depthwise_conv1d_weight_grad"
    (taps,) = whole_numbers(name, "kernel_size", kernel_size, 1)
    window = make_window(stride, padding, dilation, (taps,), name)
    return weight_grad(output_grad, input, taps, *window, dtype, flag(name, "channels_last", channels_last))


def _new(like: Tensor, size: tuple[int, int, int], strides: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """Sequences of a size, with the strides of an image of one row; what they hold is undefined."""
    of_batch, of_channels, _, step = strides
    return like.new_empty_strided(size, (of_batch, of_channels, step), dtype=dtype or like.dtype)


def _image_size(size: Sequence[int]) -> tuple[int, int, int, int]:
    batch, channels, length = size
    return batch, channels, 1, length


def _output(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Tensor:
    check_images("depthwise_conv1d", "input", input, 3)
    check_images("depthwise_conv1d", "weight", weight, 3)
    view = SequenceWindow(*window)
    (length,) = view.output_size(input.shape[2], weight.shape[2])
    size = input.shape[0], weight.shape[0], length
    if size[0] == 0:
        return _new(input, size, empty_output_strides(input, _image_size(size), view.of_image))
    return _new(input, size, dense_strides(_image_size(size), layouts_of(input, weight, view.of_image).output))


def _input_grad_output(
    output_grad: Tensor, weight: Tensor, channels: int, length: int, channels_last: bool | None, *window: int
) -> Tensor:
    if channels_last is None:
        channels_last = is_channels_last(output_grad)
    size = output_grad.shape[0], channels, length
    return _new(output_grad, size, dense_strides(_image_size(size), channels_last))


def _weight_grad_output(output_grad: Tensor, input: Tensor, kernel_size: int, *window_and_result: Any) -> Tensor:
    *_, dtype, channels_last = window_and_result
    size = output_grad.shape[1], 1, kernel_size
    return _new(input, size, dense_strides(_image_size(size), channels_last), dtype)


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
    view, is_empty = SequenceWindow(*window).of_image, input.shape[0] == 0
    _, of_input, of_weight = (False,) * 3 if is_empty else layouts_of(input, weight, view)
    found = None
    if needs_grad[0]:
        layout = layout_beside(output_grad, of_input)
        found = input_grad.call(output_grad, weight, *input.shape[1:], layout, *window)
        if is_empty or view.is_uneven:
            found = with_strides(found, _of_sequence(input_grad_strides(input, of_input, view)))
    found_of_weight = None
    if needs_grad[1]:
        found_of_weight = weight_grad.call(output_grad, input, weight.shape[2], *window, weight.dtype, of_weight)
        if is_empty:
            found_of_weight = with_strides(found_of_weight, strides_of_copy(weight))
    return found, found_of_weight, bias_grad(output_grad, weight.dtype) if needs_grad[2] else None


def _of_sequence(strides: Sequence[int]) -> tuple[int, int, int]:
    of_batch, of_channels, _, step = strides
    return of_batch, of_channels, step


def _laid_out_as(sequences: Tensor, like: Tensor) -> Tensor:
    """The same sequences in the layout of others, of which they are a gradient; what is convolved is contiguous."""
    return sequences.transpose(1, 2).contiguous().transpose(1, 2) if is_channels_last(like) else sequences


def _input_grad_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    length: int,
    channels_last: bool | None,
    *window: int,
) -> tuple[Tensor | None, ...]:
    # The gradient of an input gradient is as large as an input, and plays its part.
    (input,) = output_grads
    return (
        _laid_out_as(convolution(input, weight, None, *window), output_grad) if needs_grad[0] else None,
        weight_grad(output_grad, input, weight.shape[2], *window, weight.dtype, False) if needs_grad[1] else None,
    )


def _weight_grad_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    output_grad: Tensor,
    input: Tensor,
    kernel_size: int,
    *window_and_result: Any,
) -> tuple[Tensor | None, ...]:
    *window, _, _ = window_and_result
    # The gradient of a weight gradient is as large as a weight, and plays its part. Layouts follow from strides, and
    # compilers do not keep that of a dimension of one element: this view has the contiguous one.
    weight = output_grads[0].squeeze(1).unsqueeze(1)
    return (
        _laid_out_as(convolution(input, weight, None, *window), output_grad) if needs_grad[0] else None,
        input_grad(output_grad, weight, *input.shape[1:], layout_beside(output_grad, is_channels_last(input)), *window)
        if needs_grad[1]
        else None,
    )


def _explain(input: Tensor, weight: Tensor, bias: Tensor | None, *numbers: int) -> None:
    explain_forward("depthwise_conv1d", input, weight, SequenceWindow(*numbers))


def _explain_input_grad(
    output_grad: Tensor, weight: Tensor, channels: int, length: int, channels_last: bool | None, *numbers: int
) -> None:
    name = "depthwise_conv1d_input_grad"
    explain_input_grad(name, output_grad, weight, channels, (length,), SequenceWindow(*numbers))


def _explain_weight_grad(output_grad: Tensor, input: Tensor, kernel_size: int, *numbers_and_result: Any) -> None:
    *numbers, dtype, _ = numbers_and_result
    name = "depthwise_conv1d_weight_grad"
    explain_weight_grad(name, output_grad, input, (kernel_size,), dtype, SequenceWindow(*numbers))


_WINDOW_SCHEMA = "int stride, int padding_left, int padding_right, int dilation"

convolution = Operator(
    f"torchgraft::depthwise_conv1d(Tensor input, Tensor weight, Tensor? bias, {_WINDOW_SCHEMA}) -> Tensor",
    reference=reference.depthwise_conv1d,
    # A layer takes a sequence without a batch, too, which `_explain` says.
    shapes="..., M 1 _, M -> ...",
    output=_output,
    gradient=_gradient,
    unsaved=("bias",),
    autocast="lower",
    mixed=("weight", "bias"),
    vmap=forward_vmap,
    sharding="N C _, C _ _, C -> N C _; neighbouring elements are on another device then",
    strides="reference",
    flops=flops.forward,
    explain=_explain,
)

input_grad = Operator(
    "torchgraft::depthwise_conv1d_input_grad(Tensor output_grad, Tensor weight, SymInt channels, SymInt length, "
    f"bool? channels_last, {_WINDOW_SCHEMA}) -> Tensor",
    reference=reference.depthwise_conv1d_input_grad,
    shapes="N M _, M 1 _ -> N channels length",
    output=_input_grad_output,
    gradient=_input_grad_gradient,
    mixed=("weight",),
    vmap=input_grad_vmap,
    sharding="N C _, C _ _, channels=C -> N C _; neighbouring elements are on another device then",
    flops=flops.input_grad,
    explain=_explain_input_grad,
)

weight_grad = Operator(
    "torchgraft::depthwise_conv1d_weight_grad(Tensor output_grad, Tensor input, SymInt kernel_size, "
    f"{_WINDOW_SCHEMA}, ScalarType? dtype=None, bool channels_last=False) -> Tensor",
    reference=reference.depthwise_conv1d_weight_grad,
    shapes="N M _, N C L -> M 1 kernel_size",
    output=_weight_grad_output,
    gradient=_weight_grad_gradient,
    vmap=weight_grad_vmap,
    sharding="N C _, N C _ -> C _ _; neighbouring elements are on another device then",
    flops=flops.weight_grad,
    explain=_explain_weight_grad,
)


def _record(call: Callable[..., Any]) -> Callable[..., Any]:
    """The operator as a convolution of PyTorch's that records its gradient, as depthwise_conv2d is one."""

    def record(input: Tensor, weight: Tensor, bias: Tensor | None, *window: int) -> Any:
        weight, bias = in_one_dtype(weight, bias)
        return call(input, weight, bias, window[1:3], window[:1], window[3:], input.shape[1])

    return record


record_as_convolution(convolution.names, _record, 1)
