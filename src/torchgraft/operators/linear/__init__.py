"""linear: a matrix product with a weight, and a bias. Its kernels are PyTorch's own."""

from torchgraft.operators.linear.operator import linear

__all__ = ["linear"]
