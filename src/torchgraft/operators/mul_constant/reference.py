"""The definition of mul_constant."""

from torch import Tensor


def mul_constant(input: Tensor, constant: float) -> Tensor:
    """Input * constant."""
    return input * constant
