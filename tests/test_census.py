"""The census of depthwise convolutions, on tiny models: no library of models is needed, and no network."""

import functools
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchgraft import graft_report

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def census():
    # The folder's other scripts have names that modules of tools have too: it is on the path for this import alone.
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("census_of_models", BENCHMARKS / "census.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


@pytest.fixture
def counted(census):
    """Counts the layers of a model, and gives its rows by how they are called, whose class they have and who computes.

    Two rows that agree in all this are one.
    """

    def counted(model, *inputs, **named):
        found = census.count(model.to("meta").eval(), [(inputs, named)] if inputs else [])
        rows = {}
        for layer, number in found.layers.items():
            key = (layer.owner.rpartition(".")[2], layer.computes, layer.called, not layer.left)
            rows[key] = rows.get(key, 0) + number
        return rows, found

    return counted


def images(*shape):
    return torch.empty(shape, device="meta")


def depthwise(channels=8, **arguments):
    return nn.Conv2d(channels, channels, 3, groups=channels, **arguments)


class Doubling(nn.Conv2d):
    """Computes something of its own."""

    def forward(self, input):
        return 2 * F.conv2d(input, self.weight, groups=self.groups)


def replaced():
    """A layer that graft leaves: its forward pass is that of neither its class nor PyTorch's."""
    layer = Doubling(8, 8, 3, groups=8)
    layer.forward = lambda input: F.conv2d(input, layer.weight, groups=8)
    return layer


class TestCalledAsAModule:
    def test_each_layer_once_and_no_other_convolution(self, counted):
        model = nn.Sequential(
            nn.Conv2d(3, 8, 1), depthwise(), depthwise(padding=1), nn.Conv2d(8, 8, 3, groups=2), nn.Conv2d(8, 8, 3)
        )
        rows, found = counted(model, images(1, 3, 16, 16))
        assert rows == {("Conv2d", "PyTorch's forward", "as a module", True): 2}
        assert found.ran
        assert sorted(layer.padding for layer in found.layers) == ["0x0", "1x1"]

    def test_one_channel_is_not_depthwise(self, counted):
        rows, _ = counted(nn.Sequential(nn.Conv2d(1, 8, 3)), images(1, 1, 9, 9))
        assert rows == {}

    def test_the_facts_of_a_layer(self, counted):
        layer = nn.ConvTranspose1d(4, 8, 5, stride=2, padding=1, dilation=3, groups=4, bias=False)
        ((fact, number),) = counted(nn.Sequential(layer), images(1, 4, 30))[1].layers.items()
        assert number == 1
        assert (fact.owner, fact.rank, fact.transposed) == ("torch.nn.modules.conv.ConvTranspose1d", 1, True)
        assert (fact.kernel, fact.stride, fact.padding, fact.dilation) == ("5", "2", "1", "3")
        assert (fact.multiplier, fact.bias, fact.causal) == (2, False, False)

    @pytest.mark.parametrize("padding", ["same", "valid"])
    def test_padding_in_words_and_its_mode(self, counted, padding):
        layer = depthwise(padding=padding, padding_mode="reflect")
        ((fact, _),) = counted(nn.Sequential(layer), images(1, 8, 9, 9))[1].layers.items()
        assert fact.padding == f"{padding} reflect"

    def test_a_layer_that_computes_something_of_its_own_is_left_with_the_reason(self, counted):
        model = nn.Sequential(replaced(), depthwise())
        rows, found = counted(model, images(1, 8, 9, 9))
        assert rows == {
            ("Doubling", "its own forward", "as a module", False): 1,
            ("Conv2d", "PyTorch's forward", "as a module", True): 1,
        }
        (reason,) = (layer.left for layer in found.layers if layer.left)
        assert reason == graft_report(model).left["0"]

    def test_a_layer_that_is_held_and_called_twice_counts_once(self, counted):
        layer = depthwise(padding=1)
        rows, _ = counted(nn.Sequential(layer, layer), images(1, 8, 9, 9))
        assert rows == {("Conv2d", "PyTorch's forward", "as a module", True): 1}

    def test_a_model_that_is_itself_a_layer(self, counted):
        assert list(counted(depthwise(), images(1, 8, 9, 9))[0].values()) == [1]

    def test_a_parametrised_layer_is_of_its_own_class(self, counted):
        model = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(depthwise()))
        ((owner, computes, called, _),) = counted(model, images(1, 8, 9, 9))[0]
        assert (owner, computes, called) == ("Conv2d", "PyTorch's forward", "as a module")


class TestByAFunction:
    @pytest.mark.parametrize(
        "weight",
        [
            lambda layer: layer.weight,
            lambda layer: layer.weight.view(layer.weight.shape),
            lambda layer: layer.weight.squeeze(1)[:, None],
        ],
        ids=["the weight", "a view", "a view of a view"],
    )
    @pytest.mark.parametrize("reached", [True, False])
    def test_a_layer_whose_weight_goes_there_is_reached_with_the_module_around_it(self, counted, weight, reached):
        class Mixer(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv1d = nn.Conv1d(8, 8, 4, groups=8)

            def forward(self, input):
                return F.conv1d(input, weight(self.conv1d), groups=8)

        model = nn.Sequential(Mixer(), Mixer())
        if not reached:
            for mixer in model:
                mixer.forward = functools.partial(Mixer.forward, mixer)
        rows, _ = counted(model, images(1, 8, 20))
        assert rows == {("Conv1d", "PyTorch's forward", "by a function", reached): 2}

    def test_a_layer_whose_weight_is_multiplied_is_not_reached(self, counted):
        class Mixer(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv1d = nn.Conv1d(8, 8, 4, groups=8)

            def forward(self, input):
                return (input * self.conv1d.weight[:, 0]).sum(-1)

        rows, _ = counted(nn.Sequential(Mixer()), images(1, 8, 4))
        assert rows == {("Conv1d", "PyTorch's forward", "by a function", False): 1}

    def test_a_convolution_without_a_layer_is_its_modules(self, counted):
        class Blur(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("filter", torch.ones(1, 1, 3, 3))

            def forward(self, input):
                channels = input.shape[1]
                return F.conv2d(input, self.filter.expand(channels, 1, 3, 3), stride=2, groups=channels)

        model = nn.Sequential(Blur(), nn.Conv2d(4, 4, 1), Blur(), Doubling(4, 4, 3, groups=4))
        rows, found = counted(model, images(1, 4, 64, 64))
        assert rows[("Blur", "no layer", "by a function", True)] == 2
        # What a layer does inside a call of it is that layer's.
        assert sum(rows.values()) == 3
        assert {layer.stride for layer in found.layers if layer.computes == "no layer"} == {"2x2"}


class Causal(nn.Module):
    """Calls its layer only if causal_conv1d_fn is None."""

    def __init__(self):
        super().__init__()
        self.conv1d = nn.Conv1d(8, 8, 4, groups=8)

    def forward(self, input):
        causal_conv1d_fn = None
        if causal_conv1d_fn is not None:
            return causal_conv1d_fn(input, self.conv1d.weight)
        return self.conv1d(input)


def test_a_layer_that_a_function_replaces_where_it_is_installed(counted):
    ((fact, _),) = counted(nn.Sequential(Causal()), images(1, 8, 20))[1].layers.items()
    assert (fact.called, fact.causal) == ("as a module", True)


class Failing(nn.Module):
    def forward(self, input):
        raise RuntimeError("no such kernel\nand more")


class Block(nn.Sequential):
    pass


class TestAForwardPassThatFails:
    def test_layers_are_called_like_their_likes(self, counted):
        model = nn.Sequential(Block(depthwise()), Failing(), Block(depthwise()), nn.Sequential(depthwise()))
        rows, found = counted(model, images(1, 8, 9, 9))
        assert (found.ran, found.why_not) == (False, "RuntimeError: no such kernel")
        assert rows == {
            ("Conv2d", "PyTorch's forward", "as a module", True): 2,
            ("Conv2d", "PyTorch's forward", "not known", True): 1,
        }

    def test_a_source_says_that_a_function_gets_the_weight(self, counted):
        rows, found = counted(nn.Sequential(Failing(), Causal()), images(1, 8, 20))
        assert not found.ran
        assert rows == {("Conv1d", "PyTorch's forward", "by a function", False): 1}

    def test_the_first_error_is_told(self, census):
        model = nn.Sequential(depthwise()).to("meta")
        assert "channel" in census.count(model, [((images(1, 3, 9, 9),), {}), ((), {})]).why_not

    def test_without_inputs_nothing_is_known(self, counted):
        assert list(counted(nn.Sequential(depthwise()))[0]) == [("Conv2d", "PyTorch's forward", "not known", True)]

    def test_the_next_inputs_are_tried(self, census):
        model = nn.Sequential(depthwise()).to("meta")
        inputs = [((images(1, 3, 9, 9),), {}), ((images(1, 8, 9, 9),), {})]
        assert census.count(model, inputs).ran

    def test_other_inputs_are_tried_for_layers_that_are_not_called(self, census):
        class Either(nn.Module):
            def __init__(self):
                super().__init__()
                self.image, self.sound = depthwise(), nn.Conv1d(8, 8, 3, groups=8)

            def forward(self, image=None, sound=None):
                return self.sound(sound) if image is None else self.image(image)

        inputs = [((), {"image": images(1, 8, 9, 9)}), ((), {"sound": images(1, 8, 9)})]
        found = census.count(Either().to("meta"), inputs)
        assert {layer.called for layer in found.layers} == {"as a module"}

    def test_a_branch_on_a_value_does_not_end_it(self, counted):
        class Branching(nn.Module):
            def forward(self, input):
                if (input == 0).all() or input.sum().item() > 0:
                    return input
                with torch.autocast(input.device.type, enabled=False):
                    return input + input.nonzero().shape[0]

        assert counted(nn.Sequential(Branching(), depthwise()), images(1, 8, 9, 9))[1].ran

    def test_a_layer_that_the_pass_does_not_need(self, counted):
        class Unused(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = depthwise()

            def forward(self, input):
                return input

        assert list(counted(Unused(), images(1, 8, 9, 9))[0]) == [("Conv2d", "PyTorch's forward", "not called", True)]


def test_a_model_that_reads_values_while_it_is_built_takes_no_memory(census, monkeypatch):
    def build(name):
        rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
        return nn.Sequential(*(nn.Linear(1 << 20, 1 << 20) for _ in rates), nn.Dropout(rates[-1]))

    monkeypatch.setitem(census.LIBRARIES, "tiny", census.LIBRARIES["timm"].__class__("tiny", list, build, list))
    model = census.build("tiny", "any")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert model[-1].p == 1


def row(census, name, model, shape, library="timm"):
    found = census.count(model.to("meta"), [((images(*shape),), {})])
    layers = [{**vars(layer), "count": number} for layer, number in found.layers.items()]
    return {"library": library, "model": name, "ran": found.ran, "why_not": found.why_not, "layers": layers}


def test_the_summary_adds_models_and_layers(census):
    own = replaced()
    rows = [
        row(census, "whole", nn.Sequential(depthwise(), depthwise()), (1, 8, 9, 9)),
        row(census, "part", nn.Sequential(depthwise(), own), (1, 8, 9, 9)),
        row(census, "none", nn.Sequential(own), (1, 8, 9, 9)),
        row(census, "without", nn.Sequential(nn.Conv2d(3, 8, 3)), (1, 3, 9, 9)),
        {"library": "timm", "model": "broken", "not_built": "ValueError: no"},
        row(census, "whole", nn.Sequential(depthwise()), (1, 8, 9, 9), library="monai"),
    ]
    found = census.summarise(rows, {"timm": "1", "monai": "2"})
    first, second = found["libraries"]
    expected = {"models": 5, "built": 4, "ran": 4, "depthwise": 3, "whole": 1, "part": 1, "none": 1}
    assert first == {"library": "timm", "version": "1", **expected}
    assert (second["library"], second["whole"]) == ("monai", 1)
    assert found["not_built"] == [{"library": "timm", "model": "broken", "reason": "ValueError: no"}]
    kinds = [
        (kind["library"], kind["owner"].rpartition(".")[2], kind["models"], kind["layers"], kind["reached"])
        for kind in found["kinds"]
    ]
    assert kinds == [("timm", "Conv2d", 2, 3, 3), ("timm", "Doubling", 2, 2, 0), ("monai", "Conv2d", 1, 1, 1)]
    assert found["kinds"][0]["kernel"] == {"3x3": 3}
    assert sum(found["kinds"][1]["left"].values()) == 2


def test_a_census_goes_on_where_it_stopped_unless_something_changed(census, tmp_path):
    path = tmp_path / "folder/rows.jsonl"
    first, second = ({"library": "timm", "model": name} for name in "ab")
    census.Rows(path, "one").add(first)
    rows = census.Rows(path, "one")
    rows.add(second)
    rows.add(first)
    with path.open("a") as file:
        file.write('{"model": "half a li')
    assert census.Rows(path, "one").rows == [first, second]
    assert [json.loads(line) for line in path.read_text().splitlines()][1:] == [first, second]
    assert census.Rows(path, "other").rows == []
    assert census.Rows(path, "one").rows == []
