"""Platforms that nobody here has: what is imported where there is no POSIX, and what asks other compilers."""

import subprocess
import sys

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
