"""depthwise_conv_transpose3d, an input gradient of depthwise_conv3d; depthwise_conv2d/transposed.py says how."""

import torch.nn.functional as F
from torch import Tensor

from torchgraft.operators.depthwise_conv2d.transposed import convolve_transposed, rank_of
from torchgraft.operators.depthwise_conv3d.operator import convolution, input_grad
from torchgraft.operators.depthwise_conv3d.window import IntOrTriple, VolumeWindow


def depthwise_conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrTriple = 1,
    padding: IntOrTriple = 0,
    output_padding: IntOrTriple = 0,
    dilation: IntOrTriple = 1,
) -> Tensor:
    """Convolves each channel of a batch of volumes, transposed, with kernels of its own.

    Equal to `torch.nn.functional.conv_transpose3d(input, weight, bias, stride, padding, output_padding, C, dilation)`.
    Differentiable any number of times, through kernels. float16 and bfloat16 are summed in float32.

    Args:
        input: (N, C, D, H, W) or (C, D, H, W), float64, float32, float16 or bfloat16. Contiguous and channels_last_3d
            are both read as they are; other strides are copied first.
        weight: (C, m, KD, KH, KW), on the device of input; m >= 1 kernels a channel. Weight and bias may have another
            of these dtypes: they are then rounded to the dtype of input, and their gradients have their own.
        bias: (C * m), or None.
        stride: voxels between the outputs of neighbouring inputs, a whole number or (depth, height, width).
        padding: voxels that the output is smaller by on each side, a whole number or (depth, height, width).
        output_padding: voxels that the output is larger by at the back, at the bottom and at the right, a whole number
            or (depth, height, width); each less than stride or dilation.
        dilation: voxels between the taps of a kernel, a whole number or (depth, height, width).

    Returns:
        (N, C * m, OD, OH, OW), or without N as input, OD = (D - 1) * stride - 2 * padding + dilation * (KD - 1) +
        output_padding + 1; with the strides that `torch.nn.functional.conv_transpose3d` gives.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes do not fit together, a stride or dilation is below 1, a padding is negative, or output_padding
            is too large.

    Source: `torch.nn.ConvTranspose3d` with groups = in_channels.
    """
    return convolve_transposed(_VOLUMES, input, weight, bias, stride, padding, output_padding, dilation)


_VOLUMES = rank_of(depthwise_conv_transpose3d, F.conv_transpose3d, convolution, input_grad, VolumeWindow)
