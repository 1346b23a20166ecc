"""A depthwise convolution layer for volumes."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchgraft.arguments import positive
from torchgraft.nn.convolving import convolve
from torchgraft.nn.recording import refuse_scripting
from torchgraft.operators.depthwise_conv3d import depthwise_conv3d
from torchgraft.operators.depthwise_conv3d.window import IntOrTriple, triple


class DepthwiseConv3d(torch.nn.Conv3d):
    """`torch.nn.Conv3d` with groups = in_channels, computed by `torchgraft.depthwise_conv3d`.

    Parameters, their names and initialisation, padding modes and printed form are those of `torch.nn.Conv3d`.

    Args:
        in_channels: channels of the input, C.
        kernel_size: taps of a kernel, one number or (depth, height, width).
        stride: voxels between outputs, one number or (depth, height, width).
        padding: zeros around the volume, one number or (depth, height, width), 'valid' or 'same'.
        dilation: voxels between taps, one number or (depth, height, width).
        bias: whether a number a channel is added.
        channel_multiplier: kernels a channel, m; the output has C * m channels.
        padding_mode: 'zeros', 'reflect', 'replicate' or 'circular'.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a number is not an int or another integer, such as NumPy's, or it is a bool.
        ValueError: in_channels or channel_multiplier is not positive, several numbers are not three, or padding or
            padding_mode is another word; in a call, input does not have in_channels channels.
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        in_channels: int,
        kernel_size: IntOrTriple = 3,
        stride: IntOrTriple = 1,
        padding: IntOrTriple | str = 0,
        dilation: IntOrTriple = 1,
        bias: bool = True,
        channel_multiplier: int = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name = "DepthwiseConv3d"
        in_channels = positive(name, "in_channels", in_channels)
        channel_multiplier = positive(name, "channel_multiplier", channel_multiplier)
        # Conv3d's own type is narrower than this.
        mode: Any = padding_mode
        super().__init__(
            in_channels,
            in_channels * channel_multiplier,
            _triple(name, "kernel_size", kernel_size),
            _triple(name, "stride", stride),
            padding if isinstance(padding, str) else _triple(name, "padding", padding),
            _triple(name, "dilation", dilation),
            groups=in_channels,
            bias=bias,
            padding_mode=mode,
            device=device,
            dtype=dtype,
        )

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return convolve(self, depthwise_conv3d, input, weight, bias)


def _triple(name: str, argument: str, value: Any) -> tuple[int, int, int]:
    """Three numbers, as `triple`, and of anything that can be gone through, as `torch.nn.Conv3d` takes it."""
    several = isinstance(value, Iterable) and not isinstance(value, (str, Tensor))
    return triple(name, argument, tuple(value) if several else value)
