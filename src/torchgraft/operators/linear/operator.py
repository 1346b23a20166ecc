"""The declaration of linear: an operator whose best kernel is what PyTorch has."""

import math
from collections.abc import Sequence

from torch import Tensor

from torchgraft.operator import Operator
from torchgraft.operators.linear import reference


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear transformation of the last dimension: input @ weight.T + bias.

    Args:
        input: (..., in_features), float64, float32, float16 or bfloat16.
        weight: (out_features, in_features).
        bias: (out_features), or None.

    Returns:
        (..., out_features).

    Raises:
        TypeError: an argument is not a tensor, or has another dtype.
        ValueError: sizes that do not fit together.

    Source: `torch.nn.functional.linear`.
    """
    return operator.call(input, weight, bias)


def _flops(input_shape: Sequence[int], weight_shape: Sequence[int], bias_shape: Sequence[int] | None) -> int:
    return 2 * math.prod(input_shape) * weight_shape[0]


operator = Operator(
    "torchgraft::linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor",
    reference=reference.linear,
    shapes="... n, m n, m -> ... m",
    autocast="lower",
    sharding="... n, m n, +m -> ... m",
    flops=_flops,
    # Vendors' libraries of matrix products are at the roof, and PyTorch computes only the gradients that are asked for.
    kernels="reference",
    compile="reference",
)
