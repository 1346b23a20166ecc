"""Recurrent layers on a GPU, ours and grafted ones, beside PyTorch's in float64 on a CPU: both sides of each limit."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import cells
import torchgraft
from torchgraft import Cell, Recurrence

pytestmark = [
    pytest.mark.usefixtures("_exact_products"),
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no GPU"),
    pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning"),
    # A copied layer of PyTorch has its weights apart.
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),
]

# Layers add their two biases in the dtype of both, and that rounding switches some units of a relu.
RELU = {"nonlinearity": "relu", "bias": False}
LAYERS = {"LSTM": (nn.LSTM, {}), "GRU": (nn.GRU, {}), "tanh": (nn.RNN, {}), "relu": (nn.RNN, RELU)}
# Steps, rows, features and units: of one block, of some, of a whole cluster, and of one unit more than that.
SIZES = [(9, 1, 3, 32), (12, 5, 7, 33), (20, 70, 16, 129), (16, 9, 8, 512), (10, 4, 8, 513)]
# A recurrence hands on to each step what the steps before were off.
ALLOWED = {torch.float64: 1e-10, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DTYPES = list(ALLOWED)


@pytest.fixture
def _exact_products(monkeypatch):
    # cuDNN's layers use tf32 otherwise.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def flat(results):
    output, states = results
    output = output.data if isinstance(output, PackedSequence) else output
    return [output, *(states if isinstance(states, tuple) else [states])]


def run(layer, input, grad):
    """Results, and gradients of the output for the input and all weights."""
    input = copy.copy(input)
    data = input.data if isinstance(input, PackedSequence) else input
    data = data.detach().requires_grad_()
    given = PackedSequence(data, *input[1:]) if isinstance(input, PackedSequence) else data
    results = flat(layer(given))
    gradients = torch.autograd.grad(results[0], [data, *layer.parameters()], grad)
    return [each.detach() for each in results], gradients


def errors(found, expected):
    """The largest error of each, beside the largest number or 1."""
    return [
        (one.double().cpu() - other).abs().max().item() / max(1.0, other.abs().max().item())
        for one, other in zip(found, expected, strict=True)
    ]


def assert_near(layer, found, expected, of_pytorch):
    """Ours are off by little more than one rounding; a grafted layer's may be PyTorch's own, and are no worse."""
    for each in found:
        assert (each.dtype, each.is_cuda) == (of_pytorch[0].dtype, True)
    allowed = ALLOWED[found[0].dtype]
    is_ours = type(layer).__module__.startswith("torchgraft.")
    own = errors(of_pytorch, expected)
    for place, (error, least) in enumerate(zip(errors(found, expected), own, strict=True)):
        assert error <= (allowed if is_ours else max(allowed, 2 * least)), f"result {place}: {error}, PyTorch's {least}"


def pairs(kind, dtype, features, units, **options):
    """PyTorch's layer in float64 on the CPU; and it, ours and a grafted one on the GPU with the same weights."""
    torch.manual_seed(0)
    of_pytorch, more = LAYERS[kind]
    # The weights that all have are numbers of the dtype.
    exact = of_pytorch(features, units, **more, **options).to(dtype).double()
    ours = getattr(torchgraft.nn, of_pytorch.__name__)(features, units, **more, **options)
    ours.load_state_dict(exact.state_dict())
    of_pytorch = copy.deepcopy(exact).to("cuda", dtype)
    grafted = torchgraft.graft(nn.ModuleList([copy.deepcopy(of_pytorch)]))[0]
    return exact, of_pytorch, ours.to("cuda", dtype), grafted


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_values_and_gradients(kind, sizes, dtype):
    steps, rows, features, units = sizes
    exact, of_pytorch, *layers = pairs(kind, dtype, features, units)
    input = torch.randn(steps, rows, features).to(dtype)
    grad = torch.randn(steps, rows, units).to(dtype)
    results, gradients = run(exact, input.double(), grad.double())
    own, own_gradients = run(of_pytorch, input.cuda(), grad.cuda())
    for layer in layers:
        found, found_gradients = run(layer, input.cuda(), grad.cuda())
        assert_near(layer, found, results, own)
        assert_near(layer, found_gradients, gradients, own_gradients)
        with torch.no_grad():
            assert_near(layer, flat(layer(input.cuda())), results, own)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_both_directions_and_lengths(kind, dtype):
    options = {"num_layers": 2, "bidirectional": True, "batch_first": True}
    exact, of_pytorch, *layers = pairs(kind, dtype, 6, 40, **options)
    input = torch.randn(5, 9, 6).to(dtype)
    lengths = torch.tensor([9, 2, 5, 9, 1])

    def packed(tensor):
        return pack_padded_sequence(tensor, lengths, batch_first=True, enforce_sorted=False)

    grad = torch.randn(int(lengths.sum()), 80).to(dtype)
    results, gradients = run(exact, packed(input.double()), grad.double())
    own, own_gradients = run(of_pytorch, packed(input.cuda()), grad.cuda())
    for layer in layers:
        found, found_gradients = run(layer, packed(input.cuda()), grad.cuda())
        assert_near(layer, found, results, own)
        assert_near(layer, found_gradients, gradients, own_gradients)


@pytest.mark.parametrize("kind", LAYERS)
def test_autocast(kind):
    _, of_pytorch, ours, grafted = pairs(kind, torch.float32, 16, 64)
    input = torch.randn(12, 3, 16, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        expected, found, own = flat(of_pytorch(input)), flat(grafted(input)), flat(ours(input))
    for theirs, same, other in zip(expected, found, own, strict=True):
        # PyTorch casts a layer of cuDNN to float16 whatever the dtype of autocast is.
        assert theirs.dtype == torch.float16
        assert same.dtype == torch.float16
        assert torch.equal(same, theirs)
        assert other.dtype == torch.bfloat16
        assert torch.allclose(other.float(), theirs.float(), atol=3e-2)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_graph_of_a_grafted_layer_is_replayed(kind):
    *_, grafted = pairs(kind, torch.bfloat16, 16, 64)
    input = torch.randn(12, 3, 16, device="cuda", dtype=torch.bfloat16)
    stream = torch.cuda.Stream()
    with torch.no_grad():
        with torch.cuda.stream(stream):
            grafted(input)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = grafted(input)[0]
        input.copy_(torch.randn_like(input))
        graph.replay()
        assert torch.equal(output, grafted(input)[0])


def test_sums_of_few_terms_are_as_exact_as_in_float():
    # The messages of a firing cell are large, and so are the terms that cancel in the gradient of weight_hh.
    cell = Cell(cells.firing, gates=1, states=1, message=torch.tanh, output=torch.tanh)
    report = torchgraft.check(Recurrence("on_gpu::firing", cell).gradients, device="cuda", properties=["value"])
    assert report.passed, str(report)
