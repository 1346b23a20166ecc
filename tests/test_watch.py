"""`graft watch`: at each save it builds, asks what failed last and then the rest; it outlives whatever is saved."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torchgraft.authoring.watch import Files, find_folder, sources_in
from torchgraft.cli import app

ROOT = Path(__file__).parent.parent
# Of a wait for what comes within seconds on a machine that does nothing else.
SECONDS = 300

DECLARATION = """
import pathlib

import torch
import torchgraft
from torchgraft.sampling import Drawn, Sample, Samples

operator = torchgraft.Operator(
    "watched::twice(Tensor input) -> Tensor",
    reference=lambda input: 2 * input,
    output=torch.empty_like,
    gradient=lambda needs_grad, grads, saved, input: (2 * grads[0],),
    kernels={"cpu": torchgraft.operator.FLOATING},
)
samples = Samples([Sample("two", (Drawn((2,)),))])
"""

IN_PYTHON = """
@operator.kernel("cpu")
def twice(input):
    return 3 * input
"""

LOADED = """
torchgraft.native.load("watched", pathlib.Path(__file__).parent / "lib")
"""

IN_CPP = """
#include <torchgraft/dispatch.h>
#include <torchgraft/layout.h>
#include <torchgraft/registration.h>

torchgraft::Tensor twice(torchgraft::Tensor input) {
  return torchgraft::dispatch_floating(input.scalar_type(), "twice", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const torchgraft::Tensor source = torchgraft::to_dense(input);
    torchgraft::Tensor output = torchgraft::empty_as(source);
    const T* from = static_cast<const T*>(source.const_data_ptr());
    T* to = static_cast<T*>(output.mutable_data_ptr());
    for (int64_t i = 0; i < output.numel(); ++i) to[i] = static_cast<T>(from[i] * 3);
    return output;
  });
}
TORCHGRAFT_KERNEL(watched, CPU, twice, twice)
"""


class Watcher:
    """A watch in a process of its own, and what it says."""

    def __init__(self, folder, *words):
        self.log = folder.parent / "log"
        self.read = 0
        command = [sys.executable, "-m", "torchgraft", "watch", folder.name, "--device", "cpu", *words]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TORCHGRAFT_CACHE": str(folder.parent / "cache")}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=folder.parent, env=environment
            )

    def expect(self, *texts):
        """Waits until each text was said, one after the other, since what was last waited for."""
        until = time.monotonic() + SECONDS
        for text in texts:
            while (place := self.log.read_text().find(text, self.read)) < 0:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < until, f"{text!r} was not said:\n{self.log.read_text()[self.read :]}"
                time.sleep(0.1)
            self.read = place + len(text)

    def end(self):
        # As Ctrl-C does; what a shell runs in the background may be deaf to that, and is told to end.
        is_deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        self.process.send_signal(signal.SIGTERM if is_deaf else signal.SIGINT)
        assert self.process.wait(SECONDS) == 0, self.log.read_text()


@pytest.fixture
def watch():
    """Starts watches, and ends them whatever happens."""
    started = []

    def start(*arguments):
        started.append(Watcher(*arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "watched_package"
    folder.mkdir()
    return folder


WAITS = "waiting for a file to be saved"


@pytest.mark.slow
def test_what_failed_last_is_asked_first_and_what_is_no_python_ends_only_a_round(folder, watch):
    file = folder / "operator.py"
    file.write_text(DECLARATION + IN_PYTHON)
    watching = watch(folder, "--property", "value", "--property", "empty")
    watching.expect("watching one file in")
    # What is saved while a check runs ends that check.
    file.write_text(DECLARATION + IN_PYTHON.replace("3", "4"))
    watching.expect("saved: operator.py", "on cpu in float64: value", "expected", WAITS)

    file.write_text(file.read_text().replace("4 * input", "2 * input"))
    watching.expect(
        "saved: operator.py", "failed the last time: value", "every property holds", "every property", WAITS
    )

    file.write_text(file.read_text() + "def (")
    watching.expect("saved: operator.py", "SyntaxError", WAITS)
    watching.end()


@pytest.mark.slow
def test_kernels_are_built_at_each_save(folder, watch):
    (folder / "operator.py").write_text(DECLARATION + LOADED)
    file = folder / "cpu.cpp"
    file.write_text(IN_CPP)
    watching = watch(folder, "--property", "value")
    watching.expect("watching 2 files in", "on cpu in float64: value", WAITS)

    file.write_text(IN_CPP.replace("* 3", "* 2"))
    watching.expect(
        "saved: cpu.cpp", "failed the last time: value", "every property holds", "every property holds", WAITS
    )

    file.write_text(IN_CPP.replace("* 3", "* no_such_name"))
    watching.expect("saved: cpu.cpp", "watched does not build:", "error:", "no_such_name", WAITS)

    # Nothing is compiled, as it was before; what the author has built stays away.
    file.write_text(IN_CPP.replace("* 3", "* 2"))
    watching.expect("saved: cpu.cpp", "every property holds", WAITS)
    assert not (folder / "lib").exists()
    watching.end()


def test_a_file_is_changed_where_its_content_is(folder):
    file = folder / "cpu.cpp"
    for hidden in (".git/cpu.cpp", "__pycache__/cpu.py", "build/cpu.cpp"):
        (folder / hidden).parent.mkdir()
        (folder / hidden).write_text("")
    (folder / "build/CMakeCache.txt").write_text("")
    (folder / "notes.md").write_text("")
    files = Files([folder])
    assert files.changed() == []
    file.write_text("one")
    assert files.changed() == [file]
    os.utime(file, ns=(0, 0))
    assert files.changed() == []
    file.write_text("two")
    assert files.changed() == [file]
    file.unlink()
    assert files.changed() == [file]
    assert files.changed() == []


def test_a_folder_is_found_and_nothing_is_imported(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "__init__.py").write_text("raise ImportError")
    (folder / "operator.py").write_text("raise ImportError")
    (folder / "part").mkdir()
    for target in (
        "watched_package",
        "watched_package:twice",
        "watched_package/operator.py",
        "watched_package/operator.py:twice",
        "watched_package:operator",
        "watched_package.operator:twice",
    ):
        assert find_folder(target) == folder, target
    assert find_folder(".") == folder.parent
    assert find_folder("watched_package.part:twice") == folder / "part"
    assert find_folder("shift") == ROOT / "src/torchgraft/operators/shift"


@pytest.mark.parametrize("target", ["no_such", "no_such:name", "sys:name", ""])
def test_what_names_no_folder_is_refused(target):
    with pytest.raises(LookupError, match="nothing to watch: there is no operator, folder, file or module"):
        find_folder(target)


def test_sources_belong_to_the_namespaces_that_they_name(folder):
    texts = {
        "one.cpp": "TORCHGRAFT_KERNEL(one, CPU, name, function)",
        "two.cu": "STABLE_TORCH_LIBRARY_IMPL(two, CUDA, library) {}",
        "both.cpp": "// helpers",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "operator.py").write_text(DECLARATION)
    both, one, two = sorted(map(folder.joinpath, texts))
    assert sources_in([folder]) == {"one": [both, one], "two": [both, two]}
    # It builds them as it is imported.
    (folder / "operator.py").write_text("from torchgraft import building\n" + DECLARATION)
    assert sources_in([folder]) == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no_such"], "nothing to watch: there is no operator, folder, file or module 'no_such'"),
        ([".", "--property", "no_such"], "there is no property 'no_such'"),
        (["."], "holds neither kernel sources nor Python files"),
    ],
)
def test_the_command_ends_with_one_line_where_the_question_is_wrong(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    signals = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        done = CliRunner().invoke(app, ["watch", *words])
    finally:
        for each, before in signals.items():
            signal.signal(each, before)
    assert done.exit_code == 2
    assert said in done.output
