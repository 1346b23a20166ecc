"""mul_constant: an input times a number. The smallest complete operator: read it first, copy it."""

from torchgraft.operators.mul_constant.operator import mul_constant

__all__ = ["mul_constant"]
