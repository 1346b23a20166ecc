"""Exit statuses: each kind of each command is what the table in docs/api/commands.md says."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import torchgraft.authoring.doctor
from reports import make_report, make_row
from torchgraft.cli import app

PAGE = Path(__file__).parents[1] / "docs/api/commands.md"
SHORT = ("--property", "value", "--dtype", "float32", "--device", "cpu", "--workers", "0")
OPERATOR = """import torch
import torchgraft
from torchgraft.sampling import Drawn, Sample, Samples

{name} = torchgraft.Operator(
    "{name}::{name}(Tensor input) -> Tensor",
    reference=lambda input: 2 * input,
    output=torch.empty_like,
    gradient="reference",
    kernels={{"cpu": (torch.float32,)}},
    dtypes=(torch.float32,),
)
{name}.kernel("cpu")(lambda input: {factor} * input)
samples = Samples([Sample("a row", (Drawn((3,)),))])
"""


def status(*arguments):
    # An error that nobody expected is no status.
    return CliRunner().invoke(app, [str(each) for each in arguments], catch_exceptions=False).exit_code


def write_operator(folder, name, factor):
    path = folder / f"{name}.py"
    path.write_text(OPERATOR.format(name=name, factor=factor))
    return path


def test_the_table_lists_each_status_once():
    table = PAGE.read_text().partition("## Exit statuses")[2].partition("\n## ")[0]
    assert re.findall(r"^\| (\d+) \|", table, re.MULTILINE) == ["0", "1", "2", "3", "130"]


def test_zero_is_yes_and_one_is_no(tmp_path):
    assert status("check", write_operator(tmp_path, "status_right", 2), *SHORT) == 0
    assert status("check", write_operator(tmp_path, "status_wrong", 3), *SHORT) == 1
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(make_report([make_row(median=1e-4)]).as_json())
    new.write_text(make_report([make_row(median=3e-4)]).as_json())
    assert status("bench", "compare", old, old) == 0
    assert status("bench", "compare", old, new) == 1
    assert status("explain", "value") == 0


@pytest.mark.parametrize(
    "words",
    [
        "",
        "no_such_command",
        "check no_such",
        "check mul_constant --no-such-option",
        "check mul_constant --property no_such",
        "check mul_constant --dtype no_such",
        "check mul_constant --sample no_such",
        "check mul_constant --json /dev/null/report.json",
        "check mul_constant --mutants 1 --quick",
        "check no_such --mutants 1",
        "check mul_constant --distrust no_such.py:kernel",
        "adopt torch.ops.no.such --reference torch:relu",
        "bench no_such",
        "bench no_such --draw 1",
        "bench memory no_such",
        "bench show no_such.json",
        "bench compare no_such.json no_such.json",
        "bench mul_constant --explain --device-like no_such",
        "demo no_such",
        "doctor --json /dev/null/report.json",
        "explain no_such",
        "new no-name",
        "shard no_such",
        "watch no_such",
        "wheel no_such",
    ],
)
def test_two_is_no_answer(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert status(*words.split()) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the emulator of CUDA is written for Linux")
def test_kernels_that_the_emulator_cannot_compile_are_a_failure_in_the_report(tmp_path):
    folder, report = tmp_path / "status_emulated", tmp_path / "report.json"
    folder.mkdir()
    text = OPERATOR.format(name="status_emulated", factor=2).replace('kernels={"cpu"', 'kernels={"cuda"')
    loaded = 'from pathlib import Path; torchgraft.native.load("status_emulated", Path(__file__).parent)'
    (folder / "operator.py").write_text(re.sub(r"status_emulated\.kernel.*", loaded, text))
    (folder / "cuda.cu").write_text("__global__ void kernel() { __shared__ float* pointer; }\n")
    command = ("check", folder, "--device", "cuda", "--emulate", "--property", "value", "--quick", "--json", report)
    assert status(*command) == 1
    failed = [each for each in json.loads(report.read_text())["results"] if each["status"] == "fail"]
    assert [each["property"] for each in failed] == ["compiles"]
    assert "a declaration of shared memory" in failed[0]["failure"]["message"]


@pytest.mark.parametrize("command", ["check", "bench", "bench memory", "shard"])
def test_an_error_in_a_module_that_declares_operators_is_shown_and_is_no_answer(command, tmp_path, capfd):
    path = tmp_path / f"status_raises_{command.replace(' ', '_')}.py"
    path.write_text("import torchgraft\ntorchgraft.Operator\nraise OSError('it is late')\n")
    done = CliRunner().invoke(app, [*command.split(), str(path)], catch_exceptions=False)
    assert done.exit_code == 2
    assert "OSError: it is late" in done.stderr + capfd.readouterr().err


def test_three_is_a_missing_package(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "hypothesis" else found(name))
    assert status("check", "mul_constant") == 3
    assert status("watch", "mul_constant") == 3


def test_a_command_that_is_stopped_has_a_status_of_its_own(monkeypatch):
    def stop(packages):
        raise KeyboardInterrupt

    monkeypatch.setattr(torchgraft.authoring.doctor, "examine", stop)
    assert status("doctor") == 130
