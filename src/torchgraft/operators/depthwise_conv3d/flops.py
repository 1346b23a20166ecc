"""How many floating-point operations the operators take, by the shapes of their tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torchgraft.operators.depthwise import multiply_adds
from torchgraft.operators.depthwise_conv3d.window import VolumeWindow


def forward(
    input_shape: Sequence[int], weight_shape: Sequence[int], bias_shape: Sequence[int] | None, *window: int
) -> int:
    """Operations of depthwise_conv3d."""
    size = VolumeWindow(*window).output_size(*input_shape[2:], *weight_shape[2:])
    return multiply_adds((input_shape[0], weight_shape[0], *size), weight_shape[2:])


def input_grad(output_grad_shape: Sequence[int], weight_shape: Sequence[int], *numbers: int) -> int:
    """Operations of depthwise_conv3d_input_grad."""
    return multiply_adds(output_grad_shape, weight_shape[2:])


def weight_grad(output_grad_shape: Sequence[int], input_shape: Sequence[int], *numbers: int) -> int:
    """Operations of depthwise_conv3d_weight_grad; `numbers` begin with the size of the kernel."""
    return multiply_adds(output_grad_shape, numbers[:3])
