"""Turns an error of a kernel or of PyTorch into one that names the argument and says what was expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchgraft import native
from torchgraft._private import pytorch
from torchgraft.arguments import stands_for_tensor
from torchgraft.declaration.autocast import make_cast
from torchgraft.declaration.bad_arguments import out_of_memory
from torchgraft.kernels.names import Names
from torchgraft.operator import dtensor


def make_recover(names: Names) -> Callable[[Exception, Sequence[Any]], Any]:
    """Builds `recover(error, arguments)`, which raises a clear error for one that a call raised.

    If values stand for tensors, as in `torch.fx.symbolic_trace`, nothing is wrong: it returns the recorded call.
    """
    declaration = names.declaration

    def recover(error: Exception, arguments: Sequence[Any]) -> Any:
        if any(map(stands_for_tensor, arguments)):
            return declaration.visible(names.call_public(*arguments))
        if declaration.autocast != "none" and pytorch.any_autocast():
            # These may be the arguments before autocast, from a layer that calls PyTorch, which casts by itself.
            arguments = make_cast(declaration.autocast, declaration.arguments, declaration.mixed)(arguments)
        try:
            declaration.explain(*arguments)
        except (ValueError, TypeError) as clear:
            raise clear from None
        if (lacking := out_of_memory(error)) is not None:
            raise lacking from None
        dtensor.explain(declaration, arguments, error)
        if said := native.refusal_in(declaration.namespace, error):
            # The kernel may know more than the declaration checks, such as which index is too large.
            raise ValueError(said if said.startswith(declaration.name) else f"{declaration.name}: {said}") from None
        raise error

    return recover
