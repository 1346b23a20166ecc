"""How many floating-point operations the operators take, by the shapes of their tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchgraft.operators.depthwise_conv2d.window import Window


def forward(
    input_shape: Sequence[int], weight_shape: Sequence[int], bias_shape: Sequence[int] | None, *window: int
) -> int:
    """Operations of depthwise_conv2d."""
    size = Window(*window).output_size(*input_shape[2:], *weight_shape[2:])
    return _multiply_adds((input_shape[0], weight_shape[0], *size), *weight_shape[2:])


def input_grad(output_grad_shape: Sequence[int], weight_shape: Sequence[int], *numbers: int) -> int:
    """Operations of depthwise_conv2d_input_grad."""
    return _multiply_adds(output_grad_shape, *weight_shape[2:])


def weight_grad(output_grad_shape: Sequence[int], input_shape: Sequence[int], *numbers: int) -> int:
    """Operations of depthwise_conv2d_weight_grad; `numbers` begin with the size of the kernel."""
    return _multiply_adds(output_grad_shape, *numbers[:2])


def _multiply_adds(output_shape: Sequence[int], kernel_height: int, kernel_width: int) -> int:
    """Two operations a tap and output: the same for all three operators, which are transposes of each other."""
    return 2 * math.prod(output_shape) * kernel_height * kernel_width
