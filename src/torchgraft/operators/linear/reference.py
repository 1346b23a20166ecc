"""The definition of linear, which also computes it."""

import torch.nn.functional as F
from torch import Tensor


def linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Input times the transposed weight, and the bias added."""
    if weight.dim() != 2:  # F.linear takes a vector too, and gives what has a dimension less
        raise ValueError(f"linear: weight must be (out_features, in_features), got {tuple(weight.shape)}")
    return F.linear(input, weight, bias)
