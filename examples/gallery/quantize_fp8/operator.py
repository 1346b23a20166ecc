"""The declaration of quantize_fp8, whose results are codes and the scales that they are multiplied by."""

import torch
from torch import Tensor

from torchgraft import Operator

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# The largest number of float8_e4m3fn, and the smallest scale: 2**-126 has all bits of its mantissa in float32.
LARGEST = 448.0
SMALLEST_SCALE = 2.0**-126


def _reference(input: Tensor) -> tuple[Tensor, Tensor]:
    wide = input.to(torch.promote_types(input.dtype, torch.float32))
    largest = torch.where(wide.isfinite(), wide.abs(), 0).amax(-1, keepdim=True)
    scale = (largest / LARGEST).clamp(min=SMALLEST_SCALE)
    codes = (wide / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return codes, scale.squeeze(-1).to(torch.float32)


def _output(input: Tensor) -> tuple[Tensor, Tensor]:
    return (
        input.new_empty(input.shape, dtype=torch.float8_e4m3fn),
        input.new_empty(input.shape[:-1], dtype=torch.float32),
    )


def _explain(input: Tensor) -> None:
    if input.dim() == 0 or not input.shape[-1]:
        raise ValueError(
            f"quantize_fp8: input must have rows of one element at least, as (..., columns), got {tuple(input.shape)}"
        )


quantize_fp8 = Operator(
    "gallery::quantize_fp8(Tensor input) -> (Tensor codes, Tensor scale)",
    reference=_reference,
    output=_output,
    not_differentiable=("input", "codes", "scale"),
    dtypes=_DTYPES,
    kernels={"cuda": _DTYPES},
    explain=_explain,
)
