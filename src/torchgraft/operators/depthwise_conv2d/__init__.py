"""depthwise_conv2d: each channel convolved with its own kernels; its gradients, operators like it; and transposed."""

from torchgraft.operators.depthwise_conv2d.operator import (
    depthwise_conv2d,
    depthwise_conv2d_input_grad,
    depthwise_conv2d_weight_grad,
)
from torchgraft.operators.depthwise_conv2d.transposed import depthwise_conv_transpose2d

__all__ = [
    "depthwise_conv2d",
    "depthwise_conv2d_input_grad",
    "depthwise_conv2d_weight_grad",
    "depthwise_conv_transpose2d",
]
