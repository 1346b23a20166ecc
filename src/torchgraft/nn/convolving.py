"""The forward pass that depthwise convolution layers of every rank share."""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.conv import _ConvNd


def convolve(
    layer: _ConvNd, compute: Callable[..., Tensor], input: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    """Convolves with what a layer says of stride, padding, dilation and groups.

    Args:
        layer: a convolution of PyTorch's, or a subclass of one.
        compute: the operator of its rank.
        input: of the layer's forward pass.
        weight: the layer's, or what was made of it.
        bias: likewise.

    Returns:
        The output of the layer.
    """
    padding: Any = layer.padding
    if layer.padding_mode != "zeros":
        input = F.pad(input, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        padding = 0
    return compute(input, weight, bias, layer.stride, padding, layer.dilation, layer.groups)
