"""float16 and bfloat16 on CPU: a call computes what float32 does, and rounds once.

Images in channels_last are read and written where they lie, with a conversion in registers. Bit by bit the results are
those of the same call in float32, rounded by PyTorch: for subnormal numbers, infinity and NaN too.
"""

from random import Random

import pytest
import torch

from torchgraft import depthwise_conv1d, depthwise_conv2d, depthwise_conv3d

CALLS = {1: depthwise_conv1d, 2: depthwise_conv2d, 3: depthwise_conv3d}

# Rows are wider than the few pixels for which float32 adds the bias last. Sizes of images, then the arguments.
SHAPES = {
    "3x3": ((9, 8), 3, {"padding": 1}),
    "3x3, no padding": ((7, 23), 3, {}),
    "3x3, three columns": ((5, 3), 3, {"padding": 1}),
    "3x3, padding beyond": ((4, 9), 3, {"padding": 4}),
    "3x3, stride 2": ((18, 17), 3, {"padding": 1, "stride": 2}),
    "3x3, stride 2, even": ((16, 18), 3, {"padding": 0, "stride": 2}),
    "3x3, dilation 2": ((9, 19), 3, {"padding": 2, "dilation": 2}),
    "3x3, stride 3": ((9, 27), 3, {"padding": 1, "stride": 3}),
    "5x5": ((9, 14), 5, {"padding": 2}),
    "5x5, stride 2": ((11, 26), 5, {"padding": 2, "stride": 2}),
    "5x5, dilation 2": ((11, 20), 5, {"padding": 4, "dilation": 2}),
    "7x7": ((8, 13), 7, {"padding": 3}),
    "7x7, stride 2": ((12, 26), 7, {"padding": 3, "stride": 2}),
    "9x9": ((9, 11), 9, {"padding": 4}),
    "1 x 7": ((4, 12), (1, 7), {"padding": (0, 3)}),
    "4x4": ((9, 12), 4, {"padding": 1}),
    "2x2, stride 2": ((8, 18), 2, {"stride": 2}),
    "17x3": ((19, 10), (17, 3), {"padding": (8, 1)}),
    "sequence of 3 taps": ((27,), 3, {"padding": 1}),
    "sequence of 7 taps": ((26,), 7, {"padding": 3, "stride": 2}),
    "volume": ((4, 5, 12), 3, {"padding": 1}),
    "volume, stride 2": ((5, 6, 19), 3, {"padding": 1, "stride": 2}),
}


def numbers(shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> torch.Tensor:
    """Numbers of a kind: normal, subnormal in the dtype for the most part, or normal with extreme ones among them."""
    result = torch.randn(shape)
    if kind == "subnormal":
        result *= torch.finfo(dtype).tiny
    elif kind == "extreme":
        extremes = torch.tensor([torch.finfo(dtype).max, -0.0, torch.inf, torch.nan])
        result = torch.where(torch.rand(shape) < 0.02, extremes[torch.randint(4, shape)], result)
    return result.to(dtype)


def channels_last(images: torch.Tensor) -> torch.Tensor:
    return images.movedim(1, -1).contiguous().movedim(-1, 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["normal", "subnormal", "extreme"])
@pytest.mark.parametrize(("sizes", "kernel", "arguments"), SHAPES.values(), ids=SHAPES)
def test_a_call_is_one_in_float32_rounded_once(sizes, kernel, arguments, kind, dtype):
    torch.manual_seed(0)
    random = Random(0)
    call, dimensions = CALLS[len(sizes)], len(sizes)
    kernels = kernel if isinstance(kernel, tuple) else (kernel,) * dimensions
    # Either side of one, two and three vectors of sixteen channels: the last vector overlaps the one before.
    for channels in (15, 16, 17, 31, 33, 48, 50):
        batch = random.choice((1, 2, 3))
        input = channels_last(numbers((batch, channels, *sizes), dtype, kind))
        weight = numbers((channels, 1, *kernels), dtype, "normal")
        bias = numbers((channels,), dtype, "normal")
        results = {}
        for computed in (dtype, torch.float32):
            image = input.to(computed, copy=True).requires_grad_()
            output = call(image, weight.to(computed), bias.to(computed), **arguments)
            torch.manual_seed(1)
            grad = channels_last(numbers(tuple(output.shape), dtype, kind)).to(computed)
            results[computed] = (output.detach(), *torch.autograd.grad(output, image, grad))
        for found, exact in zip(results[dtype], results[torch.float32], strict=True):
            torch.testing.assert_close(found, exact.to(dtype), rtol=0, atol=0, equal_nan=True)
