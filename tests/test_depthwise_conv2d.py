"""depthwise_conv2d as people call it: F.conv2d's arguments, clear errors, and the layer."""

import copy
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import torchgraft
from harness import DEVICES, DTYPES, assert_close, dtype_id
from torchgraft import depthwise_conv2d, depthwise_conv2d_input_grad, depthwise_conv2d_weight_grad
from torchgraft.nn import DepthwiseConv2d

kernel = pytest.mark.kernel
each_device = pytest.mark.parametrize("device", DEVICES)


def images(*shape, device="cpu", dtype=torch.float32):
    return torch.randn(shape, dtype=torch.float64).to(device, dtype)


@kernel
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@each_device
@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)
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
        assert_close(depthwise_conv2d(x, w, bias, **arguments), expected, dtype=dtype, summed=12)


@kernel
@each_device
def test_an_image_without_batch(device):
    x, w = images(3, 7, 8, device=device), images(6, 1, 3, 3, device=device)
    torch.testing.assert_close(depthwise_conv2d(x, w, padding=1), depthwise_conv2d(x[None], w, padding=1)[0])


@kernel
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
    "rank of input": (lambda: depthwise_conv2d(images(8, 9), images(*W)), ValueError, r"input must be .* got \(8, 9\)"),
    "rank of weight": (lambda: depthwise_conv2d(images(*X), images(6, 3, 3)), ValueError, "weight must be"),
    "dense weight": (lambda: depthwise_conv2d(images(*X), images(6, 3, 3, 3)), ValueError, "weight must be"),
    "channels": (lambda: depthwise_conv2d(images(*X), images(4, 1, 3, 3)), ValueError, "multiple of the 3"),
    "bias length": (lambda: depthwise_conv2d(images(*X), images(*W), images(3)), ValueError, r"bias must be \(6,\)"),
    "bias rank": (lambda: depthwise_conv2d(images(*X), images(*W), images(6, 1)), ValueError, "bias must be"),
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
    "integers": (
        lambda: depthwise_conv2d(images(*X).long(), images(*W).long()),
        TypeError,
        r"input has dtype torch.int64, expected one of float64, float32",
    ),
    "two dtypes": (
        lambda: depthwise_conv2d(images(*X), images(*W).half()),
        TypeError,
        "weight has dtype torch.float16",
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
        "output_grad must be",
    ),
}


@kernel
@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_explained(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


@kernel
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
    grad = torch.ops.torchgraft.depthwise_conv2d_input_grad
    with pytest.raises(RuntimeError):
        grad(images(2, 6, 6, 7), images(*W), 3, 80, 90, False, *fine)
    with pytest.raises(RuntimeError):
        grad(images(2, 6, 6, 7), images(*W), 2**61, 8, 9, False, *fine)


@kernel
@each_device
def test_what_is_not_a_number_spreads_as_in_pytorch(device):
    # Compared where no padding is read: there PyTorch's own backends disagree.
    x, w = images(1, 2, 9, 9, device=device), images(2, 1, 3, 3, device=device)
    x[0, 0, 4, 4], x[0, 1, 2, 6] = float("nan"), float("inf")
    found, expected = depthwise_conv2d(x, w, padding=1)[..., 1:-1, 1:-1], F.conv2d(x, w, groups=2)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.isinf(), expected.isinf())


@pytest.mark.cuda
@pytest.mark.skipif("cuda" not in DEVICES, reason="there is no CUDA device")
@pytest.mark.parametrize("channels_last", [False, True])
def test_more_than_two_to_the_31_elements(channels_last):
    layout = torch.channels_last if channels_last else torch.contiguous_format
    # The last image lies beyond what 32 bits can index.
    n, c, h, w = 130, 64, 512, 512
    assert n * c * h * w > 2**31
    x = torch.empty((n, c, h, w), device="cuda", dtype=torch.float16, memory_format=layout).normal_()
    weight = images(c, 1, 3, 3, device="cuda", dtype=torch.float16)
    y = depthwise_conv2d(x, weight, padding=1)
    g = torch.empty_like(y).normal_()
    x_grad = depthwise_conv2d_input_grad(g, weight, x.shape[1:], channels_last, padding=1)
    weight_grad = depthwise_conv2d_weight_grad(g, x, (3, 3), padding=1)
    for part in (slice(0, 1), slice(n // 2, n // 2 + 1), slice(n - 1, n)):
        one = x[part].double().requires_grad_()
        expected = F.conv2d(one, weight.double(), padding=1, groups=c)
        assert_close(y[part], expected, dtype=torch.float16, summed=9)
        (expected_grad,) = torch.autograd.grad(expected, one, g[part].double())
        assert_close(x_grad[part], expected_grad, dtype=torch.float16, summed=9)
    # The whole sum in float64 would need the memory of the card several times over: a channel at a time.
    for channel in (0, c - 1):
        one = torch.zeros((1, 1, 3, 3), dtype=torch.float64, device="cuda")
        for first in range(0, n, 26):
            part = slice(first, first + 26)
            one += torch.nn.grad.conv2d_weight(
                x[part, channel : channel + 1].double(),
                (1, 1, 3, 3),
                g[part, channel : channel + 1].double(),
                padding=1,
            )
        assert_close(weight_grad[channel : channel + 1], one, dtype=torch.float16, summed=n * h * w)


@pytest.mark.skipif("cuda" not in DEVICES, reason="there is no CUDA device")
@pytest.mark.cuda
class TestOnCuda:
    """Streams, graphs, and other devices."""

    def test_launches_on_the_current_stream(self):
        x, w = images(8, 16, 64, 64, device="cuda"), images(16, 1, 3, 3, device="cuda")
        expected = depthwise_conv2d(x * 3, w, padding=1)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Still asleep when the kernel is launched: on another stream it would read x before it is tripled.
            torch.cuda._sleep(200_000_000)
            tripled = x * 3
            found = depthwise_conv2d(tripled, w, padding=1)
        torch.cuda.current_stream().wait_stream(stream)
        assert torch.equal(found, expected)

    def test_captured_in_a_graph_and_replayed(self):
        x, w, b = (images(*shape, device="cuda") for shape in ((4, 8, 20, 21), (8, 1, 5, 5), (8,)))
        leaves = [t.requires_grad_() for t in (x, w, b)]

        def step():
            return torch.autograd.grad((depthwise_conv2d(x, w, b, 2, 2) ** 2).sum(), leaves)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()
        with torch.no_grad():
            x.normal_()
        graph.replay()
        for found, expected in zip(captured, step(), strict=True):
            assert torch.equal(found, expected)

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one CUDA device")
    def test_runs_on_the_device_of_its_input(self):
        x, w = images(2, 3, 8, 9, device="cuda:1"), images(3, 1, 3, 3, device="cuda:1")
        with torch.cuda.device(0):
            found = depthwise_conv2d(x, w, padding=1)
        assert found.device == x.device
        torch.testing.assert_close(found, F.conv2d(x, w, padding=1, groups=3))

    def test_refuses_two_devices(self):
        with pytest.raises(ValueError, match="weight is on cpu"):
            depthwise_conv2d(images(*X, device="cuda"), images(*W))


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

    def test_copies_and_pickles(self):
        layer = DepthwiseConv2d(3, padding="same", bias=False, dtype=torch.float64)
        x = images(1, 3, 5, 5, dtype=torch.float64)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert torch.equal(other(x), layer(x))

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


def test_importing_is_light():
    code = (
        "import sys, torch; before = set(sys.modules); import torchgraft; "
        "heavy = {'typer', 'rich', 'sklearn', 'matplotlib', 'hypothesis', 'pytest'} & (set(sys.modules) - before); "
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert torchgraft.__version__
