"""causal_conv1d: a depthwise convolution along time that sees no future, packed sequences, and steps of decoding."""

from torchgraft.operators.causal_conv1d.operator import causal_conv1d
from torchgraft.operators.causal_conv1d.update import causal_conv1d_update

__all__ = ["causal_conv1d", "causal_conv1d_update"]
