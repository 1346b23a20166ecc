"""A depthwise convolution layer."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchgraft.operators.depthwise_conv2d import depthwise_conv2d
from torchgraft.operators.depthwise_conv2d.window import IntOrPair


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
    """

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
        # Conv2d's own types are narrower than what it takes.
        arguments: dict[str, Any] = {"stride": stride, "padding": padding, "padding_mode": padding_mode}
        super().__init__(
            in_channels,
            in_channels * channel_multiplier,
            kernel_size,  # type: ignore[arg-type]
            dilation=dilation,  # type: ignore[arg-type]
            groups=in_channels,
            bias=bias,
            device=device,
            dtype=dtype,
            **arguments,
        )

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = F.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return depthwise_conv2d(input, weight, bias, self.stride, padding, self.dilation)
