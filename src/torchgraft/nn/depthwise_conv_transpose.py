"""Transposed depthwise convolution layers for sequences, images and volumes."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvTransposeNd

from torchgraft.arguments import positive
from torchgraft.nn.recording import refuse_scripting
from torchgraft.operators.depthwise_conv1d import depthwise_conv_transpose1d
from torchgraft.operators.depthwise_conv2d import depthwise_conv_transpose2d
from torchgraft.operators.depthwise_conv3d import depthwise_conv_transpose3d
from torchgraft.operators.windows import IntOrSeveral, whole_numbers


class _DepthwiseConvTranspose(_ConvTransposeNd):
    """The parts that the layers of all ranks share; each is a layer of PyTorch's, too."""

    __prepare_scriptable__ = refuse_scripting

    _compute: ClassVar[Callable[..., Tensor]]
    _rank: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        kernel_size: IntOrSeveral = 3,
        stride: IntOrSeveral = 1,
        padding: IntOrSeveral = 0,
        output_padding: IntOrSeveral = 0,
        dilation: IntOrSeveral = 1,
        bias: bool = True,
        channel_multiplier: int = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name = type(self).__name__
        in_channels = positive(name, "in_channels", in_channels)
        channel_multiplier = positive(name, "channel_multiplier", channel_multiplier)
        if padding_mode != "zeros":
            raise ValueError(f"{name}: padding_mode must be 'zeros', got {padding_mode!r}")

        def several(argument: str, value: Any) -> Any:
            is_several = isinstance(value, Iterable) and not isinstance(value, (str, Tensor))
            return whole_numbers(name, argument, tuple(value) if is_several else value, self._rank)

        # The layers of PyTorch take these by name; their common base does not know them.
        super().__init__(
            in_channels,
            in_channels * channel_multiplier,
            several("kernel_size", kernel_size),
            stride=several("stride", stride),
            padding=several("padding", padding),
            output_padding=several("output_padding", output_padding),
            groups=in_channels,
            bias=bias,
            dilation=several("dilation", dilation),
            device=device,
            dtype=dtype,
        )  # type: ignore[call-arg]

    def forward(self, input: Tensor, output_size: Sequence[int] | None = None) -> Tensor:
        """Convolves a batch; `output_size` chooses the size of the output among those that stride allows."""
        output_padding: Any = self.output_padding
        if output_size is not None:
            numbers: Any = self.stride, self.padding, self.kernel_size, self._rank, self.dilation
            output_padding = self._output_padding(input, list(output_size), *numbers)
        compute = type(self)._compute
        return compute(input, self.weight, self.bias, self.stride, self.padding, output_padding, self.dilation)


class DepthwiseConvTranspose1d(_DepthwiseConvTranspose, torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` with groups = in_channels, computed by `torchgraft.depthwise_conv_transpose1d`.

    Parameters, their names and initialisation, and printed form are those of `torch.nn.ConvTranspose1d`, and so is
    `output_size` in a call.

    Args:
        in_channels: channels of the input, C.
        kernel_size: taps of a kernel, a number, alone or in a tuple.
        stride: elements between the outputs of neighbouring inputs, a number, alone or in a tuple.
        padding: elements that the output is smaller by on each side, a number, alone or in a tuple.
        output_padding: elements that the output is larger by behind, a number, alone or in a tuple.
        dilation: elements between taps, a number, alone or in a tuple.
        bias: whether a number a channel is added.
        channel_multiplier: kernels a channel, m; the output has C * m channels.
        padding_mode: 'zeros', the only one that transposed convolutions have.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a number is not an int or another integer, such as NumPy's, or it is a bool.
        ValueError: in_channels or channel_multiplier is not positive, or there are too many or too few numbers; in a
            call, input does not have in_channels channels, or output_padding is too large.
    """

    _compute = staticmethod(depthwise_conv_transpose1d)
    _rank = 1


class DepthwiseConvTranspose2d(_DepthwiseConvTranspose, torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` with groups = in_channels, computed by `torchgraft.depthwise_conv_transpose2d`.

    Parameters, their names and initialisation, and printed form are those of `torch.nn.ConvTranspose2d`, and so is
    `output_size` in a call.

    Args:
        in_channels: channels of the input, C.
        kernel_size: taps of a kernel, one number or (height, width).
        stride: pixels between the outputs of neighbouring inputs, one number or (height, width).
        padding: pixels that the output is smaller by on each side, one number or (height, width).
        output_padding: pixels that the output is larger by behind, one number or (height, width).
        dilation: pixels between taps, one number or (height, width).
        bias: whether a number a channel is added.
        channel_multiplier: kernels a channel, m; the output has C * m channels.
        padding_mode: 'zeros', the only one that transposed convolutions have.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a number is not an int or another integer, such as NumPy's, or it is a bool.
        ValueError: in_channels or channel_multiplier is not positive, or there are too many or too few numbers; in a
            call, input does not have in_channels channels, or output_padding is too large.
    """

    _compute = staticmethod(depthwise_conv_transpose2d)
    _rank = 2


class DepthwiseConvTranspose3d(_DepthwiseConvTranspose, torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` with groups = in_channels, computed by `torchgraft.depthwise_conv_transpose3d`.

    Parameters, their names and initialisation, and printed form are those of `torch.nn.ConvTranspose3d`, and so is
    `output_size` in a call.

    Args:
        in_channels: channels of the input, C.
        kernel_size: taps of a kernel, one number or (depth, height, width).
        stride: voxels between the outputs of neighbouring inputs, one number or (depth, height, width).
        padding: voxels that the output is smaller by on each side, one number or (depth, height, width).
        output_padding: voxels that the output is larger by behind, one number or (depth, height, width).
        dilation: voxels between taps, one number or (depth, height, width).
        bias: whether a number a channel is added.
        channel_multiplier: kernels a channel, m; the output has C * m channels.
        padding_mode: 'zeros', the only one that transposed convolutions have.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a number is not an int or another integer, such as NumPy's, or it is a bool.
        ValueError: in_channels or channel_multiplier is not positive, or there are too many or too few numbers; in a
            call, input does not have in_channels channels, or output_padding is too large.
    """

    _compute = staticmethod(depthwise_conv_transpose3d)
    _rank = 3
