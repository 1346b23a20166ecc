"""The command line: versions, mistakes, missing extras, files, and what importing torchgraft does not import."""

import errno
import json
import os
import platform
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

import torchgraft
import torchgraft.benchmarking.memory
import torchgraft.benchmarking.suite
import torchgraft.checking.run
import torchgraft.demo
from torchgraft.__main__ import main
from torchgraft.cli import app
from torchgraft.cli.shared import interrupt_when_told_to_end, prepare_files, write_files


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
    assert result.exit_code == 3
    assert result.stderr == f"{package} is not installed: run pip install 'torchgraft[demo]'\n"


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_what_the_command_line_stands_on_one_line_says_what_to_install(monkeypatch, capsys, package):
    for name in list(sys.modules):
        if name.startswith((package, "torchgraft.cli")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(torchgraft, "cli", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    assert capsys.readouterr().err == (
        f"graft needs {package}, which is not installed: {sys.executable} -m pip install typer rich\n"
    )


def test_without_numpy_pytorch_says_nothing_of_it_and_other_warnings_are_seen(tmp_path):
    """In this process, and in those that a check starts."""
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["numpy"] = None\n')
    program = """
import warnings
import torchgraft
from torchgraft.machine.processes import clean_processes
warnings.warn("Failed to initialize NumPy, again")
process = clean_processes().Process(target=warnings.warn, args=("another",))
process.start()
process.join()
"""
    finished = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    here, there = finished.stderr.splitlines()[:2]
    assert here == "<string>:5: UserWarning: Failed to initialize NumPy, again"
    assert there.endswith("UserWarning: another")


def test_nothing_is_said_of_what_a_process_that_was_ended_leaves_behind(tmp_path):
    """A check that is stopped kills its workers, and compilers in them have semaphores."""
    (tmp_path / "leaving.py").write_text("""
import multiprocessing
import os
import signal
from torchgraft.machine.processes import clean_processes

def leave():
    global semaphore
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    process = clean_processes().Process(target=leave)
    process.start()
    process.join()
    print(process.exitcode)
""")
    command = [sys.executable, str(tmp_path / "leaving.py")]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (finished.stdout, finished.stderr) == ("-9\n", "")


def test_importing_torchgraft_imports_nothing_heavier_than_torch_and_its_samples_no_compiler():
    heavy = {"typer", "rich", "sklearn", "matplotlib", "hypothesis", "pytest", "torch._dynamo", "sympy"}
    program = f"""
import sys, torchgraft
print({heavy} & set(sys.modules))
from torchgraft.checking.subject import find_subjects
print(len(find_subjects([])) > 20, {{"torch._dynamo", "sympy"}} & set(sys.modules))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout == "set()\nTrue set()\n"


def test_the_package_runs_as_a_module():
    finished = subprocess.run(
        [sys.executable, "-m", "torchgraft", "--version"], capture_output=True, text=True, check=True
    )
    assert finished.stdout.startswith(f"torchgraft {torchgraft.__version__}\n")


# Signals.


@pytest.fixture
def handlers():
    kept = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for each, handler in kept.items():
        signal.signal(each, handler)


@pytest.mark.usefixtures("handlers")
def test_what_ends_a_command_interrupts_it_unless_it_is_to_go_on_without_a_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupt_when_told_to_end()
    for told in (signal.SIGTERM, signal.SIGHUP):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(told)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    interrupt_when_told_to_end()
    signal.raise_signal(signal.SIGHUP)


# Files.


@pytest.fixture
def works(monkeypatch):
    """Has every command fail that begins to work."""

    def work(*arguments, **keywords):
        pytest.fail("the work has begun")

    monkeypatch.setattr(torchgraft.checking.run, "run_everywhere", work)
    monkeypatch.setattr(torchgraft.benchmarking.suite, "run", work)
    monkeypatch.setattr(torchgraft.benchmarking.memory, "measure_memory", work)
    monkeypatch.setattr(sys.modules["torchgraft.cli.bench"], "measure_overhead", work)
    monkeypatch.setattr(torchgraft.demo, "compare", work)


@pytest.mark.parametrize(
    "command",
    [
        "check mul_constant --json",
        "bench mul_constant --json",
        "bench mul_constant --html",
        "bench mul_constant --markdown",
        "bench mul_constant --output",
        "bench overhead --json",
        "bench memory mul_constant --markdown",
        "demo --plot",
        "demo --json",
        "demo --output",
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(command, works, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    option = command.split()[-1]
    for place in ("file/below", "/proc/nothing/here"):
        result = run(*command.split(), place)
        assert (result.exit_code, result.stdout) == (2, ""), result.output
        assert result.stderr.startswith(f"{option}: cannot write {place}")
        assert len(result.stderr.splitlines()) == 1
    if option != "--output":
        assert run(*command.split(), str(tmp_path)).stderr == f"{option}: cannot write {tmp_path}: Is a directory\n"


@pytest.mark.parametrize("command", ["bench mul_constant", "bench overhead", "demo"])
def test_one_file_does_not_take_two_reports(command, works, tmp_path):
    for place, name in (("-", "standard output"), (tmp_path / "report", str(tmp_path / "report"))):
        result = run(*command.split(), "--json", str(place), "--markdown", str(place))
        assert result.exit_code == 2
        assert result.stderr == f"--json and --markdown both name {name}: give one of them another file\n"


def test_a_folder_that_refuses_is_said_before_the_demo(works, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def touch(path, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(type(tmp_path), "touch", touch)
    result = run("demo")
    assert result.exit_code == 2
    assert result.stderr == "--plot: cannot write torchgraft-demo.png: Read-only file system\n"


def test_a_home_that_refuses_is_said_before_sanitizers_build(works, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    result = run("check", "mul_constant", "--property", "value", "--device", "cpu", "--sanitize")
    assert result.exit_code == 2
    folder = tmp_path / "file/torchgraft"
    assert result.stderr == (
        f"--sanitize: cannot write to {folder}: Not a directory; set TORCHGRAFT_CACHE to another folder\n"
    )


def test_a_check_that_cannot_be_written_is_shown_all_the_same(tmp_path):
    arguments = ("mul_constant", "--property", "empty", "--device", "cpu", "--workers", "0")
    result = run("check", *arguments, "--json", "/dev/full")
    assert result.exit_code == 2
    assert "every property that was asked holds on cpu" in result.stdout
    assert result.stderr == "could not write /dev/full: No space left on device\n"
    made = tmp_path / "not/there/yet/report.json"
    assert run("check", *arguments, "--json", str(made)).exit_code == 0
    assert json.loads(made.read_text())["passed"]


def test_a_file_that_cannot_be_written_stays_as_it_was_and_the_others_are_written(tmp_path, monkeypatch, capsys):
    old, other = tmp_path / "old", tmp_path / "other"
    old.write_text("of last week")
    replace = os.replace

    def refuse_one(source, target):
        if str(target) == str(old):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse_one)
    with pytest.raises(typer.Exit) as ended:
        write_files((old, lambda: "new"), (None, lambda: pytest.fail("nobody wants it")), (other, lambda: b"other"))
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == f"could not write {old}: No space left on device\n"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old": "of last week", "other": "other"}


def test_a_file_that_is_replaced_keeps_its_permissions_and_a_link_stays_a_link(tmp_path):
    link, target = tmp_path / "link", tmp_path / "target"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    prepare_files(("--json", link), ("--markdown", tmp_path / "new"), ("--plot", None))
    assert target.read_text() == "old"
    write_files((link, lambda: "✓"), (tmp_path / "new", lambda: ""))
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == "✓"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~mask


def test_a_file_of_its_own_in_a_folder_that_refuses_is_written_in_place(tmp_path, monkeypatch):
    mounted = tmp_path / "mounted"
    mounted.write_text("old")

    def refuse(source, target):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(os, "replace", refuse)
    write_files((mounted, lambda: "new"))
    assert [path.read_text() for path in tmp_path.iterdir()] == ["new"]
    # What is no file is never replaced.
    write_files((Path("/dev/null"), lambda: "new"))
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("command", ["check", "bench"])
def test_kernels_that_do_not_compile_as_they_are_imported_are_told_without_a_traceback(tmp_path, monkeypatch, command):
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path / "cache"))
    package = tmp_path / f"does_not_compile_for_{command}"
    package.mkdir()
    (package / "cpu.cpp").write_text("int x = nothing;\n")
    loading = f'building.load("{package.name}", [Path(__file__).with_name("cpu.cpp")])\n'
    (package / "__init__.py").write_text(f"from pathlib import Path\nfrom torchgraft import building\n{loading}")
    result = run(command, str(package))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{package.name} does not build:\n{package}/cpu.cpp:1:9: error: 'nothing' was not")
    assert "Traceback" not in result.stderr
