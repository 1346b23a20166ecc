"""Kernels that other languages hand out: what they get, what becomes of them without a GPU, and what a report says."""

import importlib
import os
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torchgraft
from torchgraft.checking import own_compilers
from torchgraft.checking.jobs import Job
from torchgraft.checking.own_compilers import compiled_by_authors, run_own_compilers, why_not_compiled
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.report.left_out import find_left_out
from torchgraft.checking.result import OWN_COMPILER
from torchgraft.checking.subject import find_subjects
from torchgraft.checking.without_gpu import COMPILES
from torchgraft.kernels import python_kernels
from torchgraft.kernels.filling import current_device_of
from torchgraft.operator import FLOATING, Operator
from torchgraft.sampling import Drawn, Sample, Samples

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the kernels itself")


class Foreign:
    """A function as other languages hand them out: not Python's, without a name, and picky about tensors."""

    def __init__(self, compute):
        self.compute, self.calls = compute, []

    def __call__(self, *arguments):
        self.calls.append(arguments)
        for each in arguments:
            for tensor in each if isinstance(each, list) else [each]:
                if isinstance(tensor, torch.Tensor):
                    assert tensor.is_contiguous()
                    assert [tensor.requires_grad, tensor.is_conj(), tensor.is_neg()] == [False] * 3
        self.compute(*arguments)
        return "what a function returns is ignored"


@pytest.fixture(autouse=True)
def nothing_stays_declared():
    before = set(Operator.registered)
    yield
    for name in set(Operator.registered) - before:
        Operator.registered[name].undeclare()


def doubling(name, **declared):
    operator = torchgraft.Operator(
        f"languages::{name}(Tensor input) -> Tensor",
        reference=lambda input: 2 * input,
        gradient=lambda needs_grad, output_grads, saved, input: operator(output_grads[0]),
        **{"shapes": "... -> ...", **declared},
    )
    function = Foreign(lambda input, output: torch.mul(input, 2, out=output))
    operator.kernel("cpu", name="double", language="tvm-ffi", fills=True)(function)
    return operator, function


INPUTS = {
    "contiguous": lambda: torch.arange(6.0).view(2, 3),
    "transposed": lambda: torch.arange(6.0).view(2, 3).mT,
    "every second": lambda: torch.arange(12.0)[::2],
    "without dimensions": lambda: torch.tensor(3.0),
    "a lazy negative": lambda: torch.complex(torch.ones(3), torch.arange(3.0)).conj().imag,
    "a lazy conjugate": lambda: torch.complex(torch.ones(3), torch.arange(3.0)).conj(),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_function_gets_plain_memory(name):
    operator, function = doubling("plain", dtypes=(torch.float32, torch.complex64))
    input = INPUTS[name]()
    for call in (operator, operator.raw, torch.ops.languages.plain):
        assert torch.equal(call(input), 2 * input)
    assert len(function.calls) == 3
    input = input.detach().requires_grad_()
    operator(input).abs().sum().backward()
    assert torch.equal(input.grad, torch.autograd.grad((2 * input).abs().sum(), input)[0].resolve_conj())
    assert len(function.calls) == 5


@pytest.mark.slow
def test_compiled_code_calls_it():
    operator, function = doubling("compiled")
    compiled = torch.compile(lambda input: operator(input), backend="aot_eager", fullgraph=True)
    input = torch.arange(6.0).view(2, 3).mT
    assert torch.equal(compiled(input), 2 * input)
    assert function.calls


def test_a_result_may_have_another_layout():
    operator, _ = doubling("layout", output=lambda input: torch.empty_like(input), shapes=None)
    input = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    result = operator(input)
    assert torch.equal(result, 2 * input)
    assert result.is_contiguous(memory_format=torch.channels_last)


def test_a_function_is_not_called_for_nothing():
    operator, function = doubling("nothing")
    assert operator(torch.empty(3, 0)).shape == (3, 0)
    assert not function.calls


def test_errors_have_the_name_of_the_operator():
    operator, function = doubling("refusing")
    for error in (ValueError("too long"), TypeError("must be float32")):

        def refuse(*arguments, error=error):
            raise error

        function.compute = refuse
        with pytest.raises(type(error), match=f"refusing: {error}"):
            operator(torch.ones(2))


def test_all_kinds_of_arguments_come_by_position():
    operator = torchgraft.Operator(
        "languages::all_kinds(Tensor[] tensors, Tensor? bias, *, float scale=2.0, str mode='sum') -> Tensor",
        reference=lambda tensors, bias, *, scale, mode: scale * sum(tensors),
        output=lambda tensors, bias, *, scale, mode: torch.empty_like(tensors[0]),
    )

    def compute(tensors, bias, scale, mode, output):
        assert (bias, mode) == (None, "sum")
        output.copy_(scale * sum(tensors))

    function = Foreign(compute)
    operator.kernel("cpu", name="sum", fills=True)(function)
    tensors = [torch.ones(2, 3).mT.requires_grad_(), torch.ones(3, 2)]
    assert torch.equal(operator(tensors, None, scale=3.0), torch.full((3, 2), 6.0))


class TestWriting:
    def accumulating(self, name):
        operator = torchgraft.Operator(
            f"languages::{name}(Tensor(a!) total, Tensor input) -> ()",
            reference=lambda total, input: total + input,
            shapes="..., ... ->",
        )
        function = Foreign(lambda total, input: total.add_(input.flatten().flip(0).view_as(input)))
        operator.kernel("cpu", name="add", fills=True)(function)
        return operator, function

    def test_what_is_not_contiguous_is_written_back(self):
        operator, _ = self.accumulating("back")
        total, input = torch.zeros(3, 2).mT, torch.arange(6.0).view(2, 3)
        version = total._version
        operator(total, input)
        assert torch.equal(total, input.flatten().flip(0).view(2, 3))
        assert total._version > version

    def test_the_same_memory_comes_as_it_was(self):
        operator, function = self.accumulating("shared")
        total = torch.arange(4.0)
        function.compute = lambda total, input: (total.zero_(), total.add_(input))
        operator(total, total.view(4))
        assert total.tolist() == [0, 1, 2, 3]

    def test_nothing_is_called_without_elements(self):
        operator, function = self.accumulating("none")
        operator(torch.empty(0), torch.empty(0))
        assert not function.calls


@pytest.mark.parametrize(
    "declared",
    [{}, {"output": lambda input: torch.empty(torchgraft.unknown_size()), "sizes_from_data": True}],
    ids=["no output", "sizes from data"],
)
def test_unknown_results_cannot_be_filled(declared):
    operator = torchgraft.Operator("languages::unknown(Tensor input) -> Tensor", reference=torch.clone, **declared)
    with pytest.raises(ValueError, match="unknown: fills=True needs to know the results before the kernel runs"):
        operator.kernel("cpu", name="some", fills=True)(Foreign(print))


def test_a_function_without_a_name_needs_one():
    operator = torchgraft.Operator("languages::unnamed(Tensor input) -> Tensor", reference=torch.clone)
    with pytest.raises(
        ValueError, match=r"unnamed: the kernel has no name of its own: pass name='\.\.\.' to kernel\(\)"
    ):
        operator.kernel("cpu")(Foreign(print))


def test_kernels_of_each_language_are_told_apart():
    operator, _ = doubling("in_languages")
    operator.kernel("cpu", name="another")(torch.clone)
    found = python_kernels.kernels_of(operator.qualified_name, "cpu")
    assert found.by_language == {"tvm-ffi": ("double",), "Python": ("another",)}


def test_the_device_of_the_tensors_is_current(monkeypatch):
    entered = []

    class Current:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            entered.append(self.index)

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", Current)
    with FakeTensorMode():
        first, second = (torch.empty(1, device=f"cuda:{index}") for index in (0, 1))
    for arguments in ((first, 3), (3, second), (3, [second]), (torch.empty(1), second)):
        with current_device_of(arguments):
            pass
    assert entered == [1, 1, 1]


MODULE = """
import os
import time

import torch
import torchgraft
from torchgraft.sampling import Drawn, Sample, Samples


def declare(name, compile):
    operator = torchgraft.Operator(
        f"languages_compiled::{name}(Tensor input, int times=2) -> Tensor",
        reference=lambda input, times: times * input,
        shapes="... -> ...",
        kernels={"cuda": (torch.float32, torch.bfloat16)},
    )
    operator.kernel("cuda", name="tile", language="Some", fills=True, compile=compile)(lambda *arguments: None)


def check_dtypes(input, times):
    assert (input.device.type, times) == ("meta", 2)
    if input.dtype == torch.bfloat16 and input.numel() == 5:
        raise RuntimeError("no such instruction")
    return "code"


declare("right", lambda input, times: b"code")
declare("wrong", check_dtypes)
declare("empty", lambda input, times: "")
declare("ending", lambda input, times: os._exit(3))
declare("hanging", lambda input, times: time.sleep(1000))
SAMPLES = Samples([Sample("three", (Drawn((3,)),)), Sample("five", (Drawn((5,)),))])
samples = dict.fromkeys(("right", "wrong", "empty", "ending", "hanging"), SAMPLES)
"""


@needs_no_gpu
def test_what_an_author_says_how_to_compile_is_compiled(tmp_path):
    file = tmp_path / "languages_compiled.py"
    file.write_text(MODULE)
    subjects = find_subjects([str(file)])
    operators = {each.operator.name: each.operator for each in subjects}
    assert {name: why_not_compiled(operators[name]) for name in ("right", "wrong", "empty")} == {
        "right": "",
        "wrong": "the kernel 'tile' in bfloat16, for the sample 'five', does not compile for a GPU: RuntimeError: no"
        " such instruction",
        "empty": "the kernel 'tile' in float32, for the sample 'three', gives no code: compile= must return what the"
        " compiler made",
    }
    jobs = {job.operator.name: job for job in compiled_by_authors(subjects)}
    assert list(jobs) == list(operators)
    nothing = {"on_start": lambda job: None, "on_result": lambda job, result: None, "on_step": lambda step: None}
    [ending] = run_own_compilers([jobs["ending"]], **nothing)
    [hanging] = run_own_compilers([jobs["hanging"]], seconds=1, **nothing)
    assert (ending.property, ending.device) == (COMPILES, OWN_COMPILER)
    assert ending.failure.message == "the compiler ended its process (exit status 3)"
    assert (hanging.status, hanging.reason) == ("not applicable", "the kernels were not compiled within 1 seconds")
    left = find_left_out(list(jobs.values()), [jobs["right"].result("pass", 0.0), ending, hanging])
    assert str(left[0]).startswith("compiled, not run: the Some kernels of languages_compiled::right (tile): ")
    states = {name: each.state for each in left for name in each.operators}
    assert states["languages_compiled::ending"] == "not checked"


class TestReferenceMode:
    @pytest.fixture
    def operator(self, monkeypatch):
        monkeypatch.setenv("TORCHGRAFT_HELION_INTERPRET", "1")
        operator = torchgraft.Operator(
            "languages::in_reference_mode(Tensor input) -> Tensor",
            reference=torch.clone,
            shapes="... -> ...",
            kernels={"cuda": FLOATING},
        )
        operator.kernel("cuda", name="rows", language="Helion")(torch.clone)
        return operator

    def test_the_kernel_is_the_cpus_too(self, operator):
        assert operator.declaration.kernels == {"cpu": FLOATING, "cuda": FLOATING}
        found = python_kernels.kernels_of(operator.qualified_name, "cpu")
        assert found.in_reference_mode == "Helion"

    @needs_no_gpu
    def test_the_report_says_so(self, operator):
        asked = Job("value", operator, None, "cpu", torch.float32)
        [left] = find_left_out([asked], [asked.result("pass", 0.0)])
        assert (left.kernels, left.sources, left.device) == ("Helion", ("rows",), "cuda")
        assert left.state == "run in Helion's reference mode only"
        assert "an index that is out of range stands for the nearest element" in left.advice

    def test_nothing_is_said_about_memory(self, operator):
        samples = Samples([Sample("three", (Drawn((3,)),))])
        report = torchgraft.check(operator, samples, device="cpu", properties=["memory_bounds", "value"])
        assert {each.status for each in report.results if each.property == "value"} == {"pass"}
        bounds = [each for each in report.results if each.property == "memory_bounds"]
        assert {each.status for each in bounds} == {"not applicable"}
        assert "in Helion's reference mode" in bounds[0].reason

    @pytest.mark.slow
    def test_helions_own_kernels_are_switched(self, operator, monkeypatch, tmp_path):
        if importlib.util.find_spec("helion") is None:
            pytest.skip("there is no helion: `make languages` installs it")
        # Helion refuses this name beside its own, and not beside ours.
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        (tmp_path / "doubled_by_helion.py").write_text(
            "import helion, helion.language as hl, torch\n"
            "@helion.kernel(static_shapes=False)\n"
            "def double(x: torch.Tensor) -> torch.Tensor:\n"
            "    output = torch.empty_like(x)\n"
            "    for tile in hl.tile(x.size(0)):\n"
            "        output[tile] = 2 * x[tile]\n"
            "    return output\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        double = importlib.import_module("doubled_by_helion").double
        doubled = torchgraft.Operator(
            "languages::by_helion(Tensor x) -> Tensor", reference=lambda x: 2 * x, shapes="n -> n"
        )
        doubled.kernel("cuda", name="tiles", language="Helion")(lambda x: double(x))
        assert doubled(torch.ones(3)).tolist() == [2.0] * 3
        sys.modules.pop("doubled_by_helion")


def test_without_a_gpu_nothing_else_is_asked():
    operator, _ = doubling("plainly")
    assert not own_compilers._compilers_of(operator)
    assert COMPILES not in PROPERTIES
    assert "TORCHGRAFT_HELION_INTERPRET" not in os.environ
