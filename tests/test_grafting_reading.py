"""graft(model) where modules call convolution functions in their own forward pass, in all the ways that people do."""

import copy
import functools
import io
import pickle
import types

import pytest
import torch
import torch.nn.functional
import torch.nn.functional as F
import torch.nn.functional as other_name
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn.functional import conv2d, conv_transpose2d
from torch.nn.functional import conv2d as another_conv2d

import functions_apart
from functions_apart import OF_RANK, watched
from grafts import calls_of
from torchgraft import graft, graft_report, ungraft

CHANNELS = 4
DEPTHWISE = functools.partial(F.conv2d, padding=1, groups=CHANNELS)


class Weighted(nn.Module):
    """Has a depthwise weight, and no layer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CHANNELS, 1, 3, 3))
        self.bias = nn.Parameter(torch.randn(CHANNELS))
        self.groups = CHANNELS


class BlurPool(nn.Module):
    """A blur like timm's: reflected borders, and a kernel in a buffer."""

    def __init__(self):
        super().__init__()
        row = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.register_buffer("filt", (row[:, None] * row)[None, None], persistent=False)

    def forward(self, x):
        x = F.pad(x, [1] * 4, mode="reflect")
        return F.conv2d(x, self.filt.expand(x.shape[1], 1, 3, 3), stride=2, groups=x.shape[1])


class CondConv(nn.Module):
    """Weights like those of timm's CondConv2d: each image has its own, a mixture of those of experts."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, CHANNELS * 9))
        self.routing = nn.Linear(CHANNELS, 3)
        self.groups = CHANNELS

    def forward(self, x):
        batch, channels, height, width = x.shape
        weight = torch.sigmoid(self.routing(x.mean((2, 3)))) @ self.weight
        weight = weight.view(batch * channels, 1, 3, 3)
        x = x.reshape(1, batch * channels, height, width)
        out = F.conv2d(x, weight, None, padding=1, groups=self.groups * batch)
        return out.view(batch, channels, height, width)


class Imported(Weighted):
    def forward(self, x):
        return conv2d(x, self.weight, self.bias, groups=self.groups)


class Renamed(Weighted):
    def forward(self, x):
        return another_conv2d(input=x, weight=self.weight, groups=self.groups)


class OtherModuleName(Weighted):
    def forward(self, x):
        return other_name.conv2d(x, self.weight, groups=self.groups)


class ByPosition(Weighted):
    def forward(self, x):
        return F.conv2d(x, self.weight, self.bias, 1, 1, 1, x.size(1))


class OfTorch(Weighted):
    def forward(self, x):
        return torch.conv2d(x, self.weight, groups=self.groups)


class LongName(Weighted):
    def forward(self, x):
        return torch.nn.functional.conv2d(x, self.weight, groups=self.groups)


class ImportsItself(Weighted):
    def forward(self, x):
        import torch.nn.functional as functional

        return functional.conv2d(x, self.weight, groups=self.groups)


class ImportsFromItself(Weighted):
    def forward(self, x):
        from torch.nn.functional import conv2d as conv

        return conv(x, self.weight, groups=self.groups)


class Partial(Weighted):
    def forward(self, x):
        return DEPTHWISE(x, self.weight)


class HeldPartial(Weighted):
    def __init__(self):
        super().__init__()
        self.convolve = functools.partial(F.conv2d, groups=CHANNELS)

    def forward(self, x):
        return self.convolve(x, self.weight)


class HeldFunction(Weighted):
    def __init__(self):
        super().__init__()
        self.function = F.conv2d

    def forward(self, x):
        return self.function(x, self.weight, groups=self.groups)


class OfTheClass(Weighted):
    function = F.conv2d

    def forward(self, x):
        return self.function(x, self.weight, groups=self.groups)


class FromATable(Weighted):
    def forward(self, x):
        return OF_RANK[x.dim() - 2](x, self.weight, groups=self.groups)


class HeldTable(Weighted):
    def __init__(self):
        super().__init__()
        self.functions = [F.conv1d, F.conv2d]

    def forward(self, x):
        return self.functions[x.dim() - 3](x, self.weight, groups=self.groups)


class Settings(Weighted):
    def __init__(self):
        super().__init__()
        self.settings = {"padding": 1, "groups": CHANNELS}

    def forward(self, x):
        return F.conv2d(x, self.weight, **self.settings)


class Method(Weighted):
    def forward(self, x):
        return self._convolve(x)

    def _convolve(self, x):
        return F.conv2d(x, self.weight, groups=self.groups)


class Static(Weighted):
    def forward(self, x):
        return self.convolve(x, self.weight)

    @staticmethod
    def convolve(x, weight):
        return F.conv2d(x, weight, groups=x.shape[1])


class OfABase(Method):
    def forward(self, x):
        return 2 * super().forward(x)


class BaseAlone(Method):
    pass


class ClosureInForward(Weighted):
    def forward(self, x):
        def once(x):
            return F.conv2d(x, self.weight, padding=1, groups=self.groups)

        return once(once(x))


class Comprehension(Weighted):
    def forward(self, x):
        return torch.stack([F.conv2d(x, each * self.weight, groups=self.groups) for each in (1, 2)])


def closed_over(function):
    class Inside(Weighted):
        def forward(self, x):
            return function(x, self.weight, groups=self.groups)

    return Inside


class Helper(BlurPool):
    def forward(self, x):
        return functions_apart.blurred(x, self.filt)


class HelperOfAHelper(BlurPool):
    def forward(self, x):
        return functions_apart.separable(x, self.filt[0, 0, 1])


class Decorated(Weighted):
    @watched
    def forward(self, x):
        return F.conv2d(x, self.weight, groups=self.groups)


class Standardised(Weighted):
    def forward(self, x):
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, weight / self.weight.std((1, 2, 3), keepdim=True), self.bias, groups=self.groups)


class Transposed(Weighted):
    def forward(self, x):
        return conv_transpose2d(x, self.weight, stride=2, output_padding=1, groups=self.groups)


class ByRank(nn.Module):
    def __init__(self):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(CHANNELS, 1, 3))

    def forward(self, x):
        return F.conv1d(x.flatten(2), self.taps, padding="same", groups=CHANNELS)


class AsVolumes(Weighted):
    def forward(self, x):
        return F.conv3d(x[:, :, None], self.weight[:, :, None], groups=self.groups)[:, :, 0]


class Multiplied(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernels = nn.Parameter(torch.randn(2 * CHANNELS, 1, 3, 3))

    def forward(self, x):
        return F.conv2d(x, self.kernels, groups=CHANNELS)


class Mixed(Weighted):
    """One call is depthwise, and the other one is not."""

    def __init__(self):
        super().__init__()
        self.pointwise = nn.Parameter(torch.randn(6, CHANNELS, 1, 1))

    def forward(self, x):
        return F.conv2d(F.conv2d(x, self.weight, groups=self.groups), self.pointwise)


class Gradients(nn.Module):
    """Sobel's filters, without parameters."""

    def forward(self, x):
        kernel = x.new_tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]).expand(x.shape[1], 1, 3, 3)
        across = F.conv2d(x, kernel, padding=1, groups=x.shape[1])
        return across.abs() + F.conv2d(x, kernel.transpose(2, 3), padding=1, groups=x.shape[1]).abs()


class OwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return F.conv2d(x, weight, groups=x.shape[1])

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return (
            torch.nn.grad.conv2d_input(x.shape, weight, gradient, groups=x.shape[1]),
            torch.nn.grad.conv2d_weight(x, weight.shape, gradient, groups=x.shape[1]),
        )


class WithOwnGradient(Weighted):
    def forward(self, x):
        return OwnGradient.apply(x, self.weight)


class Block(Weighted):
    """Layers beside the function: a convolution that graft serves, and one that it does not."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), nn.BatchNorm2d(CHANNELS), nn.GELU())
        self.last = nn.Conv2d(CHANNELS, CHANNELS, 3, groups=CHANNELS)

    def forward(self, x):
        return self.last(F.conv2d(self.first(x), self.weight, groups=self.groups))


class Lazy(Weighted):
    """A property makes the weight."""

    @property
    def kernel(self):
        return F.conv2d(self.weight.transpose(0, 1), self.weight, padding=2, groups=self.groups).transpose(0, 1)

    def forward(self, x):
        return F.conv2d(x, self.kernel, groups=self.groups)


class NoGradients(Weighted):
    @torch.no_grad()
    def blur(self, x):
        return F.conv2d(x, self.weight, padding=1, groups=self.groups)

    def forward(self, x):
        return x * self.blur(x) * self.weight.sum()


class Keywords(Weighted):
    def forward(self, *, images):
        return F.conv2d(images, self.weight, groups=self.groups)


TWO = ["depthwise_conv2d"] * 2
# The classes, with the operators that a call runs on.
KINDS = {
    kind.__name__: (kind, operators)
    for kind, operators in {
        BlurPool: ["depthwise_conv2d"],
        CondConv: ["depthwise_conv2d"],
        Imported: ["depthwise_conv2d"],
        Renamed: ["depthwise_conv2d"],
        OtherModuleName: ["depthwise_conv2d"],
        ByPosition: ["depthwise_conv2d"],
        OfTorch: ["depthwise_conv2d"],
        LongName: ["depthwise_conv2d"],
        ImportsItself: ["depthwise_conv2d"],
        ImportsFromItself: ["depthwise_conv2d"],
        Partial: ["depthwise_conv2d"],
        HeldPartial: ["depthwise_conv2d"],
        HeldFunction: ["depthwise_conv2d"],
        OfTheClass: ["depthwise_conv2d"],
        FromATable: ["depthwise_conv2d"],
        HeldTable: ["depthwise_conv2d"],
        Settings: ["depthwise_conv2d"],
        Method: ["depthwise_conv2d"],
        Static: ["depthwise_conv2d"],
        OfABase: ["depthwise_conv2d"],
        BaseAlone: ["depthwise_conv2d"],
        ClosureInForward: TWO,
        Comprehension: TWO,
        closed_over(F.conv2d): ["depthwise_conv2d"],
        Helper: ["depthwise_conv2d"],
        HelperOfAHelper: TWO,
        Decorated: ["depthwise_conv2d"],
        Standardised: ["depthwise_conv2d"],
        Transposed: ["depthwise_conv2d_input_grad"],
        ByRank: ["depthwise_conv1d"],
        AsVolumes: ["depthwise_conv3d"],
        Multiplied: ["depthwise_conv2d"],
        Mixed: ["depthwise_conv2d"],
        Gradients: TWO,
        WithOwnGradient: ["depthwise_conv2d"],
        Block: TWO,
        Lazy: TWO,
        NoGradients: ["depthwise_conv2d"],
        Keywords: ["depthwise_conv2d"],
    }.items()
}


def built(name):
    torch.manual_seed(0)
    module = KINDS[name][0]().double()
    images = torch.randn(2, CHANNELS, 7, 6, dtype=torch.float64)
    return module, {"images": images} if name == "Keywords" else images


def called(module, input):
    return module(**input) if isinstance(input, dict) else module(input)


def values_and_gradients(module, input):
    images = (input["images"] if isinstance(input, dict) else input).clone().requires_grad_()
    module.zero_grad()
    output = called(module, {"images": images} if isinstance(input, dict) else images)
    output.square().sum().backward()
    return output, images.grad, {name.removeprefix("_orig_mod."): each.grad for name, each in module.named_parameters()}


def by_file(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("name", KINDS)
class TestKinds:
    def test_values_gradients_and_the_way_back(self, name):
        module, input = built(name)
        before = [dict(vars(each)) for each in module.modules()]
        report = graft_report(module)
        assert "" in report.graftable
        plain = copy.deepcopy(module)
        assert graft(graft(module)) is module
        assert "" in graft_report(module).grafted
        torch.testing.assert_close(values_and_gradients(module, input), values_and_gradients(plain, input))
        for _ in range(2):
            assert calls_of(lambda: called(module, input)) == KINDS[name][1]
        assert not calls_of(lambda: called(plain, input))
        module.zero_grad(), vars(ungraft(module)).pop("passes", None)
        assert [{**each, "training": True} for each in map(vars, module.modules())] == before
        assert not calls_of(lambda: called(module, input))

    def test_compiled(self, name):
        module, input = built(name)
        expected = values_and_gradients(copy.deepcopy(module), input)
        compiled = torch.compile(graft(module), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(values_and_gradients(compiled, input), expected)
        seen = []

        def note(graph, example):
            names = map(str, (node.target for node in graph.graph.nodes))
            seen.extend(name.split(".")[1].lstrip("_") for name in names if name.startswith("torchgraft"))
            return make_boxed_func(graph.forward)

        torch._dynamo.reset()
        with torch.no_grad():
            called(torch.compile(module, backend=aot_autograd(fw_compiler=note), fullgraph=True), input)
        assert seen == KINDS[name][1]


COPIES = {
    "deepcopy": lambda module, input: copy.deepcopy(module),
    "pickle": lambda module, input: pickle.loads(pickle.dumps(module)),
    "a file": lambda module, input: by_file(module),
    "a shallow copy": lambda module, input: copy.copy(copy.deepcopy(module)),
    "exported": lambda module, input: torch.export.export(module, (input,)).module(),
    "traced": lambda module, input: torch.jit.trace(module, (input,)),
    "a replica": lambda module, input: replica_of(module),
}
COPIED = ["BlurPool", "CondConv", "HeldPartial", "HelperOfAHelper", "Block"]


def replica_of(module):
    """Makes a replica like `torch.nn.DataParallel`, which sets the replicas of submodules and then their weights."""
    replica = module._replicate_for_data_parallel()
    replica._modules = {name: replica_of(each) for name, each in module._modules.items()}
    for name, parameter in module._parameters.items():
        setattr(replica, name, parameter)
    return replica


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.* is deprecated")
@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES.keys())
@pytest.mark.parametrize("name", COPIED)
def test_copies_compute_and_train(name, make):
    module, input = built(name)
    input.requires_grad_()

    def value_and_gradient(module):
        output = module(input)
        return output, torch.autograd.grad(output.square().sum(), input)

    expected = value_and_gradient(copy.deepcopy(module))
    made = make(graft(module), input)
    torch.testing.assert_close(value_and_gradient(made), expected)
    # A size that is read while a module is traced is a tensor, and groups that are one are left to PyTorch.
    if make is not COPIES["traced"] or name in ("HeldPartial", "Block"):
        assert calls_of(lambda: made(input)) == KINDS[name][1]


def test_a_replica_computes_with_its_own_weights():
    module, input = built("Imported")
    expected = 2 * module(input)
    replica = replica_of(graft(module))
    replica._parameters.clear()
    replica.weight, replica.bias = 2 * module.weight, 2 * module.bias
    torch.testing.assert_close(replica(input), expected)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
def test_torch_jit_script_compiles_the_class():
    module, input = built("BlurPool")
    expected = module(input)
    scripted = torch.jit.script(graft(nn.Sequential(module)))
    torch.testing.assert_close(scripted(input), expected)
    assert not graft_report(graft(scripted)).functions


def test_a_graph_of_torch_fx_is_that_of_a_model_which_is_not_grafted():
    model = nn.Sequential(built("Imported")[0], built("Method")[0], built("Block")[0])
    expected = torch.fx.symbolic_trace(copy.deepcopy(model)).code
    traced = torch.fx.symbolic_trace(graft(model))
    assert traced.code == expected
    images = built("Block")[1].repeat(1, 1, 3, 3)
    torch.testing.assert_close(traced(images), model(images))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_graph_that_others_read_holds_convolutions_of_pytorch():
    module, input = built("BlurPool")
    graph, _ = torch.jit._get_trace_graph(graft(module), (input,))
    assert "aten::_convolution" in str(graph)
    assert "torchgraft" not in str(graph)


class Holder(nn.Module):
    """Calls layers that have the names of functions, and functions that convolve nothing."""

    def __init__(self):
        super().__init__()
        self.conv2d = nn.Conv2d(CHANNELS, CHANNELS, 3, groups=CHANNELS)
        self.functional = self.F = nn.ModuleDict({"conv1d": self.conv2d})

    def forward(self, x):
        x = F.group_norm(torch.relu(self.conv2d(x)), num_groups=2)
        return F.batch_norm(self.F["conv1d"](x), None, None, None, None, True, 0.1, 1e-5)

    def merge(self):
        return conv2d(self.conv2d.weight, self.conv2d.weight, groups=CHANNELS)


class Dense(nn.Module):
    def __init__(self, groups=1, channels=CHANNELS):
        super().__init__()
        self.in_channels, self.groups = channels, groups
        self.weight = nn.Parameter(torch.randn(CHANNELS, channels // groups, 3, 3))

    def forward(self, x):
        return F.conv2d(x, self.weight, groups=self.groups)


class Ungrouped(nn.Module):
    def forward(self, x):
        return F.conv2d(x, x.new_ones(1, x.shape[1], 3, 3))


class Convolutions(nn.Conv2d):
    """A dense layer that calls the function."""

    def forward(self, x):
        return F.conv2d(x, self.weight, groups=self.groups)


class HelperOfPyTorch(nn.Module):
    def forward(self, x):
        return F.interpolate(x, scale_factor=2), torch.nn.grad.conv2d_input(x.shape, x, x, groups=self.groups)


@pytest.mark.parametrize(
    "module",
    [
        Dense(),
        Dense(groups=2),
        Ungrouped(),
        Convolutions(4, 4, 3),
        HelperOfPyTorch(),
        nn.Sequential(nn.Conv2d(3, 4, 3)),
        torch.jit.script(nn.ReLU()),
        torch.fx.symbolic_trace(nn.Sequential(nn.ReLU())),
        nn.MultiheadAttention(4, 2),
        nn.GRUCell(4, 4),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_calls_no_function_that_can_be_depthwise_is_not_touched(module):
    before = [set(vars(each)) for each in module.modules()]
    assert not graft_report(graft(module)).functions
    assert [set(vars(each)) for each in module.modules()] == before


def test_a_module_that_calls_layers_is_not_touched():
    holder = graft(Holder())
    assert graft_report(holder).grafted == ("conv2d",)
    assert "forward" not in vars(holder)


class Later(Weighted):
    """Is depthwise from some call on, or never."""

    def __init__(self, first):
        super().__init__()
        self.first, self.passes = first, 0

    def forward(self, x):
        self.passes += 1
        if self.passes < self.first:
            return F.conv2d(x, self.weight.repeat(1, CHANNELS, 1, 1), groups=len(x) // 2)
        return F.conv2d(x, self.weight, groups=len(self.weight))


def test_a_module_in_which_no_call_is_depthwise_is_left_alone_after_a_while():
    images = torch.randn(2, CHANNELS, 5, 5)
    never, soon, late = (graft(Later(first)) for first in (100, 6, 9))
    for module in (never, soon, late):
        names = [calls_of(lambda module=module: module(images)) for _ in range(20)]
        served = [number for number, each in enumerate(names, 1) if each]
        assert served == (list(range(6, 21)) if module is soon else [])
    reason = "no call in its first 8 passes was depthwise"
    assert graft_report(never).left == graft_report(late).left == {"": reason}
    assert graft_report(soon).grafted == ("",)
    # It begins anew.
    assert calls_of(lambda: graft(ungraft(late))(images))
    assert "forward" not in vars(ungraft(never))


class Again(Weighted):
    """Computes a part of itself again when gradients are asked for."""

    def convolved(self, x):
        return F.conv2d(x, self.weight, groups=self.groups).square()

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.convolved, x, use_reentrant=False)


class TestLeft:
    """Modules that call functions, and are left, with a reason."""

    def test_a_part_that_is_computed_again(self):
        module = Again()
        images = torch.randn(2, CHANNELS, 5, 5)
        expected = values_and_gradients(copy.deepcopy(module), images)
        assert "from a checkpoint" in graft_report(graft(module)).left[""]
        torch.testing.assert_close(values_and_gradients(module, images), expected)

    def test_a_module_that_is_computed_again_as_a_whole(self):
        module, input = built("Imported")
        expected = values_and_gradients(copy.deepcopy(module), input)

        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = graft(module)

            def forward(self, x):
                return torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)

        output, gradient, _ = values_and_gradients(Whole(), input)
        torch.testing.assert_close((output, gradient), expected[:2])

    def test_a_module_that_holds_many(self):
        module = Block()
        module.more = nn.Sequential(*(nn.ReLU() for _ in range(40)))
        report = graft_report(graft(module))
        assert report.grafted == ("last",)
        assert "many modules" in report.left[""]

    def test_a_forward_that_was_replaced(self):
        module, input = built("Imported")
        module.forward = types.MethodType(lambda self, x: 2 * Imported.forward(self, x), module)
        expected = module(input)
        assert "its forward was replaced" in graft_report(graft(module)).left[""]
        torch.testing.assert_close(module(input), expected)

    def test_a_forward_that_takes_no_module(self):
        class Static(nn.Module):
            @staticmethod
            def forward(x):
                return F.conv2d(x, x.new_ones(CHANNELS, 1, 2, 2), groups=CHANNELS)

        images = torch.randn(2, CHANNELS, 5, 5)
        expected = Static()(images)
        module = graft(Static())
        torch.testing.assert_close(module(images), expected)
        graft(module, images)
        torch.testing.assert_close(module(images), expected)


def test_a_forward_that_a_class_gets_after_its_module_was_grafted(monkeypatch):
    module, input = built("Imported")
    theirs = Imported.forward
    graft(module)
    monkeypatch.setattr(Imported, "forward", lambda self, x: 2 * theirs(self, x))
    torch.testing.assert_close(module(input), 2 * theirs(module, input))
    assert len(calls_of(lambda: module(input))) == 1
    monkeypatch.setattr(Imported, "forward", lambda self, x: x)
    assert not graft_report(built("Imported")[0]).functions


def test_a_hook_is_outside_and_is_called_once():
    module, input = built("Imported")
    seen = []
    module.register_forward_hook(
        lambda module, arguments, output: seen.append(conv2d(*arguments, module.weight, groups=4))
    )
    assert len(calls_of(lambda: graft(module)(input))) == len(seen) == 1


def test_an_example_decides(monkeypatch):
    import torchgraft.nn.grafting.measuring as measuring

    model = nn.Sequential(Imported(), Imported(), Later(100))
    images = torch.randn(2, CHANNELS, 9, 9)
    times = iter([(1.0, 2.0), (2.0, 1.0)])
    monkeypatch.setattr(measuring, "_time", lambda layer, call: next(times))
    report = graft_report(graft(model, images))
    assert report.grafted == ("1",)
    assert report.left.keys() == {"0"}
    assert report.graftable == ("2",)


def test_the_report_names_the_functions():
    report = graft_report(graft(nn.Sequential(BlurPool(), ByRank(), Transposed(), nn.Conv2d(4, 4, 3))))
    assert report.functions == {"0": ("conv2d",), "1": ("conv1d",), "2": ("conv_transpose2d",)}
    assert "  grafted    0, its calls of conv2d\n" in str(report)


@pytest.mark.parametrize("name", ["BlurPool2d", "CondConv2d"])
def test_layers_of_timm(name):
    """Layers of the package, where it is installed: requirements/frictions.txt."""
    try:
        layers = pytest.importorskip("timm.layers")
    except RuntimeError as error:  # torchvision is made for one build of PyTorch
        pytest.skip(str(error))
    torch.manual_seed(0)
    blur = name == "BlurPool2d"
    layer = (layers.BlurPool2d(8) if blur else layers.CondConv2d(8, 8, 3, groups=8)).double()
    arguments = torch.randn(2, 8, 9, 9).double(), *([] if blur else [torch.rand(2, 4).double()])
    expected = layer(*arguments)
    torch.testing.assert_close(graft(layer)(*arguments), expected)
    assert calls_of(lambda: layer(*arguments)) == ["depthwise_conv2d"]
