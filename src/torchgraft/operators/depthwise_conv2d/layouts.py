"""Where PyTorch's own convolution puts its results in memory, and the operator too.

The C++ twin of this module is layouts.h, which says how PyTorch computes and what decides: the two must agree, or fake
tensors lie.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchgraft.layout import onednn_takes, order_of_dimensions, suggests_channels_last, thread_count
from torchgraft.operators.windows import AnyWindow


class Layouts(NamedTuple):
    """Whether each result of a convolution is channels_last; otherwise it is contiguous."""

    output: bool
    input_grad: bool
    weight_grad: bool


class _Strided(NamedTuple):
    """Sizes and strides of images (N, C, H, W) or volumes (N, C, D, H, W); of sequences as images of one row."""

    sizes: Sequence[int]
    strides: Sequence[int]


def dense_strides(sizes: Sequence[int], channels_last: bool) -> tuple[int, ...]:
    """The strides of dense images (N, C, H, W) or volumes (N, C, D, H, W)."""
    _, channels, *lengths = sizes
    steps = [channels if channels_last else 1]
    for length in reversed(lengths):
        steps.append(steps[-1] * length)
    every = steps.pop()
    return (every, 1, *reversed(steps)) if channels_last else (every * channels, every, *reversed(steps))


def layouts_of(input: Tensor, weight: Tensor, window: AnyWindow) -> Layouts:
    """Where the results of a convolution lie, and its gradients. Not for a batch without images.

    Here and below, tensors may hold volumes (N, C, D, H, W), or sequences (N, C, L), which are images of one row to all
    that is computed: their window is that of such an image, and so are strides.
    """
    images, kernels = _as_convolved(input, window), _as_rounded(weight, input)
    if input.device.type == "cuda":
        return Layouts(False, False, False) if input.dtype == torch.float64 else _by_cudnn(images, kernels)
    if _is_by_onednn(images, kernels, window, input.dtype):
        return _by_onednn(images, kernels)
    if input.dim() == 5:
        # Volumes are made contiguous first.
        return Layouts(False, False, False)
    output_size = window.output_size(*_as_image(input).sizes[2:], *kernels.sizes[2:])
    return _channel_by_channel(images, kernels, output_size, max(window.dilation) > 1)


def is_transposed_channels_last(
    images: Tensor, weight: Tensor, size: Sequence[int], groups: int, window: AnyWindow, at_once: bool = True
) -> bool:
    """Whether the result of a transposed convolution is channels_last, such as the gradient of a weight gradient.

    Not for a batch without images.

    Args:
        images: that are convolved.
        weight: with as many kernels as images have channels, `weight.shape[0]`.
        size: of the result, behind its batch that of its channels.
        groups: of channels.
        window: of the convolution that is transposed.
        at_once: whether libraries compute it, as they do if no padding of the output is as large as a stride.
    """
    given = _as_image(images)
    if images.dim() == 3 and not images.is_contiguous():
        given = _dense(given.sizes, False)
    kernels = _as_rounded(weight, images)
    if images.device.type == "cuda":
        return at_once and images.dtype != torch.float64 and _by_cudnn(given, kernels).output
    if at_once and _is_by_onednn(given, kernels, window, images.dtype):
        return _by_onednn(given, kernels).output
    if images.dim() == 5:
        # Volumes are made contiguous first.
        return False
    asked = _suggested(given) or _suggested(kernels)
    given, kernels = _brought_to(given, asked), _brought_to(kernels, asked)
    if groups == 1:
        return _suggested(given) or _suggested(kernels)
    of_images = _one_group(given, 1, given.sizes[1] // groups)
    of_kernels = _one_group(kernels, 0, kernels.sizes[0] // groups)
    each = _suggested(of_images) or _suggested(of_kernels)
    batch, channels, *lengths = _as_image_sizes(size)
    return _suggested(_dense((batch, channels // groups, *lengths), each))


def empty_output_strides(input: Tensor, output_sizes: Sequence[int], window: AnyWindow) -> Sequence[int]:
    """The strides of the output of a batch without images."""
    images = _as_convolved(input, window)
    order = order_of_dimensions(*images)
    if tuple(output_sizes) != tuple(images.sizes) or order == sorted(order, reverse=True):
        return dense_strides(output_sizes, False)
    strides, step = [0] * len(order), 1
    for d in order:
        strides[d] = step
        step *= images.sizes[d]
    return strides


def input_grad_strides(input: Tensor, channels_last: bool, window: AnyWindow) -> Sequence[int]:
    """The strides of the gradient of an input, whose layout is known."""
    images, padded = _as_image(input), _as_convolved(input, window)
    plain, is_empty = dense_strides(images.sizes, channels_last), input.shape[0] == 0
    if not window.is_uneven:
        return padded.strides if is_empty else plain
    # Cut out of the gradient of the padded input, which is copied where it is not dense then.
    cut = dense_strides(padded.sizes, not is_empty and channels_last)
    return cut if is_empty or _has_layout(_Strided(images.sizes, cut), channels_last) else plain


def strides_of_copy(tensor: Tensor) -> Sequence[int]:
    """The strides of a copy of a tensor, or of zeros like it. PyTorch's own fake tensors of symbolic sizes give others.

    They are those of the tensor where it is dense, and otherwise its dimensions in the order of their strides.
    """
    sizes, strides = tensor.shape, tensor.stride()
    step, is_dense = 1, True
    # TorchDynamo cannot sort sizes that it knows by name alone; comparing two of them it can.
    longer = [d for d, size in enumerate(sizes) if size != 1]
    for d in order_of_dimensions([sizes[d] for d in longer], [strides[d] for d in longer]):
        is_dense = is_dense and strides[longer[d]] == step
        step = step * sizes[longer[d]]
    if is_dense:
        return strides
    found, step = [0] * len(sizes), 1
    for d in order_of_dimensions(sizes, strides):
        found[d] = step
        step = step * sizes[d]
    return found


def with_strides(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    """The same tensor with these strides, if need be a copy."""
    if tensor.stride() == tuple(strides):
        return tensor
    # New from the tensor: under vmap it is a batch then, which can be written to.
    return tensor.new_empty_strided(tensor.shape, strides).copy_(tensor)


def _as_image(tensor: Tensor, strides: Sequence[int] | None = None) -> _Strided:
    """Sizes and strides, those of sequences as images of one row; or the sizes with other strides."""
    sizes, steps = tensor.shape, tensor.stride() if strides is None else strides
    if len(sizes) != 3:
        return _Strided(sizes, steps)
    (batch, channels, length), (of_batch, of_channels, step) = sizes, steps
    return _Strided((batch, channels, 1, length), (of_batch, of_channels, length * step, step))


def _as_image_sizes(size: Sequence[int]) -> Sequence[int]:
    return (*size[:2], 1, size[2]) if len(size) == 3 else size


def _dense(sizes: Sequence[int], channels_last: bool) -> _Strided:
    return _Strided(sizes, dense_strides(sizes, channels_last))


def _suggested(images: _Strided) -> bool:
    return suggests_channels_last(*images)


def _has_layout(images: _Strided, channels_last: bool) -> bool:
    wanted = dense_strides(images.sizes, channels_last)
    return all(size == 1 or stride == expected for size, stride, expected in zip(*images, wanted, strict=True))


def _brought_to(images: _Strided, channels_last: bool) -> _Strided:
    """The same images as `Tensor.contiguous` gives them: a copy where they are not dense in this layout."""
    return images if _has_layout(images, channels_last) else _dense(images.sizes, channels_last)


def _one_group(images: _Strided, dim: int, channels: int) -> _Strided:
    """One of several groups of channels, along a dimension, as PyTorch copies it."""
    sizes = [channels if d == dim else size for d, size in enumerate(images.sizes)]
    return _brought_to(_Strided(sizes, images.strides), _suggested(images))


def _as_convolved(input: Tensor, window: AnyWindow) -> _Strided:
    """An input as PyTorch convolves it. Sequences are copied where they are not contiguous.

    Both sides are padded alike; what one side has more is padded before, in a copy.
    """
    given, is_sequence = _as_image(input), input.dim() == 3
    if not window.is_uneven:
        return _dense(given.sizes, False) if is_sequence and not input.is_contiguous() else given
    batch, channels, *size = given.sizes
    sides = zip(size, window.before, window.behind, strict=True)
    padded = (length + abs(behind - before) for length, before, behind in sides)
    return _dense((batch, channels, *padded), not is_sequence and _suggested(given))


def _as_rounded(weight: Tensor, input: Tensor) -> _Strided:
    """A weight as PyTorch convolves with it: in the dtype of the images."""
    return _as_image(weight) if weight.dtype == input.dtype else _as_image(weight, strides_of_copy(weight))


def _is_by_onednn(input: _Strided, weight: _Strided, window: AnyWindow, dtype: torch.dtype) -> bool:
    """Whether a CPU computes all channels at once."""
    if dtype == torch.float64:
        return False
    if dtype != torch.float32:
        return onednn_takes(dtype)
    batch, channels, *size = input.sizes
    tall, wide = weight.sizes[-2:]
    # Of volumes, PyTorch looks at depth and height here, and at height and width of their kernels.
    if channels == 1 and not (tall > 3 and wide > 3) and batch == 1 and size[0] * size[1] <= 20480:
        return False
    is_plain = max(*window.stride, *window.dilation) == 1
    return not is_plain or (tall, wide) != (1, 1) or batch >= 16 or thread_count() > 1


def _by_cudnn(input: _Strided, weight: _Strided) -> Layouts:
    layout = _suggested(input) or _suggested(weight)
    # The gradient of the weight is computed from the two others, brought into the layout, and cuDNN looks again.
    return Layouts(layout, layout, layout and _suggested(_brought_to(input, layout)))


def _by_onednn(input: _Strided, weight: _Strided) -> Layouts:
    layout = _suggested(input) or _suggested(weight)
    if layout:
        # It looks again at what was brought into the layout.
        layout = _suggested(_brought_to(input, layout)) or _suggested(_brought_to(weight, layout))
    return Layouts(layout, layout, layout)


def _channel_by_channel(input: _Strided, weight: _Strided, output_size: Sequence[int], is_dilated: bool) -> Layouts:
    asked = _suggested(input) or _suggested(weight)
    images, kernels = _brought_to(input, asked), _brought_to(weight, asked)
    batch, channels, _, _ = input.sizes
    multiplier = weight.sizes[0] // channels
    if channels != 1:
        images, kernels = _one_group(images, 1, 1), _one_group(kernels, 0, multiplier)
    each = _suggested(images) or _suggested(kernels)
    weight_grad = each if is_dilated else _suggested(kernels)
    if channels == 1:
        return Layouts(each, each, weight_grad)
    # What is put together has the layout that all parts suggest.
    return Layouts(
        _suggested(_dense((batch, multiplier, *output_size), each)),
        _suggested(_dense(images.sizes, each)),
        _suggested(_dense(kernels.sizes, weight_grad)),
    )
