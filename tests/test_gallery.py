"""Every example of the gallery holds what `graft check` asks, and can be had where nothing but Python is."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchgraft import PerformanceWarning

GALLERY = Path(__file__).parent.parent / "examples/gallery"
EXAMPLES = sorted(path.name for path in GALLERY.iterdir() if path.is_dir() and path.name.isidentifier())

# What makes Python believe that there is no Triton and no other language.
IMPORTED_WITHOUT_LANGUAGES = """
import sys
from importlib.abc import MetaPathFinder

HIDDEN = ("triton", "tvm_ffi", "tilelang", "helion", "cutlass")


class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
import importlib.util

found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in HIDDEN else found(name, package)
import torch
from torchgraft.checking.subject import find_subjects

for subject in find_subjects(sys.argv[1:]):
    arguments = subject.samples.smallest.make("cpu", torch.float32)
    subject.operator.call(*subject.operator.declaration.with_defaults(arguments))
    print("called", subject.operator.qualified_name)
"""


def in_process(*arguments):
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False)


# The modules that other languages are, by the example that needs it.
LANGUAGES = {"segment_sum": "tvm_ffi", "softmax": "tilelang", "rms_norm_gated": "helion", "swiglu": "cutlass"}


def is_in_triton(example):
    return any("import triton" in path.read_text() for path in (GALLERY / example).glob("*.py"))


# Triton's interpreter takes minutes for each. The others are asked in one run: to start one takes longer than some do.
IN_TRITON = [each for each in EXAMPLES if is_in_triton(each)]
ALONE = [*IN_TRITON, *LANGUAGES]
# A compiler takes a minute for each.
RECURRENCES = ["leaky_rnn", "peephole_lstm", "slstm"]
RUNS = [[each for each in EXAMPLES if each not in (*ALONE, *RECURRENCES)], *([each] for each in (*RECURRENCES, *ALONE))]


@pytest.mark.slow
@pytest.mark.parametrize("examples", RUNS, ids=lambda examples: "+".join(examples))
def test_every_property_holds(examples):
    if examples[0] in IN_TRITON:
        pytest.importorskip("triton")
    if examples[0] in LANGUAGES:
        name = LANGUAGES[examples[0]]
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"there is no {name}: `make languages` installs it")
    arguments = ("--device", "cpu", "--quick", "--workers", "2", "--json", "-")
    done = in_process("-m", "torchgraft", "check", *(GALLERY / each for each in examples), *arguments)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert len({each["operator"] for each in results}) >= len(examples)
    assert {each["status"] for each in results} <= {"pass", "not applicable"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_table_names_it_and_a_page_tells_of_it(example):
    assert f"[{example}]({example}/README.md)" in (GALLERY / "README.md").read_text()
    assert (GALLERY / example / "README.md").read_text().startswith(f"# {example}\n")


def test_without_its_language_the_reference_answers():
    done = in_process("-c", IMPORTED_WITHOUT_LANGUAGES, *(GALLERY / each for each in ALONE))
    assert done.returncode == 0, done.stderr
    assert all(f"called gallery::{each}\n" in done.stdout for each in ALONE)


STEPS, BATCH, FEATURES, UNITS = 6, 3, 4, 8
GATES = {"leaky_rnn": 1, "peephole_lstm": 4, "slstm": 4}


def drawn(*shape, scale=0.7):
    return (scale * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


@pytest.fixture(scope="module")
def declared(tmp_path_factory):
    """Imports a recurrence whose definition answers: `graft check` compares the kernels with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHGRAFT_CACHE", str(tmp_path_factory.mktemp("no kernels")))
        patch.setenv("TORCHGRAFT_JIT", "0")
        patch.syspath_prepend(GALLERY)
        yield import_recurrence


def import_recurrence(name):
    if name in sys.modules:
        return sys.modules[name]
    with pytest.warns(PerformanceWarning, match="runs as a loop in Python"):
        return importlib.import_module(name)


def assert_same(found, expected, given):
    """Compares results and the gradients of all that was given, within a few roundings of a sum."""
    weights = [torch.randn_like(each) for each in expected]
    for results in zip(found, expected, strict=True):
        torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    grads = (torch.autograd.grad(results, given, weights, retain_graph=True) for results in (found, expected))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def weights_of(name):
    torch.manual_seed(0)
    gates = GATES[name] * UNITS
    return drawn(STEPS, BATCH, FEATURES), drawn(gates, FEATURES), drawn(gates, UNITS, scale=0.4), drawn(gates)


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
def test_a_leaky_network_is_euler_s_method(declared):
    run = declared("leaky_rnn").leaky_rnn
    input, weight_ih, weight_hh, bias = weights_of("leaky_rnn")
    initial, alpha = drawn(BATCH, UNITS), torch.rand(UNITS, dtype=torch.float64).requires_grad_()
    potential, rates = initial, []
    for t in range(STEPS):
        slope = -potential + torch.tanh(potential) @ weight_hh.T + input[t] @ weight_ih.T + bias
        potential = potential + alpha * slope
        rates.append(torch.tanh(potential))
    found = run(input, weight_ih, weight_hh, bias, initial, parameters=[alpha])
    assert_same(found, (torch.stack(rates), potential), (input, weight_ih, weight_hh, bias, initial, alpha))


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
def test_a_peephole_lstm_is_that_of_its_paper(declared):
    run = declared("peephole_lstm").peephole_lstm
    input, weight_ih, weight_hh, bias = weights_of("peephole_lstm")
    h, c = initial = drawn(BATCH, UNITS), drawn(BATCH, UNITS)
    peepholes = [drawn(UNITS) for _ in range(3)]
    (w_i, w_f, w_g, w_o), (u_i, u_f, u_g, u_o), (b_i, b_f, b_g, b_o) = (
        each.split(UNITS) for each in (weight_ih, weight_hh, bias)
    )
    outputs = []
    for x in input:
        kept = torch.sigmoid(x @ w_f.T + h @ u_f.T + peepholes[1] * c + b_f) * c
        more = torch.sigmoid(x @ w_i.T + h @ u_i.T + peepholes[0] * c + b_i) * torch.tanh(x @ w_g.T + h @ u_g.T + b_g)
        c = kept + more
        h = torch.sigmoid(x @ w_o.T + h @ u_o.T + peepholes[2] * c + b_o) * torch.tanh(c)
        outputs.append(h)
    given = (input, weight_ih, weight_hh, bias)
    output, final = run(*given, initial, parameters=peepholes)
    assert_same((output, *final), (torch.stack(outputs), h, c), (*given, *initial, *peepholes))


def test_without_peepholes_it_is_pytorch_s_lstm(declared):
    run = declared("peephole_lstm").peephole_lstm
    layer = torch.nn.LSTM(FEATURES, UNITS, dtype=torch.float64)
    input = torch.randn(STEPS, BATCH, FEATURES, dtype=torch.float64)
    bias, none = layer.bias_ih_l0 + layer.bias_hh_l0, torch.zeros(UNITS, dtype=torch.float64)
    output, (h, c) = run(input, layer.weight_ih_l0, layer.weight_hh_l0, bias, parameters=[none] * 3)
    expected, finals = layer(input)
    given = tuple(layer.parameters())
    assert_same((output, h[None], c[None]), (expected, *finals), given)


def by_heads(input, weight_ih, weight_hh, bias):
    """An sLSTM of zero states as its paper has it, without the stabiliser, each head by itself."""
    heads, _, units = weight_hh.shape
    of_heads = []
    for head in range(heads):
        rows = slice(head * units, (head + 1) * units)
        w, b = (each.unflatten(0, (4, heads * units))[:, rows] for each in (weight_ih, bias))
        u = weight_hh[head].unflatten(0, (4, units))
        h = c = n = torch.zeros(input.shape[1], units, dtype=input.dtype)
        outputs = []
        for x in input:
            i, f, z, o = (x @ w[gate].T + h @ u[gate].T + b[gate] for gate in range(4))
            c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
            n = torch.sigmoid(f) * n + torch.exp(i)
            h = torch.sigmoid(o) * c / n
            outputs.append(h)
        of_heads.append((torch.stack(outputs), h, c, n))
    return [torch.cat(each, -1) for each in zip(*of_heads, strict=True)]


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_an_slstm_is_that_of_its_paper_head_by_head(heads, declared):
    run = declared("slstm").slstm
    input, weight_ih, _, bias = weights_of("slstm")
    weight_hh = drawn(heads, 4 * UNITS // heads, UNITS // heads)
    given = (input, weight_ih, weight_hh, bias)
    output, (h, c, n, m) = run(*given)
    # The paper's c and n, without the stabiliser.
    assert_same((output, h, c * m.exp(), n * m.exp()), by_heads(*given), given)


@pytest.mark.filterwarnings("ignore::torchgraft.PerformanceWarning")
@pytest.mark.parametrize("shift", [-800.0, 800.0])
def test_an_slstm_is_stable_where_its_exponentials_are_not(shift, declared):
    """A number that is added to all input gates cancels out in c / n, though no dtype holds its exponential."""
    run = declared("slstm").slstm
    input, weight_ih, _, bias = weights_of("slstm")
    weight_hh = drawn(2, 2 * UNITS, UNITS // 2)
    shifted = torch.cat([bias[:UNITS] + shift, bias[UNITS:]])
    for each in (bias, shifted):
        output, final = run(input, weight_ih, weight_hh, each)
        grads = torch.autograd.grad(output.sum(), (input, weight_ih, weight_hh, bias))
        assert all(value.isfinite().all() for value in (output, *final, *grads))
        torch.testing.assert_close(output, run(input, weight_ih, weight_hh, bias)[0], rtol=1e-10, atol=1e-10)
