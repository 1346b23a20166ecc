"""depthwise_conv3d: each channel of volumes convolved with its own kernels; and its two gradients."""

from torchgraft.operators.depthwise_conv3d.operator import (
    depthwise_conv3d,
    depthwise_conv3d_input_grad,
    depthwise_conv3d_weight_grad,
)

__all__ = ["depthwise_conv3d", "depthwise_conv3d_input_grad", "depthwise_conv3d_weight_grad"]
