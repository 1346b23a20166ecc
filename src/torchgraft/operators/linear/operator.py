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
        TypeError: an argument is no tensor, or of another dtype.
        ValueError: sizes that do not fit together.

    Source: `torch.nn.functional.linear`.
    """
    return operator.call(input, weight, bias)


def _output(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def _flops(input_shape: Sequence[int], weight_shape: Sequence[int], bias_shape: Sequence[int] | None) -> int:
    return 2 * math.prod(input_shape) * weight_shape[0]


def _require(condition: bool, problem: str) -> None:
    if not condition:
        raise ValueError(f"linear: {problem}")


def _explain(input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    _require(weight.dim() == 2, f"weight must be (out_features, in_features), got {tuple(weight.shape)}")
    out_features, in_features = weight.shape
    _require(
        input.dim() > 0 and input.shape[-1] == in_features,
        f"input must be (..., {in_features}) for a weight of {tuple(weight.shape)}, got {tuple(input.shape)}",
    )
    if bias is not None:
        _require(bias.shape == (out_features,), f"bias must be ({out_features},), got {tuple(bias.shape)}")


operator = Operator(
    "torchgraft::linear(Tensor input, Tensor weight, Tensor? bias) -> Tensor",
    reference=reference.linear,
    output=_output,
    autocast="lower",
    flops=_flops,
    # Vendors' libraries of matrix products are at the roof, and PyTorch computes only the gradients that are asked for.
    kernels="reference",
    compile="reference",
    explain=_explain,
)
