"""A recurrence: an operator made of a cell, against the loop that it means, and against PyTorch's own layers."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence

import cells
import torchgraft
from torchgraft import PerformanceWarning, building
from torchgraft.checking.subject import find_subjects, subject_of
from torchgraft.finding.places import declaring_modules
from torchgraft.operator import FLOATING
from torchgraft.recurrence import Cell, Recurrence, sequence

STEPS, BATCH, FEATURES, UNITS = 5, 3, 4, 9
# Two compiled recurrences stand for all: one cell needs its gates apart, the other has parameters and two states.
COMPILED = ("gru", "peephole")


@pytest.fixture(scope="module")
def recurrences(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHGRAFT_CACHE", str(tmp_path_factory.getbasetemp() / "recurrence cache"))
        return {name: Recurrence(f"recurrences::{name}", cells.make(name)) for name in COMPILED}


def drawn(cell, dtype=torch.float64, rows=(STEPS, BATCH), seed=0):
    """The arguments of a call, by name."""
    generator = torch.Generator().manual_seed(seed)

    def values(*shape):
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.5).to(dtype).requires_grad_()

    gates, batch = cell.gates * UNITS, rows[-1] if len(rows) > 1 else BATCH
    return {
        "input": values(*rows, FEATURES),
        "weight_ih": values(gates, FEATURES),
        "weight_hh": values(gates, UNITS),
        "bias": values(gates),
        "initial": [values(batch, UNITS) for _ in range(cell.states)],
        "message_bias": values(gates),
        "parameters": [values(UNITS) for _ in range(cell.parameters)],
    }


def leaves(arguments):
    return [each for value in arguments.values() for each in (value if isinstance(value, list) else [value])]


def flat(results):
    output, final = results
    return [output, *(final if isinstance(final, tuple) else [final])]


def by_steps(cell, given, reverse=False, lengths=None):
    """The output and the final states, one step and one sequence at a time."""
    outputs, finals = [], []
    for row in range(given["input"].shape[1]):
        states = [each[row : row + 1] for each in given["initial"]]
        length = given["input"].shape[0] if lengths is None else lengths[row]
        output = [None] * length
        for t in reversed(range(length)) if reverse else range(length):
            gates = given["input"][t, row : row + 1] @ given["weight_ih"].T + given["bias"]
            message_gates = cell.message(states) @ given["weight_hh"].T + given["message_bias"]
            split = (each.chunk(cell.gates, -1) for each in (gates, message_gates))
            states = cell.step(*split, states, given["parameters"])
            output[t] = cell.output(states)[0]
        outputs.append(torch.stack(output))
        finals.append(states)
    return outputs, [torch.cat(each) for each in zip(*finals, strict=True)]


def assert_same(found, expected, tolerance=1e-13):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", COMPILED)
def test_a_sequence_is_its_steps_and_so_are_its_gradients(recurrences, name, reverse):
    recurrence = recurrences[name]
    given = drawn(recurrence.cell)
    outputs, finals = by_steps(recurrence.cell, given, reverse)
    expected = [torch.stack(outputs, 1), *finals]
    initial = given["initial"][0] if recurrence.cell.states == 1 else given["initial"]
    found = flat(recurrence(**{**given, "initial": initial}, reverse=reverse))
    assert_same(found, expected)
    grads = [torch.randn_like(each) for each in found]
    assert_same(torch.autograd.grad(found, leaves(given), grads), torch.autograd.grad(expected, leaves(given), grads))
    assert not any(each.operator.startswith("recurrences::") for each in torchgraft.fallbacks())


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", COMPILED)
def test_a_packed_sequence_is_its_sequences(recurrences, name, reverse):
    recurrence, lengths = recurrences[name], [5, 5, 2, 1]
    given = drawn(recurrence.cell, rows=(5, 4))
    packed = pack_padded_sequence(given["input"], torch.tensor(lengths))
    outputs, finals = by_steps(recurrence.cell, given, reverse, lengths)
    expected = [pack_sequence(outputs).data, *finals]
    arguments = {**given, "input": packed.data}
    found = flat(recurrence(**arguments, batch_sizes=packed.batch_sizes, reverse=reverse))
    assert_same(found, expected)
    grads = [torch.randn_like(each) for each in found]
    assert_same(torch.autograd.grad(found, leaves(given), grads), torch.autograd.grad(expected, leaves(given), grads))


def test_a_gru_is_that_of_pytorch(recurrences):
    layer = torch.nn.GRU(FEATURES, UNITS, dtype=torch.float64)
    input = torch.randn(STEPS, BATCH, FEATURES, dtype=torch.float64)
    weights = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0
    output, final = recurrences["gru"](input, *weights, message_bias=layer.bias_hh_l0)
    assert_same((output, final[None]), layer(input))
    ours = torch.autograd.grad(output.square().sum(), layer.parameters())
    assert_same(ours, torch.autograd.grad(layer(input)[0].square().sum(), layer.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_dtypes_are_rounded_once(recurrences, dtype):
    recurrence = recurrences["peephole"]
    given = drawn(recurrence.cell, dtype, rows=(40, BATCH))
    exact = {
        name: [each.double() for each in value] if isinstance(value, list) else value.double()
        for name, value in given.items()
    }
    found, expected = flat(recurrence(**given)), flat(recurrence(**exact))
    assert {each.dtype for each in found} == {dtype}
    # With steps that were rounded each, errors would be several times as large.
    epsilon = torch.finfo(dtype).eps
    for one, other in zip(found, expected, strict=True):
        bound = (epsilon if dtype != torch.float32 else 64 * epsilon) * other.abs().clamp(min=1)
        assert ((one.double() - other).abs() <= bound).all()


def test_the_states_before_the_first_step_are_zero_unless_given(recurrences):
    recurrence = recurrences["peephole"]
    given = drawn(recurrence.cell)
    zeros = [torch.zeros_like(each) for each in given["initial"]]
    assert_same(flat(recurrence(**{**given, "initial": None})), flat(recurrence(**{**given, "initial": zeros})), 0)
    packed = pack_padded_sequence(given["input"], torch.tensor([5, 4, 1]))
    arguments = {**given, "input": packed.data, "batch_sizes": packed.batch_sizes}
    assert_same(
        flat(recurrence(**{**arguments, "initial": None})), flat(recurrence(**{**arguments, "initial": zeros})), 0
    )


def test_a_second_derivative_is_that_of_the_steps(recurrences):
    recurrence = recurrences["gru"]
    given = drawn(recurrence.cell, rows=(3, 2))
    tensors = [given[name] for name in ("input", "weight_ih", "weight_hh", "bias")]

    def run(*values):
        output, final = recurrence(*values, given["initial"][0], message_bias=given["message_bias"])
        return output, final

    assert torch.autograd.gradgradcheck(run, tensors, atol=1e-6)


def test_it_compiles_and_is_mapped_over_a_batch(recurrences):
    recurrence = recurrences["gru"]
    given = drawn(recurrence.cell)
    arguments = [given[name].detach() for name in ("input", "weight_ih", "weight_hh", "bias")]
    compiled = torch.compile(lambda *values: recurrence(*values), fullgraph=True, backend="aot_eager")
    assert_same(flat(compiled(*arguments)), flat(recurrence(*arguments)), 0)
    given = [each.requires_grad_() for each in arguments]
    found = [torch.autograd.grad(run(*given)[0].square().sum(), given) for run in (compiled, recurrence)]
    assert_same(*found, 0)
    inputs = torch.stack([arguments[0], 2 * arguments[0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        output, _ = torch.vmap(lambda input: recurrence(input, *arguments[1:]))(inputs)
    assert_same([output[1]], [recurrence(inputs[1], *arguments[1:])[0]])


def test_a_call_that_makes_no_sense_is_refused(recurrences):
    gru, peephole = recurrences["gru"], recurrences["peephole"]
    given = drawn(gru.cell)
    tensors = [given[name] for name in ("input", "weight_ih", "weight_hh")]
    with pytest.raises(TypeError, match="recurrences::gru: input must be a Tensor, got"):
        gru([1.0], *tensors[1:])
    with pytest.raises(ValueError, match="input must have at least one step"):
        gru(tensors[0][:0], *tensors[1:])
    with pytest.raises(ValueError, match="weight_ih"):
        gru(tensors[0], tensors[1][:-1], tensors[2])
    with pytest.raises(ValueError, match=r"initial must be 1 state \(h\), got 2"):
        gru(*tensors, None, [given["initial"][0]] * 2)
    with pytest.raises(ValueError, match=r"parameters must be 3 \(p_i, p_f, p_o\), got 0"):
        peephole(**{**drawn(peephole.cell), "parameters": []})
    for wrong in (None, 5, given["initial"][0]):
        with pytest.raises(TypeError, match=r"parameters must be a list or tuple .*, got (NoneType|int|Tensor)"):
            peephole(**{**drawn(peephole.cell), "parameters": wrong})
    with pytest.raises(TypeError, match="initial must be a list or tuple of tensors"):
        gru(*tensors, None, 5)
    with pytest.raises(ValueError, match="batch_sizes must be positive and never grow"):
        gru(*tensors, batch_sizes=torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="reverse must be a bool"):
        gru(*tensors, reverse=2)
    with pytest.raises(TypeError, match="bias"):
        gru(*tensors, [0.0])
    of_peephole = drawn(peephole.cell)
    bias = of_peephole["bias"]
    for wrong, error, said in (
        (bias[:1], ValueError, r"bias and message_bias must have the same shape and dtype, got \(1,\) of"),
        (bias.half(), ValueError, "got .* of torch.float16 and .* of torch.float64"),
        (0.5, TypeError, "bias must be a Tensor"),
    ):
        with pytest.raises(error, match=said):
            peephole(**{**of_peephole, "bias": wrong})


@pytest.mark.parametrize("name", ["lltm", "firing", "slstm"])
def test_without_a_compiler_the_loop_serves_and_warns(name, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHGRAFT_JIT", "0")
    with pytest.warns(PerformanceWarning, match=f"alone::{name} runs as a loop in Python, .* TORCHGRAFT_JIT=0 forbids"):
        recurrence = Recurrence(f"alone::{name}", cells.make(name))
    given = drawn(recurrence.cell)
    if name == "slstm":
        given["initial"][2] = (given["initial"][2].detach().abs() + 0.5).requires_grad_()
    given["input"].requires_grad_()
    outputs, finals = by_steps(recurrence.cell, given)
    with pytest.warns(PerformanceWarning, match="on its reference, not on a kernel"):
        found = flat(recurrence(**given))
    expected = [torch.stack(outputs, 1), *finals]
    assert_same(found, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PerformanceWarning)
        ours = torch.autograd.grad([each.sum() for each in found], leaves(given))
    assert_same(ours, torch.autograd.grad([each.sum() for each in expected], leaves(given)))


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
def test_a_name_that_another_cell_got_since_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHGRAFT_JIT", "0")

    def leaky(rate):
        def step(gates, message_gates, h):
            return h + rate * torch.tanh(gates[0] + message_gates[0])

        return Recurrence("alone::leaky", Cell(step, gates=1, states=1))

    slow, slow_again = leaky(0.1), leaky(0.1)
    arguments = torch.randn(2, 1, 3), torch.randn(4, 3), torch.randn(4, 4)
    assert_same(flat(slow(*arguments)), flat(slow_again(*arguments)), 0)
    fast = leaky(0.5)
    fast(*arguments)
    for each in (slow, slow_again):
        with pytest.raises(RuntimeError, match="alone::leaky was declared again with another cell"):
            each(*arguments)


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
def test_compilers_trace_the_gradients_and_their_gradients(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHGRAFT_JIT", "0")
    recurrence = Recurrence("alone::traced", cells.make("gru"))
    given = drawn(recurrence.cell)
    tensors = [given["input"], given["weight_ih"], given["weight_hh"], given["initial"][0]]
    kept = recurrence.operator.reference(*tensors[:3], None, None, tensors[3], False, True)[2:]
    incoming = torch.randn(STEPS, BATCH, UNITS, dtype=torch.float64), torch.randn(BATCH, UNITS, dtype=torch.float64)
    arguments = [each.detach().requires_grad_() for each in (*tensors, *kept, *incoming)]

    def run(*arguments):
        return recurrence.gradients(*arguments, False, True, True, True, True)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    found = [
        torch.autograd.grad(sum(each.square().sum() for each in function(*arguments)), arguments)
        for function in (compiled, run)
    ]
    assert_same(*found, 0)


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
def test_a_check_finds_a_recurrence_by_its_name(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHGRAFT_JIT", "0")
    (tmp_path / "declares_one.py").write_text(
        "import cells\nfrom torchgraft.recurrence import Recurrence\n"
        "leaky = Recurrence('found::leaky', cells.make('leaky'))\n"
    )
    assert declaring_modules(tmp_path) == [tmp_path / "declares_one.py"]
    monkeypatch.syspath_prepend(tmp_path)
    [subject] = find_subjects(["declares_one:leaky"])
    assert subject.operator.qualified_name == "found::leaky"
    # A file, by the variable that holds the recurrence.
    (tmp_path / "declares_another.py").write_text(
        "import cells\nfrom torchgraft.recurrence import Recurrence\n"
        "variable = Recurrence('found::peephole', cells.make('peephole'))\n"
    )
    for name in ("variable", "peephole"):
        [subject] = find_subjects([f"{tmp_path}/declares_another.py:{name}"])
        assert subject.operator.qualified_name == "found::peephole"


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
def test_samples_give_states_and_parameters_what_they_may_be(monkeypatch):
    monkeypatch.setenv("TORCHGRAFT_JIT", "0")
    ranged = Recurrence("ranged::slstm", cells.make("slstm"), ranges={"n": (0.5, 2.0)})
    for operator in (ranged.operator, ranged.gradients):
        names = [each.name for each in operator.declaration.arguments]
        for sample in subject_of(operator).samples.table:
            made = dict(zip(names, sample.make("cpu", torch.float64), strict=False))
            for name in ("initial_n", *["states"] * ("states" in made)):
                assert ((made[name] >= 0.5) & (made[name] <= 2)).all(), (sample.name, name)
            assert made["initial_c"].numel() < 9 or (made["initial_c"] < 0.5).any()
    ranged = Recurrence("ranged::peephole", cells.make("peephole"), ranges={"p_i": (0.0, 1.0)})
    names = [each.name for each in ranged.operator.declaration.arguments]
    for sample in subject_of(ranged.operator).samples.table:
        made = dict(zip(names, sample.make("cpu", torch.float64), strict=False))
        assert ((made["parameter_p_i"] >= 0) & (made["parameter_p_i"] <= 1)).all(), sample.name
        assert made["parameter_p_f"].numel() < 9 or (made["parameter_p_f"] < 0).any()
    with pytest.raises(ValueError, match="ranges must name states or parameters of the cell, h, c, n, m, got s"):
        Recurrence("ranged::other", cells.make("slstm"), ranges={"s": (0.5, 2.0)})


def test_what_is_wrong_with_a_step_is_said_before_anything_is_compiled(monkeypatch):
    monkeypatch.setattr("torchgraft.recurrence.sequence.load_inline", lambda *_, **__: pytest.fail("compiled"))
    with pytest.raises(ValueError, match="every unit must be computed"):
        Recurrence("recurrences::normed", Cell(lambda g, u, h: h - h.mean(), gates=1, states=1))


def test_importing_torchgraft_imports_no_recurrence():
    code = "import sys, torchgraft; print([name for name in sys.modules if name.startswith('torchgraft.recurrence')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_package_brings_its_kernels_compiled(recurrences, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path))
    cell = cells.make("gru")
    sources = Recurrence.write_kernels("packaged::gru", cell, tmp_path)
    assert [each.name for each in sources] == ["cpu.cpp", "cuda.cu"]
    assert "the recurrence packaged::gru and its gradients" in sources[0].read_text().lower()
    monkeypatch.setattr(sequence, "load_inline", None)
    packaged = Recurrence("packaged::gru", cell, kernels={"cpu": FLOATING})
    building.load("packaged", sources[:1])
    given = drawn(cell)
    outputs = [flat(each(**{**given, "initial": given["initial"][0]})) for each in (packaged, recurrences["gru"])]
    grads = [torch.autograd.grad([each.sum() for each in found], leaves(given)) for found in outputs]
    assert_same(*outputs, 0)
    assert_same(*grads, 0)
    assert not any(each.operator.startswith("packaged::") for each in torchgraft.fallbacks())
