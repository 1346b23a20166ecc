"""The declaration of fused_add_rms_norm, which writes to two of its arguments and has no result."""

import math

import torch
from torch import Tensor

from torchgraft import Operator
from torchgraft.operator import FLOATING


def _reference(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    # In half precision the sum is not rounded before it is normalized.
    wide = torch.promote_types(input.dtype, torch.float32)
    total = input.to(wide) + residual.to(wide)
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + epsilon)
    return (total * scale * weight.to(wide)).to(input.dtype), total.to(residual.dtype)


def _explain(input: Tensor, residual: Tensor, weight: Tensor, epsilon: float) -> None:
    if not 0 <= epsilon < math.inf:
        raise ValueError(f"fused_add_rms_norm: epsilon must be a finite number and not negative, got {epsilon}")


fused_add_rms_norm = Operator(
    "gallery::fused_add_rms_norm(Tensor(a!) input, Tensor(b!) residual, Tensor weight, float epsilon=1e-6) -> ()",
    reference=_reference,
    shapes="... columns, ... columns, columns ->",
    kernels={"cuda": FLOATING},
    explain=_explain,
)
