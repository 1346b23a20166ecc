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
from torch import nn
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
    """As timm has it: reflected borders, and a kernel in a buffer."""

    def __init__(self):
        super().__init__()
        row = torch.tensor([1.0, 2.0, 1.0]) / 4
        self.register_buffer("filt", (row[:, None] * row)[None, None], persistent=False)

    def forward(self, x):
        x = F.pad(x, [1] * 4, mode="reflect")
        return F.conv2d(x, self.filt.expand(x.shape[1], 1, 3, 3), stride=2, groups=x.shape[1])


class CondConv(nn.Module):
    """As timm has it: each image has weights of its own, a mixture of those of experts."""

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


TWO, THREE = ["depthwise_conv2d"] * 2, ["depthwise_conv2d"] * 3
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
        Lazy: ["depthwise_conv2d"],
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
        torch._dynamo.reset()
        try:
            torch.compile(module, backend="aot_eager", fullgraph=True)
            plainly = values_and_gradients(torch.compile(module, backend="aot_eager", fullgraph=True), input)
        except Exception:
            pytest.skip("PyTorch does not compile it whole")
        torch.testing.assert_close(plainly, expected)
        compiled = torch.compile(graft(module), backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(values_and_gradients(compiled, input), expected)
