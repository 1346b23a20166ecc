"""The declaration of mul_constant: what PyTorch must know about it, and nothing about how it is computed."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft.arguments import real
from torchgraft.operator import Operator
from torchgraft.operators.mul_constant import reference


def mul_constant(input: Tensor, constant: float) -> Tensor:
    """Multiplies every element by a number.

    Args:
        input: (any shape), float64, float32, float16 or bfloat16.
        constant: the factor, a real number of Python or NumPy, but no bool; it has no gradient.

    Returns:
        input * constant, with the shape, dtype and strides of input.

    Raises:
        TypeError: input is not a tensor or has another dtype, or constant is not a number.
    """
    if type(constant) is not float:
        constant = real("mul_constant", "constant", constant)
    return operator(input, constant)


def _output(input: Tensor, constant: float) -> Tensor:
    return torch.empty_like(input)


def _gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    input: Tensor,
    constant: float,
) -> tuple[Tensor]:
    (output_grad,) = output_grads
    return (mul_constant(output_grad, constant),)


def _vmap(
    operator: Any, batch_size: int, in_dims: Sequence[int | None], input: Tensor, constant: float
) -> tuple[Tensor, int | None]:
    # Elementwise: a batch is nothing but more elements.
    return operator(input, constant), in_dims[0]


def _flops(input_shape: Sequence[int], constant: float) -> int:
    return math.prod(input_shape)


operator = Operator(
    "torchgraft::mul_constant(Tensor input, float constant) -> Tensor",
    reference=reference.mul_constant,
    output=_output,
    gradient=_gradient,
    unsaved=("input",),
    vmap=_vmap,
    sharding="... -> ...",
    flops=_flops,
    # A product fuses with its neighbours; an opaque kernel would stand in the way.
    compile="reference",
)
