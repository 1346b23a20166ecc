"""Transposed depthwise convolutions: values and strides of F.conv_transposeNd, clear errors, and the layers."""

from random import Random

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import torchgraft
from torchgraft import nn
from torchgraft.checking import find_devices
from torchgraft.operator import FLOATING

# Kernels do not carry forward-mode tangents, and volumes have none on CUDA: a warning says so.
pytestmark = pytest.mark.filterwarnings("ignore::torchgraft.kernels.fallback.PerformanceWarning")
each_rank = pytest.mark.parametrize("rank", [1, 2, 3])
each_dtype = pytest.mark.parametrize("dtype", FLOATING, ids=str)

OURS = {rank: getattr(torchgraft, f"depthwise_conv_transpose{rank}d") for rank in (1, 2, 3)}
THEIRS = {rank: getattr(F, f"conv_transpose{rank}d") for rank in (1, 2, 3)}
LAYERS = {
    rank: (getattr(nn, f"DepthwiseConvTranspose{rank}d"), getattr(torch.nn, f"ConvTranspose{rank}d"))
    for rank in (1, 2, 3)
}


def values(*shape, dtype=torch.float32, device="cpu"):
    return torch.randn(shape, dtype=torch.float64).to(device, dtype)


def channels_last(tensor):
    """The same values with the channels of an element side by side in memory."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


def as_pytorch_takes_them(x, w, b, stride, padding, output_padding, dilation):
    return x, w, b, stride, padding, output_padding, w.shape[0], dilation


def draw(random, rank):
    """Arguments of a transposed convolution whose output has an element."""
    while True:
        sides = range(rank)
        kernel, stride = [random.randint(1, 4) for _ in sides], [random.choice((1, 1, 2, 3)) for _ in sides]
        size, padding = [random.choice((1, 5, 6)) for _ in sides], [random.choice((0, 0, 1, 2)) for _ in sides]
        dilation = [random.choice((1, 1, 2, 4)) for _ in sides]
        output_padding = [random.randrange(max(stride[i], dilation[i])) for i in sides]
        outputs = [
            (size[i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + output_padding[i] + 1
            for i in sides
        ]
        if min(outputs) > 0:
            channels, multiplier = random.choice((1, 2, 5)), random.choice((1, 1, 2))
            x, w = (random.choice((1, 2, 16)), channels, *size), (channels, multiplier, *kernel)
            return x, w, (channels * multiplier,), stride, padding, output_padding, dilation


def near(found, exact, dtype):
    """Whether values are those in float64, up to some roundings of the largest."""
    found, exact = found.detach(), exact.detach()
    scale = max(float(exact.abs().max()), 1.0)
    return float((found.double() - exact).abs().max()) <= 64 * torch.finfo(dtype).eps * scale


@pytest.mark.parametrize("device", find_devices())
@each_dtype
@each_rank
def test_drawn_results_and_gradients_are_those_of_pytorch_in_float64(rank, dtype, device):
    random = Random(f"{rank} {dtype}")
    for number in range(16):
        *shapes, stride, padding, output_padding, dilation = draw(random, rank)
        shapes = shapes[: 3 if number % 2 else 2]
        leaves = [values(*shape, dtype=dtype, device=device) for shape in shapes]
        leaves[0] = random.choice((channels_last, torch.Tensor.contiguous))(leaves[0])
        leaves = [each.requires_grad_() for each in leaves]
        given = (*leaves, None)[:3]
        found = OURS[rank](*given, stride, padding, output_padding, dilation)
        # Of the values alone: PyTorch's own gradient of a weight raises an error for some strides in float64.
        exact = [each.detach().double().contiguous().requires_grad_() for each in leaves]
        x, w, b = (*exact, None)[:3]
        expected = THEIRS[rank](*as_pytorch_takes_them(x, w, b, stride, padding, output_padding, dilation))
        grad = random.choice((channels_last, torch.Tensor.contiguous))(values(*found.shape, dtype=dtype, device=device))
        pairs = [
            (found, expected),
            *zip(
                torch.autograd.grad(found, leaves, grad),
                torch.autograd.grad(expected, exact, grad.double()),
                strict=True,
            ),
        ]
        for one, other in pairs:
            assert one.dtype == dtype
            assert near(one, other, dtype), (shapes, stride, padding, output_padding, dilation)


@each_rank
def test_output_padding_reaches_beyond_the_kernel(rank):
    """More than a stride and the padding leaves outputs that no input reaches: they are the bias."""
    x, w, b = values(2, 3, *(4, 3, 2)[:rank]), values(3, 1, *(1,) * rank), values(3)
    found = OURS[rank](x, w, b, 1, 0, 2, 3)
    torch.testing.assert_close(found, THEIRS[rank](x, w, b, 1, 0, 2, 3, 3))
    ends = found[..., -2:]
    assert torch.equal(ends, b.reshape(-1, *(1,) * rank).expand_as(ends))
    # Padding takes off all that inputs reach, and nothing but the bias is left.
    x, w = x[..., :1].requires_grad_(), w.requires_grad_()
    for padding, more in ((1, 4), (5, 12), (9, 19)):
        first = (0,) * (rank - 1)
        found = OURS[rank](x, w, b, 1, (*first, padding), (*first, more), 20)
        assert torch.equal(found, THEIRS[rank](x, w, b, 1, (*first, padding), (*first, more), 3, 20))
        assert torch.equal(found, b.reshape(-1, *(1,) * rank).expand_as(found))
        assert not any(grad.count_nonzero() for grad in torch.autograd.grad(found.sum(), (x, w)))


@each_rank
def test_the_input_gradient_of_a_convolution_is_it(rank):
    x, w = values(2, 4, *(7, 6, 5)[:rank]), values(4, 1, *(3,) * rank)
    output = getattr(torchgraft, f"depthwise_conv{rank}d")(x.requires_grad_(), w, None, 2, 1)
    grad = torch.randn_like(output)
    # A convolution of stride 2 gives the same number of outputs for an even size as for the odd one before it.
    more = [(size + 1) % 2 for size in x.shape[2:]]
    assert torch.equal(torch.autograd.grad(output, x, grad)[0], OURS[rank](grad, w, None, 2, 1, more))


@each_rank
def test_a_batch_may_be_left_out_or_be_empty(rank):
    x, w, b = values(2, 3, *(4, 3, 2)[:rank]), values(3, 2, *(3,) * rank), values(6)
    torch.testing.assert_close(OURS[rank](x[0], w, b, 2), OURS[rank](x, w, b, 2)[0])
    nothing = x[:0].requires_grad_()
    found, expected = OURS[rank](nothing, w, b, 2), THEIRS[rank](nothing, w, b, 2, 0, 0, 3)
    assert (found.shape, found.stride()) == (expected.shape, expected.stride())
    found.sum().backward()
    assert nothing.grad.shape == nothing.shape


def strided(random, *sizes):
    """Values in any order of their dimensions, with gaps, and with any strides where there is one element."""
    rank = len(sizes)
    orders = list(range(rank)), [0, *range(2, rank), 1], random.sample(range(rank), rank)
    order, gap = random.choice(orders), random.choice((1, 1, 2))
    memory = torch.ones([sizes[d] for d in order[:-1]] + [sizes[order[-1]] * gap])[..., ::gap]
    tensor = memory.permute([order.index(d) for d in range(rank)])
    steps = [
        random.choice((1, 3, stride)) if size == 1 else stride
        for size, stride in zip(sizes, tensor.stride(), strict=True)
    ]
    return tensor.as_strided(sizes, steps)


@pytest.mark.parametrize("threads", [1, 2])
@each_dtype
@each_rank
def test_strides_are_those_of_pytorch(rank, dtype, threads):
    """Literally, also along dimensions of one element."""
    random, before = Random(threads), torch.get_num_threads()
    torch.set_num_threads(threads)
    compared = 0
    try:
        for _ in range(60):
            x, w, b, stride, padding, output_padding, dilation = draw(random, rank)
            x, w = strided(random, *x).to(dtype), strided(random, *w).to(dtype)
            given = x, w, random.choice((None, torch.ones(b, dtype=dtype))), stride, padding, output_padding, dilation
            try:
                expected = THEIRS[rank](*as_pytorch_takes_them(*given))
            except RuntimeError:  # oneDNN knows no such strides
                continue
            said = f"{x.shape} {x.stride()}, {w.shape} {w.stride()}, {given[2:]}"
            assert OURS[rank](*given).stride() == expected.stride(), said
            compared += 1
    finally:
        torch.set_num_threads(before)
    assert compared > 30


@each_rank
def test_gradients_of_every_order_are_right(rank):
    x, w, b = ((2, 2, *(3, 2, 2)[:rank]), (2, 2, *(2,) * rank), (4,))
    leaves = [values(*shape, dtype=torch.float64).requires_grad_() for shape in (x, w, b)]

    def call(*given):
        return OURS[rank](*given, 2, 1, 1, 1)

    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (1, 2, 1)], ids=str)
@each_rank
def test_vmap(rank, dims):
    shapes = (2, 4, *(5, 4, 3)[:rank]), (4, 2, *(3,) * rank), (8,)
    given = [
        values(*shape) if dim is None else values(*shape[:dim], 3, *shape[dim:])
        for shape, dim in zip(shapes, dims, strict=True)
    ]
    found = torch.vmap(lambda x, w, b: OURS[rank](x, w, b, 2, 1, 1), dims)(*given)
    for number in range(3):
        x, w, b = (each if dim is None else each.select(dim, number) for each, dim in zip(given, dims, strict=True))
        torch.testing.assert_close(found[number], THEIRS[rank](x, w, b, 2, 1, 1, 4))


@each_rank
def test_autocast_lowers_as_pytorch_does(rank):
    ours, theirs = pair(rank, 4, 3, stride=2)
    x = values(2, 4, *(5, 4, 3)[:rank]).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = ours(x), theirs(x)
    assert found.dtype == expected.dtype == torch.bfloat16
    assert near(found, expected.double(), torch.bfloat16)
    found.sum().backward()
    assert {each.grad.dtype for each in (x, ours.weight, ours.bias)} == {torch.float32}


@each_rank
def test_tensors_without_memory_have_no_autocast(rank):
    x, w = (torch.ones(shape, device="meta") for shape in ((2, 4, *(5, 4, 3)[:rank]), (4, 1, *(3,) * rank)))
    expected = THEIRS[rank](x, w, None, 2, 0, 0, 4)
    assert OURS[rank](x, w, None, 2).shape == expected.shape
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert OURS[rank](x, w, None, 2).dtype == getattr(torchgraft, f"depthwise_conv{rank}d")(x, w).dtype == x.dtype


@each_rank
def test_weight_and_bias_of_another_dtype_are_rounded(rank):
    x, w, b = values(2, 4, *(5, 4, 3)[:rank], dtype=torch.float16), values(4, 1, *(3,) * rank), values(4)
    found = OURS[rank](x, w.requires_grad_(), b, 2)
    assert torch.equal(found, OURS[rank](x, w.half(), b.half(), 2))
    assert torch.autograd.grad(found.sum(), w)[0].dtype == torch.float32


def test_flops_are_two_for_each_tap_of_each_input():
    with FlopCounterMode(display=False) as counter:
        torchgraft.depthwise_conv_transpose2d(values(2, 4, 5, 6), values(4, 3, 3, 2), None, 2)
    assert counter.get_total_flops() == 2 * (2 * 4 * 5 * 6) * 3 * (3 * 2)


X = {1: (2, 3, 5), 2: (2, 3, 5, 4), 3: (2, 3, 5, 4, 3)}
W = {1: (3, 2, 3), 2: (3, 2, 3, 3), 3: (3, 2, 3, 3, 3)}
BAD = {
    "no tensor": (2, {"input": [1.0]}, TypeError, "depthwise_conv_transpose2d: input must be a Tensor, got list"),
    "weight no tensor": (1, {"weight": 3}, TypeError, "depthwise_conv_transpose1d: weight must be a Tensor, got int"),
    "bias no tensor": (1, {"bias": 3}, TypeError, "depthwise_conv_transpose1d: bias must be a Tensor, got int"),
    "rank": (3, {"input": values(2, 3, 5)}, ValueError, r"input must be \(N, C, D, H, W\) or .*, got \(2, 3, 5\)"),
    "rank of weight": (2, {"weight": values(3, 2, 3)}, ValueError, r"weight must be \(C, multiplier, KH, KW\), got"),
    "channels": (
        1,
        {"weight": values(6, 1, 3)},
        ValueError,
        r"depthwise_conv_transpose1d: input must have 6 channels, as weight has, got 3: its shape is \(2, 3, 5\)",
    ),
    "no channels": (1, {"input": values(2, 0, 5), "weight": values(0, 1, 3)}, ValueError, "at least one channel"),
    "no pixels": (
        2,
        {"input": values(2, 3, 5, 0)},
        ValueError,
        r"at least one pixel, its height and width are \(5, 0\)",
    ),
    "no taps": (2, {"weight": values(3, 2, 3, 0)}, ValueError, r"one kernel a channel and one tap, got \(3, 2, 3, 0\)"),
    "no kernels": (2, {"weight": values(3, 0, 3, 3)}, ValueError, "at least one kernel a channel"),
    "bias of one": (2, {"bias": values(1)}, ValueError, r"bias must be \(6,\), a number for each .*, got \(1,\)"),
    "bias of whole numbers": (1, {"bias": torch.ones(6, dtype=torch.int64)}, TypeError, "bias has dtype torch.int64"),
    "whole numbers": (1, {"input": torch.ones(2, 3, 5, dtype=torch.int32)}, TypeError, "input has dtype torch.int32"),
    "devices": (2, {"weight": torch.ones(W[2], device="meta")}, ValueError, "weight is on meta"),
    "bias elsewhere": (2, {"bias": torch.ones(6, device="meta")}, ValueError, "bias is on meta"),
    "stride zero": (3, {"stride": (1, 0, 1)}, ValueError, r"transpose3d: stride must be positive, got \(1, 0, 1\)"),
    "stride a flag": (1, {"stride": True}, TypeError, "stride must be an int or one in a tuple, got True"),
    "stride of three": (2, {"stride": (1, 2, 1)}, ValueError, "stride must be an int or a pair of ints"),
    "dilation a fraction": (2, {"dilation": 1.5}, TypeError, "dilation must be an int or a pair of ints, got 1.5"),
    "dilation negative": (1, {"dilation": -1}, ValueError, "dilation must be positive, got -1"),
    "padding negative": (2, {"padding": (0, -1)}, ValueError, r"padding must not be negative, got \(0, -1\)"),
    "padding a word": (2, {"padding": "same"}, TypeError, "padding must be an int or a pair of ints, got 'same'"),
    "padding of all": (
        2,
        {"padding": (4, 1)},
        ValueError,
        r"padding \(4, 1\) leaves no pixel of the output, its height and width are \(-1, 4\)",
    ),
    "output_padding negative": (1, {"output_padding": -1}, ValueError, "output_padding must not be negative, got -1"),
    "output_padding of a stride": (
        2,
        {"output_padding": (0, 2), "stride": 2},
        ValueError,
        r"output_padding must be less than stride \(2, 2\) or dilation \(1, 1\), got \(0, 2\)",
    ),
    "beyond memory": (1, {"stride": 2**62}, ValueError, "depthwise_conv_transpose1d: .* no memory can hold"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_explained(name):
    rank, given, error, message = BAD[name]
    arguments = {"input": values(*X[rank]), "weight": values(*W[rank]), **given}
    for needs_grad in (False, True):
        if needs_grad and isinstance(arguments["weight"], torch.Tensor):
            arguments["weight"].requires_grad_()
        with pytest.raises(error, match=message):
            OURS[rank](**arguments)


def test_whole_numbers_of_any_kind_are_taken():
    x, w = values(2, 3, 5, 4), values(3, 1, 3, 3)
    found = torchgraft.depthwise_conv_transpose2d(x, w, None, numpy.int64(2), [1], (numpy.int32(1), 0), dilation=(1, 2))
    torch.testing.assert_close(found, F.conv_transpose2d(x, w, None, 2, 1, (1, 0), 3, (1, 2)))


def pair(rank, *arguments, **named):
    """A layer of ours and PyTorch's, made alike."""
    ours, theirs = LAYERS[rank]
    channels, kernel = arguments
    torch.manual_seed(1)
    one = ours(channels, kernel, **named)
    torch.manual_seed(1)
    multiplier = named.pop("channel_multiplier", 1)
    return one, theirs(channels, channels * multiplier, kernel, groups=channels, **named)


class TestLayers:
    """nn.DepthwiseConvTransposeNd against nn.ConvTransposeNd with groups."""

    @each_rank
    def test_same_parameters_and_results(self, rank):
        numbers = {"stride": (2, 1, 3)[:rank], "padding": 1, "output_padding": (1, 0, 2)[:rank], "dilation": 1}
        ours, theirs = pair(rank, 4, (3, 4, 2)[:rank], channel_multiplier=2, **numbers)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        for name, value in theirs.state_dict().items():
            assert torch.equal(ours.state_dict()[name], value)
        assert repr(ours) == f"Depthwise{theirs!r}"
        assert isinstance(ours, type(theirs))
        x = values(2, 4, *(5, 4, 6)[:rank])
        for given in (x, channels_last(x), x[0]):
            torch.testing.assert_close(ours(given), theirs(given))
            assert ours(given).stride() == theirs(given).stride()
        theirs.load_state_dict(ours.state_dict())

    @each_rank
    def test_a_call_may_choose_the_size_of_the_output(self, rank):
        ours, theirs = pair(rank, 4, 3, stride=3, bias=False)
        x = values(2, 4, *(5, 4, 6)[:rank])
        for more in (0, 1, 2):
            size = [length + more for length in theirs(x).shape[2:]]
            for given in (size, torch.Size((2, 4, *size))):
                torch.testing.assert_close(ours(x, given), theirs(x, given))
        with pytest.raises(ValueError, match="requested an output size"):
            ours(x, [length + 3 for length in theirs(x).shape[2:]])

    @pytest.mark.parametrize("dynamic", [False, True])
    @each_rank
    def test_compiles_with_its_gradients(self, rank, dynamic):
        ours, theirs = pair(rank, 4, 3, stride=2, channel_multiplier=2, output_padding=1)
        torch.compiler.reset()
        compiled = torch.compile(ours, fullgraph=True, dynamic=dynamic)
        for length in (5, 7) if dynamic else (5,):
            x = values(2, 4, length, *(4, 3)[: rank - 1]).requires_grad_()
            leaves, like = [x, *ours.parameters()], [x, *theirs.parameters()]
            found, expected = compiled(x), theirs(x)
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()
            grad = torch.randn_like(expected)
            for one, other in zip(
                torch.autograd.grad(found, leaves, grad), torch.autograd.grad(expected, like, grad), strict=True
            ):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)

    def test_adapts_to_any_size_when_exported_or_traced(self):
        ours, theirs = pair(2, 4, 3, stride=2, padding=1)
        height = torch.export.Dim("height", min=2, max=64)
        program = torch.export.export(ours, (values(2, 4, 5, 6),), dynamic_shapes=({2: height},))
        assert any("depthwise_conv2d_input_grad" in str(node.target) for node in program.graph.nodes)
        traced = torch.jit.trace(ours, (values(2, 4, 5, 6),))
        x = values(2, 4, 9, 6)
        torch.testing.assert_close(program.module()(x), theirs(x))
        torch.testing.assert_close(traced(x), theirs(x))

    def test_is_recorded_inside_a_model(self):
        ours, theirs = pair(2, 4, 3, stride=2)
        graph = torch.fx.symbolic_trace(torch.nn.Sequential(ours, torch.nn.ReLU()))
        x = values(2, 4, 5, 6)
        torch.testing.assert_close(graph(x), theirs(x).relu())
        assert "depthwise_conv_transpose2d" in graph.code

    @pytest.mark.parametrize(
        ("call", "error", "message"),
        [
            (
                lambda: nn.DepthwiseConvTranspose2d(0),
                ValueError,
                "DepthwiseConvTranspose2d: in_channels must be positive",
            ),
            (
                lambda: nn.DepthwiseConvTranspose1d(4, (1, 2)),
                ValueError,
                "kernel_size must be an int or one in a tuple",
            ),
            (lambda: nn.DepthwiseConvTranspose3d(4, stride=True), TypeError, "stride must be an int or three ints"),
            (lambda: nn.DepthwiseConvTranspose1d(4, channel_multiplier=0), ValueError, "channel_multiplier must be"),
            (
                lambda: nn.DepthwiseConvTranspose2d(4, padding_mode="circular"),
                ValueError,
                "DepthwiseConvTranspose2d: padding_mode must be 'zeros', got 'circular'",
            ),
            (
                lambda: nn.DepthwiseConvTranspose2d(4)(values(2, 3, 9, 9)),
                ValueError,
                "depthwise_conv_transpose2d: input must have 4 channels, as weight has, got 3",
            ),
            (lambda: torch.jit.script(nn.DepthwiseConvTranspose2d(4)), TypeError, "cannot compile the layer"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
    def test_bad_arguments_are_explained(self, call, error, message):
        with pytest.raises(error, match=message):
            call()
