"""What mul_constant means."""

from torch import Tensor


def mul_constant(input: Tensor, constant: float) -> Tensor:
    """input * constant."""
    return input * constant
