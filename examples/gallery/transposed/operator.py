"""The declaration of transposed, which is its own gradient."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchgraft import Operator
from torchgraft.operator import FLOATING


def _gradient(needs_grad: Sequence[bool], output_grads: Sequence[Tensor], saved: Any, input: Tensor) -> tuple[Tensor]:
    return (transposed(output_grads[0]),)


transposed = Operator(
    "gallery::transposed(Tensor input) -> Tensor",
    reference=lambda input: input.mT.contiguous(),
    shapes="... rows columns -> ... columns rows",
    gradient=_gradient,
    unsaved=("input",),
    vmap=lambda operator, batch_size, in_dims, input: (operator(input.movedim(in_dims[0], 0)), 0),
    kernels={"cuda": FLOATING},
)
