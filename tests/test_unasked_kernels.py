"""Kernels that no GPU runs: what a check says of them, and `--emulate` and `--compile-cuda`, which ask them."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import torchgraft
from torchgraft import native
from torchgraft.building import MissingToolError
from torchgraft.building import compile as compiling
from torchgraft.checking import without_gpu
from torchgraft.checking.jobs import make_jobs
from torchgraft.checking.report import left_out
from torchgraft.checking.report.check_report import LeftOut
from torchgraft.checking.subject import find_subjects
from torchgraft.checking.without_gpu import find_emulated
from torchgraft.cli import app
from torchgraft.emulation import library, translate

ROOT = Path(__file__).parents[1]
CUDA = """
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>
#include <torchgraft/cuda.cuh>

#include "threads.cuh"

namespace unasked {
namespace {

using namespace torchgraft;

enum class Mistake { none, last_element, race };

// Each thread doubles the number that its neighbour has put into shared memory.
template <Mistake kMistake>
__global__ void __launch_bounds__(kThreads) double_kernel(const float* from, float* to, int64_t count) {
  __shared__ float values[kThreads];
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index < count) values[threadIdx.x] = from[index];
  if (kMistake != Mistake::race) __syncthreads();
  // In order, thread by thread, the neighbour has always written.
  const float before = threadIdx.x == 0 ? 0.0f : values[threadIdx.x - 1];
  if (index >= count) return;
  if (kMistake == Mistake::last_element && index > 0 && index == count - 1) return;
  to[index] = 2 * (values[threadIdx.x] + before - before);
}

template <Mistake kMistake>
Tensor doubled(Tensor input) {
  const Launch scope(input);
  const Tensor source = to_dense(input, "input");
  Tensor output = empty_as(source);
  const int64_t count = output.numel();
  if (count == 0) return output;
  const unsigned blocks = grid_of(ceil_divide<int64_t>(count, kThreads), "doubled");
  double_kernel<kMistake><<<blocks, kThreads, 0, scope.stream()>>>(data_of<float>(source),
                                                                   mutable_data_of<float>(output), count);
  check_launch("doubled");
  return output;
}

}  // namespace

TORCHGRAFT_KERNEL(unasked, CUDA, right, doubled<Mistake::none>)
TORCHGRAFT_KERNEL(unasked, CUDA, wrong, doubled<Mistake::last_element>)
TORCHGRAFT_KERNEL(unasked, CUDA, racing, doubled<Mistake::race>)

}  // namespace unasked
"""
OPERATORS = """
from pathlib import Path

import torch

from torchgraft import Operator, native
from torchgraft.sampling import Drawn, Sample, Samples

FLOAT = (torch.float32,)
# `absent` and `in_python` claim a CUDA kernel, and no source registers one. `of_cpu` claims none.
CLAIMING = ("right", "wrong", "racing", "absent", "in_python")
KERNELS = {**dict.fromkeys(CLAIMING, {"cuda": FLOAT}), "of_cpu": {"cpu": FLOAT}}
for name, kernels in KERNELS.items():
    operator = Operator(
        f"unasked::{name}(Tensor input) -> Tensor",
        reference=lambda input: 2 * input,
        output=torch.empty_like,
        dtypes=FLOAT,
        kernels=kernels,
    )
    if name == "in_python":
        operator.kernel("cpu")(lambda input: 2 * input)
    if name == "of_cpu":
        for each in (name, f"_{name}"):
            operator._library.impl(each, lambda input: 2 * input, "CPU")
native.load("unasked", Path(__file__).parent / "lib")
samples = dict.fromkeys(KERNELS, Samples([Sample(str(size), (Drawn((size,)),)) for size in (1, 40, 130)]))
"""
INLINE = """
import torch

from torchgraft import load_inline
from torchgraft.sampling import Drawn, Sample, Samples

KERNEL = '''
__global__ void __launch_bounds__(32) halve(const float* from, float* to, int count) {
  const int index = static_cast<int>(threadIdx.x);
  if (index < count) to[index] = from[index] / (index == 4 ? 3 : 2);
}
Tensor halved_cuda(Tensor input) {
  const Launch scope(input);
  const Tensor source = to_dense(input, "input");
  Tensor output = empty_as(source);
  const int count = static_cast<int>(output.numel());
  halve<<<1, 32, 0, scope.stream()>>>(data_of<float>(source), mutable_data_of<float>(output), count);
  check_launch("halved");
  return output;
}
'''
load_inline(
    "unasked_inline::halved(Tensor input) -> Tensor",
    reference=lambda input: input / 2,
    output=torch.empty_like,
    dtypes=(torch.float32,),
    cuda=KERNEL,
)
samples = {"halved": Samples([Sample("four", (Drawn((4,)),)), Sample("five", (Drawn((5,)),))])}
"""
needs_emulator = [
    pytest.mark.skipif(sys.platform != "linux", reason="the emulator of CUDA is written for Linux"),
    pytest.mark.skipif(
        shutil.which(os.environ.get("CXX", "c++").split()[0]) is None, reason="there is no C++ compiler: install g++"
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("place") / "unasked_operators"
    path.mkdir()
    (path / "__init__.py").touch()
    (path / "operator.py").write_text(OPERATORS)
    (path / "threads.cuh").write_text("#pragma once\ninline constexpr int kThreads = 64;\n")
    (path / "more.cu").write_text("// Nothing.\n")
    (path / "cuda.cu").write_text(CUDA)
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["check", *map(str, arguments)], catch_exceptions=False)


def report_of(path, *arguments):
    """The report, and what a person read."""
    done = run(*arguments, "--json", path / "report.json")
    return json.loads((path / "report.json").read_text()), done.output


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_gpu")
class TestWhatIsSaid:
    def test_kernels_that_no_gpu_ran_have_a_line_and_the_verdict_is_about_the_others(self, folder, tmp_path):
        report, shown = report_of(
            tmp_path, f"{folder}:right", f"{folder}:of_cpu", "--property", "value", "--workers", "0"
        )
        [line] = report["left_out"]
        assert report["passed"]
        assert (line["operators"], line["device"], line["kernels"]) == (["unasked::right"], "cuda", "CUDA")
        assert (line["sources"], line["state"]) == (["cuda.cu", "more.cu"], "not checked")
        assert (
            "not checked: the CUDA kernels of unasked::right (cuda.cu, more.cu): PyTorch finds no GPU here; `graft "
            f"check {folder}:right --device cuda --emulate` runs them in an emulator on the CPU, `--compile-cuda` "
            "compiles them"
        ) in shown
        assert "every property that was asked holds on cpu: 2 passed" in shown

    def test_an_operator_without_kernels_for_a_gpu_is_whole(self, folder, tmp_path):
        report, shown = report_of(tmp_path, f"{folder}:of_cpu", "--property", "value", "--workers", "0")
        assert report["left_out"] == []
        assert "every property holds: 1 passed" in shown

    def test_our_own_operators_have_one_line_together(self, tmp_path):
        report, shown = report_of(tmp_path, "mul_constant", "shift", "--property", "empty", "--workers", "0")
        [line] = report["left_out"]
        assert (line["operators"], line["sources"]) == (["mul_constant", "shift"], [])
        assert "not checked: the CUDA kernels of mul_constant, shift: PyTorch finds no GPU here" in shown
        assert "`graft check mul_constant shift --device cuda --emulate`" in shown

    def test_kernels_that_no_property_called_have_a_line(self, tmp_path):
        report, _ = report_of(tmp_path, "mul_constant", "--property", "pickle", "--workers", "0")
        [on_cpu, on_gpu] = report["left_out"]
        assert (on_cpu["kernels"], on_cpu["reason"]) == ("CPU", "no property of this run calls them")
        assert on_gpu["kernels"] == "CUDA"

    def test_the_function_says_it_too(self):
        report = torchgraft.check("mul_constant", properties=["empty"], device="cpu")
        assert report.passed
        assert "not checked: the CUDA kernels of mul_constant (cuda.cu): PyTorch finds no GPU here" in str(report)
        assert report.verdict == "every property that was asked holds on cpu"


class Found:
    """The answers of `find_left_out` about jobs of one operator, without running them."""

    def __init__(self, target, devices, ran=()):
        jobs = make_jobs(find_subjects([target]), devices=devices, properties=["value"])
        self.lines = left_out.find_left_out(jobs, [job.result("pass", 0.0) for job in jobs if job.device in ran])
        self.states = [(each.kernels, each.state, each.reason) for each in self.lines]


def test_a_device_that_was_left_out_by_choice_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = Found("mul_constant", ["cpu"], ran=["cpu"])
    assert found.states == [("CUDA", "not checked", "this run left out the GPU")]
    assert found.lines[0].advice == "`graft check mul_constant --device cuda` checks them"
    found = Found("mul_constant", ["cuda"], ran=[])
    assert found.states[0] == ("CPU", "not checked", "this run left out the CPU")


def test_a_library_that_did_not_load_is_the_reason(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(left_out, "is_compiled_there", lambda operator, device: device == "cpu")
    monkeypatch.setattr(native, "why_no_kernel", lambda namespace, device: "it did not load: no such symbol")
    assert Found("mul_constant", ["cpu", "cuda"], ran=["cpu", "cuda"]).states == [
        ("CUDA", "not checked", "it did not load: no such symbol")
    ]


@pytest.mark.usefixtures("no_gpu")
def test_kernels_in_triton_are_named_and_those_that_an_interpreter_ran_too(monkeypatch):
    operator = torchgraft.Operator(
        "unasked_triton::doubled(Tensor input) -> Tensor",
        reference=lambda input: 2 * input,
        output=torch.empty_like,
    )
    monkeypatch.setattr(torchgraft.Operator, "samples", find_subjects(["mul_constant"])[0].samples, raising=False)
    operator.kernel("cuda", name="in_triton", triton=True)(lambda input: 2 * input)
    assert Found(operator, ["cpu"], ran=["cpu"]).states == [("Triton", "not checked", "PyTorch finds no GPU here")]
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    operator.kernel("cuda", name="interpreted", triton=True)(lambda input: 2 * input)
    [line] = Found(operator, ["cpu"], ran=["cpu"]).lines
    assert (line.state, line.sources) == ("run in Triton's interpreter only", ("in_triton", "interpreted"))


def test_of_many_files_few_are_named():
    line = LeftOut(("a", "b"), "cuda", "CUDA", tuple(f"{name}.cu" for name in "abcde"), "not checked", "no GPU", "")
    assert str(line) == "not checked: the CUDA kernels of a, b (a.cu, b.cu, c.cu and 2 more): no GPU"


@pytest.fixture(scope="module")
def found(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("report")
    names = [f"{folder}:{name}" for name in ("right", "wrong", "racing", "absent", "in_python", "of_cpu")]
    report, shown = report_of(path, *names, "--device", "cuda", "--emulate", "--property", "value", "--workers", "2")
    statuses = {
        (each["operator"].removeprefix("unasked::"), each["property"]): each["status"] for each in report["results"]
    }
    return report, shown, statuses


@pytest.mark.usefixtures("no_gpu")
class TestTheEmulator:
    pytestmark = needs_emulator

    @pytest.mark.slow
    def test_a_right_kernel_holds_and_mistakes_are_found(self, found):
        _, shown, statuses = found
        assert statuses == {
            ("right", "value"): "pass",
            ("right", "data races: value"): "pass",
            ("wrong", "value"): "fail",
            ("wrong", "data races: value"): "fail",
            # Nothing shows but to who watches.
            ("racing", "value"): "pass",
            ("racing", "data races: value"): "fail",
            ("absent", "value"): "fail",
            ("absent", "data races: value"): "fail",
            ("in_python", "value"): "fail",
            ("in_python", "data races: value"): "fail",
        }
        assert "unasked::wrong on emulated cuda in float32: value" in shown
        assert "unasked::racing on emulated cuda in float32: data races: value" in shown
        assert "a race in shared memory: thread" in shown

    @pytest.mark.slow
    def test_a_claimed_kernel_that_nobody_wrote_is_no_pass(self, found):
        report, *_ = found
        said = {each["operator"]: each["failure"]["message"] for each in report["results"] if each["failure"]}
        assert "has no kernel, so the reference would be compared with itself" in said["unasked::absent"]
        assert "no source registers a CUDA kernel of this name" in said["unasked::in_python"]

    @pytest.mark.slow
    def test_a_failure_says_how_to_see_it_again(self, found):
        report, *_ = found
        agains = [each["failure"]["reproduce"] for each in report["results"] if each["failure"]]
        assert all("--device cuda --emulate" in again and "--sanitize" not in again for again in agains)

    @pytest.mark.slow
    def test_the_report_says_that_no_gpu_ran_them(self, found):
        report, shown, _ = found
        assert list(report["environments"]) == ["emulated cuda"]
        assert [(line["kernels"], line["state"], line["operators"][-1]) for line in report["left_out"]] == [
            ("CUDA", "run in an emulator only", "unasked::in_python"),
            ("Python", "not checked", "unasked::in_python"),
            ("CPU", "not checked", "unasked::of_cpu"),
        ]
        assert "run in an emulator only: the CUDA kernels of unasked::right" in shown

    def test_a_source_that_does_not_compile_is_one_failure(self, folder, tmp_path):
        copy = shutil.copytree(folder, tmp_path / "unasked_broken")
        for path in copy.glob("*.*"):
            path.write_text(
                path.read_text().replace("unasked", "unasked_broken").replace("from[index];", "fro[index];")
            )
        report, shown = report_of(
            tmp_path,
            f"{copy}:right",
            f"{copy}:wrong",
            "--device",
            "cuda",
            "--emulate",
            "--property",
            "value",
            "--quick",
        )
        assert [(each["property"], each["status"]) for each in report["results"]] == [
            ("compiles", "fail"),
            ("value", "not applicable"),
        ]
        assert "cuda.cu:21" in shown
        assert "'fro' was not declared in this scope" in shown
        assert {line["state"] for line in report["left_out"]} == {"not checked"}

    @pytest.mark.slow
    def test_texts_of_load_inline_run_there(self, tmp_path):
        (tmp_path / "unasked_inline.py").write_text(INLINE)
        report, _ = report_of(
            tmp_path, tmp_path / "unasked_inline.py", "--device", "cuda", "--emulate", "--property", "value", "--quick"
        )
        [result] = report["results"]
        assert result["failure"]["sample"] == "five"
        assert "the result is wrong: 1 of 5 elements, the first at [4]" in result["failure"]["message"]
        assert report["left_out"][0]["sources"] == ["the text given to load_inline"]

    def test_what_was_compiled_is_kept_and_a_header_counts(self, folder, tmp_path, monkeypatch):
        made = []
        monkeypatch.setattr(library.cache, "keep", lambda key, make: made.append(key))
        copy = shutil.copytree(folder, tmp_path / "copy")
        for _ in range(2):
            library.build_once("unasked", [copy / "cuda.cu"])
        (copy / "threads.cuh").write_text("#pragma once\ninline constexpr int kThreads = 32;\n")
        library.build_once("unasked", [copy / "cuda.cu"])
        library.build_once("unasked", [copy / "cuda.cu"], sanitizer="races")
        library.build_once("unasked", [copy / "cuda.cu"], architecture=80)
        assert made[0] == made[1]
        assert len(set(made)) == 4


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.usefixtures("no_gpu")
def test_nvcc_compiles_and_what_it_refuses_is_a_failure(folder, tmp_path):
    asked = [f"{folder}:right", "--device", "cuda", "--compile-cuda"]
    report, shown = report_of(tmp_path, *asked)
    assert [(each["property"], each["device"], each["status"]) for each in report["results"]] == [
        ("compiles", "nvcc", "pass")
    ]
    assert "compiled, not run: the CUDA kernels of unasked::right" in shown
    assert "the kernels compile: 1 passed" in shown
    (folder / "more.cu").write_text("int wrong = nothing;\n")
    try:
        report, shown = report_of(tmp_path, *asked)
    finally:
        (folder / "more.cu").write_text("// Nothing.\n")
    assert not report["passed"]
    assert 'identifier "nothing" is undefined' in shown
    assert f"graft check {folder}:right --device cuda --compile-cuda" in shown
    assert "not checked: the CUDA kernels of unasked::right" in shown


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ("--emulate", "--device", "cpu"),
            "--emulate and --compile-cuda are for CUDA kernels, which --device cpu leaves",
        ),
        (
            ("--emulate", "--every-kernel"),
            "--emulate cannot be combined with --every-kernel, --kernel or --sanitize: `pyt",
        ),
        (("--emulate", "--sanitize"), "torchgraft.emulation --help` says how the emulator does the same"),
        (("--emulate", "--mutants", "3"), "--mutants can be combined only with"),
    ],
)
def test_what_does_not_go_together_is_one_line(options, problem):
    done = run("mul_constant", *options)
    assert done.exit_code == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_tool_is_named_with_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no_such_compiler")
    done = run("mul_constant", "--emulate")
    assert (done.exit_code, done.stderr) == (
        2,
        "the environment variable CXX names no_such_compiler, but there is no such program: set it to a compiler, or"
        " unset it\n",
    )
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("CUDACXX", "")
    monkeypatch.setattr(compiling, "_which", lambda name: name)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match=r"there is no C\+\+ compiler: install g\+\+"):
        without_gpu.expect_tools(emulate=True, compile_cuda=False)
    (tmp_path / "c++").touch(mode=0o755)
    with pytest.raises(MissingToolError, match="install the CUDA toolkit and put nvcc on PATH"):
        without_gpu.expect_tools(emulate=False, compile_cuda=True)
    monkeypatch.setattr(library.sys, "platform", "darwin")
    with pytest.raises(MissingToolError, match="the emulator of CUDA runs on Linux, and this is darwin"):
        library.expect_tools()


def test_without_sources_there_is_a_reason(monkeypatch):
    with pytest.raises(LookupError, match="no CUDA kernels are declared for linear"):
        find_emulated(find_subjects(["linear"]))
    monkeypatch.setattr(without_gpu, "sources_of", lambda operator, device: [])
    with pytest.raises(LookupError, match=r"a wheel of torchgraft does not have those of its own operators\. Clone"):
        find_emulated(find_subjects(["mul_constant"]))


def test_what_the_sources_include_is_translated_and_nothing_else(tmp_path):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/a.cu").write_text('#include "../shared.cuh"\n#include "b.cu"\n#include <vector>\n')
    (tmp_path / "kernels/b.cu").write_text("__noinline__ void f();\n")
    (tmp_path / "kernels/stranger.cu").write_text("__shared__ nothing\n")
    (tmp_path / "shared.cuh").write_text('#pragma once\n#define NAMED "named.inl"\n')
    tree = translate.read_tree([tmp_path / "kernels/a.cu"], tmp_path)
    names = {str(place.relative_to(tmp_path.name)) for place in tree}
    assert names == {"kernels/a.cu", "kernels/a.cu.cpp", "kernels/b.cu", "shared.cuh"}
    assert "__attribute__((noinline)) void f();" in tree[Path(tmp_path.name, "kernels/b.cu")]


def test_nothing_of_the_emulator_is_imported_before_it_is_asked_for():
    program = "import sys, torchgraft; print([name for name in sys.modules if 'emulation' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.skipif(importlib.util.find_spec("scikit_build_core") is None, reason="it builds a wheel of ours")
def test_our_wheel_holds_the_emulator(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", str(ROOT)]
    subprocess.run([*command, "-C", "wheel.cmake=false", "-w", str(tmp_path)], check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        held = {Path(name).relative_to("torchgraft/emulation") for name in archive.namelist() if "/emulation/" in name}
    here = {path.relative_to(library.HERE) for path in library.HERE.rglob("*") if path.is_file()}
    assert held == {path for path in here if path.suffix != ".pyc"}
