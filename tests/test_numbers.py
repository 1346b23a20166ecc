"""Numbers that people pass: the same are taken everywhere, whatever came before, and what is refused is named."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import torchgraft
from torchgraft import graft
from torchgraft.nn import LLTM, DepthwiseConv1d, DepthwiseConv2d, LLTMCell, Shift

IMAGES, WEIGHT = torch.ones(2, 4, 6, 5), torch.ones(4, 1, 1, 1)
OFFSETS = torch.zeros(4), torch.zeros(4)
ROWS = IMAGES[..., 0]


class Index:
    """A whole number of someone's own."""

    def __index__(self) -> int:
        return 1


def convolved(**arguments):
    return torchgraft.depthwise_conv2d(IMAGES, WEIGHT, **arguments)


def input_grad(size=(4, 6, 5), **arguments):
    return torchgraft.depthwise_conv2d_input_grad(IMAGES, WEIGHT, size, **arguments)


def weight_grad(size=(1, 1), **arguments):
    return torchgraft.depthwise_conv2d_weight_grad(IMAGES, IMAGES, size, **arguments)


def grafted(**arguments):
    return graft(nn.Conv2d(4, 4, 1, groups=4, **arguments))(IMAGES)


# Every place that takes a whole number, by the name under which a refusal speaks of it: a call in which 1 makes sense.
WHOLE = [
    ("depthwise_conv2d: stride", lambda n: convolved(stride=n)),
    ("depthwise_conv2d: stride", lambda n: convolved(stride=(1, n))),
    ("depthwise_conv2d: stride", lambda n: convolved(stride=[n, 1])),
    ("depthwise_conv2d: padding", lambda n: convolved(padding=n)),
    ("depthwise_conv2d: padding", lambda n: convolved(padding=(n, 1))),
    ("depthwise_conv2d: dilation", lambda n: convolved(dilation=n)),
    ("depthwise_conv2d: dilation", lambda n: convolved(dilation=(n,))),
    ("depthwise_conv2d: groups", lambda n: torchgraft.depthwise_conv2d(IMAGES[:, :1], WEIGHT, groups=n)),
    (
        "depthwise_conv2d_input_grad: each of input_size",
        lambda n: torchgraft.depthwise_conv2d_input_grad(IMAGES[:, :, :1], WEIGHT, (4, n, 5)),
    ),
    ("depthwise_conv2d_input_grad: stride", lambda n: input_grad(stride=n)),
    ("depthwise_conv2d_input_grad: dilation", lambda n: input_grad(dilation=(n, 1))),
    ("depthwise_conv2d_weight_grad: each of kernel_size", lambda n: weight_grad((n, 1))),
    ("depthwise_conv2d_weight_grad: stride", lambda n: weight_grad(stride=n)),
    ("depthwise_conv2d_weight_grad: dilation", lambda n: weight_grad(dilation=n)),
    ("depthwise_conv1d: stride", lambda n: torchgraft.depthwise_conv1d(ROWS, WEIGHT[..., 0], stride=n)),
    ("depthwise_conv1d: padding", lambda n: torchgraft.depthwise_conv1d(ROWS, WEIGHT[..., 0], padding=[n])),
    ("depthwise_conv1d: dilation", lambda n: torchgraft.depthwise_conv1d(ROWS, WEIGHT[..., 0], dilation=(n,))),
    ("depthwise_conv1d: groups", lambda n: torchgraft.depthwise_conv1d(ROWS[:, :1], WEIGHT[..., 0], groups=n)),
    (
        "depthwise_conv1d_input_grad: each of input_size",
        lambda n: torchgraft.depthwise_conv1d_input_grad(ROWS[..., :1], WEIGHT[..., 0], (4, n)),
    ),
    ("depthwise_conv1d_weight_grad: kernel_size", lambda n: torchgraft.depthwise_conv1d_weight_grad(ROWS, ROWS, n)),
    ("DepthwiseConv1d: in_channels", lambda n: DepthwiseConv1d(n)(ROWS[:, :1])),
    ("DepthwiseConv1d: kernel_size", lambda n: DepthwiseConv1d(4, n)(ROWS)),
    ("DepthwiseConv1d: stride", lambda n: DepthwiseConv1d(4, stride=[n])(ROWS)),
    ("DepthwiseConv1d: channel_multiplier", lambda n: DepthwiseConv1d(4, channel_multiplier=n)(ROWS)),
    ("shift: stride", lambda n: torchgraft.shift(IMAGES, *OFFSETS, n)),
    ("shift_input_grad: stride", lambda n: torchgraft.shift_input_grad(IMAGES, *OFFSETS, 6, False, n)),
    ("shift_input_grad: height", lambda n: torchgraft.shift_input_grad(IMAGES[:, :, :1], *OFFSETS, n)),
    ("shift_offset_grad: stride", lambda n: torchgraft.shift_offset_grad(IMAGES, IMAGES, *OFFSETS, n)),
    ("shift_grads: stride", lambda n: torchgraft.shift_grads(IMAGES, IMAGES, *OFFSETS, n)),
    ("DepthwiseConv2d: in_channels", lambda n: DepthwiseConv2d(n)(IMAGES[:, :1])),
    ("DepthwiseConv2d: kernel_size", lambda n: DepthwiseConv2d(4, n)(IMAGES)),
    ("DepthwiseConv2d: kernel_size", lambda n: DepthwiseConv2d(4, (1, n))(IMAGES)),
    ("DepthwiseConv2d: stride", lambda n: DepthwiseConv2d(4, stride=n)(IMAGES)),
    ("DepthwiseConv2d: padding", lambda n: DepthwiseConv2d(4, padding=(n, 0))(IMAGES)),
    ("DepthwiseConv2d: dilation", lambda n: DepthwiseConv2d(4, dilation=n)(IMAGES)),
    ("DepthwiseConv2d: channel_multiplier", lambda n: DepthwiseConv2d(4, channel_multiplier=n)(IMAGES)),
    ("Shift: channels", lambda n: Shift(n)(IMAGES[:, :1])),
    ("Shift: stride", lambda n: Shift(4, n)(IMAGES)),
    ("LLTMCell: input_size", lambda n: LLTMCell(n, 3)(torch.ones(2, 1))),
    ("LLTMCell: hidden_size", lambda n: LLTMCell(3, n)(torch.ones(2, 3))),
    ("LLTM: input_size", lambda n: LLTM(n, 3)(torch.ones(2, 2, 1))),
    ("LLTM: hidden_size", lambda n: LLTM(3, n)(torch.ones(2, 2, 3))),
    ("LLTM: num_layers", lambda n: LLTM(3, 3, n)(torch.ones(2, 2, 3))),
]
# PyTorch's constructor takes them as they are, and what it makes of them is refused in the call.
GRAFTED = [
    ("depthwise_conv2d: stride", lambda n: grafted(stride=n)),
    ("depthwise_conv2d: padding", lambda n: grafted(padding=n)),
    ("depthwise_conv2d: dilation", lambda n: grafted(dilation=n)),
]
TAKEN = [np.int64(1), np.uint8(1), Index()]
REFUSED = [1.0, True, np.float32(1), np.bool_(True), 1 + 0j]


@pytest.mark.parametrize(
    ("name", "call", "taken", "refused"),
    [
        *((*each, [*TAKEN, torch.tensor(1)], [*REFUSED, torch.tensor(1.0)]) for each in WHOLE),
        *((*each, TAKEN, REFUSED) for each in GRAFTED),
    ],
    ids=[name for name, _ in (*WHOLE, *GRAFTED)],
)
def test_whole_numbers_are_taken_and_no_others(name, call, taken, refused):
    def expect_refusals():
        for value in refused:
            with pytest.raises(TypeError, match=rf"^{re.escape(name)} must be an int.*got"):
                call(value)

    expect_refusals()
    torch.manual_seed(0)
    expected = call(1)
    # What equals 1 must not be found where 1 was left.
    expect_refusals()
    for value in taken:
        torch.manual_seed(0)
        torch.testing.assert_close(call(value), expected, rtol=0, atol=0)
    expect_refusals()


@pytest.mark.parametrize("value", [2, np.float32(2), np.float64(2), np.int64(2)], ids=repr)
def test_real_numbers_are_factors(value):
    assert torchgraft.mul_constant(torch.ones(2, dtype=torch.float16), value).tolist() == [2, 2]


@pytest.mark.parametrize("value", [True, np.bool_(True), torch.tensor(2.0), 2j, "2", None], ids=repr)
def test_what_is_no_real_number_is_no_factor(value):
    with pytest.raises(TypeError, match="mul_constant: constant must be a number, got"):
        torchgraft.mul_constant(torch.ones(2), value)


@pytest.mark.parametrize("value", [1, None, 0.0, "yes", torch.tensor(True)], ids=repr)
@pytest.mark.parametrize(
    ("name", "call"),
    {
        "depthwise_conv2d_input_grad: channels_last": lambda flag: input_grad(channels_last=flag),
        "shift_input_grad: channels_last": lambda flag: torchgraft.shift_input_grad(IMAGES, *OFFSETS, 6, flag),
        "lltm: reverse": lambda flag: torchgraft.lltm(
            *(torch.ones(size) for size in ((2, 2, 1), (2, 1), (2, 1), (3, 1), (3, 1))), reverse=flag
        ),
    }.items(),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_flags_are_bools(name, call, value):
    torch.testing.assert_close(call(np.bool_(True)), call(True), rtol=0, atol=0)
    with pytest.raises(TypeError, match=f"{name} must be a bool, got {type(value).__name__}"):
        call(value)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: input_grad(6), TypeError, r"input_grad: input_size must be 3 ints, \(C, H, W\), got 6"),
        (lambda: input_grad("465"), TypeError, "input_size must be 3 ints.*got '465'"),
        (lambda: input_grad(None), TypeError, "input_size must be 3 ints.*got None"),
        (lambda: input_grad((4, 6)), ValueError, r"input_size must be 3 ints, \(C, H, W\), got \(4, 6\)"),
        (lambda: weight_grad(1), TypeError, r"weight_grad: kernel_size must be 2 ints, \(KH, KW\), got 1"),
        (lambda: weight_grad((1, 1, 1)), ValueError, r"kernel_size must be 2 ints, \(KH, KW\), got \(1, 1, 1\)"),
        (lambda: DepthwiseConv2d(0), ValueError, "DepthwiseConv2d: in_channels must be positive, got 0"),
        (lambda: DepthwiseConv2d(4, (1, 2, 3)), ValueError, "DepthwiseConv2d: kernel_size must be an int or a pair"),
    ],
)
def test_sizes_that_are_none_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_arrays_of_sizes_are_sizes():
    torch.testing.assert_close(input_grad(np.array([4, 6, 5])), input_grad())
    torch.testing.assert_close(weight_grad(torch.tensor([1, 1])), weight_grad())
    assert DepthwiseConv2d(4, 1, stride=np.array([1, 2])).stride == (1, 2)


@pytest.mark.parametrize(
    "function",
    [
        lambda n: torchgraft.depthwise_conv2d(IMAGES, WEIGHT, None, n),
        lambda n: torchgraft.shift(IMAGES, *OFFSETS, n),
    ],
    ids=["depthwise_conv2d", "shift"],
)
def test_numbers_of_numpy_compile(function):
    # In several graphs, as for PyTorch's own functions: to TorchDynamo a number of NumPy is an array.
    compiled = torch.compile(function, backend="aot_eager")
    for value in (np.int64(2), np.int64(1), 2, 3, np.int32(3)):
        torch.testing.assert_close(compiled(value), function(value))
    for value in (1.0, True):
        with pytest.raises(TypeError, match="stride must be an int"):
            compiled(value)


def test_a_layer_with_numbers_of_numpy_compiles():
    layer = graft(nn.Conv2d(4, 4, 1, stride=np.int64(2), padding=np.int32(1), groups=4))
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(IMAGES), layer(IMAGES))


def test_a_number_that_a_compiler_keeps_open():
    compiled = torch.compile(
        lambda n: torchgraft.depthwise_conv2d(IMAGES, WEIGHT, None, n, (n, 1)),
        backend="aot_eager",
        dynamic=True,
        fullgraph=True,
    )
    for n in (2, 3, 4):
        torch.testing.assert_close(compiled(n), convolved(stride=n, padding=(n, 1)))
