"""Shared parts of the depthwise convolutions of any rank: what their declarations and their samples have in common.

Sizes behind the channels are those of the directions of an image, the innermost last: (L), (H, W) or (D, H, W).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from torchgraft.arguments import stands_for_tensor
from torchgraft.declaration.bad_arguments import explain_kinds
from torchgraft.declaration.declaration import Declaration
from torchgraft.operator import FLOATING
from torchgraft.operators.shared import batch_as_channels, batch_as_images, require, require_shape
from torchgraft.operators.windows import AnyWindow, in_words


class _Words(NamedTuple):
    """Words of messages for images of a rank and for their parts."""

    images: str
    element: str
    sizes: str
    kernels: str
    sides: str
    kernel: str


# The C++ twin is `Words` in depthwise_conv2d/geometry.h.
_WORDS = {
    1: _Words("(N, C, L) or (C, L)", "element", "length is", "kernel size is", "(left, right)", "K"),
    2: _Words(
        "(N, C, H, W) or (C, H, W)", "pixel", "height and width are", "kernels are", "(left, right, ...)", "KH, KW"
    ),
    3: _Words(
        "(N, C, D, H, W) or (C, D, H, W)",
        "voxel",
        "depth, height and width are",
        "kernels are",
        "(left, right, ...)",
        "KD, KH, KW",
    ),
}


_NO_MEMORY = "these sizes make a tensor that no memory can hold"


def explain_sizes(
    name: str,
    batch: int,
    channels: int,
    size: Sequence[int],
    output_channels: int,
    kernel_size: Sequence[int],
    window: AnyWindow,
) -> tuple[int, ...]:
    """The shape of the output; raises ValueError if the sizes of a convolution make no sense."""
    words = _WORDS[len(size)]
    require(min(window.stride) > 0, name, f"stride must be positive, got {in_words(window.stride)}")
    require(min(window.dilation) > 0, name, f"dilation must be positive, got {in_words(window.dilation)}")
    require(min(window.padding) >= 0, name, f"padding must not be negative, got {window.padding} {words.sides}")
    require(batch >= 0, name, f"the batch must not be negative, got {batch}")
    require(channels > 0, name, f"input must have at least one channel, got {channels}")
    require(
        min(size) > 0, name, f"input must have at least one {words.element}, its {words.sizes} {in_words(tuple(size))}"
    )
    require(
        min(kernel_size) > 0, name, f"weight must have at least one tap, its {words.kernels} {in_words(kernel_size)}"
    )
    require(
        output_channels > 0 and output_channels % channels == 0,
        name,
        f"weight has {output_channels} channels, which must be a multiple of the {channels} of input",
    )
    spans = [gap * (taps - 1) + 1 for gap, taps in zip(window.dilation, kernel_size, strict=True)]
    rooms = [sum(sides) for sides in zip(size, window.before, window.behind, strict=True)]
    # The numbers of C++, which says the same, end there.
    require(max(*spans, *rooms) < 2**63, name, _NO_MEMORY)
    require(
        all(span <= room for span, room in zip(spans, rooms, strict=True)),
        name,
        f"the kernel spans {' x '.join(map(str, spans))} {words.element}s "
        f"and the padded input has only {' x '.join(map(str, rooms))}",
    )
    output = (batch, output_channels, *window.output_size(*size, *kernel_size))
    largest = max(math.prod(output), batch * channels * math.prod(size))
    fits = largest < 2**60 and max(*rooms, *spans, *window.stride, *window.dilation) < 2**40
    require(fits, name, _NO_MEMORY)
    return output


def explain_forward(name: str, input: Tensor, weight: Tensor, window: AnyWindow) -> None:
    """Raises ValueError if a convolution of input and weight makes no sense."""
    rank = len(window.stride)
    require(input.dim() == rank + 2, name, f"input must be {_WORDS[rank].images}, got {tuple(input.shape)}")
    channels, *size = input.shape[1:]
    explain_sizes(name, input.shape[0], channels, size, weight.shape[0], weight.shape[2:], window)


def explain_input_grad(
    name: str, output_grad: Tensor, weight: Tensor, channels: int, size: Sequence[int], window: AnyWindow
) -> None:
    """Raises ValueError if there is no such convolution of an input of a size."""
    expected = explain_sizes(name, output_grad.shape[0], channels, size, weight.shape[0], weight.shape[2:], window)
    require_shape(name, "output_grad", output_grad, expected, " for these sizes")


def explain_weight_grad(
    name: str,
    output_grad: Tensor,
    input: Tensor,
    kernel_size: Sequence[int],
    dtype: torch.dtype | None,
    window: AnyWindow,
) -> None:
    """Raises ValueError if there is no such convolution with kernels of a size, TypeError for another dtype."""
    if dtype is not None and dtype not in FLOATING:
        names = ", ".join(str(each) for each in FLOATING)
        raise TypeError(f"{name}: dtype must be one of {names}, got {dtype}")
    channels, *size = input.shape[1:]
    expected = explain_sizes(name, input.shape[0], channels, size, output_grad.shape[1], kernel_size, window)
    require_shape(name, "output_grad", output_grad, expected, " for these sizes")


def transposed_size(
    size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:
    """Sizes of the output of a transposed convolution for those of an input."""
    found = zip(size, kernel_size, stride, padding, output_padding, dilation, strict=True)
    return tuple(
        (length - 1) * step - 2 * side + gap * (taps - 1) + more + 1 for length, taps, step, side, more, gap in found
    )


def explain_steps(
    name: str,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
) -> None:
    """Raises ValueError if the numbers of a transposed convolution make no sense for any sizes."""
    limited = (("stride", stride, 1), ("dilation", dilation, 1), ("padding", padding, 0))
    for words, numbers, least in (*limited, ("output_padding", output_padding, 0)):
        if min(numbers) < least:
            said = "be positive" if least else "not be negative"
            raise ValueError(f"{name}: {words} must {said}, got {in_words(numbers)}")
    if any(more >= max(step, gap) for more, step, gap in zip(output_padding, stride, dilation, strict=True)):
        limits = f"stride {in_words(stride)} or dilation {in_words(dilation)}"
        raise ValueError(f"{name}: output_padding must be less than {limits}, got {in_words(output_padding)}")


def explain_transposed(
    name: str, declaration: Declaration, arguments: tuple[Any, Any, Any], *steps: Sequence[int]
) -> None:
    """Raises ValueError or TypeError if a transposed convolution makes no sense; returns if it does.

    Args:
        name: of the function that was called, for messages.
        declaration: of the convolution of the same rank, whose input, weight and bias may be of the same kinds.
        arguments: input, weight and bias.
        steps: stride, padding, output_padding and dilation, as `explain_steps` takes them.
    """
    explain_kinds(name, declaration.arguments[:3], arguments, declaration.dtypes_of, declaration.mixed)
    input, weight, bias = arguments
    rank, words = len(steps[0]), _WORDS[len(steps[0])]
    shape, of_weight = tuple(input.shape), tuple(weight.shape)
    require(len(shape) in (rank + 1, rank + 2), name, f"input must be {words.images}, got {shape}")
    require(len(of_weight) == rank + 2, name, f"weight must be (C, multiplier, {words.kernel}), got {of_weight}")
    channels, *size = shape[-rank - 1 :]
    require(
        of_weight[0] == channels,
        name,
        f"input must have {of_weight[0]} channels, as weight has, got {channels}: its shape is {shape}",
    )
    require(channels > 0, name, f"input must have at least one channel, got {channels}")
    require(min(size) > 0, name, f"input must have at least one {words.element}, its {words.sizes} {in_words(size)}")
    require(
        min(of_weight[1:]) > 0, name, f"weight must have at least one kernel a channel and one tap, got {of_weight}"
    )
    output_channels = channels * of_weight[1]
    require_shape(name, "bias", bias, (output_channels,), ", a number for each channel of the output")
    output = transposed_size(size, of_weight[2:], *steps)
    require(
        min(output) > 0,
        name,
        f"padding {in_words(steps[1])} leaves no {words.element} of the output, its {words.sizes} {in_words(output)}",
    )
    reaches = (side + length for length, side in zip(output, steps[1], strict=True))
    fits = output_channels * math.prod(output) * (shape[0] if len(shape) > rank + 1 else 1) < 2**60
    require(fits and max(*reaches, *steps[0], *steps[3]) < 2**40, name, _NO_MEMORY)


def known_kernel_size(weight: Any, padding: Any, rank: int) -> Sequence[int]:
    """The size of kernels where padding depends on it; of what is no weight any, until the operator says so.

    Elsewhere it is not looked at: `torch.jit.trace` records every look.
    """
    known = isinstance(padding, str) and isinstance(weight, Tensor) and weight.dim() == rank + 2
    return weight.shape[2:] if known else (1,) * rank


def with_channels(name: str, input: Any, groups: int, fits: Any, rank: int) -> Any:
    """An input that has as many channels as there are groups.

    Args:
        name: of the operator, for the message.
        input: with a batch or without; for other dimensions the operator says what is wrong.
        groups: how many it must have.
        fits: whether it has, as far as that is known: of an input that `torch.jit.trace` follows sizes are tensors.
        rank: how many directions it has.

    Raises:
        ValueError: it has another number.
    """
    channel_dim = -1 - rank
    if isinstance(fits, Tensor):
        # Recorded, `unflatten` refuses what is given later and does not fit. Strides are those of the input itself: a
        # view of other sizes may lose those of a dimension of one element.
        try:
            return input.expand_as(input.unflatten(channel_dim, (groups,)))
        except RuntimeError as error:
            raise ValueError(f"{name}: input must have {groups} channels: {error}") from None
    if not isinstance(input, Tensor) or input.dim() not in (rank + 1, rank + 2) or fits:
        return input
    shape = tuple(input.shape)
    raise ValueError(f"{name}: input must have {groups} channels, got {shape[channel_dim]}: its shape is {shape}")


def without_tensor(
    function: Callable[..., Any], call: Callable[..., Any], input: Any, rest: Sequence[Any], window: Sequence[int]
) -> Any:
    """The result for something that stands for a tensor; raises the operator's error for anything else.

    Args:
        function: that people call, of the input and the rest.
        call: of the operator, of input, weight, bias and the numbers of a window.
        input: no tensor, or one of another number of dimensions.
        rest: the other arguments, which begin with weight and bias.
        window: its numbers, as the operator takes them.
    """
    if stands_for_tensor(input):
        return handle_torch_function(function, (input,), input, *rest)
    return call(input, *rest[:2], *window)


# The rules for vmap of the three operators. A third argument that is no tensor, as the number of channels is, stays.
_by_channel = batch_as_channels((1, 0, 0), (1,))
forward_vmap = batch_as_images(_by_channel)
weight_grad_vmap = batch_as_channels((1, 1), (0,))


@batch_as_images
def input_grad_vmap(
    operator: Any,
    batch_size: int,
    in_dims: Sequence[int | None],
    output_grad: Tensor,
    weight: Tensor,
    channels: int,
    *numbers: int,
) -> tuple[Tensor, int]:
    """The rule for vmap of a gradient of the input, which is told the number of channels."""
    return _by_channel(operator, batch_size, in_dims, output_grad, weight, batch_size * channels, *numbers)


def bias_grad(output_grad: Tensor, weight_dtype: torch.dtype) -> Tensor:
    """The gradient of a bias, wide enough for any: autograd rounds it to the dtype of the bias."""
    dtype = torch.float64 if torch.float64 in (output_grad.dtype, weight_dtype) else torch.float32
    return output_grad.sum((0, *range(2, output_grad.dim())), dtype=dtype)


def in_one_dtype(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Weight and bias as PyTorch's convolution differentiates them: both gradients have the dtype of the weight there.

    A narrow one may not hold the gradient of the bias.
    """
    if bias is None or bias.dtype == weight.dtype:
        return weight, bias
    dtype = torch.promote_types(weight.dtype, bias.dtype)
    return weight.to(dtype), bias.to(dtype)


def multiply_adds(output_shape: Sequence[int], kernel_size: Sequence[int]) -> int:
    """Two operations a tap and output: the same for all three operators, which are transposes of each other."""
    return 2 * math.prod(output_shape) * math.prod(kernel_size)


def taps_inside(size: Sequence[int], kernel_size: Sequence[int], window: AnyWindow) -> int:
    """How many taps of all windows lie on pixels, of one image and channel."""
    return math.prod(
        sum(
            # The outputs for which 0 <= output * stride - before + tap * dilation < length.
            len(
                range(
                    max(0, -((tap * dilation - before) // stride)),
                    min(outputs, (length - 1 + before - tap * dilation) // stride + 1),
                )
            )
            for tap in range(taps)
        )
        for length, taps, outputs, stride, before, dilation in zip(
            size,
            kernel_size,
            window.output_size(*size, *kernel_size),
            window.stride,
            window.before,
            window.dilation,
            strict=True,
        )
    )
