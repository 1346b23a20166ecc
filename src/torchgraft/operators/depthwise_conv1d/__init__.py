"""depthwise_conv1d: each channel of sequences convolved with its own kernels; its two gradients; and transposed."""

from torchgraft.operators.depthwise_conv1d.operator import (
    depthwise_conv1d,
    depthwise_conv1d_input_grad,
    depthwise_conv1d_weight_grad,
)
from torchgraft.operators.depthwise_conv1d.transposed import depthwise_conv_transpose1d

__all__ = [
    "depthwise_conv1d",
    "depthwise_conv1d_input_grad",
    "depthwise_conv1d_weight_grad",
    "depthwise_conv_transpose1d",
]
