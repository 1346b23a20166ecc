"""depthwise_conv2d as people call it: F.conv2d's arguments, clear errors, and the layer.

That it is a good operator, test_operators.py says.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
import torch.nn.functional as F

import torchgraft
from forcing import every_kernel, one_element_on
from torchgraft import (
    depthwise_conv2d,
    depthwise_conv2d_input_grad,
    depthwise_conv2d_weight_grad,
)
from torchgraft.checking import find_devices
from torchgraft.checking.tensors.compare import expect_close
from torchgraft.checking.tensors.strides import significant_strides
from torchgraft.nn import DepthwiseConv2d
from torchgraft.operator import FLOATING
from torchgraft.operators.depthwise_conv2d.case import ConvolutionCase, same
from torchgraft.operators.depthwise_conv2d.operator import convolution, input_grad, weight_grad
from torchgraft.operators.depthwise_conv2d.window import Window

each_device = pytest.mark.parametrize("device", find_devices())


def images(*shape, device="cpu", dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(device, dtype)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@each_device
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"stride": 2},
        {"stride": (1, 3), "padding": (2, 0)},
        {"padding": 2, "dilation": (1, 2)},
        {"padding": [1, 2], "stride": [2, 2], "dilation": [1, 1]},
        {"padding": "valid"},
        {"padding": "same"},
        {"padding": "same", "dilation": (3, 2)},
        {"stride": (2,)},
    ],
    ids=str,
)
def test_equal_to_conv2d_of_pytorch(arguments, dtype, device):
    x, w, b = images(2, 4, 9, 10, device=device, dtype=dtype), images(8, 1, 4, 3, device=device, dtype=dtype), None
    for bias in (b, images(8, device=device, dtype=dtype)):
        # 'same' with an even kernel: PyTorch, too, pads one more at the right and at the bottom.
        wide = None if bias is None else bias.double()
        expected = F.conv2d(x.double(), w.double(), wide, groups=4, **arguments)
        expect_close(depthwise_conv2d(x, w, bias, **arguments), expected, dtype=dtype, summed=12)


@each_device
def test_an_image_without_batch(device):
    x, w = images(3, 7, 8, device=device), images(6, 1, 3, 3, device=device)
    torch.testing.assert_close(depthwise_conv2d(x, w, padding=1), depthwise_conv2d(x[None], w, padding=1)[0])


@each_device
def test_gradients_by_name(device):
    x = images(2, 3, 8, 9, device=device).requires_grad_()
    w = images(6, 1, 3, 3, device=device).requires_grad_()
    y = depthwise_conv2d(x, w, None, 2, 1)
    g = torch.randn_like(y)
    x_grad, w_grad = torch.autograd.grad(y, (x, w), g)
    torch.testing.assert_close(depthwise_conv2d_input_grad(g, w, x.shape[1:], False, 2, 1), x_grad)
    torch.testing.assert_close(depthwise_conv2d_weight_grad(g, x, (3, 3), 2, 1), w_grad)


X, W = (2, 3, 8, 9), (6, 1, 3, 3)
BAD = {
    "rank of input": (
        lambda: depthwise_conv2d(images(8, 9), images(*W)),
        ValueError,
        r"input must be .* got \(8, 9\)",
    ),
    "rank of weight": (lambda: depthwise_conv2d(images(*X), images(6, 3, 3)), ValueError, "weight must have"),
    "dense weight": (
        lambda: depthwise_conv2d(images(*X), images(6, 3, 3, 3)),
        ValueError,
        "weight must have",
    ),
    "channels": (lambda: depthwise_conv2d(images(*X), images(4, 1, 3, 3)), ValueError, "multiple of the 3"),
    "bias length": (
        lambda: depthwise_conv2d(images(*X), images(*W), images(3)),
        ValueError,
        "where M is 6 as in weight",
    ),
    "bias rank": (
        lambda: depthwise_conv2d(images(*X), images(*W), images(6, 1)),
        ValueError,
        "bias must have",
    ),
    "kernel too large": (
        lambda: depthwise_conv2d(images(*X), images(3, 1, 9, 3)),
        ValueError,
        r"spans 9 x 3 pixels and the padded input has only 8 x 9",
    ),
    "dilated kernel too large": (
        lambda: depthwise_conv2d(images(*X), images(*W), dilation=4, padding=(0, 1)),
        ValueError,
        "spans 9 x 9",
    ),
    "stride zero": (lambda: depthwise_conv2d(images(*X), images(*W), stride=0), ValueError, "stride must be positive"),
    "stride negative": (lambda: depthwise_conv2d(images(*X), images(*W), stride=(1, -1)), ValueError, "stride"),
    "stride a fraction": (lambda: depthwise_conv2d(images(*X), images(*W), stride=1.5), TypeError, "stride must be an"),
    "stride of three": (lambda: depthwise_conv2d(images(*X), images(*W), stride=(1, 2, 3)), ValueError, "pair of ints"),
    "dilation zero": (lambda: depthwise_conv2d(images(*X), images(*W), dilation=0), ValueError, "dilation must be"),
    "padding negative": (lambda: depthwise_conv2d(images(*X), images(*W), padding=-1), ValueError, "padding must not"),
    "padding a word": (lambda: depthwise_conv2d(images(*X), images(*W), padding="full"), ValueError, "'full'"),
    "same with stride": (
        lambda: depthwise_conv2d(images(*X), images(*W), padding="same", stride=2),
        ValueError,
        "needs stride 1",
    ),
    "no channels": (lambda: depthwise_conv2d(images(2, 0, 8, 9), images(*W)), ValueError, "at least one channel"),
    "no pixels": (lambda: depthwise_conv2d(images(2, 3, 0, 9), images(*W), padding=3), ValueError, "one pixel"),
    "no taps": (lambda: depthwise_conv2d(images(*X), images(3, 1, 0, 3)), ValueError, "one tap"),
    "no output channels": (lambda: depthwise_conv2d(images(*X), images(0, 1, 3, 3)), ValueError, "multiple"),
    "input no tensor": (lambda: depthwise_conv2d([1.0], images(*W)), TypeError, "input must be a Tensor, got list"),
    "weight no tensor": (lambda: depthwise_conv2d(images(*X), None), TypeError, "weight must be a Tensor"),
    "weight no tensor, same": (
        lambda: depthwise_conv2d(images(*X), None, padding="same"),
        TypeError,
        "weight must be a Tensor",
    ),
    "weight no tensor, input gradient": (
        lambda: depthwise_conv2d_input_grad(images(*X), None, (3, 8, 9)),
        TypeError,
        "depthwise_conv2d_input_grad: weight must be a Tensor, got NoneType",
    ),
    "weight no tensor, input gradient, same": (
        lambda: depthwise_conv2d_input_grad(images(*X), None, (3, 8, 9), padding="same"),
        TypeError,
        "depthwise_conv2d_input_grad: weight must be a Tensor, got NoneType",
    ),
    "input no tensor, weight gradient": (
        lambda: depthwise_conv2d_weight_grad(images(*X), None, (3, 3)),
        TypeError,
        "depthwise_conv2d_weight_grad: input must be a Tensor, got NoneType",
    ),
    "a pair of three, weight gradient": (
        lambda: depthwise_conv2d_weight_grad(images(*X), images(*X), (3, 3), (1, 1, 1)),
        ValueError,
        "depthwise_conv2d_weight_grad: stride must be an int or a pair of ints",
    ),
    "other groups": (
        lambda: depthwise_conv2d(images(*X), images(*W), groups=6),
        ValueError,
        r"input must have 6 channels, got 3: its shape is \(2, 3, 8, 9\)",
    ),
    "integers": (
        lambda: depthwise_conv2d(images(*X).long(), images(*W).long()),
        TypeError,
        r"input has dtype torch.int64, expected one of float64, float32",
    ),
    "a weight of whole numbers": (
        lambda: depthwise_conv2d(images(*X), images(*W).long()),
        TypeError,
        "weight has dtype torch.int64, expected one of float64, float32",
    ),
    "two devices": (lambda: depthwise_conv2d(images(*X), images(*W).to("meta")), ValueError, "weight is on meta"),
    "padding beyond memory": (
        lambda: depthwise_conv2d(images(*X), images(*W), padding=2**45),
        ValueError,
        "no memory can hold",
    ),
    "padding beyond 64 bits": (
        lambda: depthwise_conv2d(images(*X), images(*W), padding=2**70),
        ValueError,
        "must fit 64 bits",
    ),
    "output beyond memory": (
        lambda: depthwise_conv2d(images(1, 1, 1, 1).expand(2**10, 3, 8, 9), images(*W), padding=2**31),
        ValueError,
        "no memory can hold",
    ),
    "output_grad of another size": (
        lambda: depthwise_conv2d_input_grad(images(2, 6, 6, 6), images(*W), (3, 8, 9)),
        ValueError,
        r"output_grad must be \(2, 6, 6, 7\) for these sizes, got \(2, 6, 6, 6\)",
    ),
    "output_grad of another batch": (
        lambda: depthwise_conv2d_weight_grad(images(3, 6, 6, 7), images(*X), (3, 3)),
        ValueError,
        "input must have the shape .* where N is 3 as in output_grad",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_explained(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()
    # Where every function of PyTorch may be someone else's.
    with torch.device("cpu"), pytest.raises(error, match=message):
        call()


def test_bad_sizes_are_refused_without_python_too():
    op = torch.ops.torchgraft.depthwise_conv2d
    fine = (1, 1, 0, 0, 0, 0, 1, 1)
    op(images(*X), images(*W), None, *fine)
    for place, value in [(0, 0), (1, -1), (2, -1), (5, -1), (6, 0), (7, -3), (2, 2**62), (6, 2**62), (0, -(2**63))]:
        wrong = (*fine[:place], value, *fine[place + 1 :])
        with pytest.raises(RuntimeError):
            op(images(*X), images(*W), None, *wrong)
    with pytest.raises(RuntimeError):
        op(images(*X), images(*W), images(5), *fine)
    # The least dilation that is too large, and the one of which 64 bits hold all but the last tap.
    for kernel, dilation in ((1, 2**40), (2, 2**63 - 1)):
        with pytest.raises(RuntimeError, match="these sizes make a tensor that no memory can hold"):
            op(images(*X), images(6, 1, 1, kernel), None, *fine[:-1], dilation)
    grad = torch.ops.torchgraft.depthwise_conv2d_input_grad
    with pytest.raises(RuntimeError):
        grad(images(2, 6, 6, 7), images(*W), 3, 80, 90, False, *fine)
    with pytest.raises(RuntimeError):
        grad(images(2, 6, 6, 7), images(*W), 2**61, 8, 9, False, *fine)
    weight_grad = torch.ops.torchgraft.depthwise_conv2d_weight_grad
    for wrong in ((3, 6, 6, 7), (2, 4, 6, 7), (2, 6, 5, 7), (2, 6, 6, 8)):
        with pytest.raises(RuntimeError):
            weight_grad(images(*wrong), images(*X), 3, 3, *fine)
    for wrong in ((3,), (3, 2)):
        with pytest.raises(RuntimeError, match=r"input must be \(N, C, H, W\) or \(C, H, W\), got \(3,"):
            op(images(*wrong), images(*W), None, *fine)


def test_a_weight_on_another_device_is_refused_without_python_too():
    """Kernels for CUDA are asked where one of the arguments is on the GPU."""
    kernel = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    arguments = images(*X), images(*W).to("meta"), None, 1, 1, 0, 0, 0, 0, 1, 1
    with pytest.raises(RuntimeError, match="input and weight must be on the same device"):
        torch.ops.torchgraft.depthwise_conv2d.default.redispatch(kernel, *arguments)


# Each is the least of the numbers below that does not fit 64 bits: sizes of an input, its channels, and padding.
BEYOND_64_BITS = {
    "bytes of an image": ((1, 2**20, 2**20, 2**20), 2**20, 0),
    "bytes of all images": ((2**21, 1, 2**20, 2**20), 1, 0),
    "pixels of an output": ((1, 1, 1, 1), 1, 2**35),
    "elements of an output": ((1, 1, 1, 1), 2**30, 2**20),
    "bytes of an output": ((1, 1, 1, 1), 2**19, 2**20),
    "bytes of all outputs": ((2**20, 1, 1, 1), 1, 2**20),
}


@pytest.mark.parametrize("name", BEYOND_64_BITS)
def test_sizes_of_which_64_bits_do_not_hold_the_bytes_are_refused_without_python_too(name):
    sizes, output_channels, padding = BEYOND_64_BITS[name]
    one = torch.ones(1, 1, 1, 1)
    arguments = one.expand(sizes), one.expand(output_channels, 1, 1, 1), None, 1, 1, *(padding,) * 4, 1, 1
    with pytest.raises(RuntimeError, match="depthwise_conv2d: these sizes make a tensor that no memory can hold"):
        torch.ops.torchgraft.depthwise_conv2d(*arguments)


@pytest.mark.parametrize(("height", "width"), [(2**36, 2**36), (2**30, 2**31), (2**31, 2**30)])
def test_the_pixels_of_an_input_that_64_bits_do_not_hold_are_refused_without_python_too(height, width):
    one = torch.ones(1, 1, 1, 1)
    arguments = one, one, 1, height, width, None, height, width, 0, 0, 0, 0, 1, 1
    with pytest.raises(RuntimeError, match="input_grad: these sizes make a tensor that no memory can hold"):
        torch.ops.torchgraft.depthwise_conv2d_input_grad(*arguments)


@each_device
def test_a_weight_gradient_of_odd_channels_is_no_view(device):
    """A kernel that works on images with more channels gives the gradients of the given ones, as a new tensor."""
    side = 97 if device == "cpu" else 280
    input = images(1, 9, side, side, device=device, dtype=torch.float16).to(memory_format=torch.channels_last)
    grads = images(1, 9, side, side, device=device, dtype=torch.float16).to(memory_format=torch.channels_last)
    for dtype in (torch.float16, torch.float32):
        found = weight_grad.raw(grads, input, 7, 7, *same(7), dtype, False)
        assert found.dtype == dtype
        assert not found._is_view()
        assert found.is_contiguous()
        expected = weight_grad.raw(grads.double(), input.double(), 7, 7, *same(7), torch.float64, False)
        torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=2e-2)


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("call", [convolution, torch.ops.torchgraft.depthwise_conv2d], ids=["eager", "dispatched"])
def test_the_gradient_of_a_bias_is_not_of_the_narrower_dtype_of_the_weight(call, dtype, device):
    """A sum beyond the numbers of float16."""
    input = torch.ones(36, 5, 10, 248, device=device, dtype=torch.float16)
    weight = torch.ones(5, 1, 1, 1, device=device, dtype=torch.float16, requires_grad=True)
    bias = torch.zeros(5, device=device, dtype=dtype, requires_grad=True)
    call(input, weight, bias, *Window()).backward(torch.full_like(input, 2.5))
    assert weight.grad.dtype == torch.float16
    torch.testing.assert_close(bias.grad, torch.full_like(bias, 36 * 10 * 248 * 2.5))


@each_device
def test_strides_and_padding_beyond_32_bits(device):
    """The second row of windows begins in row 1 of the image, the first lies on padding.

    This is no sample, as PyTorch's own convolution on a GPU takes the stride modulo 2**32.
    """
    stride = 5_000_000_011
    window = (stride, 1, stride - 1, 0, 5, 0, 1, 1)
    ops = torch.ops.torchgraft
    image = images(1, 2, 4, 5, device=device).requires_grad_()
    weight = images(2, 1, 3, 3, device=device).requires_grad_()
    expected = F.conv2d(image, weight, groups=2)[:, :, 1:]
    output = ops.depthwise_conv2d(image.detach(), weight.detach(), None, *window)
    assert not output[:, :, 0].any()
    torch.testing.assert_close(output[:, :, 1:], expected)
    grad = torch.randn_like(output)
    input_grad, weight_grad = torch.autograd.grad(expected, (image, weight), grad[:, :, 1:])
    found = ops.depthwise_conv2d_input_grad(grad, weight.detach(), 2, 4, 5, False, *window)
    torch.testing.assert_close(found, input_grad)
    found = ops.depthwise_conv2d_weight_grad(grad, image.detach(), 3, 3, *window)
    torch.testing.assert_close(found, weight_grad)


# Images with padding on some sides or all, a stride, and kernels as large as to be cut into phases.
PADDED = (
    ConvolutionCase("3x3", (2, 3, 9, 11), (3, 3), same(3)),
    ConvolutionCase("3x3, eights of channels", (1, 16, 6, 7), (3, 3), same(3), channels_last=True),
    ConvolutionCase("5x5 with stride 2, eights of channels", (1, 16, 9, 12), (5, 5), same(5, 2), channels_last=True),
    ConvolutionCase("5x5 with stride 2", (2, 3, 12, 10), (5, 5), same(5, 2)),
    ConvolutionCase("7x7, padded behind", (3, 5, 16, 16), (7, 7), Window(1, 1, 4, 3, 3, 27)),
    ConvolutionCase("9x9, eights of channels, wide", (1, 8, 9, 33), (9, 9), same(9), channels_last=True),
    ConvolutionCase("13x13 over whole planes", (2, 2, 7, 7), (13, 13), same(13)),
    ConvolutionCase("11x11 with stride 2", (2, 2, 21, 22), (11, 11), same(11, 2)),
    ConvolutionCase("11x11 with dilation 2", (1, 2, 22, 23), (11, 11), Window(1, 1, 10, 10, 10, 10, 2, 2)),
    ConvolutionCase("31x31", (1, 2, 18, 17), (31, 31), same(31)),
    ConvolutionCase(
        "dilation 2, eights of channels", (1, 16, 9, 12), (3, 3), Window(1, 1, 2, 2, 2, 2, 2, 2), channels_last=True
    ),
    ConvolutionCase("3x3, eights of channels, four rows", (1, 8, 4, 5), (3, 3), same(3), channels_last=True),
)


@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", PADDED, ids=lambda case: case.name)
@pytest.mark.parametrize("operator", [convolution, input_grad], ids=lambda each: each.name)
def test_an_infinite_pixel_is_of_the_windows_that_hold_it(operator, case, dtype, device):
    """No other window holds it, though kernels on tensor cores multiply by zero what lies outside a window.

    This is no sample, as PyTorch's own convolutions disagree where padding is in a window with it. All numbers are
    positive, so that infinity stays infinity.
    """
    sample = case.forward() if operator is convolution else case.input_grad()
    random = Random(0)
    arguments = list(sample.make(device, dtype))
    image, weight = (each.abs() + 0.5 for each in arguments[:2])
    for each in (image[0, 0], image[-1, -1]):
        each[tuple(random.choice((0, size // 2, size - 1)) for size in each.shape)] = torch.inf
    bias = arguments[2].abs() if operator is convolution else arguments[2]
    arguments[:3] = image, weight, bias
    # A number that stands out of all others in float64, in the place of infinity.
    exact = [each.double() if isinstance(each, torch.Tensor) else each for each in arguments]
    exact[0] = exact[0].nan_to_num(posinf=1e30)
    expected = operator.declaration.reference(*exact)
    expected[expected > 1e20] = torch.inf
    for kernel in every_kernel(operator, device):
        with kernel:
            found = operator.raw(*arguments)
        torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)


# Rows of whole vectors, which kernels move whole where memory begins as they do.
WHOLE_VECTORS = (
    ConvolutionCase("3x3 on planes of 8x8", (3, 5, 8, 8), (3, 3), same(3)),
    ConvolutionCase("3x3 on planes of 14x14", (13, 9, 14, 14), (3, 3), same(3)),
    ConvolutionCase("7x7 on planes of 7x7", (3, 9, 7, 7), (7, 7), same(7)),
    ConvolutionCase("5x5 on wide rows", (2, 3, 5, 128), (5, 5), same(5)),
    ConvolutionCase("3x3 with stride 2 on wide rows", (2, 3, 9, 64), (3, 3), same(3, 2)),
    ConvolutionCase("13x13", (2, 2, 16, 32), (13, 13), same(13)),
    ConvolutionCase("9x41 with stride 2", (2, 2, 11, 48), (9, 41), Window(2, 2, 4, 20, 4, 20)),
    ConvolutionCase("sixteen channels", (2, 16, 6, 8), (3, 3), same(3), channels_last=True),
    ConvolutionCase("sixteen channels, 7x7", (2, 16, 9, 8), (7, 7), same(7), channels_last=True),
    ConvolutionCase("sixteen channels, stride 2", (2, 16, 9, 10), (5, 5), same(5, 2), channels_last=True),
)


def _whole(case, operator, device, dtype):
    """Arguments of whole numbers, of which sums are exact: a result is rounded once."""
    sample = {convolution: case.forward, input_grad: case.input_grad, weight_grad: case.weight_grad}[operator]()
    made = sample.make(device, dtype)
    return [(2 * each).trunc() if isinstance(each, torch.Tensor) else each for each in made]


def _exact(operator, arguments):
    return operator.declaration.reference(
        *(each.double() if isinstance(each, torch.Tensor) else each for each in arguments)
    )


@each_device
@pytest.mark.parametrize("moved", [(0, 1, 2), (1,)], ids=["all", "the second argument"])
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("case", WHOLE_VECTORS, ids=lambda case: case.name)
@pytest.mark.parametrize("operator", [convolution, input_grad, weight_grad], ids=lambda each: each.name)
def test_memory_may_begin_at_any_element(operator, case, dtype, moved, device):
    arguments = _whole(case, operator, device, dtype)
    expected = _exact(operator, arguments).to(dtype)
    for place in moved:
        if isinstance(arguments[place], torch.Tensor):
            arguments[place] = one_element_on(arguments[place])
    for kernel in every_kernel(operator, device):
        with kernel:
            assert torch.equal(operator.raw(*arguments), expected)


@each_device
@pytest.mark.parametrize("kept", FLOATING, ids=str)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("case", WHOLE_VECTORS, ids=lambda case: case.name)
def test_gradients_of_weights_are_rounded_to_the_dtype_that_is_asked_for_alone(case, dtype, kept, device):
    *arguments, _, channels_last = _whole(case, weight_grad, device, dtype)
    expected = _exact(weight_grad, [*arguments, None, channels_last]).to(kept)
    for kernel in every_kernel(weight_grad, device):
        with kernel:
            assert torch.equal(weight_grad.raw(*arguments, kept, channels_last), expected)


@pytest.mark.usefixtures("measured")
class TestPyTorch:
    """PyTorch's own convolution as a candidate where choices are measured."""

    @staticmethod
    def _derivatives(case, dtype, weight_dtype=None, device="cpu"):
        input, weight, bias = (
            each.to(weight_dtype or dtype).requires_grad_() if number else each.requires_grad_()
            for number, each in enumerate(_whole(case, convolution, device, dtype)[:3])
        )
        window = case.window
        padding = (window.padding_top, window.padding_left)
        with torch.no_grad():
            output = depthwise_conv2d(input, weight, bias, window.stride, padding, window.dilation)
            grad = output.detach().clamp(-1, 1)
            moves = window.stride, padding, window.dilation
            to_input = depthwise_conv2d_input_grad(grad, weight, case.input[1:], case.channels_last, *moves)
            to_weight = depthwise_conv2d_weight_grad(grad, input, case.kernel, *moves, dtype=weight.dtype)
        return output, to_input, to_weight

    @each_device
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
    @pytest.mark.parametrize("channels_last", [False, True])
    @pytest.mark.parametrize(
        "case",
        [
            ConvolutionCase("3x3", (2, 4, 9, 8), (3, 3), same(3)),
            ConvolutionCase("stride 2", (2, 4, 9, 8), (5, 3), Window(2, 1, 2, 1, 2, 1)),
            ConvolutionCase(
                "dilation 2, two kernels a channel", (1, 3, 11, 12), (3, 3), Window(1, 1, 2, 2, 2, 2, 2, 2), 2
            ),
        ],
        ids=lambda case: case.name,
    )
    def test_it_computes_the_same(self, case, channels_last, dtype, device, tmp_path):
        case = replace(case, channels_last=channels_last)
        expected = self._derivatives(case, dtype, device=device)
        assert len(torchgraft.choices()) == 3
        able = [each for each in torchgraft.choices() if "pytorch" in each.microseconds]
        assert able
        path = tmp_path / "choices.json"
        torchgraft.save_choices(path)
        saved = json.loads(path.read_text())
        for each in saved["choices"]:
            each["kernel"] = "pytorch" if any([*one.problem] == each["problem"] for one in able) else ""
        path.write_text(json.dumps(saved))
        torchgraft.forget_choices()
        torchgraft.load_choices(path)
        found = self._derivatives(case, dtype, device=device)
        # None was dropped: what is loaded has no times.
        assert not any(each.microseconds for each in torchgraft.choices())
        for one, other in zip(found, expected, strict=True):
            assert significant_strides(one) == significant_strides(other)
            torch.testing.assert_close(one, other)
        # Along its one channel a weight's stride is any to PyTorch, and not to who looks at strides.
        assert found[2].stride() == expected[2].stride()

    def test_it_is_a_candidate_without_a_bias_and_without_a_layout_too(self):
        input, weight, _ = _whole(
            ConvolutionCase("3x3", (2, 4, 9, 8), (3, 3), same(3)), convolution, "cpu", torch.float32
        )[:3]
        output = depthwise_conv2d(input, weight, padding=1)
        input_grad.call(output, weight, 4, 9, 8, None, *same(3))
        assert len(torchgraft.choices()) == 2
        assert all("pytorch" in each.microseconds for each in torchgraft.choices())

    def test_it_is_no_candidate_for_the_output_of_no_images(self):
        # There is nothing to compute.
        self._derivatives(
            ConvolutionCase("no images", (0, 4, 9, 8), (3, 3), same(3), channels_last=True), torch.float32
        )
        [choice] = [each for each in torchgraft.choices() if each.operator == "torchgraft::depthwise_conv2d"]
        assert "pytorch" not in choice.microseconds

    def test_it_is_none_where_dtypes_differ(self):
        self._derivatives(ConvolutionCase("3x3", (2, 4, 9, 8), (3, 3), same(3)), torch.bfloat16, torch.float32)
        assert len(torchgraft.choices()) == 3
        assert not any("pytorch" in each.microseconds for each in torchgraft.choices())


class TestLayer:
    """nn.DepthwiseConv2d against nn.Conv2d with groups."""

    @pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
    def test_same_parameters_and_results_as_conv2d(self, mode):
        arguments = {"stride": 2, "padding": (2, 1), "padding_mode": mode}
        torch.manual_seed(1)
        ours = DepthwiseConv2d(3, (4, 3), channel_multiplier=2, **arguments)
        torch.manual_seed(1)
        theirs = torch.nn.Conv2d(3, 6, (4, 3), groups=3, **arguments)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        for name, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value)
        assert repr(ours) == repr(theirs).replace("Conv2d", "DepthwiseConv2d")
        x = images(2, 3, 9, 10)
        torch.testing.assert_close(ours(x), theirs(x))

    def test_compiles_with_a_string_for_padding(self):
        layer = DepthwiseConv2d(3, 3, padding="same")
        x = images(1, 3, 5, 6)
        torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))

    def test_adapts_to_any_batch_when_exported(self):
        layer = DepthwiseConv2d(3, 3, stride=2, padding=1)
        batch = torch.export.Dim("batch", min=1, max=64)
        program = torch.export.export(layer, (images(4, 3, 8, 9),), dynamic_shapes=({0: batch},))
        x = images(7, 3, 8, 9)
        torch.testing.assert_close(program.module()(x), layer(x))


def test_without_libraries_the_reference_answers_and_says_so(tmp_path):
    # A copy of the Python sources alone, as after an install on a machine without a compiler.
    package = tmp_path / "torchgraft"
    shutil.copytree(Path(torchgraft.__file__).parent, package, ignore=shutil.ignore_patterns("lib", "__pycache__"))
    code = """
import sys, warnings, torch
# Python's own finders are classes; the one of an editable install is an object, and would go before PYTHONPATH.
sys.meta_path = [finder for finder in sys.meta_path if isinstance(finder, type)]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torchgraft
    x, w = torch.randn(2, 3, 6, 6, requires_grad=True), torch.randn(3, 1, 3, 3, requires_grad=True)
    for _ in range(3):
        torchgraft.depthwise_conv2d(x, w, padding=1).sum().backward()
messages = [str(each.message) for each in caught if each.category is torchgraft.PerformanceWarning]
assert len(messages) == 3, messages
assert all("does not exist; build it with `make build`" in message for message in messages), messages
assert {each.calls for each in torchgraft.fallbacks()} == {3}
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("size", "kernel", "window"),
    [
        ((5, 7), (1, 1), Window()),
        ((5, 7), (3, 5), same(3)),
        ((4, 4), (9, 9), same(9)),
        ((9, 8), (3, 3), Window(2, 3, 1, 0, 2, 4)),
        ((9, 8), (3, 2), Window(1, 2, 4, 3, 4, 3, 2, 3)),
    ],
)
def test_taps_on_padding_are_no_work(size, kernel, window):
    case = ConvolutionCase("counted", (2, 3, *size), kernel, window, multiplier=2)
    ones = F.pad(torch.ones(2, 3, *size), window.padding)
    products = F.conv2d(ones, torch.ones(6, 1, *kernel), None, window.stride, 0, window.dilation, 3).sum()
    assert case.operations == 2 * products
