"""linear: its surface, its errors and its layer; what every operator must be is asked in test_operators.py."""

import pytest
import torch
import torch.nn.functional as F

import torchgraft
from torchgraft.nn import Linear


def _tensors(*shapes):
    return [torch.randn(shape, generator=torch.Generator().manual_seed(n)) for n, shape in enumerate(shapes)]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3), (4, 5)), r"weight must have the shape \(m, n\), where n is 3 as in input, got \(4, 5\)"),
        (((), (4, 5)), r"input must have the shape \(\.\.\., n\)"),
        (((2, 5), (5,)), r"weight must have the shape \(m, n\), where n is 5 as in input, got \(5,\)"),
        (((2, 5), (4, 5), (5,)), r"bias must have the shape \(m,\), where m is 4 as in weight, got \(5,\)"),
    ],
)
def test_sizes_that_do_not_fit_are_told(shapes, message):
    with pytest.raises(ValueError, match=message):
        torchgraft.linear(*_tensors(*shapes))


def test_under_compile_it_is_what_pytorch_has():
    input, weight, bias = _tensors((6, 5), (4, 5), (4,))
    graphs = []

    def note(graph, example_inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    torch.compiler.reset()
    torch.compile(torchgraft.linear, backend=note, fullgraph=True)(input, weight, bias)
    torch.compile(lambda *each: F.linear(*each), backend=note, fullgraph=True)(input, weight, bias)
    assert graphs[0] == graphs[1]


def test_only_the_gradients_that_are_asked_for_are_computed():
    input, weight, bias = (each.requires_grad_() for each in _tensors((6, 5), (4, 5), (4,)))
    weight.requires_grad_(False)
    output = torchgraft.linear(input, weight, bias)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        output.sum().backward()
    assert [event.name for event in profiled.events()].count("aten::mm") == 1
    assert weight.grad is None


class TestLayer:
    def test_it_is_a_layer_of_pytorch(self):
        layer = Linear(5, 3, bias=False, dtype=torch.float64)
        assert isinstance(layer, torch.nn.Linear)
        assert repr(layer) == "Linear(in_features=5, out_features=3, bias=False)"
        assert layer.weight.dtype == torch.float64

    def test_weights_begin_within_a_tenth(self):
        torch.manual_seed(0)
        layer = Linear(50, 40)
        for parameter in layer.parameters():
            assert 0.08 < parameter.abs().max() <= 0.1
        before = layer.weight.clone()
        layer.reset_parameters()
        assert not layer.weight.equal(before)

    def test_weights_of_a_layer_of_pytorch_load(self):
        theirs, ours = torch.nn.Linear(5, 3), Linear(5, 3)
        ours.load_state_dict(theirs.state_dict())
        (input,) = _tensors((4, 5))
        torch.testing.assert_close(ours(input), theirs(input), rtol=0, atol=0)
