"""Operator, and what follows from its declaration: calls, gradients, registration with PyTorch, and sharding."""

from torchgraft.declaration import FLOATING
from torchgraft.declaration.output import unknown_size
from torchgraft.operator.gradients import gradient_by_reference
from torchgraft.operator.operator import Operator

__all__ = ["FLOATING", "Operator", "gradient_by_reference", "unknown_size"]
