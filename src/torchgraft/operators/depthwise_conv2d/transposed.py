"""Transposed depthwise convolutions of every rank, and depthwise_conv_transpose2d.

With one kernel a channel, a transposed convolution is the input gradient of a convolution with the same weight, stride
and padding. With several, each channel of the input is repeated for all of its kernels. So these are no operators of
their own: they call the operators of those gradients, and what these bring holds for them too: kernels, layouts,
derivatives of every order, vmap, compilers, sharding.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from torchgraft.arguments import record_call
from torchgraft.calling import is_jit_tracing, may_write_results
from torchgraft.declaration.autocast import Cast, make_cast
from torchgraft.declaration.bad_arguments import out_of_memory
from torchgraft.declaration.declaration import Declaration
from torchgraft.layout import is_channels_last, layout_beside
from torchgraft.operator import FLOATING, Operator
from torchgraft.operators.depthwise import explain_steps, explain_transposed, transposed_size
from torchgraft.operators.depthwise_conv2d.layouts import (
    dense_strides,
    empty_output_strides,
    is_transposed_channels_last,
    with_strides,
)
from torchgraft.operators.depthwise_conv2d.operator import convolution, input_grad
from torchgraft.operators.depthwise_conv2d.window import IntOrPair, Window
from torchgraft.operators.windows import AnyWindow, whole_numbers


def depthwise_conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    output_padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
) -> Tensor:
    """Convolves each channel of a batch of images, transposed, with kernels of its own.

    Equal to `torch.nn.functional.conv_transpose2d(input, weight, bias, stride, padding, output_padding, C, dilation)`.
    Differentiable any number of times, through kernels. float16 and bfloat16 are summed in float32.

    Args:
        input: (N, C, H, W) or (C, H, W), float64, float32, float16 or bfloat16. Contiguous and channels_last are both
            read as they are; other strides are copied first.
        weight: (C, m, KH, KW), on the device of input; m >= 1 kernels a channel. Weight and bias may have another of
            these dtypes: they are then rounded to the dtype of input, and their gradients have their own.
        bias: (C * m), or None.
        stride: pixels between the outputs of neighbouring inputs, a whole number or (height, width).
        padding: pixels that the output is smaller by on each side, a whole number or (height, width).
        output_padding: pixels that the output is larger by at the bottom and at the right, a whole number or (height,
            width); each less than stride or dilation.
        dilation: pixels between the taps of a kernel, a whole number or (height, width).

    Returns:
        (N, C * m, OH, OW), or without N as input, OH = (H - 1) * stride - 2 * padding + dilation * (KH - 1) +
        output_padding + 1; with the strides that `torch.nn.functional.conv_transpose2d` gives.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes do not fit together, a stride or dilation is below 1, a padding is negative, or output_padding
            is too large.

    Source: `torch.nn.ConvTranspose2d` with groups = in_channels.
    """
    return convolve_transposed(_IMAGES, input, weight, bias, stride, padding, output_padding, dilation)


class Rank(NamedTuple):
    """The parts of a transposed convolution of one rank, as `rank_of` makes them."""

    rank: int
    function: Callable[..., Tensor]
    by_pytorch: Callable[..., Tensor]
    said: Declaration
    input_grad: Operator
    window: Callable[..., Any]
    cast: Cast


def rank_of(
    function: Callable[..., Tensor],
    by_pytorch: Callable[..., Tensor],
    convolution: Operator,
    input_grad: Operator,
    window: Callable[..., Any],
) -> Rank:
    """The parts of a transposed convolution.

    Args:
        function: that people call.
        by_pytorch: PyTorch's function of the same arguments, which also takes `groups`.
        convolution: the operator that has the same kernels and is not transposed.
        input_grad: the operator of its input gradient.
        window: makes the window of both, of its numbers.
    """
    said = convolution.declaration
    cast = make_cast(said.autocast, said.arguments[:3], said.mixed)
    return Rank(len(window()) // 4, function, by_pytorch, said, input_grad, window, cast)


class _Steps(NamedTuple):
    """The numbers of a transposed convolution, each with one number for each direction."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    output_padding: tuple[int, ...]
    dilation: tuple[int, ...]


def convolve_transposed(of: Rank, input: Any, weight: Any, bias: Any, *numbers: Any) -> Any:
    """The convolution for arguments as people write them; numbers are stride, padding, output_padding and dilation."""
    name = of.function.__name__
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        recorded = record_call(of.function, input, weight, bias, *numbers)
        if recorded is not None:
            return recorded
    steps = _Steps(*(whole_numbers(name, *each, of.rank) for each in zip(_Steps._fields, numbers, strict=True)))
    explain_steps(name, *steps)
    try:
        input, weight, bias = of.cast((input, weight, bias))
        if is_jit_tracing():
            # The sizes that a gradient is told would be recorded as they are now; PyTorch's own takes any.
            return _by_pytorch(of, input, weight, bias, steps)
        if input.dim() == of.rank + 1:
            return _transposed(of, input.unsqueeze(0), weight, bias, steps).squeeze(0)
        return _transposed(of, input, weight, bias, steps)
    except Exception as error:
        explain_transposed(name, of.said, (input, weight, bias), *steps)
        if (lacking := out_of_memory(error)) is not None:
            raise lacking from None
        raise


def _by_pytorch(of: Rank, input: Tensor, weight: Tensor, bias: Tensor | None, steps: _Steps) -> Tensor:
    """PyTorch's own convolution, with everything in the dtype of the input."""
    stride, padding, output_padding, dilation = steps
    bias = None if bias is None else bias.to(input.dtype)
    return of.by_pytorch(
        input, weight.to(input.dtype), bias, stride, padding, output_padding, weight.shape[0], dilation
    )


def _transposed(of: Rank, input: Tensor, weight: Tensor, bias: Tensor | None, steps: _Steps) -> Tensor:
    """The convolution of a batch."""
    batch, channels, *lengths = input.shape
    multiplier, *taps = weight.shape[1:]
    output_channels = channels * multiplier
    if bias is not None and (
        bias.dtype not in FLOATING or bias.device != input.device or tuple(bias.shape) != (output_channels,)
    ):
        raise ValueError("bias")  # which is explained
    size = transposed_size(lengths, taps, *steps)
    reaches = [_reach_of(*each) for each in zip(size, *steps[:3], strict=True)]
    behind = [each.behind for each in reaches]
    window = of.window(*steps.stride, *(each.before for each in reaches), *behind, *steps.dilation)

    view: AnyWindow = window.of_image if of.rank == 1 else window
    full_size = _as_image((batch, output_channels, *size))
    if batch == 0:
        layout, strides = False, empty_output_strides(input, full_size, view)
    else:
        at_once = all(more < step for more, step in zip(steps.output_padding, steps.stride, strict=True))
        layout = is_transposed_channels_last(input, weight, full_size, channels, view, at_once)
        strides = dense_strides(full_size, layout)

    kernels = weight
    if multiplier != 1:
        input, kernels = _repeated(input, multiplier), weight.flatten(0, 1).unsqueeze(1)
    elif of.rank != 1 and weight.stride() == dense_strides(weight.shape, True):
        # The values lie alike in both layouts. The gradient of these views has the strides of the weight, which
        # distributed training asks for, also along the dimension of one element.
        kernels = weight.movedim(1, -1).squeeze(-1).unsqueeze(1)
    computed = [each.length for each in reaches]
    result = of.input_grad.call(input, kernels, output_channels, *computed, layout_beside(input, layout), *window)
    ends = [side for each in reversed(reaches) for side in each.ends]
    if any(ends):
        result = F.pad(result, ends)
    if bias is not None:
        added = bias.to(result.dtype).reshape(-1, *(1,) * of.rank)
        # A subclass of Tensor is given as a view of what was computed, into which autograd lets nobody write.
        result = result.add_(added) if may_write_results() and type(result) is Tensor else result + added
    return with_strides(result, strides if of.rank != 1 else (*strides[:2], strides[3]))


class _Reach(NamedTuple):
    """How far kernels reach in one direction of an output: a gradient is computed there, and zeros lie elsewhere."""

    before: int  # padding of the convolution whose gradient it is
    behind: int
    length: int  # of the gradient
    ends: tuple[int, int]  # zeros before and behind it; below zero what is cut off


def _reach_of(length: int, step: int, side: int, more: int) -> _Reach:
    """The reach for an output of a length, with its stride, padding and output_padding."""
    # A convolution gives no output more for fewer further elements than a stride.
    behind = side - max(more - step + 1, 0)
    if behind >= 0:
        return _Reach(side, behind, length, (0, 0))
    reached = length + behind
    if reached > 0:
        return _Reach(side, 0, reached, (0, -behind))
    # Padding takes off all that a kernel reaches. One element of that is computed and cut off.
    return _Reach(side + reached - 1, 0, 1, (-1, length))


def _as_image(size: Sequence[int]) -> Sequence[int]:
    """The size of sequences as that of images of one row; others stay."""
    return size if len(size) > 3 else (*size[:2], 1, *size[2:])


def _repeated(images: Tensor, count: int) -> Tensor:
    """Each channel several times, one after the other, in the same layout."""
    if is_channels_last(images):
        return images.movedim(1, -1).unsqueeze(-1).expand(*(-1,) * images.dim(), count).flatten(-2).movedim(-1, 1)
    sides = (-1,) * (images.dim() - 2)
    return images.unsqueeze(2).expand(-1, -1, count, *sides).flatten(1, 2)


_IMAGES = rank_of(depthwise_conv_transpose2d, F.conv_transpose2d, convolution, input_grad, Window)
