"""kept_kinds: copies, until its author writes what it computes."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torchgraft import building

from kept_kinds.operator import kept_kinds_operator

# In an installed wheel the compiled kernels lie in lib/. Elsewhere they are compiled here, once.
building.load("kept_kinds", [Path(__file__).with_name("cpu.cpp")])


def kept_kinds(
    input: Tensor,
    other: Tensor | None,
    more: Sequence[Tensor],
    n: int = 3,
    sizes: Sequence[int] = (1, 2),
    scales: Sequence[float] = (1.0, 2.0),
    *,
    flag: bool = False,
    mode: str = "mean",
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    eps: float = 1e-05,
) -> tuple[Tensor, list[Tensor]]:
    """Copies, until its author writes what it computes.

    Args:
        input: a tensor of any shape, float64, float32, float16 or bfloat16.
        other: a tensor of any shape, float64, float32, float16 or bfloat16; or None.
        more: some, each a tensor of any shape, float64, float32, float16 or bfloat16.
        n: a whole number.
        sizes: some, each a whole number.
        scales: some, each a number.
        flag: yes or no.
        mode: a text.
        dtype: a dtype; or None.
        device: a device; or None.
        eps: a number.

    Returns:
        A copy of input, more.

    Raises:
        TypeError: an argument is of another type than its own, or a tensor of another dtype.
    """
    return kept_kinds_operator(
        input,
        other,
        more,
        n,
        sizes,
        scales,
        flag=flag,
        mode=mode,
        dtype=dtype,
        device=device,
        eps=eps,
    )
