"""depthwise_conv1d as people call it: F.conv1d's arguments and strides, clear errors, and the layer.

That it is a good operator, test_operators.py says.
"""

import itertools
from random import Random

import pytest
import torch
import torch.nn.functional as F

from torchgraft import (
    depthwise_conv1d,
    depthwise_conv1d_input_grad,
    depthwise_conv1d_weight_grad,
    depthwise_conv2d,
)
from torchgraft.checking import find_devices
from torchgraft.checking.tensors.compare import expect_close
from torchgraft.nn import DepthwiseConv1d
from torchgraft.operator import FLOATING
from torchgraft.operators.depthwise_conv1d.case import SequenceCase, causal, same
from torchgraft.operators.depthwise_conv1d.operator import convolution
from torchgraft.operators.depthwise_conv1d.window import SequenceWindow

each_device = pytest.mark.parametrize("device", find_devices())


def sequences(*shape, device="cpu", dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(device, dtype)


def channels_last(tensor):
    """The same sequences, with strides (L * C, 1, C)."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@each_device
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"stride": 2},
        {"stride": (3,), "padding": (2,), "dilation": (1,)},
        {"padding": 6, "dilation": 2},
        {"padding": [1], "stride": [2]},
        {"padding": "valid"},
        {"padding": "same"},
        {"padding": "same", "dilation": 3},
    ],
    ids=str,
)
def test_equal_to_conv1d_of_pytorch(arguments, dtype, device):
    x, w = sequences(2, 4, 19, device=device, dtype=dtype), sequences(8, 1, 4, device=device, dtype=dtype)
    for bias, turn in itertools.product((None, sequences(8, device=device, dtype=dtype)), (None, channels_last)):
        given = x if turn is None else turn(x)
        # 'same' with an even kernel: PyTorch, too, pads one more at the right.
        expected = F.conv1d(x.double(), w.double(), None if bias is None else bias.double(), groups=4, **arguments)
        expect_close(depthwise_conv1d(given, w, bias, **arguments), expected, dtype=dtype, summed=4)


@each_device
def test_a_sequence_without_batch(device):
    x, w = sequences(3, 17, device=device), sequences(6, 1, 3, device=device)
    torch.testing.assert_close(depthwise_conv1d(x, w, padding=1), depthwise_conv1d(x[None], w, padding=1)[0])
    torch.testing.assert_close(depthwise_conv1d(x, w, padding=1, groups=3), F.conv1d(x, w, padding=1, groups=3))


@each_device
def test_a_sequence_is_an_image_of_one_row(device):
    x, w, b = sequences(2, 5, 23, device=device), sequences(10, 1, 4, device=device), sequences(10, device=device)
    found = depthwise_conv1d(x, w, b, 2, 3, 2)
    image = depthwise_conv2d(x[:, :, None], w[:, :, None], b, (1, 2), (0, 3), (1, 2))
    assert torch.equal(found, image[:, :, 0])


@each_device
def test_gradients_by_name(device):
    x = sequences(2, 3, 18, device=device).requires_grad_()
    w = sequences(6, 1, 3, device=device).requires_grad_()
    y = depthwise_conv1d(x, w, None, 2, 1)
    g = torch.randn_like(y)
    x_grad, w_grad = torch.autograd.grad(y, (x, w), g)
    torch.testing.assert_close(depthwise_conv1d_input_grad(g, w, x.shape[1:], False, 2, 1), x_grad)
    turned = depthwise_conv1d_input_grad(g, w, x.shape[1:], True, 2, 1)
    torch.testing.assert_close(turned, x_grad)
    assert turned.stride() == (3 * 18, 1, 3)
    for size in (3, (3,), [3]):
        torch.testing.assert_close(depthwise_conv1d_weight_grad(g, x, size, 2, 1), w_grad)


X, W = (2, 3, 9), (6, 1, 3)
BAD = {
    "rank of input": (lambda: depthwise_conv1d(sequences(9), sequences(*W)), ValueError, r"\(C, L\), got \(9,\)"),
    "an image": (lambda: depthwise_conv1d(sequences(2, 3, 8, 9), sequences(*W)), ValueError, r"must be \(N, C, L\) or"),
    "rank of weight": (lambda: depthwise_conv1d(sequences(*X), sequences(6, 3)), ValueError, "weight must have"),
    "dense weight": (lambda: depthwise_conv1d(sequences(*X), sequences(6, 3, 3)), ValueError, "weight must have"),
    "channels": (lambda: depthwise_conv1d(sequences(*X), sequences(4, 1, 3)), ValueError, "multiple of the 3"),
    "other groups": (
        lambda: depthwise_conv1d(sequences(*X), sequences(*W), groups=6),
        ValueError,
        r"depthwise_conv1d: input must have 6 channels, got 3: its shape is \(2, 3, 9\)",
    ),
    "other groups, no batch": (
        lambda: depthwise_conv1d(sequences(3, 9), sequences(*W), groups=2),
        ValueError,
        r"input must have 2 channels, got 3: its shape is \(3, 9\)",
    ),
    "bias length": (
        lambda: depthwise_conv1d(sequences(*X), sequences(*W), sequences(3)),
        ValueError,
        "where M is 6 as in weight",
    ),
    "kernel too long": (
        lambda: depthwise_conv1d(sequences(*X), sequences(3, 1, 12), padding=1),
        ValueError,
        "spans 12 elements and the padded input has only 11",
    ),
    "stride zero": (
        lambda: depthwise_conv1d(sequences(*X), sequences(*W), stride=0),
        ValueError,
        "depthwise_conv1d: stride must be positive, got 0",
    ),
    "stride a fraction": (lambda: depthwise_conv1d(sequences(*X), sequences(*W), stride=1.5), TypeError, "stride must"),
    "stride a flag": (lambda: depthwise_conv1d(sequences(*X), sequences(*W), stride=True), TypeError, "stride must"),
    "stride of two": (
        lambda: depthwise_conv1d(sequences(*X), sequences(*W), stride=(1, 2)),
        ValueError,
        r"depthwise_conv1d: stride must be an int or one in a tuple, got \(1, 2\)",
    ),
    "padding of none": (lambda: depthwise_conv1d(sequences(*X), sequences(*W), padding=()), ValueError, "padding must"),
    "dilation zero": (
        lambda: depthwise_conv1d(sequences(*X), sequences(*W), dilation=0),
        ValueError,
        "dilation must be positive, got 0",
    ),
    "padding negative": (
        lambda: depthwise_conv1d(sequences(*X), sequences(*W), padding=-1),
        ValueError,
        r"padding must not be negative, got \(-1, -1\) \(left, right\)",
    ),
    "padding a word": (lambda: depthwise_conv1d(sequences(*X), sequences(*W), padding="full"), ValueError, "'full'"),
    "same with stride": (
        lambda: depthwise_conv1d(sequences(*X), sequences(*W), padding="same", stride=2),
        ValueError,
        "padding='same' needs stride 1, got 2",
    ),
    "no channels": (lambda: depthwise_conv1d(sequences(2, 0, 9), sequences(*W)), ValueError, "at least one channel"),
    "no elements": (
        lambda: depthwise_conv1d(sequences(2, 3, 0), sequences(*W), padding=3),
        ValueError,
        "at least one element, its length is 0",
    ),
    "no taps": (lambda: depthwise_conv1d(sequences(*X), sequences(3, 1, 0)), ValueError, "one tap, its kernel size"),
    "input no tensor": (lambda: depthwise_conv1d([1.0], sequences(*W)), TypeError, "input must be a Tensor, got list"),
    "weight no tensor, same": (
        lambda: depthwise_conv1d(sequences(*X), None, padding="same"),
        TypeError,
        "weight must be a Tensor",
    ),
    "integers": (lambda: depthwise_conv1d(sequences(*X).long(), sequences(*W).long()), TypeError, "torch.int64"),
    "two devices": (lambda: depthwise_conv1d(sequences(*X), sequences(*W).to("meta")), ValueError, "weight is on meta"),
    "padding beyond memory": (
        lambda: depthwise_conv1d(sequences(*X), sequences(*W), padding=2**45),
        ValueError,
        "no memory can hold",
    ),
    "size of an input gradient": (
        lambda: depthwise_conv1d_input_grad(sequences(2, 6, 7), sequences(*W), (3, 9, 1)),
        ValueError,
        r"depthwise_conv1d_input_grad: input_size must be .*\(C, L\)",
    ),
    "output_grad of another length": (
        lambda: depthwise_conv1d_input_grad(sequences(2, 6, 6), sequences(*W), (3, 9)),
        ValueError,
        r"output_grad must be \(2, 6, 7\) for these sizes, got \(2, 6, 6\)",
    ),
    "kernel_size of two": (
        lambda: depthwise_conv1d_weight_grad(sequences(2, 6, 7), sequences(*X), (3, 1)),
        ValueError,
        "depthwise_conv1d_weight_grad: kernel_size must be an int or one in a tuple",
    ),
    "dtype of a weight gradient": (
        lambda: depthwise_conv1d_weight_grad(sequences(2, 6, 7), sequences(*X), 3, dtype=torch.int32),
        TypeError,
        "depthwise_conv1d_weight_grad: dtype must be one of",
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


WRONG_NUMBERS = [
    (0, 0, "depthwise_conv1d: stride must be positive, got 0"),
    (1, -1, r"depthwise_conv1d: padding must not be negative, got \(-1, 0\) \(left, right\)"),
    (2, -3, "padding must not be negative"),
    (3, 0, "dilation must be positive, got 0"),
    (3, 5, "the kernel spans 11 elements and the padded input has only 9"),
    (1, 2**62, "these sizes make a tensor that no memory can hold"),
    (3, 2**62, "these sizes make a tensor that no memory can hold"),
    (0, 2**41, "these sizes make a tensor that no memory can hold"),
]


@pytest.mark.parametrize(("place", "value", "message"), WRONG_NUMBERS)
def test_bad_numbers_are_refused_without_python_too(place, value, message):
    numbers = [1, 0, 0, 1]
    numbers[place] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.torchgraft.depthwise_conv1d(sequences(*X), sequences(*W), None, *numbers)


def test_bad_sizes_are_refused_without_python_too():
    ops, fine = torch.ops.torchgraft, (1, 0, 0, 1)
    for input, weight, bias, message in (
        (X, W, (5,), "bias must have 6 elements, got 5"),
        (X, (6, 2, 3), None, r"weight must be \(channels, 1, length\), its second size is 2"),
        (X, (4, 1, 3), None, "weight has 4 channels, which must be a multiple of the 3 of input"),
        ((2, 3, 0), W, None, "input must have at least one element, its length is 0"),
        (X, (6, 1, 0), None, "weight must have at least one tap, its kernel size is 0"),
        ((3, 9), W, None, r"input must be \(N, C, L\) or \(C, L\), got \(3, 9\)"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.depthwise_conv1d(sequences(*input), sequences(*weight), bias and sequences(*bias), *fine)
    with pytest.raises(RuntimeError, match=r"output_grad must be \(2, 6, 78\) for these sizes, got \(2, 6, 7\)"):
        ops.depthwise_conv1d_input_grad(sequences(2, 6, 7), sequences(*W), 3, 80, False, *fine)
    with pytest.raises(RuntimeError, match="no memory can hold"):
        ops.depthwise_conv1d_input_grad(sequences(2, 6, 7), sequences(*W), 3, 2**61, False, *fine)
    for wrong in ((3, 6, 7), (2, 4, 7), (2, 6, 6)):
        with pytest.raises(RuntimeError, match="depthwise_conv1d_weight_grad: "):
            ops.depthwise_conv1d_weight_grad(sequences(*wrong), sequences(*X), 3, *fine)


def test_an_infinite_element_is_of_the_windows_that_hold_it():
    x, w = torch.ones(2, 3, 40), torch.ones(3, 1, 5)
    x[1, 2, 17] = torch.inf
    found = depthwise_conv1d(x, w, None, 1, 4, 2)
    expected = torch.zeros(2, 3, 40, dtype=torch.bool)
    expected[1, 2, 13:22:2] = True
    assert torch.equal(found.isinf(), expected)


def strided(random, *sizes):
    """Sequences in any order of their dimensions, with gaps, and with any strides where there is one element."""
    order = random.sample(range(3), 3)
    gap = random.choice((1, 1, 2))
    memory = torch.ones([sizes[d] for d in order[:2]] + [sizes[order[2]] * gap])[..., ::gap]
    tensor = memory.permute([order.index(d) for d in range(3)])
    steps = [
        random.choice((1, 3, stride)) if size == 1 else stride
        for size, stride in zip(sizes, tensor.stride(), strict=True)
    ]
    return tensor.as_strided(sizes, steps)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_strides_are_those_of_pytorch(dtype, threads):
    """Literally, of the output and of all gradients, also along dimensions of one element."""
    random, before = Random(threads), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(60):
            channels, kernel = random.choice((1, 2, 5)), random.choice((1, 2, 3, 4))
            stride = random.choice((1, 1, 2))
            length = random.choice((7, 7, 8, 1))
            # PyTorch 2.13 reads memory that is not there for some dilated kernels in bfloat16: of one tap, or on one
            # element.
            dilation = random.choice((1, 2)) if min(kernel, length) > 1 else 1
            padding = random.choice((0, 1, 3, *(("same", "same") if stride == 1 else ())))
            x = strided(random, random.choice((0, 1, 2, 16)), channels, length).to(dtype)
            w = strided(random, channels * random.choice((1, 1, 2)), 1, kernel).to(dtype)
            leaves = [each.requires_grad_() for each in (x, w)]
            try:
                expected = F.conv1d(x, w, None, stride, padding, dilation, channels)
            except RuntimeError:  # the kernel does not fit
                continue
            found = depthwise_conv1d(x, w, None, stride, padding, dilation)
            said = f"{x.shape} {x.stride()}, {w.shape} {w.stride()}, {stride}, {padding}, {dilation}"
            assert found.stride() == expected.stride(), said
            g = strided(random, *found.shape).to(dtype)
            for one, other in zip(
                torch.autograd.grad(found, leaves, g), torch.autograd.grad(expected, leaves, g), strict=True
            ):
                assert one.stride() == other.stride(), said
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("channels", [1, 3, 16, 33])
@pytest.mark.parametrize("length", [1, 5, 16, 70, 200])
def test_a_result_does_not_depend_on_the_layout_of_what_it_is_made_of(length, channels, dtype):
    """Sequences with their channels side by side, with gaps and without, and such as PyTorch alone would copy."""
    generator = torch.Generator().manual_seed(length)
    # Whole numbers, of which sums are exact.
    whole = torch.randint(-3, 4, (2, length + 1, 2 * channels), generator=generator).to(dtype)
    w = torch.randint(-3, 4, (channels, 1, 3), generator=generator).to(dtype)
    ops, numbers = torch.ops.torchgraft, (1, 1, 1, 1)
    cut = whole[:, :length, :channels].transpose(1, 2)
    layouts = (cut, channels_last(cut), cut.transpose(0, 2).contiguous().transpose(0, 2))
    for x in layouts:
        found, expected = (ops.depthwise_conv1d(each, w, None, *numbers) for each in (x, x.contiguous()))
        assert torch.equal(found, expected)
        for told in (True, False, None):
            found, expected = (
                ops.depthwise_conv1d_input_grad(each, w, channels, length, told, *numbers)
                for each in (x, x.contiguous())
            )
            assert torch.equal(found, expected)
            if told is not None:
                assert found.stride() == ((channels * length, 1, channels) if told else (channels * length, length, 1))
        for grad in layouts:
            found, expected = (
                ops.depthwise_conv1d_weight_grad(*each, 3, *numbers)
                for each in ((grad, x), (grad.contiguous(), x.contiguous()))
            )
            assert torch.equal(found, expected)


@pytest.mark.skipif("cpu" not in convolution.names.recorders, reason="the CPU library is not loaded")
@pytest.mark.parametrize("dtypes", [(torch.float64,) * 2, (torch.float32,) * 2, (torch.bfloat16, torch.float32)])
@pytest.mark.parametrize(
    ("input", "weight", "window"),
    [
        ((2, 6, 19), (6, 1, 4), (1, 3, 1)),
        ((2, 3, 19), (6, 1, 3), (2, 1, 2)),
        ((2, 3, 8), (3, 1, 4), (1, "same", 1)),
        ((0, 4, 5), (4, 1, 3), (1, 1, 1)),
    ],
    ids=str,
)
def test_gradients_that_pytorch_records_are_those_of_the_operator(input, weight, window, dtypes):
    generator = torch.Generator().manual_seed(0)
    sizes = (input, dtypes[0]), (weight, dtypes[1]), (weight[:1], dtypes[1])
    values = [torch.randn(size, generator=generator).to(dtype).requires_grad_() for size, dtype in sizes]

    def derivatives():
        result = depthwise_conv1d(*values, *window)
        grads = torch.autograd.grad(result, values, result.detach().cos().requires_grad_(), create_graph=True)
        second = torch.autograd.grad(sum(grad.double().square().sum() for grad in grads[:2]), values[:2])
        return [result, *grads, *second]

    found = derivatives()
    assert found[0].grad_fn.name() == "MpsConvolutionBackward0"
    recorders = dict(convolution.names.recorders)
    convolution.names.recorders.clear()
    try:
        expected = derivatives()
    finally:
        convolution.names.recorders.update(recorders)
    assert expected[0].grad_fn.name() != found[0].grad_fn.name()
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert torch.equal(one, other)


def test_what_is_not_depthwise_is_refused():
    operator, (x, w) = torch.ops.aten._mps_convolution.default, (sequences(1, 4, 9), sequences(4, 1, 3))
    assert torch.equal(operator(x, w, None, (1,), (1,), (1,), 4), depthwise_conv1d(x, w, None, 1, 1))
    for stride, padding, groups, message in (
        ((1,), (1,), 2, "compute depthwise convolutions, which have a group for each of the 4 channels, got groups=2"),
        ((1, 1), (1,), 4, "stride and dilation must have 1 numbers and padding 1 or 2, got 2, 1 and 1"),
        ((1,), (1, 1, 1), 4, "got 1, 1 and 3"),
    ):
        with pytest.raises(RuntimeError, match=message):
            operator(x, w, None, padding, stride, (1,), groups)


class TestLayer:
    """nn.DepthwiseConv1d against nn.Conv1d with groups."""

    @pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
    def test_same_parameters_and_results_as_conv1d(self, mode):
        arguments = {"stride": 2, "padding": 2, "dilation": 2, "padding_mode": mode}
        torch.manual_seed(1)
        ours = DepthwiseConv1d(3, 4, channel_multiplier=2, **arguments)
        torch.manual_seed(1)
        theirs = torch.nn.Conv1d(3, 6, 4, groups=3, **arguments)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        for name, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value)
        assert repr(ours) == repr(theirs).replace("Conv1d", "DepthwiseConv1d")
        for x in (sequences(2, 3, 19), channels_last(sequences(2, 3, 19)), sequences(3, 19)):
            torch.testing.assert_close(ours(x), theirs(x))
            assert ours(x).stride() == theirs(x).stride()

    def test_compiles_with_a_string_for_padding(self):
        layer = DepthwiseConv1d(3, 3, padding="same")
        x = sequences(1, 3, 11)
        torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))

    def test_adapts_to_any_length_when_exported(self):
        layer = DepthwiseConv1d(3, 3, stride=2, padding=1)
        length = torch.export.Dim("length", min=4, max=64)
        program = torch.export.export(layer, (sequences(4, 3, 9),), dynamic_shapes=({2: length},))
        x = sequences(4, 3, 32)
        torch.testing.assert_close(program.module()(x), layer(x))

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (lambda: DepthwiseConv1d(0), ValueError, "DepthwiseConv1d: in_channels must be positive, got 0"),
            (lambda: DepthwiseConv1d(4, (1, 2)), ValueError, "kernel_size must be an int or one in a tuple"),
            (lambda: DepthwiseConv1d(4, stride=True), TypeError, "stride must be an int or one in a tuple, got True"),
            (lambda: DepthwiseConv1d(4)(sequences(2, 3, 9)), ValueError, "input must have 4 channels, got 3"),
        ],
    )
    def test_bad_arguments_are_explained(self, call, error, message):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(
    ("length", "kernel", "window"),
    [
        (5, 1, SequenceWindow()),
        (7, 5, same(5)),
        (4, 9, same(9)),
        (12, 4, causal(4)),
        (9, 3, SequenceWindow(2, 1, 4, 3)),
    ],
)
def test_taps_on_padding_are_no_work(length, kernel, window):
    case = SequenceCase("counted", (2, 3, length), kernel, window, multiplier=2)
    ones = F.pad(torch.ones(2, 3, length), window.padding)
    products = F.conv1d(ones, torch.ones(6, 1, kernel), None, window.stride, 0, window.dilation, 3).sum()
    assert case.operations == 2 * products
