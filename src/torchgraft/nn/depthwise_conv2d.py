"""A depthwise convolution layer."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchgraft.arguments import positive
from torchgraft.nn.convolving import convolve
from torchgraft.nn.recording import refuse_scripting
from torchgraft.operators.depthwise_conv2d import depthwise_conv2d
from torchgraft.operators.depthwise_conv2d.window import IntOrPair, pair


class DepthwiseConv2d(torch.nn.Conv2d):
    """`torch.nn.Conv2d` with groups = in_channels, computed by `torchgraft.depthwise_conv2d`.

    Parameters, their names and initialisation, padding modes and printed form are those of `torch.nn.Conv2d`.

    Args:
        in_channels: channels of the input, C.
        kernel_size: taps of a kernel, one number or (height, width).
        stride: pixels between outputs, one number or (height, width).
        padding: zeros around the image, one number or (height, width), 'valid' or 'same'.
        dilation: pixels between taps, one number or (height, width).
        bias: whether a number a channel is added.
        channel_multiplier: kernels a channel, m; the output has C * m channels.
        padding_mode: 'zeros', 'reflect', 'replicate' or 'circular'.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a number is not an int or another integer, such as NumPy's, or it is a bool.
        ValueError: in_channels or channel_multiplier is not positive, a pair does not have two numbers, or padding or
            padding_mode is another word; in a call, input does not have in_channels channels.
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        in_channels: int,
        kernel_size: IntOrPair = 3,
        stride: IntOrPair = 1,
        padding: IntOrPair | str = 0,
        dilation: IntOrPair = 1,
        bias: bool = True,
        channel_multiplier: int = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name = "DepthwiseConv2d"
        in_channels = positive(name, "in_channels", in_channels)
        channel_multiplier = positive(name, "channel_multiplier", channel_multiplier)
        # Conv2d's own type is narrower than this.
        mode: Any = padding_mode
        super().__init__(
            in_channels,
            in_channels * channel_multiplier,
            _pair(name, "kernel_size", kernel_size),
            _pair(name, "stride", stride),
            padding if isinstance(padding, str) else _pair(name, "padding", padding),
            _pair(name, "dilation", dilation),
            groups=in_channels,
            bias=bias,
            padding_mode=mode,
            device=device,
            dtype=dtype,
        )

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return convolve(self, depthwise_conv2d, input, weight, bias)


def _pair(name: str, argument: str, value: Any) -> tuple[int, int]:
    """Two numbers, as `pair`, and of anything that can be gone through, as `torch.nn.Conv2d` takes it."""
    several = isinstance(value, Iterable) and not isinstance(value, (str, Tensor))
    return pair(name, argument, tuple(value) if several else value)
