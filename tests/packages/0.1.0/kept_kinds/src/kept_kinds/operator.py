"""The declaration of kept_kinds: what PyTorch must know about it, and nothing about how it is computed."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchgraft import Operator, gradient_by_reference
from torchgraft.operator import FLOATING

from kept_kinds import reference

_SCHEMA = (
    "kept_kinds::kept_kinds(Tensor input, Tensor? other, Tensor[] more, int n=3, SymInt[] sizes=[1, 2], float[] "
    'scales=[1.0, 2.0], *, bool flag=False, str mode="mean", ScalarType? dtype=None, Device? device=None, float '
    "eps=1e-05) -> (Tensor, Tensor[])"
)


def _kept_kinds_output(
    input: Tensor,
    other: Tensor | None,
    more: Sequence[Tensor],
    n: int,
    sizes: Sequence[int],
    scales: Sequence[float],
    *,
    flag: bool,
    mode: str,
    dtype: torch.dtype | None,
    device: torch.device | None,
    eps: float,
) -> tuple[Tensor, list[Tensor]]:
    return torch.empty_like(input), [torch.empty_like(each) for each in more]


kept_kinds_operator = Operator(
    _SCHEMA,
    reference=reference.kept_kinds,
    output=_kept_kinds_output,
    gradient=gradient_by_reference(reference.kept_kinds, _SCHEMA),
    dtypes=FLOATING,
    kernels={"cpu": FLOATING},
)
