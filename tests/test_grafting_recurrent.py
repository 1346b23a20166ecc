"""graft(model) on PyTorch's LSTM, GRU and RNN: the results and gradients of the layers as they were, on recurrences."""

import copy
import gc
import io
import pickle
import re
import types
import weakref

import pytest
import torch
import torch.nn.utils.parametrize as parametrize
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import torchgraft
from torchgraft import graft, graft_report, ungraft
from torchgraft.nn.grafting import measuring, recurrent
from torchgraft.nn.grafting.calls import give

FEATURES, UNITS, STEPS, BATCH = 5, 7, 9, 4
KINDS = {
    "LSTM": nn.LSTM,
    "GRU": nn.GRU,
    "RNN of tanh": nn.RNN,
    "RNN of relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


class Residual(nn.GRU):
    """A subclass that does something of its own, and has its base do the rest."""

    def forward(self, input, hx=None):
        output, last = super().forward(torch.relu(input), hx)
        return output + input.mean(-1, keepdim=True), last


class Kept(nn.LSTM):
    """A subclass that computes as its base does."""


class Again(nn.GRU):
    """A subclass whose base is computed again in the pass back."""

    def forward(self, input, hx=None):
        return checkpoint(super().forward, input, hx, use_reentrant=False)


class Apart(nn.GRU):
    """A subclass that does not call its base."""

    def forward(self, input, hx=None):
        return input, hx


def values(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def pair(kind, dtype=torch.float64, **options):
    """A layer that is grafted, and its copy that is not."""
    torch.manual_seed(0)
    theirs = KINDS[kind](FEATURES, UNITS, dtype=dtype, **options)
    return graft(copy.deepcopy(theirs)), theirs


def flat(results):
    output, last = results
    output = output.data if isinstance(output, PackedSequence) else output
    return [output, *(last if isinstance(last, tuple) else [last])]


def run(layer, input, *hx):
    """The results of a call, and the gradients of all that takes part."""
    torch.manual_seed(0)
    results = flat(layer(input, *hx))
    data = input.data if isinstance(input, PackedSequence) else input
    leaves = [each for each in (data, *layer.parameters()) if each.requires_grad]
    return results, torch.autograd.grad([each.square().sum() for each in results], leaves)


def assert_same(ours, theirs, input, *hx, **tolerances):
    found, expected = (run(layer, input, *hx) for layer in (ours, theirs))
    torch.testing.assert_close(found, expected, **tolerances)
    assert [each.stride() for each in found[0]] == [each.stride() for each in expected[0]]


def states(kind, *shape, dtype=torch.float64):
    made = [values(*shape, seed=seed, dtype=dtype) for seed in (5, 6)]
    return tuple(made) if kind == "LSTM" else made[0]


@pytest.fixture
def served(monkeypatch):
    """The names of the networks that ran on recurrences."""
    names = []
    run_layers = recurrent.run_layers

    def noted(kind, *arguments):
        names.append(kind.state_names)
        return run_layers(kind, *arguments)

    monkeypatch.setattr(recurrent, "run_layers", noted)
    return names


def operators_of(function):
    """The recurrences that a function calls, and PyTorch's own layers."""
    names = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.namespace == "torchgraft_recurrences":
                names.append(func._opname.strip("_"))
            return func(*args, **(kwargs or {}))

    with Listening():
        function()
    return names


@every_kind
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"num_layers": 2, "bidirectional": True},
        {"num_layers": 3, "bias": False, "batch_first": True},
        {"bidirectional": True, "bias": False},
    ],
    ids=str,
)
def test_values_and_gradients_are_those_of_the_layer(kind, options, served):
    ours, theirs = pair(kind, **options)
    lead = (BATCH, STEPS) if options.get("batch_first") else (STEPS, BATCH)
    rows = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))
    input, alone = values(*lead, FEATURES).requires_grad_(), values(STEPS, FEATURES)
    assert_same(ours, theirs, input)
    assert_same(ours, theirs, input, states(kind, rows, BATCH, UNITS))
    assert_same(ours, theirs, alone)
    assert_same(ours, theirs, alone, states(kind, rows, UNITS))
    assert len(served) == 4


@every_kind
@pytest.mark.parametrize("is_sorted", [True, False])
def test_packed_sequences(kind, is_sorted, served):
    ours, theirs = pair(kind, num_layers=2, bidirectional=True)
    lengths = [9, 4, 4, 1] if is_sorted else [4, 9, 1, 4]
    packed = pack_padded_sequence(values(STEPS, BATCH, FEATURES), torch.tensor(lengths), enforce_sorted=is_sorted)
    assert_same(ours, theirs, packed)
    assert_same(ours, theirs, packed, states(kind, 4, BATCH, UNITS))
    assert len(served) == (0 if "RNN" in kind else 2)
    # A piece of equally many sequences is a call of its own: an example decides where that pays.
    give(ungraft(ours), measured=True)
    served.clear()
    assert_same(ours, theirs, packed)
    with torch.no_grad():
        assert torch.equal(ours(packed)[0].batch_sizes, packed.batch_sizes)
        assert len(served) == 2
        graft(ungraft(ours))(packed)
        assert len(served) == 2


@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes_are_rounded_once(kind, dtype, served):
    ours, theirs = pair(kind, dtype)
    input = values(STEPS, BATCH, FEATURES, dtype=dtype)
    found, expected = run(ours, input), run(theirs.double(), input.double())
    assert len(served) == 1
    rounding = (16 if dtype == torch.float32 else 2) * torch.finfo(dtype).eps
    # A gradient of 2 * output has the rounding of the output.
    for results, exact, more in zip(found, expected, (1, 4), strict=True):
        for one, other in zip(results, exact, strict=True):
            assert one.dtype == dtype
            torch.testing.assert_close(one.double(), other, rtol=0, atol=more * rounding * other.abs().max().item())


@every_kind
def test_dropout_drops_what_the_layer_drops(kind):
    ours, theirs = pair(kind, num_layers=2, dropout=0.5)
    input = values(STEPS, BATCH, FEATURES)
    assert_same(ours, theirs, input)
    assert not torch.equal(ours(input)[0], ours(input)[0])
    assert_same(ours.eval(), theirs.eval(), input)
    assert torch.equal(ours(input)[0], ours(input)[0])


@every_kind
def test_autocast_on_a_cpu_keeps_the_dtypes_of_pytorch(kind, served):
    ours, theirs = pair(kind, torch.float32)
    input = values(STEPS, BATCH, FEATURES, dtype=torch.float32)
    packed = pack_sequence([input[:, 0], input[:9, 1]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for given in (input, packed):
            try:
                wanted = flat(theirs(given))
            except RuntimeError as error:
                # oneDNN has no LSTM in bfloat16 for some processors, and PyTorch no other.
                with pytest.raises(RuntimeError, match=re.escape(str(error))):
                    ours(given)
                continue
            for found, expected in zip(flat(ours(given)), wanted, strict=True):
                assert found.dtype == expected.dtype
                assert torch.equal(found, expected)
        assert not served
        low = flat(ours(input.bfloat16()))
    assert all(each.dtype == torch.bfloat16 for each in low)
    torch.testing.assert_close(low[0].float(), theirs(input)[0], rtol=0.03, atol=0.03)
    assert len(served) == 1


@every_kind
def test_a_layer_stays_what_it_is(kind, served):
    torch.manual_seed(0)
    layer = KINDS[kind](FEATURES, UNITS, num_layers=2)
    before, words, state, plain = dict(vars(layer)), repr(layer), list(layer.state_dict()), type(layer)
    input = values(STEPS, BATCH, FEATURES, dtype=torch.float32)
    expected = layer(input)
    assert graft(graft(layer)) is layer
    assert (type(layer), repr(layer), list(layer.state_dict())) == (plain, words, state)
    torch.testing.assert_close(layer(input), expected)
    assert len(served) == 1
    report = graft_report(layer)
    assert (report.grafted, report.recurrent) == (("",), ("",))
    assert ungraft(layer) is layer
    assert vars(layer) == before
    torch.testing.assert_close(layer(input), expected, rtol=0, atol=0)
    assert len(served) == 1
    assert graft_report(layer).graftable == ("",)


def by_file(layer):
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda each: pickle.loads(pickle.dumps(each)), "torch.save": by_file}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_copies_stay_grafted_and_are_their_own(make, served):
    ours, theirs = pair("GRU")
    other = make(ours)
    input = values(STEPS, BATCH, FEATURES)
    with torch.no_grad():
        ours.weight_hh_l0.zero_()
    torch.testing.assert_close(other(input), theirs(input))
    assert len(served) == 1
    assert graft_report(other).grafted == ("",)
    assert vars(ungraft(other)).keys() == vars(theirs).keys()


def test_a_replica_has_weights_of_its_own(served):
    ours, _ = pair("GRU")
    replica = ours._replicate_for_data_parallel()
    assert replica.forward._layer() is replica
    torch.testing.assert_close(replica(values(STEPS, BATCH, FEATURES)), ours(values(STEPS, BATCH, FEATURES)))
    assert len(served) == 2


def test_a_layer_is_freed_as_soon_as_nobody_holds_it():
    gc.disable()
    try:
        for kind in KINDS:
            layer, _ = pair(kind)
            layer(values(STEPS, BATCH, FEATURES))
            gone = weakref.ref(layer)
            del layer
            assert gone() is None, kind
    finally:
        gc.enable()


def test_hooks_run_and_a_layer_may_move(served):
    ours, theirs = pair("GRU", torch.float32)
    seen = []
    ours.register_forward_pre_hook(lambda module, arguments: seen.append("before"))
    ours.register_forward_hook(lambda module, arguments, result: seen.append("after"))
    input = values(STEPS, BATCH, FEATURES)
    torch.testing.assert_close(ours.double()(input), theirs.double()(input))
    assert seen == ["before", "after"]
    assert served
    assert ours.to("meta")(input.to("meta"))[0].is_meta


@pytest.mark.parametrize("graft_first", [True, False])
def test_parametrised_weights(graft_first, served):
    torch.manual_seed(0)
    theirs = nn.GRU(FEATURES, UNITS, dtype=torch.float64)
    ours = copy.deepcopy(theirs)
    if graft_first:
        graft(ours)
    for layer in (ours, theirs):
        torch.nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    graft(ours)
    for _ in range(2):
        assert_same(ours, theirs, values(STEPS, BATCH, FEATURES))
        with torch.no_grad():
            for layer in (ours, theirs):
                layer.parametrizations.weight_hh_l0.original0.mul_(2)
    assert len(served) == 2
    for layer in (ours, theirs):
        parametrize.remove_parametrizations(layer, "weight_hh_l0")
    torch.testing.assert_close(ours(values(STEPS, BATCH, FEATURES)), theirs(values(STEPS, BATCH, FEATURES)))
    assert type(ours) is nn.GRU
    assert len(served) == 3


@pytest.mark.parametrize("kind", [Residual, Kept])
def test_subclasses(kind, served):
    theirs = kind(FEATURES, UNITS, dtype=torch.float64, batch_first=True)
    ours = graft(copy.deepcopy(theirs))
    assert_same(ours, theirs, values(BATCH, STEPS, FEATURES).requires_grad_())
    assert len(served) == 1
    ungraft(ours)
    assert_same(ours, theirs, values(BATCH, STEPS, FEATURES), rtol=0, atol=0)
    assert len(served) == 1


def test_what_is_left_and_why():
    replaced = nn.GRU(FEATURES, UNITS)
    replaced.forward = lambda input: input
    model = nn.ModuleDict(
        {
            "projected": nn.LSTM(FEATURES, UNITS, proj_size=3),
            "projected too": nn.LSTM(FEATURES, UNITS, proj_size=2),
            "replaced": replaced,
            "complex": nn.RNN(FEATURES, UNITS, dtype=torch.complex64),
            "ours": torchgraft.nn.GRU(FEATURES, UNITS),
            "apart": Apart(FEATURES, UNITS),
            "again": Again(FEATURES, UNITS),
            "base": nn.RNNBase("GRU", FEATURES, UNITS),
            "cell": nn.GRUCell(FEATURES, UNITS),
            "gru": nn.GRU(FEATURES, UNITS),
            "depthwise": nn.Conv2d(4, 4, 3, groups=4),
        }
    )
    assert graft_report(model).graftable == ("gru", "depthwise")
    assert str(graft_report(graft(model))).splitlines() == [
        "convolutions grafted: 1, left: 0",
        "recurrent layers grafted: 1, left: 8",
        "  grafted    gru, in calls where it pays",
        "  grafted    depthwise",
        "  left       projected and 1 more: it has a projection (proj_size), which mixes the units of a step",
        "  left       replaced: its forward was replaced: graft the model first, then replace it",
        "  left       complex: its weights have dtype torch.complex64",
        "  left       ours: its class is torchgraft's, and runs on torchgraft as it is",
        "  left       apart: its class has a forward pass of its own, which does not call PyTorch's",
        "  left       again: its forward pass may be computed again, from a checkpoint, where no scope is",
        "  left       base: its class is torch.nn.modules.rnn.RNNBase, which is no LSTM, GRU or RNN of PyTorch",
    ]
    assert str(graft_report(model["gru"])).startswith("recurrent layers grafted: 1, left: 0")


@every_kind
def test_errors_are_those_of_pytorch(kind):
    ours, theirs = pair(kind)
    wrong_states = torch.zeros(1, BATCH + 1, UNITS, dtype=torch.float64)
    for arguments in (
        (values(STEPS, BATCH, FEATURES + 1),),
        (values(FEATURES),),
        (values(STEPS, BATCH, FEATURES, dtype=torch.float32),),
        (values(0, BATCH, FEATURES),),
        (values(STEPS, BATCH, FEATURES), (wrong_states, wrong_states) if kind == "LSTM" else wrong_states),
    ):
        raised = []
        for layer in (ours, theirs):
            with pytest.raises((RuntimeError, ValueError)) as caught:
                layer(*arguments)
            raised.append((caught.type, str(caught.value)))
        assert raised[0] == raised[1]


class TestWhereItPays:
    """Each call decides, by what docs/recurrence.md has measured."""

    @pytest.mark.parametrize("recorded", [True, False])
    def test_an_lstm_of_one_dnn_with_a_small_output(self, served, recorded):
        ours, _ = pair("LSTM", torch.float32)
        steps = (1 << 16) // UNITS
        small, large = (values(count, 1, FEATURES, dtype=torch.float32) for count in (steps, steps + 1))
        with torch.set_grad_enabled(recorded):
            ours(large)
            assert len(served) == 0
            ours(small)
            ours.double()(large.double())
        assert len(served) == 2

    def test_an_example_decides_for_all_calls(self, served, monkeypatch):
        monkeypatch.setattr(measuring, "_time", lambda layer, call: (2.0, 1.0))
        layer = nn.LSTM(FEATURES, UNITS)
        large = values((1 << 16) // UNITS + 1, 1, FEATURES, dtype=torch.float32)
        with torch.no_grad():
            graft(layer, large)
            served.clear()
            for each in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
                each(large)
        assert len(served) == 3
        assert "grafted    (the model itself): 1000000.0 us, PyTorch's 2000000.0 us, for" in str(graft_report(layer))
        graft(ungraft(layer))
        with torch.no_grad():
            layer(large)
        assert len(served) == 3

    @pytest.mark.parametrize("units", [512, 513])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_bfloat16_and_few_units_on_a_gpu(self, units, dtype, monkeypatch):
        """Asked of tensors that say that they are on a GPU."""
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        weights = [types.SimpleNamespace(shape=shape) for shape in ((3 * units, 5), (3 * units, units))]
        input = types.SimpleNamespace(device=torch.device("cuda"), dtype=dtype, shape=(9, 2, 5))
        call = recurrent._Call(input, None, (), weights, False, 1, 0.0, True, False, False)
        pays = units == 512 and dtype == torch.bfloat16
        assert recurrent._pays("gru", call) == recurrent._pays("lstm", call) == pays
        assert not recurrent._pays("rnn_tanh", call)
        assert not recurrent._pays("gru", call._replace(num_layers=2))
        assert not recurrent._pays("gru", call._replace(bidirectional=True))

    def test_autocast_on_a_gpu_is_left_to_pytorch(self, monkeypatch):
        """Its results have float16 whatever the dtype of autocast is, because layers of cuDNN are cast to that."""
        monkeypatch.setattr(recurrent, "any_autocast", lambda: True)
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
        for dtype, is_served in ((torch.float32, False), (torch.bfloat16, False), (torch.float64, True)):
            with FakeTensorMode():
                input = torch.empty(9, 2, 5, dtype=dtype, device="cuda")
                call = recurrent._Call(input, None, (), [input], False, 1, 0.0, True, False, False)
                assert recurrent._is_served(call) == is_served

    def test_few_steps_are_left_to_pytorch(self, served):
        ours, theirs = pair("GRU", batch_first=True)
        assert_same(ours, theirs, values(9, 7, FEATURES), rtol=0, atol=0)
        assert not served
        assert_same(ours, theirs, values(1, 8, FEATURES))
        assert len(served) == 1

    def test_nothing_is_served_without_kernels(self, served, monkeypatch):
        ours, theirs = pair("GRU")
        monkeypatch.setattr(recurrent, "_devices", ["cuda"])
        assert_same(ours, theirs, values(STEPS, BATCH, FEATURES), rtol=0, atol=0)
        assert not served


class TestExample:
    """graft(model, example) times recurrent layers as it does convolutions."""

    def test_layers_that_gain_are_grafted(self, monkeypatch):
        calls = []

        def time(layer, call):
            calls.append(call.words)
            return 2.0, 1.0 if isinstance(layer, nn.GRU) else 3.0

        monkeypatch.setattr(measuring, "_time", time)
        model = nn.ModuleDict({"gru": nn.GRU(FEATURES, FEATURES), "lstm": nn.LSTM(FEATURES, UNITS)})
        model.forward = lambda input: model["lstm"](model["gru"](input)[0])
        graft(model, pack_sequence([torch.randn(3, FEATURES), torch.randn(2, FEATURES)]))
        packed = "float32 packed of 2 sequences of up to 3 steps, forward and backward"
        assert calls == [f"(5, 5) {packed}"] * 2
        report = graft_report(model)
        assert (report.grafted, list(report.left)) == (("gru",), ["lstm"])
        assert report.left["lstm"].startswith("it gains nothing: 3000000.0 us, PyTorch's 2000000.0 us, for (5, 5)")
        assert report.measured.keys() == {"gru", "lstm"}
        assert '"recurrent": ["gru", "lstm"]' in report.to_json()

    @pytest.mark.parametrize("packed", [True, False])
    def test_its_way_is_timed(self, packed, monkeypatch, served):
        monkeypatch.setattr(measuring, "_SECONDS", 1e-4)
        layer = Residual(FEATURES, UNITS) if not packed else nn.LSTM(FEATURES, UNITS)
        input = torch.randn(3, 2, FEATURES)
        graft(layer, pack_padded_sequence(input, [3, 1]) if packed else input)
        [measured] = graft_report(layer).measured.values()
        assert measured.pytorch > 0 < measured.torchgraft
        assert served
        assert all(parameter.grad is None for parameter in layer.parameters())


class Classifier(nn.Module):
    """Sorts texts, as many tutorials do."""

    def __init__(self, kind=nn.GRU):
        super().__init__()
        self.embedding = nn.Embedding(20, FEATURES)
        self.encoder = kind(FEATURES, UNITS, num_layers=2, dropout=0.3, bidirectional=True, batch_first=True)
        self.head = nn.Linear(4 * UNITS, 3)

    def forward(self, texts):
        output, _ = self.encoder(self.embedding(texts))
        return self.head(torch.cat((output.mean(1), output.amax(1)), -1))


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_a_classifier_trains_as_before(kind, served):
    torch.manual_seed(0)
    theirs = Classifier(kind)
    ours = graft(copy.deepcopy(theirs))
    texts = torch.randint(20, (8, 11))
    labels = texts[:, 0] % 3
    losses = []
    for model in (ours, theirs):
        torch.manual_seed(1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        losses.append([])
        for _ in range(25):
            loss = nn.functional.cross_entropy(model(texts), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=2e-3, atol=2e-3)
    assert losses[0][-1] < losses[0][0] / 3
    assert len(served) == 25
    fresh = Classifier(kind)
    fresh.load_state_dict(ours.state_dict())
    torch.testing.assert_close(fresh.eval()(texts), ours.eval()(texts))


@pytest.mark.filterwarnings("ignore:The tensor attributes .*_flat_weights:UserWarning")
class TestRecorded:
    """A model that is compiled, exported, traced or transformed."""

    texts = torch.randint(20, (4, 9), generator=torch.Generator().manual_seed(0))

    def test_a_compiler_leaves_the_layer_to_python_as_it_leaves_pytorchs(self, served):
        graphs = []

        def backend(module, example):
            graphs.append(module)
            return module.forward

        model = graft(Classifier()).eval()
        expected = model(self.texts)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=backend)
        torch.testing.assert_close(compiled(self.texts), expected)
        assert len(served) == 2
        # The sizes of a packed sequence are numbers, of which each would be compiled anew.
        layer = graft(nn.GRU(FEATURES, UNITS))
        compiled = torch.compile(layer, backend=backend)
        for lengths in ([9, 1], [10, 2, 2]):
            packed = pack_sequence([torch.randn(length, FEATURES) for length in lengths])
            torch.testing.assert_close(flat(compiled(packed)), flat(layer(packed)))
        assert not any("torchgraft" in str(each.graph) for each in graphs)

    @pytest.mark.parametrize("kind", [nn.LSTM, Residual])
    @torch._dynamo.config.patch(allow_rnn=True)
    def test_a_compiler_that_is_told_to_looks_into_it(self, kind):
        torch._dynamo.reset()
        layer = graft(kind(FEATURES, UNITS))
        input = torch.randn(STEPS, BATCH, FEATURES)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(run(compiled, input), run(layer, input))

    @pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
    def test_an_exported_program_holds_the_recurrence_for_all_sizes(self, kind):
        model = graft(Classifier(kind)).eval().requires_grad_(False)
        sizes = {0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO}
        program = torch.export.export(model, (self.texts,), dynamic_shapes=(sizes,))
        assert f"torchgraft_recurrences.{kind.__name__.lower()}" in str(program.graph)
        others = torch.randint(20, (5, 12))
        torch.testing.assert_close(program.module()(others), ungraft(model)(others))
        # After ungraft PyTorch's own operators are exported.
        program = torch.export.export(model, (self.texts,))
        assert "torchgraft" not in str(program.graph)

    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
    def test_jit(self):
        model = graft(Classifier()).eval()
        expected = model(self.texts)
        traced = torch.jit.trace(model, (self.texts,))
        torch.testing.assert_close(traced(self.texts), expected)
        torch.testing.assert_close(torch.jit.script(model)(self.texts), expected)
        assert graft_report(model).grafted == ()

    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
    def test_a_trace_leaves_packed_sequences_to_pytorch(self):
        class Padded(nn.Module):
            def __init__(self, layer):
                super().__init__()
                self.layer = layer

            def forward(self, input, lengths):
                output, _ = self.layer(pack_padded_sequence(input, lengths))
                return pad_packed_sequence(output, total_length=STEPS)[0]

        input, example, other = values(STEPS, 3, FEATURES), torch.tensor([STEPS, 5, 1]), torch.tensor([STEPS, 4, 2])
        model = Padded(nn.GRU(FEATURES, UNITS).double())
        expected = model(input, other)
        for measured in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(measuring, "_time", lambda layer, call: (2.0, 1.0))
                graft(model, (input, example)) if measured else graft(model)
            traced = torch.jit.trace(model, (input, example))
            torch.testing.assert_close(traced(input, other), expected)
            ungraft(model)

    def test_transforms(self, served):
        ours, theirs = pair("GRU")
        input = values(3, STEPS, BATCH, FEATURES)
        for function in (
            lambda layer: torch.func.jvp(lambda piece: layer(piece)[0], (input[0],), (input[1],)),
            lambda layer: torch.func.grad(lambda piece: layer(piece)[0].square().sum())(input[0]),
        ):
            torch.testing.assert_close(function(ours), function(theirs))
        assert not served
        doubled = {name: 2 * value for name, value in theirs.state_dict().items()}
        found, expected = (torch.func.functional_call(layer, doubled, (input[0],)) for layer in (ours, theirs))
        torch.testing.assert_close(found, expected)
        assert served

    def test_a_fake_or_traced_call(self):
        ours, theirs = pair("GRU")
        traced = torch.fx.symbolic_trace(nn.Sequential(ours))
        input = values(STEPS, BATCH, FEATURES)
        torch.testing.assert_close(traced(input), theirs(input))
        assert operators_of(lambda: ours(input)) == ["gru"]
        assert operators_of(lambda: ungraft(ours)(input)) == []
