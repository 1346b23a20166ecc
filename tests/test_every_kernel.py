"""Kernels that a library lists are forced, one by one: by `graft check` and `graft bench`, on an operator of four.

One of them is always chosen, one is wrong and never chosen, no sample reaches the third, and no device runs the fourth.
"""

import io
import json
import re
import shlex

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from planted import kernels
from planted.elementwise import chosen
from torchgraft import native
from torchgraft.benchmarking import suite
from torchgraft.benchmarking.live import print_suite
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.suite import Wanted
from torchgraft.checking import PROPERTIES
from torchgraft.checking.jobs import make_jobs, make_kernel_jobs
from torchgraft.checking.run import run_job
from torchgraft.checking.subject import subject_of
from torchgraft.checking.workers import run_jobs
from torchgraft.cli import app

TARGET = "planted.elementwise:chosen"
NAMES = ("pairs", "huge", "newer", "plain")
CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("busy_machine")


@pytest.fixture(scope="module", autouse=True)
def _kernels():
    kernels.load()


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)


def check(*options):
    return run("check", TARGET, "--device", "cpu", "--workers", 0, *options)


def test_a_library_lists_its_kernels_and_one_without_choice_lists_none():
    assert native.kernels("planted", "cpu")["chosen"] == NAMES
    assert native.kernels("nobody", "cpu") == {}


def test_a_kernel_serves_what_it_supports_while_it_is_forced():
    even, odd = torch.ones(4), torch.ones(5)
    with native.ForcedKernel("planted", "cpu", "pairs") as forced:
        assert chosen(even, 2.0).tolist() == [2, 2, 2, 1]
        assert chosen(odd, 2.0).tolist() == [2, 2, 2, 2, 2]
    assert forced.served == 1
    assert chosen(even, 2.0).tolist() == [2, 2, 2, 2]
    with native.ForcedKernel("planted", "cpu", "huge") as forced:
        assert chosen(even, 2.0).tolist() == [2, 2, 2, 2]
    assert forced.served == 0
    assert not forced.is_ruled_out
    for served in (even, odd):
        with native.ForcedKernel("planted", "cpu", "newer") as forced:
            chosen(served, 2.0)
        assert forced.served == 0
        assert forced.is_ruled_out == (served is even)
    with pytest.raises(LookupError, match="the library of nobody for cpu does not list its kernels"):
        native.ForcedKernel("nobody", "cpu", "pairs")


def test_a_kernel_that_serves_alone_refuses_what_it_does_not_support():
    even, odd = torch.ones(4), torch.ones(5)
    with native.ForcedKernel("planted", "cpu", "pairs", alone=True) as forced:
        assert chosen(even, 2.0).tolist() == [2, 2, 2, 1]
        with pytest.raises(RuntimeError) as refused:
            chosen(odd, 2.0)
    assert native.is_refused(refused.value)
    assert forced.served == 1
    assert chosen(odd, 2.0).tolist() == [2, 2, 2, 2, 2]
    with native.ForcedKernel("planted", "cpu", "pairs"):
        assert chosen(odd, 2.0).tolist() == [2, 2, 2, 2, 2]


@pytest.mark.parametrize("name", ["value", "sizes"])
@pytest.mark.parametrize(("kernel", "status"), [("plain", "pass"), ("huge", "not applicable")])
def test_where_a_kernel_is_forced_no_other_is_asked_again(name, kernel, status):
    jobs = make_jobs([subject_of(chosen)], devices=["cpu"], properties=[name], dtypes=[torch.float32])
    [job] = make_kernel_jobs(jobs, [kernel])
    results = []
    served = native.chosen_kernels("planted", "cpu", lambda: results.append(run_job(job)))
    assert served == (("plain",) if kernel == "plain" else ())
    assert [each.status for each in results] == [status]


def test_a_library_says_which_kernels_it_chose_while_a_call_was_made():
    assert native.chosen_kernels("planted", "cpu", lambda: chosen(torch.ones(4), 2.0)) == ("plain",)
    with native.ForcedKernel("planted", "cpu", "pairs"):
        both = native.chosen_kernels("planted", "cpu", lambda: [chosen(torch.ones(size), 2.0) for size in (4, 5, 4)])
    assert both == ("pairs", "plain")
    # Nothing of the calls before.
    assert native.chosen_kernels("planted", "cpu", lambda: None) == ()
    assert native.chosen_kernels("nobody", "cpu", lambda: None) == ()


def test_each_kernel_is_checked_on_whatever_it_supports(tmp_path):
    assert check("--property", "value").exit_code == 0

    done = check("--property", "value", "--every-kernel", "--json", tmp_path / "report.json")
    assert done.exit_code == 1, done.output
    report = json.loads((tmp_path / "report.json").read_text())
    found = {
        name: {(each["property"], each["status"]) for each in report["results"] if each["kernel"] == name}
        for name in NAMES
    }
    assert found == {
        "pairs": {("value", "fail")},
        "huge": {("value", "not applicable"), ("reached", "fail")},
        "newer": {("value", "not applicable")},
        "plain": {("value", "pass")},
    }
    assert "planted::chosen, kernel pairs, on cpu in float64: value" in done.output
    assert "  sample    times zero" in done.output
    assert "planted::chosen, kernel huge, on cpu in float64, float32, float16, bfloat16: reached" in done.output
    assert "no sample runs on this kernel" in done.output
    assert "newer  this device lacks something that the kernel needs" in done.output
    assert "2 properties do not hold: 4 passed, 5 failed, 8 not applicable" in done.output

    wrong, unreached = (
        next(each["failure"]["reproduce"] for each in report["results"] if each["kernel"] == name and each["failure"])
        for name in ("pairs", "huge")
    )
    assert "--kernel pairs" in wrong
    for again, message in (
        (wrong, "1 of 6 elements"),
        (f"{unreached} --property value", "no sample runs on this kernel"),
    ):
        repeated = run(*shlex.split(again)[1:], "--workers", 0)
        assert repeated.exit_code == 1
        assert message in repeated.output


def test_where_the_question_is_narrower_a_kernel_that_is_not_reached_is_no_failure():
    for narrower in (("--dtype", "float32"), ("--sample", "a tile")):
        done = check("--property", "value", "--kernel", "huge", *narrower)
        assert done.exit_code == 0, done.output
        assert "huge  the kernel supports no sample in float32" in done.output


def test_asked_are_the_properties_that_call_kernels_and_compile_nothing():
    done = check("--every-kernel", "--dtype", "float32", "--quick", "--sample", "a tile", "--json", "-")
    results = json.loads(done.stdout)["results"]
    assert {each["property"] for each in results} == {name for name, each in PROPERTIES.items() if each.sanitized}
    assert {each["kernel"] for each in results if each["status"] == "fail"} == {"pairs"}


def test_each_call_that_is_drawn_is_asked_of_each_kernel():
    done = check("--stress", 20, "--every-kernel", "--dtype", "float32", "--json", "-")
    results = json.loads(done.stdout)["results"]
    assert [(each["kernel"], each["status"], each["called"]) for each in results if each["kernel"] != "pairs"] == [
        ("huge", "not applicable", 0),
        ("newer", "not applicable", 0),
        ("plain", "pass", 20),
    ]
    failure = next(each["failure"] for each in results if each["kernel"] == "pairs")
    assert f"--stress 1 --device cpu --dtype float32 --seed {failure['seed']} --kernel pairs" in failure["reproduce"]


def test_a_kernel_is_forced_in_the_process_that_asks():
    jobs = make_jobs([subject_of(chosen)], devices=["cpu"], properties=["value"], dtypes=[torch.float32])
    forced = make_kernel_jobs(jobs)
    assert [job.kernel for job in forced] == list(NAMES)
    statuses = ["fail", "not applicable", "not applicable", "pass"]
    assert [result.status for result in run_jobs(forced)] == statuses
    assert [run_job(job).status for job in forced] == statuses
    assert run_job(jobs[0]).status == "pass"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["check", TARGET, "--kernel", "pear"],
            "there is no kernel 'pear'; the kernels are 'pairs', 'huge', 'newer', 'plain'",
        ),
        (["check", "planted.elementwise:scale", "--every-kernel"], "no kernels are listed for planted::scale on cpu:"),
        (["bench", "linear", "--every-kernel"], "no kernels are listed for linear on cpu:"),
    ],
)
def test_a_mistake_is_one_line(arguments, problem):
    result = run(*arguments, "--device", "cpu")
    assert result.exit_code == 2
    assert problem in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_benchmark_times_each_kernel_in_the_rows_that_it_supports(monkeypatch):
    roofs = Roofs({2**20: 1e18}, {"float32": 1e21}, {"float32": 1e21}, 1e-12)
    monkeypatch.setattr(suite, "measure_roofs", lambda *arguments: roofs)
    wanted = Wanted(CPU, directions=("forward", "backward"), against=("reference",), quick=True, every_kernel=True)
    report = suite.run(suite.plan([subject_of(chosen)], wanted), wanted)
    rivals = {(row.sample, row.direction): row.rivals for row in report.rows}
    assert [list(each) for each in rivals.values()] == [
        ["reference", "kernel plain"],
        ["reference"],
        ["reference", "kernel pairs", "kernel plain"],
        ["reference"],
    ]
    even = rivals["a tile", "forward"]
    assert "the result is wrong" in even["kernel pairs"].problem
    assert even["kernel plain"].ratio.median > 0

    console = Console(file=io.StringIO(), width=100)
    print_suite(console, report.rows)
    shown = console.file.getvalue()
    # Beside the kernel that was chosen; what others take stands below.
    assert not re.search("kernel (plain|pairs)", shown.splitlines()[1])
    assert "  kernel pairs           refused" in shown
