"""causal_conv1d: a depthwise convolution along time that sees no future, as Mamba's layers have."""

from pathlib import Path
from typing import Literal, overload

from torch import Tensor

from causal_conv1d.operator import causal_conv1d_operator
from torchgraft import building

_HERE = Path(__file__).parent
# In an installed wheel the compiled kernels lie in lib/. Elsewhere they are compiled here, once.
building.load("causal_conv1d", [path for kind in ("*.cpp", "*.cu") for path in sorted(_HERE.glob(kind))])


@overload
def causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    activation: Literal["silu"] | None = None,
    return_final_state: Literal[False] = False,
) -> Tensor: ...
@overload
def causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    activation: Literal["silu"] | None = None,
    return_final_state: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
    activation: Literal["silu"] | None = None,
    return_final_state: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Convolves each channel with its own weight along time, where an output sees no later input.

    output[t] = activation(bias + sum over k of weight[k] * input[t + k - (width - 1)]), as in Mamba: Albert Gu and Tri
    Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, arXiv 2312.00752, figure 3.

    Args:
        input: (batch, channels, length), float64, float32, float16 or bfloat16. Where neighbouring channels or
            neighbouring times are neighbours in memory it is read as it lies; otherwise it is copied first.
        weight: (channels, width), of a width of 2, 3 or 4.
        bias: (channels,); None: zero.
        initial_state: (batch, channels, width - 1), the inputs before the first; None: zeros.
        activation: 'silu', or None for none.
        return_final_state: whether the last width - 1 inputs are returned too, which are the initial state of the call
            that goes on from here.

    Returns:
        The output (batch, channels, length), laid out in memory as the input is; with `return_final_state` a pair of
        it and the final state (batch, channels, width - 1).

    Raises:
        TypeError: what should be a tensor is none, or of another dtype than the input.
        ValueError: shapes do not fit, or there is no such activation.
    """
    if activation not in (None, "silu"):
        raise ValueError(f"causal_conv1d: activation must be None or 'silu', got {activation!r}")
    output, final_state = causal_conv1d_operator(input, weight, bias, initial_state, activation is not None)
    return (output, final_state) if return_final_state else output
