"""Gradients that PyTorch records in C++: when, that they are those of the operator, and that nobody else's are."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import torchgraft
from torchgraft import depthwise_conv2d
from torchgraft.kernels import measured_choice
from torchgraft.nn import DepthwiseConv2d
from torchgraft.operators.depthwise_conv2d.operator import convolution, input_grad, weight_grad

RECORDED = "MpsConvolutionBackward0"
OPERATOR = torch.ops.aten._mps_convolution.default

pytestmark = pytest.mark.skipif("cpu" not in convolution.names.recorders, reason="the CPU library is not loaded")

CASES = {
    "3x3": ((2, 6, 9, 8), (6, 1, 3, 3), (1, 1, 1), {}),
    "stride 2, two kernels a channel": ((2, 3, 9, 8), (6, 1, 3, 2), (2, (1, 0), 1), {}),
    "dilation": ((1, 4, 9, 9), (4, 1, 3, 3), (1, 2, 2), {}),
    "more padding behind than in front": ((2, 3, 7, 6), (3, 1, 4, 2), (1, "same", 1), {}),
    "channels_last": ((2, 8, 9, 8), (8, 1, 3, 3), (1, 1, 1), {"memory_format": torch.channels_last}),
    "no image": ((0, 4, 5, 5), (4, 1, 3, 3), (1, 1, 1), {}),
}


@contextlib.contextmanager
def recorded_by_python():
    recorders = dict(convolution.names.recorders)
    convolution.names.recorders.clear()
    try:
        yield
    finally:
        convolution.names.recorders.update(recorders)


def leaves(input_size, weight_size, layout, dtype=torch.float64, weight_dtype=None):
    generator = torch.Generator().manual_seed(0)
    sizes = (input_size, dtype), (weight_size, weight_dtype or dtype), (weight_size[:1], weight_dtype or dtype)
    input, weight, bias = (torch.randn(size, generator=generator).to(kind) for size, kind in sizes)
    return [each.requires_grad_() for each in (input.contiguous(**layout), weight, bias)]


def derivatives(window, values):
    """The result, its gradients and theirs, for incoming gradients that are always the same."""
    result = depthwise_conv2d(*values, *window)
    grads = torch.autograd.grad(result, values, result.detach().cos().requires_grad_(), create_graph=True)
    second = torch.autograd.grad(sum(grad.double().square().sum() for grad in grads[:2]), values[:2])
    return [result, *grads, *second]


@pytest.mark.parametrize("dtypes", [(torch.float64,) * 2, (torch.float32,) * 2, (torch.bfloat16, torch.float32)])
@pytest.mark.parametrize("name", CASES)
def test_what_is_recorded_is_what_the_operator_computes(name, dtypes):
    *sizes, window, layout = CASES[name]
    values = leaves(*sizes, layout, *dtypes)
    found = derivatives(window, values)
    assert found[0].grad_fn.name() == RECORDED
    with recorded_by_python():
        expected = derivatives(window, values)
    assert expected[0].grad_fn.name() != RECORDED
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert torch.equal(one, other)


@pytest.mark.usefixtures("measured")
def test_kernels_of_gradients_are_chosen_by_measured_times_too():
    """Where PyTorch's own switch for convolutions is on; of images in an order of their own as well."""
    window = CASES["3x3"][2]
    for order in ((0, 1, 2, 3), (0, 1, 3, 2)):
        input, weight, bias = leaves(*CASES["3x3"][:2], {})
        values = [input.detach().permute(order).contiguous().permute(order).requires_grad_(), weight, bias]
        with measured_choice.measuring(False):
            expected = torch.autograd.grad(depthwise_conv2d(*values, *window).square().sum(), values)
        result = depthwise_conv2d(*values, *window)
        assert result.grad_fn.name() == RECORDED
        found = torch.autograd.grad(result.square().sum(), values)
        measured = {each.operator.removeprefix("torchgraft::") for each in torchgraft.choices()}
        torchgraft.forget_choices()
        assert measured == {convolution.name, input_grad.name, weight_grad.name}
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("by_python", [False, True], ids=["recorded in C++", "recorded in Python"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_gradient_of_a_bias_is_rounded_once(dtype, by_python):
    input, weight, bias = leaves((1, 1, 1000, 56), (1, 1, 1, 1), {}, dtype)
    # Each half, which may be a thread's share, has a large sum, and together they have a small one.
    half = torch.rand(1, 1, 500, 56, generator=torch.Generator().manual_seed(1)).to(dtype)
    grad = torch.cat([half, -half], 2)
    grad[..., -1, -1] = 0
    with recorded_by_python() if by_python else contextlib.nullcontext():
        depthwise_conv2d(input, weight, bias).backward(grad)
    assert bias.grad.item() == pytest.approx(half[..., -1, -1].item(), abs=0.01)


@pytest.mark.parametrize("wanted", [(True, False, False), (False, True, True), (False, False, True)])
def test_only_what_is_asked_for_is_computed(wanted):
    values = [
        each.detach().requires_grad_(want) for each, want in zip(leaves(*CASES["3x3"][:2], {}), wanted, strict=True)
    ]
    depthwise_conv2d(*values, padding=1).sum().backward()
    assert [each.grad is not None for each in values] == list(wanted)


def test_second_derivatives_are_those_of_the_values():
    values = leaves((1, 2, 4, 5), (2, 1, 3, 3), {})
    function = lambda *tensors: depthwise_conv2d(*tensors, padding=1)  # noqa: E731
    assert function(*values).grad_fn.name() == RECORDED
    assert torch.autograd.gradcheck(function, values, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(function, values)


def test_under_autocast_weights_stay_as_they_are_and_their_gradients_are_not_rounded():
    layer = DepthwiseConv2d(4, 3, padding=1)
    input = torch.randn(3, 4, 12, 12).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(input)
    assert output.dtype == torch.bfloat16
    # No cast stands between the convolution and its parameters.
    assert [node.name() for node, _ in output.grad_fn.next_functions if node] == 2 * ["torch::autograd::AccumulateGrad"]
    output_grad = torch.randn_like(output)
    output.backward(output_grad)
    exact = torch.nn.Conv2d(4, 4, 3, padding=1, groups=4, dtype=torch.float64)
    exact(input.double()).backward(output_grad.double())
    for parameter, other in zip(layer.parameters(), exact.parameters(), strict=True):
        assert parameter.grad.dtype == torch.float32
        # 432 products, each exact in float32: far below half of bfloat16's epsilon.
        largest = other.grad.abs().max().item()
        assert (parameter.grad - other.grad).abs().max().item() < 50 * torch.finfo(torch.float32).eps * largest


def test_what_sees_operators_sees_ours():
    layer, input = DepthwiseConv2d(4, 3), torch.randn(2, 4, 6, 6)
    with FlopCounterMode(display=False) as counted:
        assert layer(input).grad_fn.name() != RECORDED
    assert counted.get_total_flops() == 2 * 2 * 4 * 4 * 4 * 9

    class Own(torch.Tensor):
        pass

    for other in (input.as_subclass(Own), input.to("meta")):
        assert layer.to(other.device)(other).grad_fn.name() != RECORDED


def test_a_mode_that_begins_after_the_forward_pass_sees_the_gradients():
    output = DepthwiseConv2d(4, 3)(torch.randn(2, 4, 6, 6))
    assert output.grad_fn.name() == RECORDED
    with FlopCounterMode(display=False) as counted:
        output.sum().backward()
    assert counted.get_total_flops() == 2 * 2 * 4 * 4 * 4 * 9


@pytest.mark.parametrize("groups", [1, 4, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_convolutions_of_pytorch_never_reach_it(groups, dtype):
    input = torch.randn(2, 4, 6, 6, dtype=dtype, requires_grad=True)
    weight = torch.randn(4, 4 // groups, 3, 3, dtype=dtype, requires_grad=True)
    with torch.profiler.profile() as profile:
        F.conv2d(input, weight, padding=1, groups=groups).sum().backward()
        depthwise_conv2d(input, torch.randn(4, 1, 3, 3, dtype=dtype), padding=1)
    names = [event.name for event in profile.events()]
    assert "aten::conv2d" in names
    # The one is ours, and shows that the name would be seen.
    assert [name for name in names if "mps" in name] == ["aten::_mps_convolution"]


def test_what_is_not_depthwise_is_refused():
    input, weight = torch.randn(1, 4, 5, 5), torch.randn(4, 1, 3, 3)
    pairs = (1, 1)

    def call(input=input, weight=weight, stride=pairs, padding=pairs, dilation=pairs, groups=4):
        return OPERATOR(input, weight, None, padding, stride, dilation, groups)

    assert torch.equal(call(), call(padding=(1, 1, 1, 1)))
    with pytest.raises(RuntimeError, match="depthwise convolutions, which have a group for each of the 4 channels"):
        call(groups=2)
    with pytest.raises(RuntimeError, match="weight must be \\(channels, 1, height, width\\)"):
        call(weight=torch.randn(4, 2, 3, 3))
    for changed, numbers in (
        ({"padding": (1, 1, 1)}, "2, 2 and 3"),
        ({"stride": (1,)}, "1, 2 and 2"),
        ({"dilation": (1, 1, 1)}, "2, 3 and 2"),
    ):
        with pytest.raises(RuntimeError, match=f"padding 2 or 4, got {numbers}"):
            call(**changed)
    backward = torch.ops.aten.mps_convolution_backward.default
    with torch.no_grad(), pytest.raises(RuntimeError, match="output_mask must have 3 elements, got 2"):
        backward(input, call(), weight, pairs, pairs, pairs, 4, (True, True))
