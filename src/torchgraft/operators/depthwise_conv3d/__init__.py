"""depthwise_conv3d: each channel of volumes convolved with its own kernels; its two gradients; and transposed."""

from torchgraft.operators.depthwise_conv3d.operator import (
    depthwise_conv3d,
    depthwise_conv3d_input_grad,
    depthwise_conv3d_weight_grad,
)
from torchgraft.operators.depthwise_conv3d.transposed import depthwise_conv_transpose3d

__all__ = [
    "depthwise_conv3d",
    "depthwise_conv3d_input_grad",
    "depthwise_conv3d_weight_grad",
    "depthwise_conv_transpose3d",
]
