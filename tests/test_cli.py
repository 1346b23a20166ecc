"""The command line: versions, mistakes, missing extras, and what importing torchgraft does not import."""

import platform
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

import torchgraft
from torchgraft.cli import app


def run(*arguments):
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_version_names_what_runs():
    result = run("--version")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        f"torchgraft {torchgraft.__version__}",
        f"PyTorch {torch.__version__}",
        f"Python {platform.python_version()}",
    ]
    for library, line in zip(torchgraft.native.libraries()[:2], lines[3:], strict=True):
        assert line.startswith(f"{library.device} kernels {'loaded from' if library.loaded else 'not loaded: '}")
        assert library.problem in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_missing_is_named():
    result = run("demo", "--device", "cuda")
    assert result.exit_code == 2
    assert "no CUDA device" in result.stderr


def test_no_command_shows_the_commands():
    result = run()
    assert "demo" in result.output
    assert "bench" in result.output


@pytest.mark.parametrize("package", ["sklearn", "matplotlib"])
def test_a_missing_extra_is_one_line(monkeypatch, package):
    for name in list(sys.modules):
        if name.startswith((package, "torchgraft.demo")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(torchgraft, "demo", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    result = run("demo")
    assert result.exit_code == 1
    assert result.stderr == f"{package} is not installed; pip install 'torchgraft[demo]' brings it\n"


def test_importing_torchgraft_imports_nothing_heavier_than_torch():
    heavy = {"typer", "rich", "sklearn", "matplotlib", "hypothesis", "pytest", "torch._dynamo", "sympy"}
    program = f"import sys, torchgraft; print({heavy} & set(sys.modules))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout == "set()\n"


def test_the_package_runs_as_a_module():
    finished = subprocess.run(
        [sys.executable, "-m", "torchgraft", "--version"], capture_output=True, text=True, check=True
    )
    assert finished.stdout.startswith(f"torchgraft {torchgraft.__version__}\n")
