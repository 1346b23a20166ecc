"""shift: its meaning, traps, errors and layer; what every operator must be is asked in test_operators.py."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchgraft
from forcing import every_kernel, one_element_on
from torchgraft.nn import Shift
from torchgraft.operator import FLOATING
from torchgraft.operators.shift import operator, reference

D = torch.float64
INF, NAN = math.inf, math.nan
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _randn(*shape, seed=0, dtype=D):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def _offsets(*values, dtype=D):
    return torch.tensor(values, dtype=dtype)


def _by_hand(input, x_offset, y_offset, stride):
    """Pixel by pixel, as it is written in the documentation."""
    batch, channels, height, width = input.shape

    def pixel(n, c, row, column):
        return input[n, c, row, column].item() if 0 <= row < height and 0 <= column < width else 0.0

    def sample(n, c, t, v):
        x, y = x_offset[c].item(), y_offset[c].item()
        if not (math.isfinite(x) and math.isfinite(y)):
            return NAN
        row, column = t * stride + math.floor(y), v + math.floor(x)
        low, right = y - math.floor(y), x - math.floor(x)
        weights = {
            (0, 0): (1 - low) * (1 - right),
            (0, 1): (1 - low) * right,
            (1, 0): low * (1 - right),
            (1, 1): low * right,
        }
        return sum(weight * pixel(n, c, row + i, column + j) for (i, j), weight in weights.items() if weight)

    steps = height // stride
    values = [
        sample(n, c, t, v) for n in range(batch) for c in range(channels) for t in range(steps) for v in range(width)
    ]
    return torch.tensor(values, dtype=input.dtype).reshape(batch, channels, steps, width)


def _both(input):
    return {"contiguous": input.contiguous(), "channels_last": input.contiguous(memory_format=torch.channels_last)}


class TestMeaning:
    def test_a_shift_of_one_row_and_a_half(self):
        input = torch.arange(12.0).reshape(1, 1, 3, 4)
        half_a_column = torchgraft.shift(input, _offsets(0.5, dtype=torch.float32), _offsets(1.0, dtype=torch.float32))
        assert half_a_column.tolist() == [[[[4.5, 5.5, 6.5, 3.5], [8.5, 9.5, 10.5, 5.5], [0.0, 0.0, 0.0, 0.0]]]]
        up = torchgraft.shift(input, _offsets(0.0, dtype=torch.float32), _offsets(-0.25, dtype=torch.float32), 2)
        assert up.tolist() == [[[[0.0, 0.75, 1.5, 2.25]]]]

    @pytest.mark.parametrize("kind", ["kernel", "reference"])
    @pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
    @pytest.mark.parametrize(
        ("x", "y", "stride"),
        [
            pytest.param((0.3, -1.7, 2.2), (-0.6, 1.1, -2.4), 1, id="fractions"),
            pytest.param((0.3, -1.7, 2.2), (-0.6, 1.1, -2.4), 3, id="stride 3"),
            pytest.param((0.0, 2.0, -1.0), (1.0, 0.0, -3.0), 2, id="whole offsets"),
            pytest.param((1e300, -1e300, 0.5), (0.5, 1e18, -1e300), 1, id="farther than integers reach"),
            pytest.param((4.5, -4.5, -5.5), (6.5, -6.5, 7.5), 1, id="at the edge and beyond"),
            pytest.param((NAN, 0.5, INF), (0.5, -INF, NAN), 2, id="not finite"),
            pytest.param((-1e-300, 1e-300, -0.0), (1e-300, -1e-300, 0.0), 1, id="a hair beside a whole offset"),
        ],
    )
    def test_it_is_what_is_documented(self, kind, layout, x, y, stride):
        input, x_offset, y_offset = _both(_randn(2, 3, 7, 5))[layout], _offsets(*x), _offsets(*y)
        shift = torchgraft.shift if kind == "kernel" else reference.shift
        found = shift(input, x_offset, y_offset, stride)
        expected = _by_hand(input, x_offset, y_offset, stride)
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-14, equal_nan=True, check_stride=False)

    @pytest.mark.parametrize("kind", ["kernel", "reference"])
    @pytest.mark.parametrize("which", [0, 1], ids=["x", "y"])
    def test_every_gradient_of_a_channel_is_nan_whose_offset_is_not_finite(self, kind, which):
        # Of three rows one has no part in any result, and yet in what the channel is: unknown.
        offsets = [_offsets(0.3, 0.4, -0.2), _offsets(-0.6, 0.1, 1.2)]
        offsets[which][1] = INF
        leaves = [each.requires_grad_() for each in (_randn(2, 3, 7, 5), *offsets)]
        shift = torchgraft.shift if kind == "kernel" else reference.shift
        for gradient in torch.autograd.grad(shift(*leaves, 3).sum(), leaves):
            channels = gradient.movedim(1, 0) if gradient.dim() == 4 else gradient
            assert channels[1].isnan().all()
            assert channels[0].isfinite().all()
            assert channels[2].isfinite().all()

    @pytest.mark.parametrize("kind", ["kernel", "reference"])
    @pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
    def test_without_a_result_every_gradient_is_zero(self, kind, layout):
        leaves = [_both(_randn(2, 2, 2, 5))[layout], _offsets(0.3, INF), _offsets(NAN, 0.1)]
        leaves = [each.requires_grad_() for each in leaves]
        shift = torchgraft.shift if kind == "kernel" else reference.shift
        gradients = torch.autograd.grad(shift(*leaves, 3).sum(), leaves)
        assert all(not gradient.any() for gradient in gradients)

    @pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
    @pytest.mark.parametrize("stride", [1, 2, 3, 5])
    def test_the_input_gradient_is_the_transpose(self, layout, stride):
        input = _both(_randn(2, 3, 11, 4))[layout]
        x_offset, y_offset = _offsets(0.3, -1.4, 2.6), _offsets(-0.6, 3.2, -2.3)
        output = torchgraft.shift(input, x_offset, y_offset, stride)
        output_grad = _randn(*output.shape, seed=1)
        input_grad = torchgraft.shift_input_grad(output_grad, x_offset, y_offset, 11, layout == "channels_last", stride)
        torch.testing.assert_close((output * output_grad).sum(), (input * input_grad).sum(), rtol=1e-13, atol=1e-13)

    @pytest.mark.parametrize("which", [0, 1])
    def test_the_derivative_at_a_whole_offset_is_that_to_the_right(self, which):
        input, output_grad = _randn(2, 3, 6, 5), _randn(2, 3, 6, 5, seed=1)
        offsets = [_offsets(1.0, 0.0, -2.0), _offsets(-1.0, 0.0, 1.0)]
        exact = torchgraft.shift_offset_grad(output_grad, input, *offsets)[which]
        begin = (torchgraft.shift(input, *offsets) * output_grad).sum((0, 2, 3))
        offsets[which] = offsets[which] + 2**-10
        end = (torchgraft.shift(input, *offsets) * output_grad).sum((0, 2, 3))
        torch.testing.assert_close(exact, (end - begin) * 2**10, rtol=1e-9, atol=1e-9)

    def test_the_mixed_second_derivative_is_not_zero(self):
        input, output_grad = _randn(2, 1, 6, 5), _randn(2, 1, 6, 5, seed=1)

        def loss(x, y):
            return (torchgraft.shift(input, x, y) * output_grad).sum()

        x, y = _offsets(0.3).requires_grad_(), _offsets(-1.6).requires_grad_()
        (along_x,) = torch.autograd.grad(loss(x, y), x, create_graph=True)
        (mixed,) = torch.autograd.grad(along_x.sum(), y)
        # Bilinear: a difference over any distance within a pixel is exact.
        corners = [[loss(x + i / 4, y + j / 4).item() for j in (0, 1)] for i in (0, 1)]
        expected = (corners[1][1] - corners[1][0] - corners[0][1] + corners[0][0]) * 16
        assert abs(expected) > 0.1
        assert mixed.item() == pytest.approx(expected, rel=1e-9)


class TestTapsThatWeighNothing:
    @pytest.mark.parametrize("dtype", [D, torch.float32, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
    def test_they_are_not_read_in_the_value_and_the_input_gradient(self, layout, dtype):
        images = torch.ones(1, 2, 6, 9, dtype=dtype)
        images[:, :, 3, 4] = NAN
        images = _both(images)[layout]
        # One row and one column to the left, whole: the pixel is seen once, from one place.
        offsets = _offsets(-1.0, -1.0, dtype=dtype), _offsets(-1.0, -1.0, dtype=dtype)
        value = torchgraft.shift(images, *offsets)
        assert value.isnan().sum() == 2
        assert value[:, :, 4, 5].isnan().all()
        grad = torchgraft.shift_input_grad(images, *offsets, 6, layout == "channels_last")
        assert grad.isnan().sum() == 2
        assert grad[:, :, 2, 3].isnan().all()

    def test_the_offsets_gradients_read_them(self):
        input = torch.ones(1, 1, 3, 4)
        input[0, 0, 1, 1] = NAN
        output_grad = torch.zeros(1, 1, 3, 4)
        output_grad[0, 0, 0, 0] = 1.0
        zero = _offsets(0.0, dtype=torch.float32)
        assert not torchgraft.shift(input, zero, zero)[0, 0, 0, 0].isnan()
        assert all(grad.isnan() for grad in torchgraft.shift_offset_grad(output_grad, input, zero, zero))

    def test_a_fraction_that_rounds_to_a_whole_row_reads_one_row(self):
        input = torch.ones(1, 1, 3, 4)
        input[0, 0, 0] = NAN
        tiny = _offsets(-1e-9, dtype=torch.float32)
        assert torchgraft.shift(input, _offsets(0.0, dtype=torch.float32), tiny)[0, 0, 1].tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((_randn(3, 6, 5), _randn(3), _randn(3)), ValueError, r"input must have the shape \(N, C, T, V\), got"),
        ((_randn(2, 3, 6, 5), _randn(4), _randn(3)), ValueError, r"x_offset must have the shape \(C,\), where C is 3"),
        (
            (_randn(2, 3, 6, 5), _randn(3), _randn(3, 1)),
            ValueError,
            r"y_offset must have the shape \(C,\), where C is 3 as in input, got \(3, 1\)",
        ),
        ((_randn(2, 3, 6, 5), _randn(3), _randn(3), 0), ValueError, "stride must be at least 1, got 0"),
        ((_randn(2, 3, 6, 5), _randn(3), _randn(3, dtype=torch.float32)), TypeError, "y_offset"),
        ((_randn(2, 3, 6, 5), [1.0, 2.0, 3.0], _randn(3)), TypeError, "x_offset"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        torchgraft.shift(*arguments)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: torchgraft.shift_input_grad(_randn(2, 3, 4, 5), _randn(3), _randn(3), 6, False, 2),
            r"output_grad must be \(2, 3, 3, 5\) for a height of 6 and a stride of 2, got \(2, 3, 4, 5\)",
        ),
        (
            lambda: torchgraft.shift_input_grad(_randn(2, 3, 0, 5), _randn(3), _randn(3), -1, False, 2),
            "height must not be negative, got -1",
        ),
        (
            lambda: torchgraft.shift_grads(_randn(2, 3, 6, 5), _randn(2, 3, 6, 4), _randn(3), _randn(3)),
            r"input must have the shape \(N, C, T, V\), where .* and V is 5 as in output_grad, got \(2, 3, 6, 4\)",
        ),
    ],
)
def test_a_gradient_that_does_not_fit_is_told_what_would(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class TestLayer:
    def test_offsets_begin_as_published(self):
        layer = Shift(1000)
        assert layer.xpos.shape == layer.ypos.shape == (1000,)
        assert 0 < layer.xpos.abs().max() <= 1e-8
        assert 2.9 < layer.ypos.abs().max() <= 3.0
        assert Shift(1000, init_scale=0.5).ypos.abs().max() <= 0.5

    def test_a_published_checkpoint_loads(self):
        checkpoint = {"xpos": _randn(4, dtype=torch.float32), "ypos": _randn(4, dtype=torch.float32, seed=1)}
        layer = Shift(4)
        layer.load_state_dict(checkpoint)
        input = _randn(2, 4, 6, 5, dtype=torch.float32)
        expected = torchgraft.shift(input, checkpoint["xpos"], checkpoint["ypos"])
        torch.testing.assert_close(layer(input), expected, rtol=0, atol=0)

    def test_with_a_stride_it_samples_between_rows(self):
        layer, input = Shift(4, stride=2, dtype=D), _randn(2, 4, 7, 5)
        expected = torchgraft.shift(input, layer.xpos, layer.ypos + 0.5, 2)
        torch.testing.assert_close(layer(input), expected, rtol=0, atol=0)

    @pytest.mark.parametrize("offset_gradient", ["exact", "shift_gcn"])
    def test_what_is_no_image_is_named(self, offset_gradient):
        with pytest.raises(TypeError, match="input must be a Tensor, got NoneType"):
            Shift(4, offset_gradient=offset_gradient)(None)

    def test_it_says_what_it_is(self):
        assert repr(Shift(8)) == "Shift(8, stride=1)"
        assert repr(Shift(8, 2, offset_gradient="shift_gcn")) == "Shift(8, stride=2, offset_gradient='shift_gcn')"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((0,), "channels must be at least 1, got 0"),
            ((4, 0), "stride must be at least 1, got 0"),
            ((4, 1, 3.0, "exakt"), "offset_gradient must be 'exact' or 'shift_gcn', got 'exakt'"),
        ],
    )
    def test_arguments_that_make_no_sense_are_told(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            Shift(*arguments)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(2, 6, 6, 9), (2, 16, 8, 16)], ids=str)
def test_memory_may_begin_at_any_element(size, stride, layout, dtype, device):
    """For every kernel; of whole numbers and quarters, whose sums are exact: a result is rounded once."""
    batch, channels, height, width = size
    input = (2 * _randn(*size)).trunc()
    output_grad = (2 * _randn(batch, channels, height // stride, width, seed=1)).trunc()
    offsets = [(4 * _randn(channels, seed=seed)).round() / 4 for seed in (2, 3)]
    asked = {
        operator.sample: (input, *offsets, stride),
        operator.input_grad: (output_grad, *offsets, height, layout == "channels_last", stride),
        operator.offset_grad: (output_grad, input, *offsets, stride),
        operator.grads: (output_grad, input, *offsets, stride),
    }
    for operation, exact in asked.items():
        expected = operation.declaration.reference(*exact)
        expected = [each.to(device, dtype) for each in (expected if isinstance(expected, tuple) else (expected,))]
        arguments = [each.to(device, dtype) if isinstance(each, torch.Tensor) else each for each in exact]
        images = [place for place, each in enumerate(exact) if each is input or each is output_grad]
        for place in images:
            arguments[place] = _both(arguments[place])[layout]
        for moved in (images, *([place] for place in images)):
            values = [one_element_on(each) if place in moved else each for place, each in enumerate(arguments)]
            for kernel in every_kernel(operation, device):
                with kernel:
                    found = operation.raw(*values)
                for one, other in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
                    assert torch.equal(one, other)


def _published(input, xpos, ypos, stride, output_grad):
    """The published rule, written down from its description with PyTorch alone: results and all gradients."""
    y_offset = ypos + 0.5 if stride > 1 else ypos
    leaf = input.clone().requires_grad_()
    output = reference.shift(leaf, xpos, y_offset, stride)
    (input_grad,) = torch.autograd.grad(output, leaf, output_grad)
    # The derivative of the bilinear weights along y at each result, from the output that a row further down would be.
    fraction = y_offset - y_offset.floor()
    upper = reference.shift(input, xpos, y_offset.floor(), stride)
    lower = reference.shift(input, xpos, y_offset.floor() + 1, stride)
    assert torch.allclose(output, upper + fraction[:, None, None] * (lower - upper))
    mean = ((lower - upper) * output_grad).mean(0).sum((1, 2))
    y_grad = torch.tensor([0.0001 if each == 0 else math.copysign(0.01, each) for each in mean.tolist()], dtype=D)
    return output.detach(), input_grad, torch.zeros_like(xpos), y_grad


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_the_published_rule_to_the_last_detail(layout, stride):
    layer = Shift(6, stride, offset_gradient="shift_gcn", dtype=D)
    with torch.no_grad():
        # The last two have nothing in sight: their gradient is zero, and they creep.
        layer.ypos[-2:] = torch.tensor([50.0, -50.0])
    input = _both(_randn(3, 6, 9, 5))[layout].requires_grad_()
    output = layer(input)
    output_grad = _randn(*output.shape, seed=1)
    output.backward(output_grad)
    expected = _published(input.detach(), layer.xpos.detach(), layer.ypos.detach(), stride, output_grad)
    found = output.detach(), input.grad, layer.xpos.grad, layer.ypos.grad
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, check_stride=False)
    assert layer.ypos.grad[-2:].tolist() == [0.0001, 0.0001]
    assert set(layer.ypos.grad[:-2].abs().tolist()) == {0.01}


def test_the_published_rule_of_no_examples_makes_no_nan():
    layer = Shift(2, offset_gradient="shift_gcn")
    layer(torch.zeros(0, 2, 4, 3)).sum().backward()
    assert layer.ypos.grad.isfinite().all()


# Each is the least of the numbers below that does not fit 64 bits: sizes of an output gradient, and a height of which a
# stride as long leaves one row.
BEYOND_64_BITS = {
    "pixels of an image": ((1, 1, 1, 4), 2**62),
    "elements of an image": ((1, 4, 1, 1), 2**62),
    "elements of all images": ((4, 1, 1, 1), 2**62),
    "bytes of all images": ((1, 1, 1, 1), 2**61),
}


@pytest.mark.parametrize("name", BEYOND_64_BITS)
def test_sizes_of_which_64_bits_do_not_hold_the_bytes_are_refused_without_python_too(name):
    sizes, height = BEYOND_64_BITS[name]
    output_grad, offset = torch.ones(1, 1, 1, 1).expand(sizes), torch.zeros(sizes[1])
    with pytest.raises(RuntimeError, match="shift_input_grad: these sizes make a tensor that no memory can hold"):
        torch.ops.torchgraft.shift_input_grad(output_grad, offset, offset, height, False, height)


def test_the_example_trains():
    example = Path(__file__).parent.parent / "examples/shift_gcn.py"
    command = [sys.executable, str(example), "--steps", "2", "--batch", "4", "--channels", "8", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "on cpu: 2 steps" in done.stdout
