"""The declarations of shift and of its gradients.

The operator is linear in its input and piecewise linear in either offset. So the derivative along an offset is a shift
of differences by the other offset and a whole number, and every derivative is made of the same operators: those of
every order run on kernels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchgraft.arguments import flag, whole
from torchgraft.layout import is_channels_last
from torchgraft.operator import Operator
from torchgraft.operators.shared import (
    batch_as_channels,
    check_images,
    empty_images,
    require,
    require_shape,
)
from torchgraft.operators.shift import reference


def shift(input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int = 1) -> Tensor:
    """Moves each channel by a fractional offset of its own.

    output[n, c, t, v] is the bilinear sample of input[n, c] at (t * stride + y_offset[c], v + x_offset[c]), zero
    outside. Differentiable any number of times, through kernels; at a whole offset the derivative along it is that to
    the right. A tap whose weight is exactly zero is read by the gradient of the offsets alone. An offset that is not
    finite makes its channel NaN.

    Args:
        input: (N, C, T, V), T the time and V the joints of a skeleton, or an image's height and width; float64,
            float32, float16 or bfloat16. Contiguous and channels_last are both read as they are; other strides are
            copied first.
        x_offset: (C), in columns, of the dtype and on the device of input.
        y_offset: (C), in rows.
        stride: rows between results, 1 or more: what `operator.index` takes, NumPy's integers among it, but no bool.

    Returns:
        (N, C, T // stride, V), in the memory layout of input.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together, or a stride below 1.

    Source: Cheng et al., "Skeleton-Based Action Recognition with Shift Graph Convolutional Network", CVPR 2020, where
        the temporal shift is this with its x offset near zero; Jeon and Kim, "Constructing Fast Network through
        Deconstruction of Convolution", NeurIPS 2018.
    """
    if type(stride) is not int:
        stride = whole("shift", "stride", stride)
    return sample.call(input, x_offset, y_offset, stride)


def shift_input_grad(
    output_grad: Tensor,
    x_offset: Tensor,
    y_offset: Tensor,
    height: int,
    channels_last: bool = False,
    stride: int = 1,
) -> Tensor:
    """The gradient of shift with respect to its input.

    Args:
        output_grad: (N, C, T // stride, V), the gradient of the output.
        x_offset: (C).
        y_offset: (C).
        height: T of the input.
        channels_last: whether the result is laid out so, or contiguous.
        stride: as for shift.

    Returns:
        (N, C, T, V).

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together.
    """
    if not (type(height) is type(stride) is int and type(channels_last) is bool):
        name = "shift_input_grad"
        height, stride = whole(name, "height", height), whole(name, "stride", stride)
        channels_last = flag(name, "channels_last", channels_last)
    return input_grad.call(output_grad, x_offset, y_offset, height, channels_last, stride)


def shift_offset_grad(
    output_grad: Tensor, input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int = 1
) -> tuple[Tensor, Tensor]:
    """The gradients of shift with respect to its offsets; the same bits at every run.

    Args:
        output_grad: (N, C, T // stride, V), the gradient of the output.
        input: (N, C, T, V).
        x_offset: (C).
        y_offset: (C).
        stride: as for shift.

    Returns:
        The gradients of x_offset and of y_offset, (C) each.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together.
    """
    if type(stride) is not int:
        stride = whole("shift_offset_grad", "stride", stride)
    x_grad, y_grad = offset_grad.call(output_grad, input, x_offset, y_offset, stride)
    return x_grad, y_grad


def shift_grads(
    output_grad: Tensor, input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """All gradients of shift, from one reading of the input and of the output's gradient.

    Args:
        output_grad: (N, C, T // stride, V), the gradient of the output.
        input: (N, C, T, V).
        x_offset: (C).
        y_offset: (C).
        stride: as for shift.

    Returns:
        The gradients of input, in its memory layout, of x_offset and of y_offset.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together.
    """
    if type(stride) is not int:
        stride = whole("shift_grads", "stride", stride)
    all_grads = grads.call(output_grad, input, x_offset, y_offset, stride)
    return all_grads[0], all_grads[1], all_grads[2]


def _output(input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int) -> Tensor:
    check_images("shift", "input", input)
    batch, channels, height, width = input.shape
    return empty_images(input, (batch, channels, height // stride, width), is_channels_last(input))


def _input_grad_output(
    output_grad: Tensor, x_offset: Tensor, y_offset: Tensor, height: int, channels_last: bool, stride: int
) -> Tensor:
    check_images("shift_input_grad", "output_grad", output_grad)
    batch, channels, _, width = output_grad.shape
    return empty_images(output_grad, (batch, channels, height, width), channels_last)


def _grads_output(
    output_grad: Tensor, input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int
) -> tuple[Tensor, Tensor, Tensor]:
    check_images("shift_grads", "input", input)
    images = empty_images(input, input.shape, is_channels_last(input))
    return images, x_offset.new_empty(x_offset.shape), y_offset.new_empty(y_offset.shape)


def _gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    input: Tensor,
    x_offset: Tensor,
    y_offset: Tensor,
    stride: int,
) -> tuple[Tensor | None, ...]:
    (output_grad,) = output_grads
    needs_input, needs_x, needs_y = needs_grad
    if not (needs_x or needs_y):
        shape = input.shape[2], is_channels_last(input)
        return input_grad.call(output_grad, x_offset, y_offset, *shape, stride), None, None
    arguments = output_grad, input, x_offset, y_offset, stride
    found = grads.call(*arguments) if needs_input else (None, *offset_grad.call(*arguments))
    return found[0], found[1] if needs_x else None, found[2] if needs_y else None


def _input_grad_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    output_grad: Tensor,
    x_offset: Tensor,
    y_offset: Tensor,
    height: int,
    channels_last: bool,
    stride: int,
) -> tuple[Tensor | None, ...]:
    # The gradient of an input gradient is as large as an input, and plays its part.
    (input,) = output_grads
    needs_output_grad, needs_x, needs_y = needs_grad
    of_output_grad = sample(input, x_offset, y_offset, stride) if needs_output_grad else None
    if not (needs_x or needs_y):
        return of_output_grad, None, None
    x_grad, y_grad = offset_grad(output_grad, input, x_offset, y_offset, stride)
    return of_output_grad, x_grad if needs_x else None, y_grad if needs_y else None


def _in_float32(gradient: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Tensor | None, ...]]:
    """A formula of several steps, of which two-byte types would round each."""

    def formula(
        needs_grad: Sequence[bool],
        output_grads: Sequence[Tensor | None],
        saved: Sequence[Tensor],
        output_grad: Tensor,
        *arguments: Any,
    ) -> tuple[Tensor | None, ...]:
        dtype = output_grad.dtype
        if dtype.itemsize != 2:
            return gradient(needs_grad, output_grads, saved, output_grad, *arguments)
        wide = [None if each is None else each.float() for each in output_grads]
        values = (each.float() if isinstance(each, Tensor) else each for each in (output_grad, *arguments))
        found = gradient(needs_grad, wide, saved, *values)
        return tuple(None if each is None else each.to(dtype) for each in found)

    return formula


@_in_float32
def _offset_grad_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    output_grad: Tensor,
    input: Tensor,
    x_offset: Tensor,
    y_offset: Tensor,
    stride: int,
) -> tuple[Tensor | None, ...]:
    along_x, along_y = output_grads
    arguments = output_grad, input, x_offset, y_offset
    results: list[Tensor | None] = [None, None, None, None]
    if output_grad.shape[2] == 0:  # and then a stride may be larger than anything
        return _zeros_for_none(results, arguments, needs_grad)

    def add(place: int, value: Tensor) -> None:
        before = results[place]
        results[place] = value if before is None else before + value

    # Along x a result is a shift by a whole number of columns of the differences between columns.
    if along_x is not None and (needs_grad[0] or needs_grad[1]):
        whole, factor = x_offset.detach().floor(), along_x[:, None, None]
        if needs_grad[0]:
            differences = F.pad(input, (0, 1)) - F.pad(input, (1, 0))
            add(0, factor * sample(differences, whole, y_offset, stride)[..., 1:])
        if needs_grad[1]:
            moved = _input_grad_like(input, F.pad(factor * output_grad, (1, 0)), whole, y_offset, 0, stride)
            add(1, moved[..., :-1] - moved[..., 1:])
    if along_y is not None and (needs_grad[0] or needs_grad[1]):
        whole, factor = y_offset.detach().floor(), along_y[:, None, None]
        if needs_grad[0]:
            add(0, factor * sample(_row_differences(input, stride), x_offset, whole, stride)[:, :, 1:])
        if needs_grad[1]:
            moved = _input_grad_like(input, F.pad(factor * output_grad, (0, 0, 1, 0)), x_offset, whole, stride, stride)
            add(1, moved[:, :, stride - 1 : -1] - moved[:, :, stride:])
    # Along either offset alone the derivative is constant between whole numbers; what is left is the mixed one.
    needs_x, needs_y = needs_grad[2] and along_y is not None, needs_grad[3] and along_x is not None
    if needs_x or needs_y:
        padded = F.pad(output_grad, (0, 0, 1, 0))
        mixed = offset_grad(padded, _row_differences(input, stride), x_offset, y_offset.detach().floor(), stride)[0]
        if needs_x and along_y is not None:
            add(2, along_y * mixed)
        if needs_y and along_x is not None:
            add(3, along_x * mixed)
    return _zeros_for_none(results, arguments, needs_grad)


def _zeros_for_none(
    results: Sequence[Tensor | None], arguments: Sequence[Tensor], needs_grad: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of arguments, zero where one is needed and nothing was found."""
    return tuple(
        torch.zeros_like(argument) if needed and each is None else each
        for argument, needed, each in zip(arguments, needs_grad, results, strict=False)
    )


def _row_differences(input: Tensor, stride: int) -> Tensor:
    """Differences between rows, the first at a row further up, where the shift begins one result earlier."""
    return F.pad(input, (0, 0, stride - 1, 1)) - F.pad(input, (0, 0, stride, 0))


def _input_grad_like(
    input: Tensor, output_grad: Tensor, x_offset: Tensor, y_offset: Tensor, more_rows: int, stride: int
) -> Tensor:
    height = input.shape[2] + more_rows
    return input_grad(output_grad, x_offset, y_offset, height, is_channels_last(input), stride)


@_in_float32
def _grads_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    output_grad: Tensor,
    input: Tensor,
    x_offset: Tensor,
    y_offset: Tensor,
    stride: int,
) -> tuple[Tensor | None, ...]:
    of_input_grad, *of_offset_grads = output_grads
    arguments = output_grad, input, x_offset, y_offset
    found: list[Tensor | None] = [None] * len(arguments)
    if any(each is not None for each in of_offset_grads):
        found = list(_offset_grad_gradient(needs_grad, of_offset_grads, saved, *arguments, stride))
    if of_input_grad is not None:
        needed = needs_grad[0], needs_grad[2], needs_grad[3]
        shape = input.shape[2], is_channels_last(input)
        more = _input_grad_gradient(needed, (of_input_grad,), saved, output_grad, x_offset, y_offset, *shape, stride)
        for place, each in zip((0, 2, 3), more, strict=True):
            before = found[place]
            found[place] = each if before is None or each is None else before + each
    return _zeros_for_none(found, arguments, needs_grad)


def _explain_stride(name: str, stride: int) -> None:
    require(stride >= 1, name, f"stride must be at least 1, got {stride}")


def _explain(input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int) -> None:
    _explain_stride("shift", stride)


def _explain_input_grad(
    output_grad: Tensor, x_offset: Tensor, y_offset: Tensor, height: int, channels_last: bool, stride: int
) -> None:
    name = "shift_input_grad"
    batch, channels, _, width = output_grad.shape
    _explain_stride(name, stride)
    require(height >= 0, name, f"height must not be negative, got {height}")
    expected = batch, channels, height // stride, width
    require_shape(name, "output_grad", output_grad, expected, f" for a height of {height} and a stride of {stride}")
    # What fits the memory that a stride saves may not fit without.
    require(batch * channels * width * height < 2**60, name, "these sizes make a tensor that no memory can hold")


def _explain_with_input(name: str) -> Any:
    def explain(output_grad: Tensor, input: Tensor, x_offset: Tensor, y_offset: Tensor, stride: int) -> None:
        batch, channels, height, width = input.shape
        _explain_stride(name, stride)
        expected = batch, channels, height // stride, width
        require_shape(name, "output_grad", output_grad, expected, " for these sizes")

    return explain


sample = Operator(
    "torchgraft::shift(Tensor input, Tensor x_offset, Tensor y_offset, int stride) -> Tensor",
    reference=reference.shift,
    shapes="N C T V, C, C -> N C _ V",
    output=_output,
    gradient=_gradient,
    autocast="promote",
    vmap=batch_as_channels((1, 0, 0), (1,)),
    sharding="N C _ _, C, C -> N C _ _; a sample lies on another device then",
    explain=_explain,
)

input_grad = Operator(
    "torchgraft::shift_input_grad(Tensor output_grad, Tensor x_offset, Tensor y_offset, SymInt height, "
    "bool channels_last, int stride) -> Tensor",
    reference=reference.shift_input_grad,
    shapes="N C _ V, C, C -> N C height V",
    output=_input_grad_output,
    gradient=_input_grad_gradient,
    vmap=batch_as_channels((1, 0, 0), (1,)),
    sharding="N C _ _, C, C -> N C _ _; a sample lies on another device then",
    explain=_explain_input_grad,
)

offset_grad = Operator(
    "torchgraft::shift_offset_grad(Tensor output_grad, Tensor input, Tensor x_offset, Tensor y_offset, int stride) "
    "-> (Tensor x_offset_grad, Tensor y_offset_grad)",
    reference=reference.shift_offset_grad,
    shapes="N C _ V, N C T V, C, C -> C, C",
    gradient=_offset_grad_gradient,
    vmap=batch_as_channels((1, 1, 0, 0), (0, 0)),
    sharding="N C _ _, N C _ _, C, C -> C, C; a sample lies on another device then",
    explain=_explain_with_input("shift_offset_grad"),
)

grads = Operator(
    "torchgraft::shift_grads(Tensor output_grad, Tensor input, Tensor x_offset, Tensor y_offset, int stride) "
    "-> (Tensor input_grad, Tensor x_offset_grad, Tensor y_offset_grad)",
    reference=reference.shift_grads,
    shapes="N C _ V, N C T V, C, C -> N C T V, C, C",
    output=_grads_output,
    gradient=_grads_gradient,
    vmap=batch_as_channels((1, 1, 0, 0), (1, 0, 0)),
    sharding="N C _ _, N C _ _, C, C -> N C _ _, C, C; a sample lies on another device then",
    explain=_explain_with_input("shift_grads"),
)
