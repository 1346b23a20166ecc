"""The dtypes that the tensors of an operator may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from torchgraft.declaration.checks import check_names
from torchgraft.declaration.schema import Argument

FLOATING: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def dtypes_of(
    operator: str,
    arguments: Sequence[Argument],
    dtypes: Sequence[torch.dtype] | Mapping[str, Sequence[torch.dtype]] | None,
) -> tuple[dict[str, tuple[torch.dtype, ...]], int]:
    """The dtypes of each tensor argument, by name, and the place of the argument that decides the operator's dtype.

    Args:
        operator: its qualified name, for messages.
        arguments: of its schema.
        dtypes: as declared: of all tensors, or by name of argument.

    Raises:
        ValueError: a name is not that of a tensor argument.
    """
    tensors = {argument.name: place for place, argument in enumerate(arguments) if argument.holds_tensors}
    if not isinstance(dtypes, Mapping):
        return ({} if dtypes is None else dict.fromkeys(tensors, tuple(dtypes))), next(iter(tensors.values()))
    check_names(operator, arguments, "dtypes", tuple(dtypes))
    found = {name: tuple(each) for name, each in dtypes.items()}
    real = (
        name for name in tensors if any(dtype.is_floating_point or dtype.is_complex for dtype in found.get(name, ()))
    )
    return found, tensors[next(real, next((name for name in tensors if name in found), next(iter(tensors))))]
