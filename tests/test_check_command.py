"""`graft check` as a person meets it: an operator of their own that fails, crashes and holds; mistakes; the table."""

import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import torchgraft
from documents import read_document
from torchgraft.checking import PROPERTIES
from torchgraft.checking.jobs import SMOKE, Job, make_jobs
from torchgraft.checking.report import live as live_check
from torchgraft.checking.report.board import Board
from torchgraft.checking.report.check_report import CheckReport
from torchgraft.checking.report.live import LiveCheck
from torchgraft.checking.report.printed import print_report
from torchgraft.checking.sanitizers import cuda
from torchgraft.checking.sanitizers import run as sanitizing
from torchgraft.checking.subject import find_subjects
from torchgraft.cli import app
from torchgraft.finding.sources import kernel_folder_of

OPERATORS = """
import ctypes

import torch

from torchgraft import Operator


def _declare(name, kernel):
    operator = Operator(
        f"check_command::{name}(Tensor input) -> Tensor",
        reference=lambda input: 2 * input,
        output=torch.empty_like,
    )
    for each in (name, f"_{name}"):
        operator._library.impl(each, kernel, "CPU")
    return operator


def _off_at_the_end(input):
    result = 2 * input
    if result.numel() > 3:
        result.view(-1)[-1] += 1
    return result


def _wrong_sometimes(input):
    result = 2 * input
    return result + 1 if input.shape[-1:] == (7,) else result


def _crash(input):
    if input.numel() == 1:
        print("about to read what is not there", flush=True)
        ctypes.string_at(0)
    return 2 * input


good = _declare("good", lambda input: 2 * input)
wrong = _declare("wrong", _off_at_the_end)
crashing = _declare("crashing", _crash)
sometimes = _declare("sometimes", _wrong_sometimes)
"""
SAMPLES = """
import os
from pathlib import Path

from torchgraft.sampling import Drawn, Sample, Samples

_TABLE = [Sample("one", (Drawn((1,)),)), Sample("three", (Drawn((3,)),)), Sample("two by four", (Drawn((2, 4)),))]


def _stress(random, budget):
    if "BEGUN" in os.environ:
        Path(os.environ["BEGUN"]).touch()
    shape = (random.randint(2, 3), random.randint(2, 9))
    return Sample(f"drawn {shape}", (Drawn(shape),))


samples = dict.fromkeys(("good", "wrong", "crashing", "sometimes"), Samples(_TABLE, stress=_stress))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("place") / "check_command_operators"
    path.mkdir()
    (path / "operator.py").write_text(OPERATORS)
    (path / "samples.py").write_text(SAMPLES)
    (path / "test_mine.py").write_text("raise AssertionError('a test is not imported')")
    return path


def run(*arguments):
    return CliRunner().invoke(app, ["check", *map(str, arguments)], catch_exceptions=False)


def in_process(arguments, place):
    command = [sys.executable, "-m", "torchgraft", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)


def test_what_fails_is_told_and_can_be_seen_again_and_a_crash_is_no_end(folder, tmp_path):
    # What lies beside the folder is nobody's business, and neither is what in it declares nothing.
    folder = shutil.copytree(folder, tmp_path / "place" / "check_command_copy")
    for planted in ("sympy.py", "numpy.py", "hypothesis.py", "samples.py", "check_command_copy/train.py"):
        (tmp_path / "place" / planted).write_text("import os; os._exit(77)")
    options = ["--property", "value", "--dtype", "float32", "--device", "cpu", "--json", str(tmp_path / "report.json")]
    done = in_process([str(folder), *options], tmp_path)
    assert done.returncode == 1, done.stderr
    assert "2 properties do not hold: 2 passed, 2 failed, 0 not applicable" in done.stdout

    report = json.loads((tmp_path / "report.json").read_text())
    assert not report["passed"]
    assert report["seed"] == 0
    assert report["environments"]["cpu"]["torch"] == torch.__version__
    results = {each["operator"].removeprefix("check_command::"): each for each in report["results"]}
    assert results["good"]["status"] == "pass"

    failure = results["wrong"]["failure"]
    assert failure["sample"] == "two by four"
    assert failure["index"] == [1, 3]
    assert float(failure["found"]) - float(failure["expected"]) == pytest.approx(1)
    assert "1 of 8 elements, the first at [1, 3]" in done.stdout
    assert "arguments input=(2, 4)" in done.stdout

    crash = results["crashing"]["failure"]
    assert crash["message"] == "the process died: SIGSEGV (Segmentation fault), while at sample 'one'"
    assert crash["traceback"] == "about to read what is not there"
    assert "| about to read what is not there" in done.stdout

    # The line that shows it again, run as it stands, from anywhere.
    assert failure["reproduce"] in done.stdout
    program, command, *arguments = shlex.split(failure["reproduce"])
    assert (program, command) == ("graft", "check")
    again = in_process([*arguments, "--workers", "0"], "/")
    assert again.returncode == 1, again.stderr
    assert failure["message"] in again.stdout


def test_what_is_not_wired_is_told_first_and_at_once(folder):
    command = [sys.executable, "-m", "torchgraft", "check", f"{folder}:wrong", "--quick", "--device", "cpu"]
    command += ["--property", "large", "--property", "smoke", "--property", "value"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    told, _, rest = done.stdout.partition(
        "The other properties are still checked. Press Ctrl-C to stop with the results so far."
    )
    assert told.startswith("check_command::wrong on cpu in float32: smoke\n")
    assert "  at fault  the kernel: its values are wrong" in told
    # The table comes behind it, with all verdicts, and one report.
    assert re.search(r"^smoke +✗ *$", rest, re.MULTILINE)
    assert re.search(r"^value +✗ 4 *$", rest, re.MULTILINE)
    assert rest.count("  at fault") == 1
    assert re.search(r"also fail, most likely for the same reason: .*value", rest)


def test_a_check_that_is_stopped_tells_what_it_came_to(folder, tmp_path):
    report = tmp_path / "report.json"
    options = ["--stress", "1000000", "--device", "cpu", "--dtype", "float32", "--json", str(report)]
    command = [sys.executable, "-m", "torchgraft", "check", f"{folder.name}.operator:good", *options]
    (tmp_path / "temporary").mkdir()
    environment = {**os.environ, "BEGUN": str(tmp_path / "begun"), "TMPDIR": str(tmp_path / "temporary")}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A process inherits what is ignored: the tests may run under nohup.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with subprocess.Popen(command, **streams, cwd=folder.parent, env=environment) as process:
        signal.signal(signal.SIGHUP, before)
        while not (tmp_path / "begun").exists() and process.poll() is None:
            time.sleep(0.1)
        # As when its terminal is closed.
        process.send_signal(signal.SIGHUP)
        said, warned = process.communicate(timeout=60)
    assert process.returncode == 1, warned
    assert "the check was stopped: 0 passed, 0 failed" in said, warned
    written = json.loads(report.read_text())
    assert not written["passed"]
    assert written["unfinished"] > 0
    # Its last line.
    *_, last = said.splitlines()
    assert last == f"it was stopped in {written['stopped_in'][0]}"
    assert re.fullmatch(r"stress of \S*good on cpu in float32", written["stopped_in"][0])
    assert not list((tmp_path / "temporary").glob("graft*"))


def test_stress_finds_what_goes_wrong_seldom_and_says_how_to_see_that_call_again(folder, tmp_path):
    options = ["--stress", "200", "--device", "cpu", "--dtype", "float32", "--json", str(tmp_path / "report.json")]
    wrong, right = (f"{folder.name}.operator:{name}" for name in ("sometimes", "good"))
    done = in_process([right, wrong, *options], folder.parent)
    assert done.returncode == 1, done.stderr
    results = json.loads((tmp_path / "report.json").read_text())["results"]
    # So many calls of each operator, fifty in a job.
    results.sort(key=lambda each: each["operator"])
    assert [each["operator"].partition("::")[2] for each in results] == ["good"] * 4 + ["sometimes"] * 4
    assert {each["status"] for each in results[:4]} == {"pass"}

    assert [each["called"] for each in results[:4]] == [50] * 4
    failures = [each["failure"] for each in results if each["status"] == "fail"]
    assert failures
    # What fails ends the fifty.
    assert [each["called"] for each in results if each["status"] == "fail"] == [
        each["seed"] % 50 + 1 for each in failures
    ]
    for failure in failures:
        assert failure["arguments"].endswith(", 7)")
    again = shlex.split(failures[0]["reproduce"])[2:]
    assert again[:3] == [f"{folder}:sometimes", "--stress", "1"]
    repeated = run(*again, "--workers", "0")
    assert repeated.exit_code == 1, repeated.stderr
    assert failures[0]["message"] in repeated.stdout
    passing = ["--seed", str(min(set(range(200)) - {failure["seed"] for failure in failures}))]
    assert run(right, "--stress", "1", "--device", "cpu", "--workers", "0", *passing).exit_code == 0


def test_what_holds_ends_with_zero_and_pure_json(folder):
    result = run(
        f"{folder.name}.operator:good", "--property", "value", "--device", "cpu", "--workers", 0, "--json", "-"
    )
    assert result.exit_code == 0, result.output
    report = read_document("check", result.stdout)
    assert report["passed"]
    assert len(report["results"]) == 4
    assert "every property holds: 4 passed" in result.stderr


def test_what_the_chosen_dtypes_leave_out_is_said(folder):
    target = f"{folder.name}.operator:good"
    asked = ["--property", "value", "--property", "second_gradient", "--device", "cpu", "--workers", 0]
    result = run(target, *asked, "--dtype", "float32", "--json", "-")
    assert result.exit_code == 0, result.output
    assert read_document("check", result.stdout)["not_asked"] == ["second_gradient"]
    assert "left out by --dtype, as they are asked in other dtypes: second_gradient" in result.stderr
    assert "every property that was asked holds: 1 passed" in result.stderr


@pytest.fixture(autouse=True)
def _importable(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder.parent))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nobody"], "there is no operator 'nobody'"),
        ([""], "an operator cannot have an empty name"),
        (["mul_constant", " "], "an operator cannot have an empty name"),
        (["mul_constant", "--property", "beauty"], "there is no property 'beauty'"),
        (["mul_constant", "--dtype", "float31"], "there is no dtype 'float31'"),
        (["mul_constant", "--sample", "of nothing"], "there is no sample 'of nothing'; the samples are 'scalar'"),
        (["mul_constant", "--stress", "3", "--property", "value"], "--stress draws its own calls"),
        (
            ["mul_constant", "--stress", "3", "--seed", str(2**63 - 2)],
            "the seed is too large: 3 calls from 9223372036854775806 on would",
        ),
        (["mul_constant", "--property", "value", "--dtype", "int8"], "there is nothing to check"),
        (["mul_constant", "--property", "bad_input", "--sanitize"], "--sanitize runs only these properties"),
        pytest.param(
            ["--device", "cuda"],
            "no CUDA device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_a_mistake_is_one_line(arguments, problem):
    result = run(*arguments)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not result.stdout


def test_a_name_of_ours_goes_before_a_folder_and_the_folder_can_be_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mul_constant").mkdir()
    options = ("--property", "flops", "--device", "cpu", "--workers", "0")
    ours = run("mul_constant", *options)
    assert ours.exit_code == 0, ours.output
    assert ours.stderr == "'mul_constant' means the operator; to check the folder of that name, write ./mul_constant\n"
    folder = run("./mul_constant", *options)
    assert folder.exit_code == 2
    assert folder.stderr == f"{tmp_path}/mul_constant declares no torchgraft.Operator\n"


def test_an_error_of_the_authors_module_is_theirs_to_read(tmp_path):
    (tmp_path / "broken_operator").mkdir()
    (tmp_path / "broken_operator/operator.py").write_text("1 / 0")
    result = run(tmp_path / "broken_operator")
    assert result.exit_code == 2
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_the_list_names_every_property_with_what_it_means():
    result = run("--list")
    assert result.exit_code == 0
    for name, each in PROPERTIES.items():
        assert re.search(rf"^{name} +{re.escape(each.summary[:40])}", result.stdout, re.MULTILINE), name
    listed = read_document("check-list", run("--list", "--json", "-").stdout)["properties"]
    assert {each["name"]: each["proves"] for each in listed} == {
        name: each.summary for name, each in PROPERTIES.items()
    }


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**40])
def test_a_seed_that_is_none_is_the_callers_mistake(seed):
    result = run("mul_constant", "--property", "flops", "--workers", "0", "--seed", str(seed))
    assert result.exit_code == 2
    assert "Invalid value for '--seed'" in result.stderr
    with pytest.raises(ValueError, match=f"seed must be from .* got {seed}"):
        torchgraft.check("mul_constant", properties=["flops"], seed=seed)
    allowed = min(max(seed, -(2**63)), 2**63 - 1)
    assert torchgraft.check("mul_constant", properties=["value"], device="cpu", seed=allowed).passed


def test_a_missing_extra_is_one_line(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "hypothesis"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    result = run("mul_constant")
    assert result.exit_code == 3
    assert result.stderr == "hypothesis is not installed: run pip install 'torchgraft[check]'\n"


def test_check_is_there_and_not_imported_before_it_is_asked_for():
    program = (
        "import sys, torchgraft; before = 'torchgraft.checking' in sys.modules;"
        "report = torchgraft.check('mul_constant', properties=['empty'], device='cpu');"
        "print(before, report.passed, type(report) is torchgraft.checking.CheckReport)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False True True\n"
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        _ = torchgraft.chekc


# The table.


def many_jobs() -> list[Job]:
    # Without those that come first, one of each operator: the first two jobs are then of one operator and property.
    cpu = [job for job in make_jobs(find_subjects([]), devices=["cpu"]) if job.property_name != SMOKE]
    return [*cpu, *(replace(job, device="cuda") for job in cpu)]


def console_of(width, height):
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)


def shown_on(width, height, jobs):
    console = console_of(width, height)
    live = LiveCheck(console, jobs)
    for job in jobs[:2]:
        live.start(job)
    live.finish(jobs[0], jobs[0].result("pass", 1.0))
    console.print(live._render())
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_table_too_wide_is_cut_into_several():
    jobs = many_jobs()
    board = Board(jobs)
    console = console_of(80, 25)
    for table in board.tables(console.width):
        console.print(table)
    lines = console.file.getvalue().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert "…" not in console.file.getvalue()
    columns = len({(job.name, job.device) for job in jobs})
    assert sum(line.split().count("cpu") + line.split().count("cuda") for line in lines) == columns
    assert len(lines) <= board.height(80)


@pytest.mark.parametrize(
    ("height", "shown"),
    [(1000, "every property"), (60, "every operator"), (12, "what runs"), (4, "how far it is")],
)
def test_what_is_shown_live_fits_into_the_terminal(height, shown):
    jobs = many_jobs()
    lines = shown_on(80, height, jobs)
    assert len(lines) < height
    assert max(len(line) for line in lines) <= 80
    text = "\n".join(lines)
    assert f"1/{len(jobs)}" in text
    assert ("✓ 1" in text) == (shown != "how far it is")
    assert any(line.startswith("value") for line in lines) == (shown == "every property")
    operators = {(job.name, job.device) for job in jobs}
    if shown in ("every operator", "what runs"):
        assert len(lines) - 1 == (len(operators) if shown == "every operator" else 1)


def test_without_a_terminal_nothing_is_shown_live():
    console = Console(file=io.StringIO(), width=80)
    jobs = make_jobs(find_subjects(["mul_constant"]), devices=["cpu"], properties=["value"])
    with LiveCheck(console, jobs) as live:
        for job in jobs:
            live.start(job)
            live.finish(job, job.result("not applicable", 0.0, reason="because"))
    assert console.file.getvalue() == ""

    results = tuple(job.result("not applicable", 0.0, reason="because") for job in jobs)
    print_report(console, live.board, CheckReport(results, {}, 0, False), 61.0)
    text = console.file.getvalue()
    assert text.count("because") == 1
    assert "no property was applicable: 0 passed, 0 failed, 4 not applicable, in 1 min 1 s" in text


def test_without_a_terminal_a_line_now_and_then_says_what_runs(monkeypatch, capsys):
    monkeypatch.setattr(live_check, "_SECONDS_BETWEEN_LINES", 0.01)
    jobs = make_jobs(find_subjects(["mul_constant"]), devices=["cpu"], properties=["value", "compile"])
    said = ""
    with LiveCheck(Console(file=io.StringIO(), width=80), jobs) as live:
        live.start(jobs[0])
        live.finish(jobs[0], jobs[0].result("pass", 1.0))
        live.start(jobs[-1])
        while "1 of" not in said:
            said += capsys.readouterr().err
    (line,) = [each for each in said.splitlines() if each.startswith("1 of")][:1]
    assert re.fullmatch(
        rf"1 of {len(jobs)} done after \d+ s; running: compile of \S*mul_constant on cpu in float32", line
    )


# Sanitizers.

BAD_KERNEL = """
#include <torchgraft/cpu.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

using namespace torchgraft;

Tensor sum_cpu(Tensor input) {
  const Tensor source = to_contiguous(input);
  Tensor output = empty_as(source);
  const float* from = static_cast<const float*>(source.const_data_ptr());
  float* to = static_cast<float*>(output.mutable_data_ptr());
  int64_t done = 0;
  parallel_for(0, output.numel(), 1000, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = 2 * from[i];
    done += end - begin;
  });
  if (done > 0) to[0] += from[done] * 0;
  return output;
}

TORCHGRAFT_KERNEL(check_sanitize, CPU, sum, sum_cpu)
"""
BAD_OPERATOR = """
from pathlib import Path

import torch
import torchgraft

operator = torchgraft.Operator(
    "check_sanitize::sum(Tensor input) -> Tensor",
    reference=lambda input: 2 * input,
    output=torch.empty_like,
    dtypes=(torch.float32,),
)
samples = torchgraft.sampling.Samples(
    [torchgraft.sampling.Sample("nine", (torchgraft.sampling.Drawn((9,)),))]
)
torchgraft.native.load("check_sanitize", Path(__file__).parent)
"""


def run_sanitized(jobs):
    started, steps = [], []
    results = sanitizing.run_sanitized(
        jobs, workers=1, on_start=started.append, on_result=lambda job, result: None, on_step=steps.append
    )
    return results, started, steps


# The names of our operators by the folder of their kernels, which are built together.
FOLDERS = defaultdict(list)
for subject in find_subjects([]):
    FOLDERS[kernel_folder_of(subject.operator, "cpu").name].append(subject.name)


# A result does not show that a kernel went on from a null pointer, or read behind what it was given.
@pytest.mark.slow
@pytest.mark.parametrize("names", [pytest.param(names, id=folder) for folder, names in FOLDERS.items()])
def test_our_own_kernels_hold_under_sanitizers(names):
    dtypes = "--dtype", "float32", "--dtype", "float16"
    done = run(*names, "--property", "value", "--device", "cpu", *dtypes, "--sanitize", "--quick")
    assert done.exit_code == 0, done.output
    # No operator is left out: kernels that are built in the folder of another are found there.
    has_own = names != ["linear"]
    assert ("there are no sources of CPU kernels" in done.output) != has_own, done.output


@pytest.mark.slow
def test_sanitizers_find_what_no_result_shows(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "check_sanitize").mkdir()
    (tmp_path / "check_sanitize/operator.py").write_text(BAD_OPERATOR)
    (tmp_path / "check_sanitize/cpu.cpp").write_text(BAD_KERNEL)
    # What a build left behind is no source.
    (tmp_path / "check_sanitize/build").mkdir()
    (tmp_path / "check_sanitize/build/CMakeCache.txt").touch()
    (tmp_path / "check_sanitize/build/compiler.cpp").write_text("#error not a kernel")
    jobs = make_jobs(find_subjects([str(tmp_path / "check_sanitize")]), devices=["cpu"], properties=["value"])
    results, _, _ = run_sanitized(sanitizing.sanitized(jobs))
    if any("GCC's sanitizers" in each.reason for each in results):
        pytest.skip(results[0].reason)

    address, thread = results
    assert (address.property, address.status) == ("address sanitizer: value", "fail")
    assert address.failure.message == "AddressSanitizer: heap-buffer-overflow, while at sample 'nine'"
    assert "  cpu.cpp:18: if (done > 0) to[0] += from[done] * 0;" in address.failure.traceback.splitlines()
    assert address.failure.reproduce.endswith("--sanitize --sample nine")

    assert (thread.property, thread.status) == ("thread sanitizer: value", "fail")
    assert thread.failure.message == "ThreadSanitizer: data race, while at sample 'nine'"
    assert thread.failure.traceback.count("cpu.cpp:16: done += end - begin;") >= 1


def test_without_sources_sanitizers_say_so(folder):
    jobs = make_jobs(find_subjects([str(folder)]), devices=["cpu"], properties=["value"])
    results, started, _ = run_sanitized(sanitizing.sanitized(jobs))
    assert len(results) == 2 * len(jobs)
    assert {each.reason for each in results} == {f"there are no sources of CPU kernels, *.cpp, in {folder}"}
    assert not started


FAKE = """#!{python}
import subprocess, sys
arguments = sys.argv[1:]
print("========= COMPUTE-SANITIZER", " ".join(arguments[:9]), flush=True)
place = arguments.index(sys.executable)
child = subprocess.Popen(arguments[place:], stdout=subprocess.PIPE, text=True)
for line in child.stdout:
    if line.startswith("@graft 1 ") and len(line) > 20:
        print("========= Invalid __global__ write of size 4 bytes")
        print("=========     at void torchgraft::kernel<float>(float *)+0x90")
        print("=========     by thread (5,0,0) in block (0,0,0)")
        print("=========")
    print(line, end="", flush=True)
print("========= ERROR SUMMARY: 1 error", flush=True)
sys.exit(child.wait() or 9)
"""


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Jobs under a tool that behaves like compute-sanitizer; on the CPU, so that they run anywhere."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(cuda.shutil, "which", lambda name, path=None: str(program))
    monkeypatch.setattr(cuda, "_why_not_watched", lambda namespace: "")
    jobs = make_jobs(find_subjects(["mul_constant"]), devices=["cpu"], properties=["value"])
    return [replace(job, under="memcheck") for job in jobs[:3]]


def test_a_report_of_compute_sanitizer_is_laid_to_its_job(watched):
    results, started, _ = run_sanitized(watched)
    assert started == watched
    assert [each.status for each in results] == ["pass", "fail", "pass"]
    failure = results[1].failure
    assert results[1].property == "memcheck: value"
    assert failure.message == "Invalid __global__ write of size 4 bytes"
    assert failure.traceback.splitlines()[0] == "at void torchgraft::kernel<float>(float *)+0x90"


def test_a_compute_sanitizer_that_does_not_work_is_a_reason(watched, monkeypatch):
    monkeypatch.setattr(cuda.serial, "__name__", "no_such_module")
    results, started, _ = run_sanitized(watched)
    assert not started
    assert all(each.status == "not applicable" for each in results)
    assert "compute-sanitizer does not work here" in results[0].reason
    assert "ERROR SUMMARY" in results[0].reason


def test_initcheck_looks_at_all_kernels_and_reports_ours(watched):
    tool = cuda.CUDA_TOOLS["initcheck"]
    lines = [
        "========= Uninitialized __global__ memory read of size 4 bytes",
        "=========     at void {}::kernel(float *)+0x90",
    ]
    for namespace, status in (("at::native", "pass"), ("torchgraft", "fail")):
        reader = cuda._Watched(watched[:1], tool, lambda job: None, lambda job, result: None)
        for line in lines:
            reader.read(line.format(namespace))
        reader._at = 0
        reader._finish(0, watched[0].result("pass", 1.0))
        assert reader.end(9)[0].status == status


def test_without_compute_sanitizer_it_says_what_to_install(watched, monkeypatch):
    monkeypatch.setattr(cuda.shutil, "which", lambda name, path=None: None)
    results, _, _ = run_sanitized(watched)
    assert {each.reason for each in results} == {"compute-sanitizer is not installed: it comes with the CUDA toolkit"}


def test_libraries_of_another_directory_go_before(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/check_libraries_cpu.so").write_text("not a library")
    monkeypatch.setenv("TORCHGRAFT_LIBRARIES", str(tmp_path / "elsewhere"))
    torchgraft.native.load("check_libraries", tmp_path)
    found = {each.device: each for each in torchgraft.native.libraries() if each.namespace == "check_libraries"}
    assert found["cpu"].path == tmp_path / "elsewhere/check_libraries_cpu.so"
    assert found["cuda"].path == tmp_path / "check_libraries_cuda.so"


TRITON = """
import torch
import torchgraft

operator = torchgraft.Operator(
    "check_triton::total(Tensor input) -> Tensor",
    reference=lambda input: 2 * input.sum(),
    output=lambda input: input.new_empty(()),
    dtypes=(torch.float32,),
    kernels={"cuda": (torch.float32,)},
)
samples = torchgraft.sampling.Samples(
    [torchgraft.sampling.Sample("nine", (torchgraft.sampling.Drawn((9,)),))]
)

import triton
import triton.language as tl


@triton.jit
def _total(input_ptr, output_ptr, count, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(output_ptr, FACTOR * tl.sum(tl.load(input_ptr + place, mask=place < count, other=0)))


@operator.kernel("cuda", triton=True)
def total(input):
    output = input.new_empty(())
    torchgraft.wrap_triton(_total)[(1,)](input.contiguous(), output, input.numel(), BLOCK=16)
    return output
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs the kernel itself")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton")
@pytest.mark.parametrize(("factor", "status"), [(2, 0), (3, 1)])
def test_without_a_gpu_tritons_interpreter_runs_the_kernels(tmp_path, factor, status):
    (tmp_path / "check_triton.py").write_text(TRITON.replace("FACTOR", str(factor)))
    done = in_process(["check_triton.py", "--property", "value", "--workers", "1"], tmp_path)
    assert done.returncode == status, done.stdout + done.stderr
    assert (
        "this machine has no GPU: Triton's interpreter runs the kernels of check_triton::total on the CPU"
        in done.stderr
    )


def test_tritons_interpreter_stays_off_where_nothing_needs_it(folder, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert "Triton" not in run(f"{folder}:good", "--property", "value", "--workers", "1").stderr
    assert "TRITON_INTERPRET" not in os.environ
