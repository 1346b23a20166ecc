"""depthwise_conv3d as people call it: F.conv3d's arguments and strides, clear errors, and the layer.

That it is a good operator, test_operators.py says.
"""

import itertools
from random import Random

import pytest
import torch
import torch.nn.functional as F

from torchgraft import (
    depthwise_conv2d,
    depthwise_conv3d,
    depthwise_conv3d_input_grad,
    depthwise_conv3d_weight_grad,
)
from torchgraft.checking import find_devices
from torchgraft.checking.tensors.compare import expect_close
from torchgraft.nn import DepthwiseConv3d
from torchgraft.operator import FLOATING
from torchgraft.operators.depthwise_conv3d.case import VolumeCase, same
from torchgraft.operators.depthwise_conv3d.operator import convolution
from torchgraft.operators.depthwise_conv3d.window import VolumeWindow

each_device = pytest.mark.parametrize("device", find_devices())


def volumes(*shape, device="cpu", dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(device, dtype)


def channels_last(tensor):
    return tensor.contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@each_device
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"stride": 2},
        {"stride": (1, 2, 2), "padding": (1, 0, 2)},
        {"padding": 3, "dilation": (2, 1, 2)},
        {"padding": [1], "stride": [2]},
        {"padding": "valid"},
        {"padding": "same"},
        {"padding": "same", "dilation": (1, 2, 3)},
    ],
    ids=str,
)
def test_equal_to_conv3d_of_pytorch(arguments, dtype, device):
    x, w = volumes(2, 4, 5, 7, 8, device=device, dtype=dtype), volumes(8, 1, 2, 3, 4, device=device, dtype=dtype)
    for bias, turn in itertools.product((None, volumes(8, device=device, dtype=dtype)), (None, channels_last)):
        given = x if turn is None else turn(x)
        # 'same' with an even kernel: PyTorch, too, pads one more behind.
        expected = F.conv3d(x.double(), w.double(), None if bias is None else bias.double(), groups=4, **arguments)
        expect_close(depthwise_conv3d(given, w, bias, **arguments), expected, dtype=dtype, summed=24)


@each_device
def test_a_volume_without_batch(device):
    x, w = volumes(3, 4, 5, 6, device=device), volumes(6, 1, 3, 3, 3, device=device)
    torch.testing.assert_close(depthwise_conv3d(x, w, padding=1), depthwise_conv3d(x[None], w, padding=1)[0])
    torch.testing.assert_close(depthwise_conv3d(x, w, padding=1, groups=3), F.conv3d(x, w, padding=1, groups=3))


def test_an_image_is_a_volume_of_one_plane():
    x, w, b = volumes(2, 5, 9, 11), volumes(10, 1, 3, 4), volumes(10)
    found = depthwise_conv3d(x[:, :, None], w[:, :, None], b, (1, 2, 1), (0, 3, 1), (1, 2, 1))
    assert torch.equal(found[:, :, 0], depthwise_conv2d(x, w, b, (2, 1), (3, 1), (2, 1)))


def draw(random):
    """A convolution of small volumes, as arguments of F.conv3d, of any strides of its kernel over them."""
    channels, sides = random.choice((1, 2, 3, 17)), range(3)
    kernel, stride = [random.choice((1, 2, 3, 5)) for _ in sides], [random.randint(1, 3) for _ in sides]
    size, padding = [random.randint(1, 9) for _ in sides], [random.randint(0, 4) for _ in sides]
    dilation = [random.randint(1, 2) for _ in sides]
    spans = [gap * (taps - 1) + 1 for gap, taps in zip(dilation, kernel, strict=True)]
    size = [max(size[i], spans[i] - 2 * padding[i]) for i in sides]
    x = volumes(random.randint(1, 3), channels, *size)
    return x, volumes(channels * random.choice((1, 1, 2, 3)), 1, *kernel), stride, padding, dilation


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_drawn_results_and_gradients_are_those_of_pytorch_in_float64(dtype):
    random = Random(str(dtype))
    for _ in range(12):
        x, w, stride, padding, dilation = draw(random)
        x = random.choice((channels_last, torch.Tensor.contiguous))(x).to(dtype).requires_grad_()
        w = w.to(dtype).requires_grad_()
        y = depthwise_conv3d(x, w, None, stride, padding, dilation)
        g = torch.randn(y.shape, dtype=torch.float64).to(dtype)
        exact = [each.detach().double().requires_grad_() for each in (x, w)]
        expected = F.conv3d(*exact, None, stride, padding, dilation, x.shape[1])
        said = (x.shape, x.stride(), w.shape, stride, padding, dilation)
        grads = zip(torch.autograd.grad(y, (x, w), g), torch.autograd.grad(expected, exact, g.double()), strict=True)
        for found, right in ((y, expected), *grads):
            scale = max(float(right.detach().abs().max()), 1.0)
            assert (found.double() - right).abs().max() <= 64 * torch.finfo(dtype).eps * scale, said


@each_device
def test_gradients_by_name(device):
    x = volumes(2, 3, 5, 6, 7, device=device).requires_grad_()
    w = volumes(6, 1, 3, 2, 3, device=device).requires_grad_()
    window = (1, 2, 2), 1
    y = depthwise_conv3d(x, w, None, *window)
    g = torch.randn_like(y)
    x_grad, w_grad = torch.autograd.grad(y, (x, w), g)
    torch.testing.assert_close(depthwise_conv3d_input_grad(g, w, x.shape[1:], False, *window), x_grad)
    turned = depthwise_conv3d_input_grad(g, w, x.shape[1:], True, *window)
    torch.testing.assert_close(turned, x_grad)
    assert turned.stride() == (3 * 5 * 6 * 7, 1, 3 * 6 * 7, 3 * 7, 3)
    torch.testing.assert_close(depthwise_conv3d_weight_grad(g, x, (3, 2, 3), *window), w_grad)
    wide = depthwise_conv3d_weight_grad(g, x, [3, 2, 3], *window, dtype=torch.float64, channels_last=True)
    torch.testing.assert_close(wide, w_grad.double(), rtol=1e-5, atol=1e-5)
    assert wide.stride() == (18, 1, 6, 3, 1)


X, W = (2, 3, 5, 6, 7), (6, 1, 3, 3, 3)
BAD = {
    "rank of input": (lambda: depthwise_conv3d(volumes(9), volumes(*W)), ValueError, r"\(C, D, H, W\), got \(9,\)"),
    "rank of weight": (lambda: depthwise_conv3d(volumes(*X), volumes(6, 1, 3, 3)), ValueError, "weight must have"),
    "dense weight": (lambda: depthwise_conv3d(volumes(*X), volumes(6, 3, 3, 3, 3)), ValueError, "weight must have"),
    "channels": (lambda: depthwise_conv3d(volumes(*X), volumes(4, 1, 3, 3, 3)), ValueError, "multiple of the 3"),
    "other groups": (
        lambda: depthwise_conv3d(volumes(*X), volumes(*W), groups=6),
        ValueError,
        r"depthwise_conv3d: input must have 6 channels, got 3: its shape is \(2, 3, 5, 6, 7\)",
    ),
    "other groups, no batch": (
        lambda: depthwise_conv3d(volumes(*X[1:]), volumes(*W), groups=2),
        ValueError,
        r"input must have 2 channels, got 3: its shape is \(3, 5, 6, 7\)",
    ),
    "bias length": (
        lambda: depthwise_conv3d(volumes(*X), volumes(*W), volumes(3)),
        ValueError,
        "where M is 6 as in weight",
    ),
    "kernel too deep": (
        lambda: depthwise_conv3d(volumes(*X), volumes(3, 1, 8, 3, 3), padding=1),
        ValueError,
        "spans 8 x 3 x 3 voxels and the padded input has only 7 x 8 x 9",
    ),
    "stride zero": (
        lambda: depthwise_conv3d(volumes(*X), volumes(*W), stride=(1, 0, 1)),
        ValueError,
        r"depthwise_conv3d: stride must be positive, got \(1, 0, 1\)",
    ),
    "stride a fraction": (lambda: depthwise_conv3d(volumes(*X), volumes(*W), stride=1.5), TypeError, "stride must"),
    "stride a flag": (lambda: depthwise_conv3d(volumes(*X), volumes(*W), stride=(1, True, 1)), TypeError, "stride"),
    "stride of two": (
        lambda: depthwise_conv3d(volumes(*X), volumes(*W), stride=(1, 2)),
        ValueError,
        r"depthwise_conv3d: stride must be an int or three ints, got \(1, 2\)",
    ),
    # Twelve numbers in all, but not three of each.
    "a number too many and one too few": (
        lambda: depthwise_conv3d(volumes(*X), volumes(*W), stride=(1, 2), dilation=(1, 1, 1, 1)),
        ValueError,
        "stride must be an int or three ints",
    ),
    "padding of none": (lambda: depthwise_conv3d(volumes(*X), volumes(*W), padding=()), ValueError, "padding must"),
    "dilation zero": (lambda: depthwise_conv3d(volumes(*X), volumes(*W), dilation=0), ValueError, "dilation must"),
    "padding negative": (
        lambda: depthwise_conv3d(volumes(*X), volumes(*W), padding=(0, 0, -1)),
        ValueError,
        r"padding must not be negative, got \(-1, -1, 0, 0, 0, 0\) \(left, right, ...\)",
    ),
    "padding a word": (lambda: depthwise_conv3d(volumes(*X), volumes(*W), padding="full"), ValueError, "'full'"),
    "same with stride": (
        lambda: depthwise_conv3d(volumes(*X), volumes(*W), padding="same", stride=(1, 2, 2)),
        ValueError,
        r"padding='same' needs stride 1, got \(1, 2, 2\)",
    ),
    "no channels": (lambda: depthwise_conv3d(volumes(2, 0, 5, 6, 7), volumes(*W)), ValueError, "one channel"),
    "no planes": (
        lambda: depthwise_conv3d(volumes(2, 3, 0, 6, 7), volumes(*W), padding=3),
        ValueError,
        r"at least one voxel, its depth, height and width are \(0, 6, 7\)",
    ),
    "no taps": (
        lambda: depthwise_conv3d(volumes(*X), volumes(3, 1, 0, 3, 3)),
        ValueError,
        r"at least one tap, its kernels are \(0, 3, 3\)",
    ),
    "input no tensor": (lambda: depthwise_conv3d([1.0], volumes(*W)), TypeError, "input must be a Tensor, got list"),
    "weight no tensor, same": (
        lambda: depthwise_conv3d(volumes(*X), None, padding="same"),
        TypeError,
        "weight must be a Tensor",
    ),
    "integers": (lambda: depthwise_conv3d(volumes(*X).long(), volumes(*W).long()), TypeError, "torch.int64"),
    "two devices": (lambda: depthwise_conv3d(volumes(*X), volumes(*W).to("meta")), ValueError, "weight is on meta"),
    "padding beyond memory": (
        lambda: depthwise_conv3d(volumes(*X), volumes(*W), padding=2**45),
        ValueError,
        "no memory can hold",
    ),
    "size of an input gradient": (
        lambda: depthwise_conv3d_input_grad(volumes(2, 6, 3, 4, 5), volumes(*W), (5, 6, 7)),
        ValueError,
        r"depthwise_conv3d_input_grad: input_size must be .*\(C, D, H, W\)",
    ),
    "output_grad of another depth": (
        lambda: depthwise_conv3d_input_grad(volumes(2, 6, 4, 4, 5), volumes(*W), X[1:]),
        ValueError,
        r"output_grad must be \(2, 6, 3, 4, 5\) for these sizes, got \(2, 6, 4, 4, 5\)",
    ),
    "kernel_size of two": (
        lambda: depthwise_conv3d_weight_grad(volumes(2, 6, 3, 4, 5), volumes(*X), (3, 3)),
        ValueError,
        r"depthwise_conv3d_weight_grad: kernel_size must be .*\(KD, KH, KW\)",
    ),
    "dtype of a weight gradient": (
        lambda: depthwise_conv3d_weight_grad(volumes(2, 6, 3, 4, 5), volumes(*X), (3, 3, 3), dtype=torch.int32),
        TypeError,
        "depthwise_conv3d_weight_grad: dtype must be one of",
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
    (0, 0, r"depthwise_conv3d: stride must be positive, got \(0, 1, 1\)"),
    (3, -1, r"padding must not be negative, got \(0, 0, 0, 0, -1, 0\) \(left, right, ...\)"),
    (6, -3, "padding must not be negative"),
    (9, 0, r"dilation must be positive, got \(0, 1, 1\)"),
    (9, 3, "the kernel spans 7 x 3 x 3 voxels and the padded input has only 5 x 6 x 7"),
    (3, 2**62, "these sizes make a tensor that no memory can hold"),
    (9, 2**62, "these sizes make a tensor that no memory can hold"),
    (0, 2**41, "these sizes make a tensor that no memory can hold"),
]


@pytest.mark.parametrize(("place", "value", "message"), WRONG_NUMBERS)
def test_bad_numbers_are_refused_without_python_too(place, value, message):
    numbers = [1] * 3 + [0] * 6 + [1] * 3
    numbers[place] = value
    with pytest.raises(RuntimeError, match=message):
        torch.ops.torchgraft.depthwise_conv3d(volumes(*X), volumes(*W), None, *numbers)


def test_bad_sizes_are_refused_without_python_too():
    ops, fine = torch.ops.torchgraft, (*(1,) * 3, *(0,) * 6, *(1,) * 3)
    for input, weight, bias, message in (
        (X, W, (5,), "bias must have 6 elements, got 5"),
        (X, (6, 2, 3, 3, 3), None, r"weight must be \(channels, 1, depth, height, width\), its second size is 2"),
        (X, (4, 1, 3, 3, 3), None, "weight has 4 channels, which must be a multiple of the 3 of input"),
        ((2, 3, 0, 6, 7), W, None, r"at least one voxel, its depth, height and width are \(0, 6, 7\)"),
        (X, (6, 1, 3, 0, 3), None, r"weight must have at least one tap, its kernels are \(3, 0, 3\)"),
        ((3, 5, 6, 7), W, None, r"input must be \(N, C, D, H, W\) or \(C, D, H, W\), got \(3, 5, 6, 7\)"),
    ):
        with pytest.raises(RuntimeError, match=message):
            ops.depthwise_conv3d(volumes(*input), volumes(*weight), bias and volumes(*bias), *fine)
    grad = volumes(2, 6, 3, 4, 5)
    with pytest.raises(RuntimeError, match=r"output_grad must be \(2, 6, 4, 4, 5\) for these sizes"):
        ops.depthwise_conv3d_input_grad(grad, volumes(*W), 3, 6, 6, 7, False, *fine)
    with pytest.raises(RuntimeError, match="no memory can hold"):
        ops.depthwise_conv3d_input_grad(grad, volumes(*W), 3, 2**61, 6, 7, False, *fine)
    for wrong in ((3, 6, 3, 4, 5), (2, 4, 3, 4, 5), (2, 6, 4, 4, 5)):
        with pytest.raises(RuntimeError, match="depthwise_conv3d_weight_grad: "):
            ops.depthwise_conv3d_weight_grad(volumes(*wrong), volumes(*X), 3, 3, 3, *fine)


def test_an_infinite_voxel_is_of_the_windows_that_hold_it():
    x, w = torch.ones(2, 3, 6, 7, 8), torch.ones(3, 1, 3, 3, 3)
    x[1, 2, 3, 2, 5] = torch.inf
    found = depthwise_conv3d(x, w, None, 1, (1, 2, 1), (1, 2, 1))
    expected = torch.zeros(2, 3, 6, 7, 8, dtype=torch.bool)
    expected[1, 2, 2:5, 0:5:2, 4:7] = True
    assert torch.equal(found.isinf(), expected)


def strided(random, *sizes):
    """Volumes in any order of their dimensions, with gaps, and with any strides where there is one voxel."""
    orders = [0, 1, 2, 3, 4], [0, 2, 3, 4, 1], random.sample(range(5), 5)
    order, gap = random.choice(orders), random.choice((1, 1, 2))
    memory = torch.ones([sizes[d] for d in order[:4]] + [sizes[order[4]] * gap])[..., ::gap]
    tensor = memory.permute([order.index(d) for d in range(5)])
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
            channels, sides = random.choice((1, 2, 5)), range(3)
            kernel = random.choice(([1, 1, 1], [3, 1, 1], [random.randint(1, 4) for _ in sides]))
            size = [random.choice((5, 6, 1)) for _ in sides]
            stride = [random.choice((1, 1, 2)) for _ in sides] if random.random() < 0.3 else [1] * 3
            # As of sequences and images, of one tap or on one element PyTorch may read memory that is not there.
            dilation = [random.choice((1, 1, 2)) if min(kernel[i], size[i]) > 1 else 1 for i in sides]
            padding = random.choice((0, 1, 3, *(("same", "same") if stride == [1] * 3 else ())))
            x = strided(random, random.choice((0, 1, 2, 16)), channels, *size).to(dtype)
            w = strided(random, channels * random.choice((1, 1, 2)), 1, *kernel).to(dtype)
            leaves = [each.requires_grad_() for each in (x, w)]
            try:
                expected = F.conv3d(x, w, None, stride, padding, dilation, channels)
            except RuntimeError:  # the kernel does not fit
                continue
            found = depthwise_conv3d(x, w, None, stride, padding, dilation)
            said = f"{x.shape} {x.stride()}, {w.shape} {w.stride()}, {stride}, {padding}, {dilation}"
            assert found.stride() == expected.stride(), said
            g = strided(random, *found.shape).to(dtype)
            for one, other in zip(
                torch.autograd.grad(found, leaves, g), torch.autograd.grad(expected, leaves, g), strict=True
            ):
                assert one.stride() == other.stride(), said
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif("cpu" not in convolution.names.recorders, reason="the CPU library is not loaded")
@pytest.mark.parametrize("dtypes", [(torch.float64,) * 2, (torch.float32,) * 2, (torch.bfloat16, torch.float32)])
@pytest.mark.parametrize(
    ("input", "weight", "window"),
    [
        ((2, 6, 4, 5, 6), (6, 1, 3, 3, 3), (1, 1, 1)),
        ((2, 3, 5, 6, 4), (6, 1, 3, 2, 3), ((1, 2, 2), (1, 0, 1), (2, 1, 1))),
        ((2, 3, 4, 5, 6), (3, 1, 2, 3, 4), (1, "same", 1)),
        ((0, 4, 3, 4, 5), (4, 1, 3, 3, 3), (1, 1, 1)),
    ],
    ids=str,
)
def test_gradients_that_pytorch_records_are_those_of_the_operator(input, weight, window, dtypes):
    generator = torch.Generator().manual_seed(0)
    sizes = (input, dtypes[0]), (weight, dtypes[1]), (weight[:1], dtypes[1])
    values = [torch.randn(size, generator=generator).to(dtype).requires_grad_() for size, dtype in sizes]

    def derivatives():
        result = depthwise_conv3d(*values, *window)
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


def test_only_devices_with_kernels_record_in_cpp():
    assert set(convolution.names.recorders) <= {"cpu", "cuda"}


def test_what_is_not_depthwise_is_refused():
    operator, (x, w) = torch.ops.aten._mps_convolution.default, (volumes(1, 4, 3, 4, 5), volumes(4, 1, 3, 3, 3))
    ones = (1,) * 3
    assert torch.equal(operator(x, w, None, ones, ones, ones, 4), depthwise_conv3d(x, w, None, 1, 1))
    for stride, padding, groups, message in (
        (ones, ones, 2, "compute depthwise convolutions, which have a group for each of the 4 channels, got groups=2"),
        ((1, 1), ones, 4, "stride and dilation must have 3 numbers and padding 3 or 6, got 2, 3 and 3"),
        (ones, (1,) * 4, 4, "got 3, 3 and 4"),
    ):
        with pytest.raises(RuntimeError, match=message):
            operator(x, w, None, padding, stride, ones, groups)


class TestLayer:
    """nn.DepthwiseConv3d against nn.Conv3d with groups."""

    @pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
    def test_same_parameters_and_results_as_conv3d(self, mode):
        arguments = {"stride": (1, 2, 2), "padding": (1, 2, 2), "dilation": (1, 2, 1), "padding_mode": mode}
        torch.manual_seed(1)
        ours = DepthwiseConv3d(3, (3, 2, 4), channel_multiplier=2, **arguments)
        torch.manual_seed(1)
        theirs = torch.nn.Conv3d(3, 6, (3, 2, 4), groups=3, **arguments)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        for name, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value)
        assert repr(ours) == repr(theirs).replace("Conv3d", "DepthwiseConv3d")
        for x in (volumes(2, 3, 4, 5, 6), channels_last(volumes(2, 3, 4, 5, 6)), volumes(3, 4, 5, 6)):
            torch.testing.assert_close(ours(x), theirs(x))
            assert ours(x).stride() == theirs(x).stride()

    def test_compiles_with_a_string_for_padding(self):
        layer = DepthwiseConv3d(3, 3, padding="same")
        x = volumes(1, 3, 4, 5, 6)
        torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))

    def test_adapts_to_any_depth_when_exported(self):
        layer = DepthwiseConv3d(3, 3, stride=(2, 1, 1), padding=1)
        depth = torch.export.Dim("depth", min=4, max=64)
        program = torch.export.export(layer, (volumes(4, 3, 9, 4, 5),), dynamic_shapes=({2: depth},))
        x = volumes(4, 3, 32, 4, 5)
        torch.testing.assert_close(program.module()(x), layer(x))

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (lambda: DepthwiseConv3d(0), ValueError, "DepthwiseConv3d: in_channels must be positive, got 0"),
            (lambda: DepthwiseConv3d(4, (1, 2)), ValueError, "kernel_size must be an int or three ints"),
            (lambda: DepthwiseConv3d(4, stride=True), TypeError, "stride must be an int or three ints, got True"),
            (lambda: DepthwiseConv3d(4)(volumes(2, 3, 9, 9, 9)), ValueError, "input must have 4 channels, got 3"),
        ],
    )
    def test_bad_arguments_are_explained(self, call, error, message):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(
    ("size", "kernel", "window"),
    [
        ((3, 4, 5), (1, 1, 1), VolumeWindow()),
        ((3, 7, 2), (3, 5, 1), same((3, 5, 1))),
        ((2, 4, 3), (7, 7, 7), same((7, 7, 7))),
        ((5, 4, 9), (3, 2, 3), VolumeWindow(2, 1, 3, 1, 0, 2, 0, 1, 3, 1, 2, 1)),
    ],
)
def test_taps_on_padding_are_no_work(size, kernel, window):
    case = VolumeCase("counted", (2, 3, *size), kernel, window, multiplier=2)
    ones = F.pad(torch.ones(2, 3, *size), window.padding)
    products = F.conv3d(ones, torch.ones(6, 1, *kernel), None, window.stride, 0, window.dilation, 3).sum()
    assert case.operations == 2 * products
