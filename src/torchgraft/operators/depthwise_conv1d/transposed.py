"""depthwise_conv_transpose1d, an input gradient of depthwise_conv1d; depthwise_conv2d/transposed.py says how."""

import torch.nn.functional as F
from torch import Tensor

from torchgraft.operators.depthwise_conv1d.operator import convolution, input_grad
from torchgraft.operators.depthwise_conv1d.window import IntOrOne, SequenceWindow
from torchgraft.operators.depthwise_conv2d.transposed import convolve_transposed, rank_of


def depthwise_conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrOne = 1,
    padding: IntOrOne = 0,
    output_padding: IntOrOne = 0,
    dilation: IntOrOne = 1,
) -> Tensor:
    """Convolves each channel of a batch of sequences, transposed, with kernels of its own.

    Equal to `torch.nn.functional.conv_transpose1d(input, weight, bias, stride, padding, output_padding, C, dilation)`.
    Differentiable any number of times, through kernels. float16 and bfloat16 are summed in float32.

    Args:
        input: (N, C, L) or (C, L), float64, float32, float16 or bfloat16, in any strides.
        weight: (C, m, K), on the device of input; m >= 1 kernels a channel. Weight and bias may have another of these
            dtypes: they are then rounded to the dtype of input, and their gradients have their own.
        bias: (C * m), or None.
        stride: elements between the outputs of neighbouring inputs, a whole number, alone or in a tuple.
        padding: elements that the output is shorter by on both sides, a whole number, alone or in a tuple.
        output_padding: elements that the output is longer by behind; less than stride or dilation.
        dilation: elements between the taps of a kernel, a whole number, alone or in a tuple.

    Returns:
        (N, C * m, OL), or without N as input, OL = (L - 1) * stride - 2 * padding + dilation * (K - 1) + output_padding
        + 1; with the strides that `torch.nn.functional.conv_transpose1d` gives.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes do not fit together, a stride or dilation is below 1, a padding is negative, or output_padding
            is too large.

    Source: `torch.nn.ConvTranspose1d` with groups = in_channels.
    """
    return convolve_transposed(_SEQUENCES, input, weight, bias, stride, padding, output_padding, dilation)


_SEQUENCES = rank_of(depthwise_conv_transpose1d, F.conv_transpose1d, convolution, input_grad, SequenceWindow)
