"""depthwise_conv1d: each channel of sequences convolved with its own kernels; and its two gradients."""

from torchgraft.operators.depthwise_conv1d.operator import (
    depthwise_conv1d,
    depthwise_conv1d_input_grad,
    depthwise_conv1d_weight_grad,
)

__all__ = ["depthwise_conv1d", "depthwise_conv1d_input_grad", "depthwise_conv1d_weight_grad"]
