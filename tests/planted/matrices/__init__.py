"""Products of matrices: operators whose best kernel is PyTorch's own, so that their reference is all that is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor

from planted import kernels
from planted.bug import Bug
from torchgraft import Operator
from torchgraft.sampling import Drawn, Sample, Samples

BUGS: list[Bug] = []


def _gradient(needs_grad: Sequence[bool], grads: Sequence[Tensor], saved: Any, left: Tensor, right: Tensor) -> Any:
    (grad,) = grads
    return matrix_product(grad, right.t()) if needs_grad[0] else None, (
        matrix_product(left.t(), grad) if needs_grad[1] else None
    )


def _declare(name: str, **changes: Any) -> Operator:
    def explain(left: Tensor, right: Tensor) -> None:
        if left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0]:
            raise ValueError(f"{name}: matrices of {tuple(left.shape)} and {tuple(right.shape)} have no product")

    options = {
        "reference": lambda left, right: left @ right,
        "output": lambda left, right: left.new_empty(left.shape[0], right.shape[1]),
        "gradient": _gradient,
        "autocast": "lower",
        "flops": lambda left, right: 2 * math.prod(left) * right[1],
        "kernels": "reference",
        "sharding": "m k, k n -> m n",
        **changes,
    }
    return Operator(f"{kernels.NAMESPACE}::{name}(Tensor left, Tensor right) -> Tensor", explain=explain, **options)


matrix_product = _declare("matrix_product")
# Right, although its reference calls what autocast casts: the Operator sees to it that nothing is cast there.
left_alone = _declare("left_alone", autocast="none")

BUGS.append(
    Bug(
        _declare("lowers_to_what_it_does_not_take", dtypes=(torch.float64, torch.float32)),
        "says that autocast lowers it, to dtypes that it does not take",
        "autocast",
    )
)
BUGS.append(
    Bug(
        _declare(
            "cuts_what_is_normalized",
            reference=lambda left, right: (left @ right).softmax(1),
            gradient="reference",
            sharding="m _, _ n -> m n",
        ),
        "says that columns may be cut of which each device would take a softmax of its own",
        "sharding",
    )
)


def _product(name: str, rows: int, inner: int, columns: int) -> Sample:
    return Sample(name, (Drawn((rows, inner)), Drawn((inner, columns))))


def _draw(random: Random) -> Sample:
    return _product("drawn", *(random.randint(1, 5) for _ in range(3)))


samples = Samples(
    (
        _product("numbers", 1, 1, 1),
        _product("small", 3, 4, 5),
        _product("no rows", 0, 2, 3),
        _product("an odd size", 17, 31, 7),
    ),
    _draw,
    summed=lambda left, right: int(left.shape[1]),
)
