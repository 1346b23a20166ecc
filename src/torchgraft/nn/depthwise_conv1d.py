"""A depthwise convolution layer for sequences."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchgraft.arguments import positive
from torchgraft.nn.convolving import convolve
from torchgraft.nn.recording import refuse_scripting
from torchgraft.operators.depthwise_conv1d import depthwise_conv1d
from torchgraft.operators.depthwise_conv1d.window import IntOrOne
from torchgraft.operators.windows import whole_numbers


class DepthwiseConv1d(torch.nn.Conv1d):
    """`torch.nn.Conv1d` with groups = in_channels, computed by `torchgraft.depthwise_conv1d`.

    Parameters, their names and initialisation, padding modes and printed form are those of `torch.nn.Conv1d`.

    Args:
        in_channels: channels of the input, C.
        kernel_size: taps of a kernel, one number.
        stride: elements between outputs, one number.
        padding: zeros on both sides, one number, 'valid' or 'same'.
        dilation: elements between taps, one number.
        bias: whether a number a channel is added.
        channel_multiplier: kernels a channel, m; the output has C * m channels.
        padding_mode: 'zeros', 'reflect', 'replicate' or 'circular'.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Raises:
        TypeError: a number is not an int or another integer, such as NumPy's, or it is a bool.
        ValueError: in_channels or channel_multiplier is not positive, there are several numbers for one, or padding or
            padding_mode is another word; in a call, input does not have in_channels channels.
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        in_channels: int,
        kernel_size: IntOrOne = 3,
        stride: IntOrOne = 1,
        padding: IntOrOne | str = 0,
        dilation: IntOrOne = 1,
        bias: bool = True,
        channel_multiplier: int = 1,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        name = "DepthwiseConv1d"
        in_channels = positive(name, "in_channels", in_channels)
        channel_multiplier = positive(name, "channel_multiplier", channel_multiplier)
        # Conv1d's own type is narrower than this.
        mode: Any = padding_mode
        super().__init__(
            in_channels,
            in_channels * channel_multiplier,
            _one(name, "kernel_size", kernel_size),
            _one(name, "stride", stride),
            padding if isinstance(padding, str) else _one(name, "padding", padding),
            _one(name, "dilation", dilation),
            groups=in_channels,
            bias=bias,
            padding_mode=mode,
            device=device,
            dtype=dtype,
        )

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return convolve(self, depthwise_conv1d, input, weight, bias)


def _one(name: str, argument: str, value: Any) -> int:
    """One number, also of anything that can be gone through, as `torch.nn.Conv1d` takes it."""
    several = isinstance(value, Iterable) and not isinstance(value, (str, Tensor))
    (found,) = whole_numbers(name, argument, tuple(value) if several else value, 1)
    return found
