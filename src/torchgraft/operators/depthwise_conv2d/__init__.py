"""depthwise_conv2d: each channel convolved with its own kernels; and its two gradients, operators like it."""

from torchgraft.operators.depthwise_conv2d.operator import (
    depthwise_conv2d,
    depthwise_conv2d_input_grad,
    depthwise_conv2d_weight_grad,
)

__all__ = ["depthwise_conv2d", "depthwise_conv2d_input_grad", "depthwise_conv2d_weight_grad"]
