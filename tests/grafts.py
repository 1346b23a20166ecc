"""Shared by the tests of graft: the operators that a call runs on, and a layer that pads by the size of its input."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode


def calls_of(function: Callable[[], object]) -> list[str]:
    """The names of torchgraft's operators that a function calls, one for each call."""
    names: list[str] = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.extend([func._opname] if func.namespace == "torchgraft" else [])
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Listening():
        function()
    return names


class SamePadded(nn.Conv2d):
    """Pads as TensorFlow does, by the size of the input, and calls the function with the layer's weight."""

    def forward(self, input: Tensor) -> Tensor:
        high = self.missing(input.shape[-2], 0)
        wide = self.missing(input.shape[-1], 1)
        input = F.pad(input, [wide // 2, wide - wide // 2, high // 2, high - high // 2])
        return F.conv2d(input, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)

    def missing(self, size: int, side: int) -> int:
        outputs = -(-size // self.stride[side])
        return max((outputs - 1) * self.stride[side] + self.kernel_size[side] - size, 0)
