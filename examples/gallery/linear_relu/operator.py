"""The declaration of linear_relu, whose gradient reads the result."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchgraft import Operator
from torchgraft.operator import FLOATING


def _reference(input: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    wide = torch.promote_types(input.dtype, torch.float32)
    sums = input.to(wide) @ weight.to(wide).mT + bias.to(wide)
    # Rounded first: where half precision has zero, the gradient is zero too.
    return torch.relu(sums.to(input.dtype))


def _gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> tuple[Tensor | None, ...]:
    (output,), (grad,) = saved, output_grads
    # As PyTorch's own: the gradient of NaN is passed on.
    sums_grad = torch.where(output <= 0, 0, grad)
    return (
        sums_grad @ weight if needs_grad[0] else None,
        sums_grad.mT @ input if needs_grad[1] else None,
        sums_grad.sum(0) if needs_grad[2] else None,
    )


linear_relu = Operator(
    "gallery::linear_relu(Tensor input, Tensor weight, Tensor bias) -> (Tensor output)",
    reference=_reference,
    shapes="rows features, units features, units -> rows units",
    gradient=_gradient,
    saved_outputs=("output",),
    unsaved=("bias",),
    autocast="lower",
    flops=lambda input_shape, weight_shape, bias_shape: 2 * input_shape[0] * weight_shape[0] * weight_shape[1],
    kernels={"cuda": FLOATING},
)
