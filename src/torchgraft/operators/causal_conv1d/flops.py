"""Floating-point operations of causal_conv1d and of its gradients, from the shapes of their tensors."""

from collections.abc import Sequence

Shape = Sequence[int]


def forward(input: Shape, weight: Shape, *others: Shape | bool | None) -> int:
    """Counts a product and a sum for each tap of each element."""
    batch, channels, length = input
    return 2 * batch * channels * length * weight[1]


def backward(output_grad: Shape, final_state_grad: Shape | None, input: Shape, weight: Shape, *others: object) -> int:
    """Counts as many for the input and for the weight; with SiLU the sums are computed again."""
    silu = others[3]
    return (3 if silu else 2) * forward(input, weight)


def update(input: Shape, state: Shape, weight: Shape, *others: object) -> int:
    """Counts those of the forward pass."""
    return forward(input, weight)
