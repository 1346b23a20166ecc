"""What a function takes from its caller: each raises, or gives the value as kernels and compilers take it."""

from torchgraft._explaining import require_tensor, stands_for_tensor
from torchgraft._numbers import flag, positive, real, sizes, whole

__all__ = ["flag", "positive", "real", "require_tensor", "sizes", "stands_for_tensor", "whole"]
