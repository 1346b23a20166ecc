"""LSTM, GRU and RNN: PyTorch's layers, with the same parameters and results, on torchgraft's recurrences."""

import copy
import pickle
import random
import subprocess
import sys
import warnings
from itertools import product

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

import recurrent_kernels
import torchgraft
from torchgraft import nn

FEATURES, UNITS, STEPS, BATCH = 5, 7, 6, 4
KINDS = {
    "LSTM": (nn.LSTM, torch.nn.LSTM, {}),
    "GRU": (nn.GRU, torch.nn.GRU, {}),
    "RNN of tanh": (nn.RNN, torch.nn.RNN, {}),
    "RNN of relu": (nn.RNN, torch.nn.RNN, {"nonlinearity": "relu"}),
}
every_kind = pytest.mark.parametrize("kind", list(KINDS))


def pair(kind, dtype=torch.float64, **options):
    """Our layer and PyTorch's, with the same parameters."""
    ours, theirs, given = KINDS[kind]
    ours, theirs = (each(FEATURES, UNITS, dtype=dtype, **given, **options) for each in (ours, theirs))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def values(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def states(kind, *shape):
    made = [values(*shape, seed=seed) for seed in (5, 6)]
    return tuple(made) if kind == "LSTM" else made[0]


def flat(results):
    output, last = results
    output = output.data if isinstance(output, torch.nn.utils.rnn.PackedSequence) else output
    return [output, *(last if isinstance(last, tuple) else [last])]


def assert_same(ours, theirs, *arguments, tolerance=1e-12):
    """The same results, strides and gradients of all parameters and of the input."""
    torch.manual_seed(0)
    found = flat(ours(*arguments))
    torch.manual_seed(0)
    expected = flat(theirs(*arguments))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        assert one.shape == other.shape
    data = arguments[0] if isinstance(arguments[0], torch.Tensor) else arguments[0].data
    both = []
    for layer, results in ((ours, found), (theirs, expected)):
        leaves = [*layer.parameters(), *([data] if data.requires_grad else [])]
        both.append(torch.autograd.grad([each.square().sum() for each in results], leaves))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=10 * tolerance, atol=10 * tolerance)


@every_kind
@pytest.mark.parametrize(
    ("num_layers", "bias", "batch_first", "bidirectional", "given"),
    [
        each
        for place, each in enumerate(product((1, 2, 3), (True, False), (True, False), (True, False), (True, False)))
        if place % 3 == 0
    ],
)
def test_a_layer_is_that_of_pytorch(kind, num_layers, bias, batch_first, bidirectional, given):
    options = {"num_layers": num_layers, "bias": bias, "batch_first": batch_first, "bidirectional": bidirectional}
    ours, theirs = pair(kind, **options)
    lead = (BATCH, STEPS) if batch_first else (STEPS, BATCH)
    directions = num_layers * (2 if bidirectional else 1)
    hx = (states(kind, directions, BATCH, UNITS),) if given else ()
    assert_same(ours, theirs, values(*lead, FEATURES).requires_grad_(), *hx)
    # Without a batch.
    alone = (states(kind, directions, UNITS),) if given else ()
    assert_same(ours, theirs, values(STEPS, FEATURES).requires_grad_(), *alone)


@every_kind
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_a_packed_sequence(kind, is_sorted, given):
    ours, theirs = pair(kind, num_layers=2, bidirectional=True)
    lengths = [6, 4, 4, 1] if is_sorted else [4, 6, 1, 4]
    packed = pack_padded_sequence(values(STEPS, BATCH, FEATURES), torch.tensor(lengths), enforce_sorted=is_sorted)
    hx = (states(kind, 4, BATCH, UNITS),) if given else ()
    assert_same(ours, theirs, packed, *hx)
    found, expected = (pad_packed_sequence(layer(packed, *hx)[0]) for layer in (ours, theirs))
    torch.testing.assert_close(found[0], expected[0])
    assert found[1].tolist() == lengths


@every_kind
def test_dropout_lies_between_layers_and_only_in_training(kind):
    ours, theirs = pair(kind, num_layers=2, dropout=0.5)
    input = values(STEPS, BATCH, FEATURES)
    assert_same(ours, theirs, input)
    assert_same(ours.eval(), theirs.eval(), input)
    assert torch.equal(ours(input)[0], ours(input)[0])


@every_kind
def test_drawn_layers(kind):
    draw = random.Random(kind)
    for seed in range(40):
        ours, theirs, given = KINDS[kind]
        features, units, steps, batch = (draw.choice((1, 2, 3, 15, 16, 17, 33, 49)) for _ in range(4))
        options = {
            "num_layers": draw.choice((1, 2)),
            "bias": draw.random() < 0.8,
            "batch_first": draw.random() < 0.5,
            "bidirectional": draw.random() < 0.5,
            "dtype": draw.choice((torch.float32, torch.float64)),
        }
        ours, theirs = (each(features, units, **given, **options) for each in (ours, theirs))
        theirs.load_state_dict(ours.state_dict())
        input = values(steps, batch, features, dtype=options["dtype"], seed=seed).requires_grad_()
        assert_same(ours, theirs, input, tolerance=1e-12 if options["dtype"] == torch.float64 else 2e-4)


@every_kind
def test_it_has_pytorchs_state_dict_and_words(kind):
    ours, theirs = pair(kind, num_layers=2, bidirectional=True)
    assert isinstance(ours, torch.nn.RNNBase)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    input = values(STEPS, BATCH, FEATURES)
    expected = ours(input)[0]
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(other(input)[0], expected)
        assert type(other) is type(ours)


@every_kind
def test_its_kernel_runs_and_not_its_loop(kind):
    ours, _ = pair(kind, dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(values(STEPS, BATCH, FEATURES, dtype=torch.float32))[0].sum().backward()
    names = {"LSTM": "lstm", "GRU": "gru", "RNN of tanh": "rnn_tanh", "RNN of relu": "rnn_relu"}
    assert not any(
        each.operator.startswith(f"torchgraft_recurrences::{names[kind]}") for each in torchgraft.fallbacks()
    )


@every_kind
def test_it_compiles_and_exports(kind):
    ours, _ = pair(kind, dtype=torch.float32, num_layers=2, bidirectional=True)
    input = values(STEPS, BATCH, FEATURES, dtype=torch.float32)
    expected = flat(ours(input))
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(ours, (input,), strict=False).module()
    for function in (compiled, exported):
        for one, other in zip(flat(function(input)), expected, strict=True):
            torch.testing.assert_close(one, other)
    grads = [torch.autograd.grad(each(input)[0].square().sum(), ours.parameters()) for each in (compiled, ours)]
    torch.testing.assert_close(*grads)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_and_halves(kind, dtype):
    ours, _ = pair(kind, dtype=torch.float32)
    input = values(STEPS, BATCH, FEATURES, dtype=torch.float32)
    expected = ours(input)[0]
    with torch.autocast("cpu", dtype=dtype):
        found = ours(input)[0]
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0.03, atol=0.03)
    found = ours.to(dtype)(input.to(dtype))[0]
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=0.03, atol=0.03)


def test_second_derivatives():
    ours, theirs = pair("GRU")
    input = values(STEPS, BATCH, FEATURES).requires_grad_()
    seconds = []
    for layer in (ours, theirs):
        [grad] = torch.autograd.grad(layer(input)[0].square().sum(), input, create_graph=True)
        seconds.append(torch.autograd.grad(grad.square().sum(), [input, *layer.parameters()]))
    for one, other in zip(*seconds, strict=True):
        torch.testing.assert_close(one, other)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="RNN: nonlinearity must be 'tanh' or 'relu', got 'gelu'"):
        nn.RNN(FEATURES, UNITS, nonlinearity="gelu")
    with pytest.raises(ValueError, match="hidden_size"):
        nn.GRU(FEATURES, 0)
    with pytest.raises(ValueError, match=r"LSTM: proj_size must be 0, got 3: .* use torch\.nn\.LSTM"):
        nn.LSTM(FEATURES, UNITS, proj_size=3)
    lstm, gru = nn.LSTM(FEATURES, UNITS), nn.GRU(FEATURES, UNITS)
    input = torch.randn(STEPS, BATCH, FEATURES)
    with pytest.raises(ValueError, match=r"LSTM: h_0 must be \(1, 4, 7\), got \(1, 3, 7\)"):
        lstm(input, (torch.zeros(1, 3, UNITS), torch.zeros(1, BATCH, UNITS)))
    with pytest.raises(TypeError, match=r"LSTM: hx must be a pair \(h_0, c_0\), got Tensor"):
        lstm(input, torch.zeros(1, BATCH, UNITS))
    with pytest.raises(TypeError, match="GRU: hx must be a Tensor, got tuple"):
        gru(input, (torch.zeros(1, BATCH, UNITS), torch.zeros(1, BATCH, UNITS)))
    with pytest.raises(ValueError, match="GRU: input must have 5 features, got 3"):
        gru(torch.randn(STEPS, BATCH, 3))
    with pytest.raises(ValueError, match="GRU: input must have two or three dimensions"):
        gru(torch.randn(FEATURES))
    with pytest.raises(ValueError, match="input must have at least one step"):
        gru(torch.randn(0, BATCH, FEATURES))
    with pytest.raises(TypeError, match="input"):
        gru([1.0])
    with pytest.raises(TypeError, match=r"dtype|float64"):
        gru(input.double())
    with pytest.raises(TypeError, match=r"torch\.jit\.script cannot compile the layer"):
        torch.jit.script(gru)


def test_a_traced_graph_computes_the_same():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(FEATURES, UNITS, num_layers=2, dropout=0.5)

        def forward(self, input):
            return self.layer(input)[0]

    model = Model()
    traced, input = torch.fx.symbolic_trace(model), torch.randn(STEPS, BATCH, FEATURES)
    assert not torch.equal(traced(input), traced(input))
    torch.testing.assert_close(traced.eval()(input), model.eval()(input))


def test_ragged_sequences_are_each_alone():
    ours = nn.LSTM(FEATURES, UNITS, bidirectional=True, dtype=torch.float64)
    pieces = [values(length, FEATURES, seed=length) for length in (5, 3, 2)]
    output, _ = pad_packed_sequence(ours(pack_sequence(pieces))[0])
    for row, piece in enumerate(pieces):
        torch.testing.assert_close(output[: len(piece), row], ours(piece)[0])


def test_importing_the_layers_traces_no_cell():
    code = "import sys, torchgraft.nn; assert 'torchgraft.recurrence' not in sys.modules; torchgraft.nn.LSTM"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_kernels_in_the_libraries_are_those_of_the_cells():
    assert recurrent_kernels.stale(write=False) == []
