"""Platforms that nobody here has: what is imported where there is no POSIX, and what asks other compilers."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchgraft.machine import environment

TOOLS = Path(__file__).parent.parent / "tools"


def tool(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hipified, platforms = tool("hipified"), tool("platforms")

# Python on Windows has neither these modules nor these functions and signals. What others have imported by then, as
# they do not on Windows, is left to them.
WITHOUT_POSIX = """
import os, signal, sys
import multiprocessing, rich.console, subprocess, torch, torch._dynamo, typer

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "getloadavg", "getuid", "killpg", "sched_getaffinity", "setsid", "sysconf", "wait4"):
    delattr(os, name)
for name in ("SIGALRM", "SIGCONT", "SIGHUP", "SIGKILL", "SIGSTOP", "alarm", "setitimer"):
    delattr(signal, name)
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """How CMake compiles two sources; it is only asked where there is another compiler."""
    if not any(
        shutil.which(name) for target in platforms.TARGETS.values() for name in target.compilers if name != "g++"
    ):
        pytest.skip("no other compiler is installed")
    every = platforms.commands_of_cmake(tmp_path_factory.mktemp("build"))
    return [
        each for each in every if each[-1].endswith(("causal_conv1d/cpu/update.cpp", "shift/cpu/channels_last.cpp"))
    ]


def run_without_posix(program):
    command = [sys.executable, "-c", f"{WITHOUT_POSIX}\n{program}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_operators_and_layers_answer_without_posix():
    program = """
import torchgraft
x = torch.ones(3, requires_grad=True)
torchgraft.mul_constant(x, 2.0).sum().backward()
torchgraft.graft(torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, groups=4)))(torch.ones(1, 4, 5, 5))
print(x.grad.tolist())
"""
    done = run_without_posix(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[2.0, 2.0, 2.0]"


def test_commands_start_without_posix():
    program = """
from typer.testing import CliRunner
from torchgraft.cli import app
for arguments in (["--help"], ["doctor"], ["check", "--list"], ["bench", "--help"], ["explain", "value"]):
    answered = CliRunner().invoke(app, arguments)
    # `graft doctor` ends with 1 where it finds a problem.
    if answered.exit_code > (arguments == ["doctor"]):
        print(*arguments, repr(answered.exception))
"""
    done = run_without_posix(program)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_driver_of_a_gpu_is_recorded(monkeypatch):
    class Nvml:
        @staticmethod
        def nvmlSystemGetDriverVersion(version, length):  # noqa: N802  its name
            version.value = b"580.12.34"
            return 0

        nvmlInit_v2 = nvmlShutdown = staticmethod(lambda: 0)  # noqa: N815

    monkeypatch.setattr(environment.ctypes, "CDLL", lambda name: Nvml)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    described = environment.describe_environment("cuda")
    assert described.driver == "580.12.34"
    assert "driver 580.12.34" in str(described)


def test_no_driver_is_named_where_there_is_none(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(environment.ctypes, "CDLL", missing)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    assert environment.describe_environment("cuda").driver == ""
    assert environment.describe_environment("cpu").driver == ""


@pytest.mark.slow
@pytest.mark.parametrize("platform", [name for name in platforms.TARGETS if name != "Linux on x86-64, GCC"])
def test_another_compiler_takes_what_only_some_processors_run(platform, commands, tmp_path):
    """The sources with most intrinsics; `make test-platforms` asks for all of them."""
    found = platforms.ask(platform, platforms.TARGETS[platform], commands, tmp_path)
    if found is None:
        pytest.skip(f"none of {', '.join(platforms.TARGETS[platform].compilers)} is installed")
    assert found.errors == {}


def test_hipify_changes_little_and_leaves_what_hip_lacks(tmp_path):
    made = hipified.hipify(tmp_path)
    source = "operators/mul_constant/cuda.cu"
    found = hipified.describe(hipified.PACKAGE / source, made[source], None)
    assert 0 < found.changed < found.lines / 4
    assert found.needs == ()
    source = "operators/lltm/cuda/on_chip/mma_forward.cu"
    found = hipified.describe(hipified.PACKAGE / source, made[source], None)
    assert {"tensor cores", "clusters", "cooperative groups"} <= {*found.needs}
