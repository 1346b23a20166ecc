"""graft(model) on real architectures, built from their configurations with random weights."""

import copy
import gc
import io
import json
import pickle
import re
import weakref

import pytest
import torch
import torch.nn.utils.parametrize as parametrize
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn.utils import prune

import torchgraft
from grafts import SamePadded, calls_of
from torchgraft import functional_calls, graft, graft_report, ungraft
from torchgraft.nn import DepthwiseConv2d
from torchgraft.nn.grafting import measuring

CHANNELS_LAST = torch.channels_last


def convnext():
    from transformers import ConvNextConfig, ConvNextModel

    return ConvNextModel(ConvNextConfig(hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 2, 1], image_size=64))


def mobilenet_v2():
    from transformers import MobileNetV2Config, MobileNetV2Model

    return MobileNetV2Model(MobileNetV2Config(depth_multiplier=0.25, image_size=64))


def efficientnet():
    from transformers import EfficientNetConfig, EfficientNetModel

    return EfficientNetModel(
        EfficientNetConfig(width_coefficient=0.25, depth_coefficient=0.25, image_size=64, hidden_dim=320)
    )


MODELS = {"ConvNeXt": convnext, "MobileNetV2": mobilenet_v2, "EfficientNet": efficientnet}
# EfficientNet's depthwise layers there are of a subclass of Conv2d, which keeps its forward pass.
GRAFTED = {"ConvNeXt": 5, "MobileNetV2": 17, "EfficientNet": 7}


def run(model, images):
    model.zero_grad()
    output = model(images).pooler_output
    (output**2).sum().backward()
    return output, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", MODELS)
def test_same_outputs_gradients_and_state_dict(name):
    build = MODELS[name]
    torch.manual_seed(0)
    # In float64 there is no rounding to blame. In eval mode batch statistics and dropout cannot differ.
    model = build().double().eval()
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    expected, expected_grads = run(model, images)
    state = copy.deepcopy(model.state_dict())
    names = [path for path, _ in model.named_modules()]

    assert graft(model) is model
    report = graft_report(model)
    assert len(report.grafted) == GRAFTED[name]
    assert not report.graftable
    assert [path for path, _ in model.named_modules()] == names
    assert list(model.state_dict()) == list(state)

    found, grads = run(model, images)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(grads, expected_grads)

    fresh = build().double().eval()
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(images).pooler_output, found)

    assert graft_report(ungraft(model)).grafted == ()
    assert graft_report(model).graftable == report.grafted
    torch.testing.assert_close(run(model, images)[0], expected, rtol=0, atol=0)


def network():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, groups=1),
        nn.Conv2d(8, 16, 3, groups=8, padding=1),
        nn.Conv2d(16, 16, 3, groups=4),
        nn.Conv2d(16, 16, 1),
    )


def test_hooks_mode_and_parameters_are_kept():
    model = network().eval()
    layer = model[1]
    seen = []
    layer.register_forward_hook(lambda module, arguments, result: seen.append(type(module)))
    weight = layer.weight
    graft(model)
    assert model[1] is layer
    assert layer.weight is weight
    assert not layer.training
    assert calls_of(lambda: model(torch.randn(1, 1, 9, 9))) == ["depthwise_conv2d"]
    assert seen == [nn.Conv2d]


def test_twice_is_once_and_nothing_is_left_behind():
    model = nn.ModuleDict({name: build() for name, build in KINDS.items()})
    before = [dict(vars(module)) for module in model.modules()]
    after = [dict(vars(module)) for module in graft(model).modules()]
    assert [dict(vars(module)) for module in graft(model).modules()] == after != before
    ungraft(model)
    assert [dict(vars(module)) for module in ungraft(model).modules()] == before


def test_a_model_that_is_itself_a_layer():
    layer = nn.Conv2d(4, 4, 3, groups=4)
    assert graft_report(graft(layer)).grafted == ("",)
    assert "(the model itself)" in str(graft_report(layer))


def test_what_is_left_alone_and_why():
    replaced = nn.ConvTranspose1d(8, 8, 3, groups=8)
    replaced.forward = lambda input: input
    model = nn.ModuleDict(
        {
            "one channel": nn.Conv2d(1, 8, 3),
            "dense": nn.Conv2d(8, 8, 3),
            "grouped": nn.Conv2d(8, 8, 3, groups=4),
            "lazy": nn.LazyConv2d(8, 3, groups=8),
            "complex": nn.Conv2d(8, 8, 3, groups=8, dtype=torch.complex64),
            "replaced": replaced,
            "ours": DepthwiseConv2d(8, 3),
            "depthwise": nn.Conv2d(8, 8, 3, groups=8),
            "linear": nn.Linear(8, 8),
        }
    )
    assert graft_report(model).graftable == ("depthwise",)
    report = graft_report(graft(model))
    assert report.grafted == ("depthwise",)
    assert str(report).splitlines() == [
        "convolutions grafted: 1, left: 7",
        "  grafted    depthwise",
        "  left       one channel and 1 more: not depthwise: every output channel reads every input channel (groups=1)",
        "  left       grouped: not depthwise: an output channel reads several input channels",
        "  left       lazy: it has no sizes before its first call: graft after that call",
        "  left       complex: its weight has dtype torch.complex64",
        "  left       replaced: its forward was replaced: graft the model first, then replace it",
        "  left       ours: its class is torchgraft's, and runs on torchgraft as it is",
    ]
    assert report.left["dense"] == report.left["one channel"]


def test_a_compiler_keeps_the_layout_that_suits_other_convolutions():
    def separable(channels):
        return [
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False),
            nn.ReLU(),
        ]

    torch.manual_seed(0)
    model = graft(nn.Sequential(*separable(128), *separable(128), nn.Conv2d(128, 8, 1)))
    images = torch.randn(2, 128, 7, 6)

    def step():
        loss = torch.compile(model)(images).square().mean()
        return torch.autograd.grad(loss, tuple(model.parameters()))

    found, codes = run_and_get_code(step)
    # On a CPU, and on a GPU where it pays, the compiler has convolutions of contiguous images in channels_last.
    strides = [
        line.split("), (")[1].split(",")[1].strip()
        for line in "".join(codes).splitlines()
        if re.search(r"assert_size_stride\(.*_depthwise_conv2d(_input_grad)?\.default", line)
    ]
    assert strides == ["1"] * 4
    for one, other in zip(
        found, torch.autograd.grad(model(images).square().mean(), list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_a_grafted_model_compiles_and_trains_under_autocast():
    torch.manual_seed(0)
    model = graft(network())
    images = torch.randn(2, 1, 12, 12)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images))
    before = torchgraft.fallbacks()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(images).float().pow(2).mean()
    loss.backward()
    assert all(parameter.grad.dtype == torch.float32 for parameter in model.parameters())
    assert torchgraft.fallbacks() == before


@pytest.mark.parametrize("kind", ["a layer", "its own forward", "a function"])
def test_autocast_inside_of_what_is_compiled(kind):
    """The scope is part of the graph, and so is another one in the gradient."""

    class Cast(nn.Conv2d if kind == "its own forward" else nn.Module):
        def __init__(self):
            if kind == "its own forward":
                super().__init__(4, 4, 3, groups=4)
            else:
                super().__init__()
                self.weight = nn.Parameter(torch.randn(4, 1, 3, 3))
                self.layer = depthwise() if kind == "a layer" else nn.Identity()

        def forward(self, images):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                if kind == "a layer":
                    return self.layer(images)
                return nn.functional.conv2d(images, self.weight, getattr(self, "bias", None), groups=4)

    torch.manual_seed(0)
    module, images = Cast(), torch.randn(2, 4, 9, 8)
    wanted = list((module.layer if kind == "a layer" else module).parameters())

    def run(module):
        output = module(images)
        return output, torch.autograd.grad(output.float().square().sum(), wanted)

    expected = run(graft(module))
    assert graft_report(module).grafted
    torch.testing.assert_close(run(torch.compile(module, backend="aot_eager", fullgraph=True)), expected)
    assert not torch.is_autocast_enabled("cpu")


def test_averaged_and_replicated_models():
    model = graft(network())
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    images = torch.randn(1, 1, 9, 9)
    torch.testing.assert_close(average(images), model(images))


def depthwise(**arguments):
    return nn.Conv2d(4, 4, 3, groups=4, **arguments)


class Kept(nn.Conv2d):
    """A subclass that says how it is made, and computes as its base does."""

    def __init__(self, channels):
        super().__init__(channels, channels, 3, groups=channels, padding=1)


class Extended(nn.Conv1d):
    """A causal convolution, as many write it: it pads on the left, and its base does the rest."""

    def forward(self, input):
        return super().forward(nn.functional.pad(input, (self.kernel_size[0] - 1, 0)))


class Standardised(nn.Conv2d):
    """Its weights have mean 0 and variance 1, computed anew in each call."""

    def _conv_forward(self, input, weight, bias):
        weight = (weight - weight.mean((1, 2, 3), keepdim=True)) / weight.std((1, 2, 3), keepdim=True)
        return super()._conv_forward(input, weight, bias)


# A layer of each kind; images, sequences and volumes have four channels.
KINDS = {
    "Conv1d": lambda: nn.Conv1d(4, 8, 5, groups=4, padding="same"),
    "Conv2d": lambda: nn.Conv2d(4, 4, 3, groups=4, stride=2, padding=1, padding_mode="reflect"),
    "Conv3d": lambda: nn.Conv3d(4, 4, (1, 3, 3), groups=4, padding=(0, 1, 1), bias=False),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(4, 4, 4, groups=4, stride=2, padding=1),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(4, 8, 3, groups=4, stride=2, output_padding=1, bias=False),
    "ConvTranspose3d": lambda: nn.ConvTranspose3d(4, 4, 2, groups=4, stride=2),
    "Kept": lambda: Kept(4),
    "Extended": lambda: Extended(4, 4, 4, groups=4),
    "Padded": lambda: SamePadded(4, 4, 3, groups=4, stride=2),
    "Standardised": lambda: Standardised(4, 4, 3, groups=4),
}


def kind_and_input(name):
    torch.manual_seed(0)
    layer = KINDS[name]().double()
    return layer, torch.randn(2, 4, *[7, 6, 5][: layer.weight.dim() - 2], dtype=torch.float64)


class Symmetric(nn.Module):
    def forward(self, weight):
        return weight + weight.flip(-1)


def _both(layer):
    parametrize.register_parametrization(layer, "weight", Symmetric())
    parametrize.register_parametrization(layer, "bias", nn.Softplus())


# Each changes a layer in place, as PyTorch's utilities do.
PARAMETRISED = {
    "parametrised": lambda layer: parametrize.register_parametrization(layer, "weight", Symmetric()),
    "parametrised twice": _both,
    "parametrised bias": lambda layer: parametrize.register_parametrization(layer, "bias", nn.Softplus()),
    "weight_norm": torch.nn.utils.parametrizations.weight_norm,
    "spectral_norm": torch.nn.utils.parametrizations.spectral_norm,
}
HOOKED = {
    "hooks of weight_norm": torch.nn.utils.weight_norm,
    "hooks of spectral_norm": torch.nn.utils.spectral_norm,
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated")
class TestParametrised:
    """Layers whose weights PyTorch computes from other parameters."""

    def values_and_gradients(self, model):
        images = torch.randn(2, 4, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        output = model(images)
        return output, torch.autograd.grad(output.square().sum(), list(model.parameters()))

    @pytest.mark.parametrize("graft_first", [True, False], ids=["grafted first", "parametrised first"])
    @pytest.mark.parametrize("change", PARAMETRISED.values(), ids=PARAMETRISED.keys())
    def test_before_or_after(self, change, graft_first):
        torch.manual_seed(0)
        model = nn.Sequential(depthwise(dtype=torch.float64)).eval()
        for step in (graft, lambda model: change(model[0])) if graft_first else (lambda model: change(model[0]), graft):
            step(model)
        kind, names = type(model[0]), list(model.state_dict())
        report = graft_report(model)
        assert (report.grafted, report.graftable, report.left) == (("0",), (), {})
        found = self.values_and_gradients(model)
        copied = copy.deepcopy(model)

        assert ungraft(model) is model
        report = graft_report(model)
        assert (report.grafted, report.graftable, report.left) == ((), ("0",), {})
        assert (type(model[0]), list(model.state_dict())) == (kind, names)
        torch.testing.assert_close(self.values_and_gradients(model), found)
        # A copy stays grafted.
        assert graft_report(copied).grafted == ("0",)
        torch.testing.assert_close(self.values_and_gradients(copied), found)

        images = torch.ones(1, 4, 5, 5, dtype=torch.float64)
        expected = model(images)
        for name in list(copied[0].parametrizations):
            parametrize.remove_parametrizations(copied[0], name)
        assert type(copied[0]) is nn.Conv2d
        assert graft_report(copied).grafted == ("0",)
        torch.testing.assert_close(copied(images), expected)

    def test_what_a_parametrisation_counts_is_not_counted_by_graft(self):
        layer = torch.nn.utils.parametrizations.spectral_norm(depthwise())
        before = copy.deepcopy(layer.state_dict())
        graft_report(graft(layer))
        torch.testing.assert_close(layer.state_dict(), before, rtol=0, atol=0)

    @pytest.mark.parametrize("change", HOOKED.values(), ids=HOOKED.keys())
    def test_by_hooks(self, change):
        torch.manual_seed(0)
        model = nn.Sequential(depthwise(dtype=torch.float64)).eval()
        change(model[0])
        expected = self.values_and_gradients(model)
        assert graft_report(model).graftable == ("0",)
        assert graft_report(graft(model)).grafted == ("0",)
        torch.testing.assert_close(self.values_and_gradients(model), expected)
        torch.testing.assert_close(self.values_and_gradients(ungraft(model)), expected)

    def test_a_lazy_layer_can_be_grafted_once_it_has_sizes(self):
        model = nn.Sequential(nn.LazyConv2d(4, 3, groups=4))
        assert "graft after that call" in graft_report(graft(model)).left["0"]
        model(torch.randn(1, 4, 9, 9))
        assert graft_report(graft(model)).grafted == ("0",)


def test_a_layer_that_a_model_holds_twice_is_grafted_once():
    layer = depthwise()
    model = nn.ModuleDict({"one": nn.Sequential(layer, nn.ReLU()), "other": layer})
    assert graft_report(graft(graft(model)["one"])).grafted == ("0",)
    assert graft_report(graft(model)).grafted == ("one.0",)
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert each["other"] is each["one"][0]
        assert graft_report(ungraft(each)).graftable == ("one.0",)
    assert graft_report(layer).grafted == ("",)


def test_a_grafted_convolution_is_fused_with_a_normalization():
    convolution, normalization = depthwise(bias=False).eval(), nn.BatchNorm2d(4).eval()
    normalization.running_mean += torch.arange(4)
    images = torch.randn(2, 4, 6, 5)
    expected = normalization(convolution(images))
    fused = torch.nn.utils.fusion.fuse_conv_bn_eval(graft(convolution), normalization)
    assert graft_report(fused).grafted == ("",)
    torch.testing.assert_close(fused(images), expected)


LAYERS = {
    "grafted": lambda: graft(depthwise()),
    "grafted, with a multiplier": lambda: graft(nn.Conv2d(4, 8, 3, groups=4)),
    "grafted, circular": lambda: graft(depthwise(padding=1, padding_mode="circular")),
    "DepthwiseConv2d": lambda: DepthwiseConv2d(4, 3),
}
CALLERS = {
    "eager": lambda layer, input: layer(input),
    "compile": lambda layer, input: torch.compile(layer, backend="eager")(input),
    "export": lambda layer, input: torch.export.export(layer, (input,)),
    "export of other sizes": lambda layer, input: torch.export.export(
        layer, (torch.randn(2, 4, 5, 5),), dynamic_shapes=({0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO},)
    ).module()(input),
    "symbolic_trace": lambda layer, input: torch.fx.symbolic_trace(layer)(input),
    "jit.trace": lambda layer, input: torch.jit.trace(layer, (torch.randn(2, 4, 5, 5),))(input),
}


@pytest.mark.parametrize("call", CALLERS.values(), ids=CALLERS.keys())
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_an_input_with_other_channels_is_refused(layer, call):
    layer = layer()
    # Each divides the channels of the weight: they would do for a convolution with more kernels a channel.
    for shape in ((2, 1, 5, 5), (1, 2, 5, 5), (2, 8, 5, 5), (1, 5, 5), (2, 5, 5), (8, 5, 5)):
        with pytest.raises(Exception, match=r"must have 4 channels|Guard failed|\[4\] don't multiply up"):
            call(layer, torch.randn(shape))
    if call in (CALLERS["eager"], CALLERS["compile"]):
        with pytest.raises(ValueError, match="input must have 4 channels, got 2: its shape is"):
            call(layer, torch.randn(2, 5, 5))
        assert call(layer, torch.randn(4, 5, 5)).shape == layer(torch.randn(1, 4, 5, 5)).shape[1:]


def test_what_is_no_image_is_named_by_a_layer():
    for input, error, message in (
        (None, TypeError, "input must be a Tensor, got NoneType"),
        ([1.0], TypeError, "input must be a Tensor, got list"),
        (torch.randn(4, 5), ValueError, r"input must be \(N, C, H, W\) or \(C, H, W\), got \(4, 5\)"),
        (torch.randn(1, 1, 4, 5, 5), ValueError, r"input must be \(N, C, H, W\) or \(C, H, W\)"),
        (torch.randn(1, 4, 5, 5).numpy(), TypeError, "input must be a Tensor, got ndarray"),
        (torch.randn(4, 5, 5).numpy(), TypeError, "input must be a Tensor, got ndarray"),
    ):
        with pytest.raises(error, match=f"depthwise_conv2d: {message}"):
            graft(depthwise())(input)


def test_a_bias_may_change_between_forward_and_backward():
    def gradients(layer):
        images = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
        loss = layer(images).square().sum()
        with torch.no_grad():
            layer.bias.add_(1)
        return torch.autograd.grad(loss, (images, *layer.parameters()))

    theirs = depthwise()
    ours = graft(copy.deepcopy(theirs))
    torch.testing.assert_close(gradients(ours), gradients(theirs))


class TestRecorded:
    """Tools that record a net and run the recording find the same values and gradients as before grafting."""

    @pytest.mark.parametrize(
        "record",
        [lambda model, images: torch.jit.trace(model, (images,)), lambda model, _: torch.fx.symbolic_trace(model)],
        ids=["jit.trace", "symbolic_trace"],
    )
    def test_values_and_gradients(self, record):
        model = nn.Sequential(
            nn.Conv2d(3, 4, 1),
            nn.Conv2d(4, 4, 3, groups=4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(4, 8, 3, groups=4, padding=1, padding_mode="circular"),
            nn.Conv2d(8, 8, 3, groups=8, padding="same", bias=False),
        ).double()
        images = torch.randn(2, 3, 9, 8, dtype=torch.float64)

        def run(function):
            model.zero_grad()
            output = function(images)
            output.square().sum().backward()
            return output.detach(), [parameter.grad.clone() for parameter in model.parameters()]

        expected = run(model)
        with torch.device("cpu"):
            recorded = record(graft(model), images)
        torch.testing.assert_close(run(recorded), expected)
        # Of another batch, too.
        torch.testing.assert_close(recorded(images[:1]), expected[0][:1])

    def test_a_frozen_net_that_is_trained_after_it_was_recorded(self):
        model = graft(depthwise().requires_grad_(False))
        images = torch.randn(2, 4, 6, 5)
        traced = torch.jit.trace(model, (images,))
        model.requires_grad_(True)
        found = torch.autograd.grad(traced(images).square().sum(), list(traced.parameters()))
        torch.testing.assert_close(found, torch.autograd.grad(model(images).square().sum(), list(model.parameters())))


@pytest.mark.filterwarnings("ignore")
def test_a_grafted_model_runs_in_onnx_without_torchgraft(tmp_path):
    import onnxruntime

    model = convnext().eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        expected = model(images).last_hidden_state
        graft(model)
        program = torch.export.export(model, (images,))
    overload = torch.ops.torchgraft.depthwise_conv2d.default
    assert overload in {node.target for node in program.graph.nodes}
    table = {**torch.export.default_decompositions(), **torchgraft.decompositions()}
    program = program.run_decompositions(table)
    assert overload not in {node.target for node in program.graph.nodes}
    torch.onnx.export(program, (images,), dynamo=True, verbose=False).save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (name,) = (each.name for each in session.get_inputs())
    found = torch.from_numpy(session.run(None, {name: images.numpy()})[0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def values_and_gradients(layer, input, *more):
    input = input.clone().requires_grad_()
    output = layer(input, *more)
    return output, torch.autograd.grad(output.square().sum(), (input, *layer.parameters()))


def by_pickle(layer):
    return pickle.loads(pickle.dumps(layer))


def by_file(layer):
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def replicated(layer):
    """Makes a replica as `torch.nn.DataParallel` does, which sets its weights afterwards."""
    replica = layer._replicate_for_data_parallel()
    for name, parameter in layer._parameters.items():
        setattr(replica, name, None if parameter is None else 2 * parameter)
    return replica


COPIES = {
    "itself": lambda layer: layer,
    "deepcopy": copy.deepcopy,
    "pickle": by_pickle,
    "a file": by_file,
    # The layer itself is gone.
    "a shallow copy": lambda layer: copy.copy(copy.deepcopy(layer)),
    "compiled": lambda layer: torch.compile(layer, backend="aot_eager", fullgraph=True),
    "exported": lambda layer: torch.export.export(layer, (kind_and_input(layer.kind)[1],)).module(),
    "traced": lambda layer: torch.jit.trace(layer, (kind_and_input(layer.kind)[1],)),
}


# What Padded decides by the size of an image is not recorded.
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES.keys())
@pytest.mark.parametrize("name", KINDS)
class TestKinds:
    """Layers of every kind, and what people make of layers."""

    def test_values_and_gradients(self, name, make):
        layer, input = kind_and_input(name)
        layer.kind = name
        expected, state = values_and_gradients(layer, input), list(layer.state_dict())
        assert not calls_of(lambda: layer(input))
        grafted = graft(copy.deepcopy(layer))
        made = make(grafted)
        del grafted
        torch.testing.assert_close(values_and_gradients(made, input), expected)
        if make in (COPIES[each] for each in ("compiled", "exported", "traced")):
            return
        dimensions = layer.weight.dim() - 2
        transposed = "_transpose" if "Transpose" in name else ""
        assert type(made) is type(layer)
        assert list(made.state_dict()) == state
        assert graft_report(made).grafted == ("",)
        operator = f"depthwise_conv{dimensions}d" + ("_input_grad" if transposed else "")
        assert calls_of(lambda: made(input)) == [operator]
        assert not calls_of(lambda: ungraft(made)(input))
        torch.testing.assert_close(values_and_gradients(made, input), expected)


@pytest.mark.parametrize("name", KINDS)
def test_a_replica_computes_with_its_own_weights(name):
    layer, input = kind_and_input(name)
    expected = replicated(layer)(input)
    replica = replicated(graft(layer))
    assert calls_of(lambda: replica(input))
    torch.testing.assert_close(replica(input), expected)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("Extended", "Padded", "Standardised")])
@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated")
def test_what_torch_jit_script_compiles(name):
    layer, input = kind_and_input(name)
    expected = layer(input)
    torch.testing.assert_close(torch.jit.script(graft(nn.Sequential(layer)))(input), expected)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", KINDS)
def test_a_graph_that_others_read_holds_convolutions_of_pytorch(name):
    layer, input = kind_and_input(name)
    graph, _ = torch.jit._get_trace_graph(graft(layer), (input,))
    assert "aten::_convolution" in str(graph)
    assert "torchgraft" not in str(graph)
    assert calls_of(lambda: layer(input))


def test_a_layer_that_changes_after_it_was_grafted():
    layer = graft(depthwise().double())
    images = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    for change in (
        lambda layer: setattr(layer, "padding", (1, 2)),
        lambda layer: setattr(layer, "stride", (2, 1)),
        lambda layer: layer.float(),
        lambda layer: (setattr(layer, "groups", 2), setattr(layer, "weight", nn.Parameter(torch.randn(4, 2, 3, 3)))),
    ):
        change(layer)
        images = images.to(layer.weight.dtype)
        torch.testing.assert_close(layer(images), ungraft(copy.deepcopy(layer))(images))


@pytest.mark.parametrize("graft_first", [True, False])
def test_a_method_that_another_tool_has_wrapped(graft_first):
    """Keeps the method that was there under another name and calls it, as accelerate does."""
    layer, input = kind_and_input("ConvTranspose2d")
    expected = layer(input)
    if graft_first:
        graft(layer)
    layer._old_forward = layer.forward
    layer.forward = lambda input: layer._old_forward(input)
    for _ in range(2):
        assert graft_report(graft(layer)).grafted == ("",)
        assert calls_of(lambda: layer(input))
        torch.testing.assert_close(layer(input), expected)
        assert not calls_of(lambda: ungraft(layer)(input))
        assert graft_report(layer).graftable == ("",)
        torch.testing.assert_close(layer(input), expected)
    graft(layer)
    layer.forward = layer.__dict__.pop("_old_forward")
    assert calls_of(lambda: layer(input))
    assert not calls_of(lambda: ungraft(layer)(input))


@pytest.mark.parametrize("name", KINDS)
def test_a_method_that_another_tool_keeps_out_of_sight(name):
    """diffusers does so: the former method is called, and is no attribute of the layer."""
    layer, input = kind_and_input(name)
    expected = layer(input)
    kept = graft(layer).forward
    layer.forward = lambda input: kept(input)
    assert graft_report(layer).grafted == ("",)
    assert calls_of(lambda: layer(input))
    assert not calls_of(lambda: ungraft(layer)(input))
    assert graft_report(layer).grafted == ()
    torch.testing.assert_close(layer(input), expected)
    layer.forward = kept
    assert not calls_of(lambda: layer(input))
    torch.testing.assert_close(layer(input), expected)


def test_a_class_whose_method_was_replaced_computes_by_it(monkeypatch):
    theirs = nn.Conv2d._conv_forward
    monkeypatch.setattr(
        nn.Conv2d, "_conv_forward", lambda self, input, weight, bias: theirs(self, input, 0 * weight, None)
    )
    layer = graft(depthwise())
    assert not layer(torch.randn(1, 4, 5, 5)).any()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("method", ["_conv_forward", "forward"])
def test_a_method_that_a_class_gets_after_its_layer_was_grafted(name, method, compiled, monkeypatch):
    layer, input = kind_and_input(name)
    if method == "_conv_forward" and "Transpose" in name:
        pytest.skip("transposed layers call no such method")
    graft(layer)
    theirs = getattr(type(layer), method)
    monkeypatch.setattr(type(layer), method, lambda self, *arguments: 2 * theirs(self, *arguments))
    expected = ungraft(copy.deepcopy(layer))(input)
    run = torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer
    torch.testing.assert_close(run(input), expected)
    assert compiled or len(calls_of(lambda: layer(input))) == 1


def test_a_grafted_model_is_freed_as_soon_as_nobody_holds_it():
    gc.disable()
    try:
        for name in KINDS:
            layer, input = kind_and_input(name)
            graft(layer)(input)
            gone = weakref.ref(layer)
            del layer
            assert gone() is None, name
    finally:
        gc.enable()


class TestFunctionalCalls:
    """Depthwise calls of functions, which no layer makes."""

    @pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
    def test_what_is_served(self, compiled):
        def blur(images, sequences, kernel, taps):
            blurred = nn.functional.conv2d(images, kernel, stride=2, groups=images.shape[1])
            return blurred, nn.functional.conv_transpose1d(sequences, taps, None, 2, 1, 1, groups=4, dilation=2)

        tensors = [torch.randn(*sizes) for sizes in ((2, 4, 6, 5), (4, 7), (4, 1, 3, 3), (4, 2, 3))]
        expected = blur(*tensors)
        function = torch.compile(blur, backend="aot_eager", fullgraph=True) if compiled else blur
        with functional_calls():
            torch.testing.assert_close(function(*tensors), expected)
            called = ["depthwise_conv2d", "depthwise_conv1d_input_grad"]
            assert compiled or calls_of(lambda: blur(*tensors)) == called
        assert not calls_of(lambda: blur(*tensors))

    @pytest.mark.parametrize(
        "call",
        [
            lambda: nn.functional.conv2d(torch.randn(1, 4, 5, 5), torch.randn(4, 2, 3, 3), groups=2),
            lambda: nn.functional.conv2d(torch.randn(1, 1, 5, 5), torch.randn(1, 1, 3, 3)),
            lambda: nn.functional.conv1d(torch.randn(4, 5).cfloat(), torch.randn(4, 1, 3).cfloat(), groups=4),
            lambda: nn.functional.conv2d(torch.randn(1, 4, 5, 5), torch.randn(4, 1, 3, 3).double(), groups=4),
            lambda: nn.functional.conv2d(torch.randn(1, 6, 5, 5), torch.randn(4, 1, 3, 3), groups=4),
            lambda: nn.functional.conv_transpose2d(torch.randn(1, 6, 5, 5), torch.randn(4, 1, 3, 3), groups=4),
            lambda: nn.functional.conv1d(
                torch.nested.nested_tensor([torch.randn(4, 5)] * 2, layout=torch.jagged),
                torch.randn(4, 1, 3),
                None,
                1,
                0,
                1,
                4,
            ),
            lambda: nn.functional.conv1d(torch.randn(2, 4, 5).to_sparse(), torch.randn(4, 1, 3), groups=4),
            lambda: nn.functional.conv3d(torch.randn(1, 4, 5, 5), torch.randn(4, 1, 3, 3, 3), groups=4),
        ],
    )
    def test_what_is_left_to_pytorch_and_to_its_errors(self, call):
        def outcome():
            torch.manual_seed(0)
            try:
                return call()
            except RuntimeError as error:
                return str(error)

        expected = outcome()
        with functional_calls():
            found = outcome()
            assert not calls_of(outcome)
        assert type(found) is type(expected)
        torch.testing.assert_close(found, expected) if isinstance(found, torch.Tensor) else None


class TestExample:
    """graft(model, example): layers are timed, and those that gain are grafted."""

    @pytest.fixture
    def timed(self, monkeypatch):
        """The calls that were timed; PyTorch takes 2 s for each, torchgraft a second a direction of the window."""
        calls = []

        def time(layer, call):
            calls.append((layer, call))
            return 2.0, float(len(layer.kernel_size))

        monkeypatch.setattr(measuring, "_time", time)
        return calls

    def model(self):
        return nn.ModuleDict(
            {
                "one": nn.Conv1d(4, 4, 3, groups=4, padding=1),
                "same": nn.Conv1d(4, 4, 3, groups=4, padding=1),
                "two": nn.Conv2d(4, 4, 3, groups=4),
                "unreached": nn.Conv3d(4, 4, 3, groups=4),
                "norm": nn.BatchNorm1d(4),
            }
        )

    class Net(nn.Module):
        def __init__(self, layers):
            super().__init__()
            self.layers = layers

        def forward(self, sequence, *, image):
            sequence = self.layers["norm"](self.layers["same"](self.layers["one"](self.layers["one"](sequence))))
            return nn.functional.dropout(sequence), self.layers["two"](image)

    def test_only_layers_that_gain_are_grafted(self, timed):
        net = self.Net(self.model())
        example = {"sequence": torch.randn(2, 4, 9), "image": torch.randn(2, 4, 6, 5).to(memory_format=CHANNELS_LAST)}
        state, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
        assert graft(net, example) is net
        torch.testing.assert_close(net.state_dict(), state, rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), random)

        # The calls of `one` differ in whether gradients reach the input; `same` is called as `one` is the second time.
        assert [call.arguments[0].requires_grad for _, call in timed[:2]] == [False, True]
        assert len(timed) == 3
        report = graft_report(net)
        assert report.grafted == ("layers.one", "layers.same", "layers.unreached")
        words = "(2, 4, 6, 5) float32 of strides (120, 1, 20, 4), forward and backward"
        times = "2000000.0 us, PyTorch's 2000000.0 us"
        assert report.left == {"layers.two": f"it gains nothing: {times}, for {words}"}
        one = report.measured["layers.one"]
        assert (one.pytorch, one.torchgraft) == (4e6, 2e6)
        assert one.calls == "(2, 4, 9) float32, forward and backward, and 1 more"
        assert "layers.same: 1000000.0 us, PyTorch's 2000000.0 us, for (2, 4, 9)" in str(report)
        assert json.loads(report.to_json())["measured"]["layers.one"]["torchgraft"] == 2e6

        for other in (copy.deepcopy(net), by_file(net.layers), by_pickle(net.layers)):
            assert [each.split(".")[-1] for each in graft_report(other).grafted] == ["one", "same", "unreached"]
            assert len(graft_report(other).measured) == 3
        before = [dict(vars(module)) for module in self.Net(self.model()).modules()]
        assert [set(vars(module)) for module in ungraft(net).modules()] == [set(each) for each in before]
        assert len(graft_report(graft(net)).grafted) == 4

    def test_the_callers_modes_are_what_is_timed(self, timed):
        layer = nn.Conv1d(4, 4, 3, groups=4)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            graft(layer, torch.randn(2, 4, 9, dtype=torch.bfloat16))
        graft(layer.requires_grad_(False), (torch.randn(2, 4, 9),))
        modes = [(call.autocast, call.differentiated) for _, call in timed]
        assert modes == [(torch.bfloat16, False), (None, False)]
        assert "(2, 4, 9) float32, forward" in str(graft_report(layer))

    @pytest.mark.parametrize("name", KINDS)
    def test_every_kind_is_timed(self, name, monkeypatch):
        monkeypatch.setattr(measuring, "_SECONDS", 1e-4)
        layer, input = kind_and_input(name)
        graft(layer, input)
        [measured] = graft_report(layer).measured.values()
        assert measured.pytorch > 0 < measured.torchgraft
        assert all(parameter.grad is None for parameter in layer.parameters())

    def test_a_module_that_calls_functions_itself_is_timed_as_a_whole(self, timed):
        class Blur(nn.Module):
            def forward(self, images):
                kernel = torch.full((images.shape[1], 1, 2, 2), 0.25)
                return nn.functional.conv2d(images, kernel, stride=2, groups=images.shape[1])

        model = nn.Sequential(Blur(), nn.Conv2d(4, 4, 3), Blur())
        model[0].kernel_size = (2,)  # PyTorch's way is slower here, and not in the last one.
        model[2].kernel_size = (2, 2)
        images = torch.randn(2, 4, 16, 16)
        expected, operators = model(images), ["depthwise_conv2d"]
        assert graft_report(graft(model)).grafted == ("0", "2")
        graft(model, images)
        assert [type(layer).__name__ for layer, _ in timed] == ["Blur", "Blur"]
        report = graft_report(model)
        assert report.grafted == ("0",)
        assert set(report.left) == {"1", "2"}
        torch.testing.assert_close(model(images), expected)
        for each in (model, copy.deepcopy(model), torch.compile(model, backend="aot_eager", fullgraph=True)):
            torch.testing.assert_close(each(images), expected)
        assert calls_of(lambda: model(images)) == operators
        # Scripting ungrafts it, and nothing says then that it gained nothing.
        model[0].__prepare_scriptable__()
        assert graft_report(model).left.keys() == {"1", "2"}
        graft(model, images)
        assert calls_of(lambda: model(images)) == operators
        assert calls_of(lambda: ungraft(model)(images)) == []
        assert graft_report(model).measured == {}

    def test_a_model_is_afterwards_what_it_was(self, monkeypatch):
        class Counting(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("written", torch.zeros(1))
                self.register_buffer("replaced", torch.zeros(1))
                self.register_buffer("expanded", torch.arange(4.0).expand(3, -1))

            def forward(self, images):
                self.written += 1
                self.replaced = self.replaced + 1
                if (images < 0).any():
                    raise ValueError("random values are refused")
                return nn.functional.conv2d(images, torch.ones(4, 1, 2, 2), groups=4)

        monkeypatch.setattr(measuring, "_SECONDS", 1e-4)
        model = nn.Sequential(Counting(), torch.jit.script(nn.ReLU()), nn.BatchNorm2d(4), depthwise()).eval()
        images = torch.rand(2, 4, 6, 5)
        output, buffers = model(images), list(model.buffers())
        before, random = copy.deepcopy(buffers), torch.get_rng_state()
        graft(model, images)
        assert all(one is other for one, other in zip(model.buffers(), buffers, strict=True))
        torch.testing.assert_close(buffers, before, rtol=0, atol=0)
        assert torch.equal(torch.get_rng_state(), random)
        # What refuses random values is not timed, and left.
        assert graft_report(model).measured.keys() == {"3"}
        output.sum().backward()

    def test_processes_agree_on_what_the_first_has_measured(self, timed, monkeypatch):
        def broadcast(shared, src):
            assert src == 0
            shared[0] = {"": measuring.Measured(1.0, 2.0, "what the first process asked")}

        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
        layer = graft(nn.Conv1d(4, 4, 3, groups=4), torch.randn(2, 4, 9))
        assert "what the first process asked" in graft_report(layer).left[""]

    def test_what_cannot_be_timed(self):
        layer = nn.Conv1d(4, 4, 3, groups=4)
        with pytest.raises(
            TypeError, match=r"graft: example must be a Tensor, a tuple or list of arguments, .* got int"
        ):
            graft(layer, 3)
        with pytest.raises(ValueError, match="parameters on the device meta"):
            graft(layer.to("meta"), torch.randn(2, 4, 9))
