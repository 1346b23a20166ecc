"""graft(model) on real architectures, built from their configurations with random weights."""

import copy
import pickle
import re

import pytest
import torch
import torch.nn.utils.parametrize as parametrize
from torch import nn
from torch._inductor.utils import run_and_get_code
from torch.nn.utils import prune

import torchgraft
from torchgraft import graft, graft_report, ungraft
from torchgraft.nn import DepthwiseConv2d


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
# EfficientNet's depthwise layers there are of a subclass of Conv2d, and what a subclass does is its own affair.
GRAFTED = {"ConvNeXt": 5, "MobileNetV2": 17, "EfficientNet": 0}


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
    assert report.grafted or any("EfficientNetDepthwiseConv2d" in reason for reason in report.left.values())
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
    model(torch.randn(1, 1, 9, 9))
    assert seen == [DepthwiseConv2d]


def test_twice_is_once():
    model = graft(network())
    types = [type(module) for module in model.modules()]
    assert [type(module) for module in graft(model).modules()] == types
    ungraft(model)
    assert [type(module) for module in ungraft(model).modules()] == [type(module) for module in network().modules()]


def test_a_model_that_is_itself_a_layer():
    layer = nn.Conv2d(4, 4, 3, groups=4)
    assert type(graft(layer)) is DepthwiseConv2d
    assert "(the model itself)" in str(graft_report(layer))


def test_what_is_left_alone_and_why():
    class Own(nn.Conv2d):
        """A subclass: what it does in forward is its own."""

    model = nn.ModuleDict(
        {
            "one channel": nn.Conv2d(1, 8, 3),
            "dense": nn.Conv2d(8, 8, 3),
            "grouped": nn.Conv2d(8, 8, 3, groups=4),
            "subclass": Own(8, 8, 3, groups=8),
            "one dimension": nn.Conv1d(8, 8, 3, groups=8),
            "transposed": nn.ConvTranspose2d(8, 8, 3, groups=8),
            "complex": nn.Conv2d(8, 8, 3, groups=8, dtype=torch.complex64),
            "depthwise": nn.Conv2d(8, 8, 3, groups=8),
            "linear": nn.Linear(8, 8),
        }
    )
    before = {name: type(module) for name, module in model.items()}
    assert graft_report(model).graftable == ("depthwise",)
    report = graft_report(graft(model))
    assert report.grafted == ("depthwise",)
    assert set(report.left) == set(before) - {"depthwise", "linear"}
    assert "Own" in report.left["subclass"]
    assert "complex64" in report.left["complex"]
    assert "groups=1" in report.left["one channel"]
    for name, module in model.items():
        if name != "depthwise":
            assert type(module) is before[name]
    assert str(report).startswith("convolutions grafted: 1, left: 7\n")


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


def test_averaged_and_replicated_models():
    model = graft(network())
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    images = torch.randn(1, 1, 9, 9)
    torch.testing.assert_close(average(images), model(images))


def depthwise(**arguments):
    return nn.Conv2d(4, 4, 3, groups=4, **arguments)


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

    @pytest.mark.parametrize("change", PARAMETRISED.values(), ids=PARAMETRISED.keys())
    def test_after_it_was_grafted(self, change):
        torch.manual_seed(0)
        model = graft(nn.Sequential(depthwise(dtype=torch.float64))).eval()
        change(model[0])
        report = graft_report(model)
        assert (report.grafted, report.graftable, report.left) == (("0",), (), {})
        assert isinstance(model[0], DepthwiseConv2d)
        found, names = self.values_and_gradients(model), list(model.state_dict())
        copied = copy.deepcopy(model)
        # Grafting again changes nothing.
        assert graft_report(graft(model)).grafted == ("0",)

        assert ungraft(model) is model
        assert not isinstance(model[0], DepthwiseConv2d)
        assert graft_report(model).grafted == graft_report(model).graftable == ()
        assert list(model.state_dict()) == names
        torch.testing.assert_close(self.values_and_gradients(model), found)
        torch.testing.assert_close(self.values_and_gradients(copy.deepcopy(model)), found)
        # A copy shares the class that PyTorch made for the layer, and stays grafted.
        assert graft_report(copied).grafted == ("0",)
        torch.testing.assert_close(self.values_and_gradients(copied), found)

        for each, kind in ((model, nn.Conv2d), (copied, DepthwiseConv2d)):
            for name in list(each[0].parametrizations):
                parametrize.remove_parametrizations(each[0], name)
            assert type(each[0]) is kind
            torch.testing.assert_close(each(torch.ones(1, 4, 5, 5).double()), model(torch.ones(1, 4, 5, 5).double()))
        assert graft_report(model).graftable == ("0",)

    @pytest.mark.parametrize("change", PARAMETRISED.values(), ids=PARAMETRISED.keys())
    def test_before_it_would_be_grafted(self, change):
        model = nn.Sequential(depthwise(), depthwise())
        change(model[0])
        kind = type(model[0])
        report = graft_report(graft(model))
        assert report.grafted == ("1",)
        assert type(model[0]) is kind
        names = " and ".join(model[0].parametrizations)
        assert report.left == {"0": f"its {names} is parametrised: graft the model first, then parametrise the layer"}

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

    def test_a_subclass_of_ours_is_neither_replaced_nor_called_pytorchs(self):
        class Own(DepthwiseConv2d):
            """A subclass of a layer that runs on torchgraft."""

        model = nn.Sequential(Own(4), nn.LazyConv2d(4, 3, groups=4))
        report = graft_report(ungraft(graft(model)))
        assert (report.grafted, report.graftable) == ((), ())
        assert "a subclass of torchgraft's layer" in report.left["0"]
        assert "graft after that call" in report.left["1"]
        model(torch.randn(1, 4, 9, 9))
        assert graft_report(model).graftable == ("1",)


def test_a_layer_that_a_model_holds_twice_is_grafted_once():
    layer = depthwise()
    model = nn.ModuleDict({"one": nn.Sequential(layer, nn.ReLU()), "other": layer})
    assert graft_report(graft(graft(model)["one"])).grafted == ("0",)
    assert graft_report(graft(model)).grafted == ("one.0",)
    for each in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert each["other"] is each["one"][0]
        assert graft_report(ungraft(each)).graftable == ("one.0",)
    assert type(layer) is DepthwiseConv2d


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
    """What records a net, and runs what it recorded: the same values and gradients as before grafting."""

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
