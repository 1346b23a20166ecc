"""`graft doctor`: what is right, what is absent and who wants it, and what to do about what is wrong."""

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from documents import read_document
from torchgraft import building, native
from torchgraft.authoring import doctor
from torchgraft.building import cache
from torchgraft.building import compile as compiling
from torchgraft.cli import app

VERSIONS = Path(__file__).parent.parent / "docs/versions"


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path / "cache"))


def finding(thing):
    return next(each for each in doctor.examine() if each.thing == thing)


def make_large(directory):
    (directory / "library.so").write_bytes(bytes(3_000_000))


def test_on_this_machine_nothing_of_ours_is_wrong():
    done = CliRunner().invoke(app, ["doctor"])
    # What other tests have loaded on purpose is not this machine's fault.
    others = [each for each in doctor.examine() if each.status == "wrong" and "," not in each.thing]
    assert not others, done.output
    assert torch.__version__ in done.output


def test_a_machine_reads_the_same(tmp_path):
    file = tmp_path / "doctor.json"
    CliRunner().invoke(app, ["doctor", "--json", str(file)])
    found = read_document("doctor", file.read_text())["findings"]
    assert [each["thing"] for each in found] == [each.thing for each in doctor.examine()]
    assert set(found[0]) == {"thing", "status", "found", "advice"}


@pytest.mark.parametrize(
    ("version", "status", "advice"),
    [
        ((2, 10), "wrong", "too old for the kernels: install PyTorch 2.11 or newer"),
        ((2, 11), "ok", ""),
        (doctor.NEWEST_TESTED, "ok", ""),
        (
            (3, 0),
            "ok",
            "newer than 2.15, the newest version tested: run graft check --quick to see whether all is well",
        ),
    ],
)
def test_pytorch_is_held_against_what_was_tested(monkeypatch, version, status, advice):
    monkeypatch.setattr(native, "torch_version", lambda: version)
    found = finding("PyTorch")
    assert (found.status, found.advice) == (status, advice)


def test_the_newest_that_was_tested_is_that_of_the_reports():
    newest = max(tuple(map(int, path.stem.split("."))) for path in VERSIONS.glob("*.json"))
    assert newest[:2] == doctor.NEWEST_TESTED


def test_what_is_not_there_says_who_wants_it_and_what_brings_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(shutil, "which", lambda *arguments, **named: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for thing, advice in (
        ("C++ compiler", "there is no C++ compiler: install g++, or set the environment variable CXX to one"),
        ("cmake", "cmake is not installed: run pip install 'torchgraft[check]'"),
        ("ninja", "ninja is not installed: run pip install 'torchgraft[check]'"),
        ("nvcc", "install the CUDA toolkit and put nvcc on PATH"),
        ("jinja2", "pip install 'torchgraft[bench]'"),
    ):
        found = finding(thing)
        assert (found.status, found.advice) == ("absent", advice)
        assert "need" in found.found


def test_a_compiler_that_is_too_old_is_told(monkeypatch):
    monkeypatch.setattr(building, "version_of", lambda compiler: "g++ (Debian 9.4.0-1) 9.4.0\nCopyright")
    found = finding("C++ compiler")
    assert (found.status, found.advice) == (
        "wrong",
        "too old for C++20, which the kernels use: install g++ 11 or newer",
    )


def test_a_cmake_that_is_too_old_is_told(monkeypatch):
    monkeypatch.setattr(compiling, "version_of", lambda program: "cmake version 3.25.1")
    found = finding("cmake")
    assert (found.status, found.found) == ("absent", "too old; you need a newer one to build CUDA kernels")
    assert found.advice.endswith(
        "is version 3.25.1, and this build needs 3.25.2 or newer: run pip install 'cmake>=3.25.2'"
    )


def test_a_toolkit_that_is_newer_than_the_driver_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "_driver_version", lambda: "12.4")
    monkeypatch.setattr(building, "version_of", lambda compiler: "Cuda compilation tools, release 13.0, V13.0.88")
    found = finding("nvcc")
    assert (found.status, found.found) == ("wrong", "CUDA 13.0")
    assert found.advice == "the driver supports CUDA 12.4 only, which is older than nvcc: update the driver"


def test_a_cache_that_cannot_be_used_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHGRAFT_CACHE", str(tmp_path / "file/cache"))
    found = finding("cache")
    assert (found.status, found.found) == ("wrong", f"{tmp_path / 'file/cache'} cannot be written: Not a directory")
    assert "set TORCHGRAFT_CACHE to another folder" in found.advice
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 1
    assert re.search(r"\b\d+ problems?; each line says what to do", done.output)


def test_a_cache_says_what_it_holds(tmp_path):
    cache.keep("key", make_large)
    assert finding("cache").found == f"1 build in {tmp_path / 'cache'}, 3 MB"


def test_a_kernel_that_does_not_run_is_told(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no kernel image is available for execution on the device\nmore")

    monkeypatch.setattr(torch.ops.torchgraft, "_mul_constant", fail)
    found = finding("torchgraft, cpu")
    assert found.status == "wrong"
    assert found.advice == "a kernel failed there: no kernel image is available for execution on the device"
    monkeypatch.setattr(torch.ops.torchgraft, "_mul_constant", lambda *arguments: torch.zeros(3))
    assert finding("torchgraft, cpu").advice.startswith("a kernel doubled 0, 1 and 2 to [0.0, 0.0, 0.0]")


PACKAGE = """
import torch
import torchgraft
from pathlib import Path
from torchgraft.sampling import Drawn, Sample, Samples

{before}
for name, declared in {{
    "doubled": {{}},
    "unwritten": {{}},
    "failing": {{}},
    "composed": {{"kernels": "reference"}},
    "of_gpus": {{"kernels": {{"cuda": (torch.float32,)}}}},
    "unsampled": {{}},
}}.items():
    operator = torchgraft.Operator(
        f"{namespace}::{{name}}(Tensor input) -> Tensor",
        reference=lambda input: 2 * input,
        shapes="... -> ...",
        **declared,
    )
    if name in ("doubled", "unsampled"):
        operator.kernel("cpu")(lambda input: (2 * input).contiguous())
    if name == "failing":
        operator.kernel("cpu")(lambda input: [][len(input)])
torchgraft.native.load("{namespace}", Path(__file__).parent / "lib")
names = ("doubled", "unwritten", "failing", "composed", "of_gpus")
samples = {{name: Samples([Sample("three", (Drawn((3,)),))]) for name in names}}
"""


@pytest.fixture
def consumer(tmp_path, monkeypatch):
    """Installs a package with a text before its operators, and returns what the doctor says of the package."""
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))

    def examine(namespace, before=""):
        (tmp_path / "packages" / namespace).mkdir(parents=True)
        (tmp_path / "packages" / namespace / "__init__.py").write_text(
            PACKAGE.format(before=before, namespace=namespace)
        )
        return {each.thing: each for each in doctor.examine([namespace]) if each.thing.startswith(namespace)}

    return examine


def test_each_operator_of_an_installed_package_says_whether_its_kernel_runs(consumer, tmp_path):
    found = consumer("doctored")
    assert found["doctored"].found == f"in {tmp_path / 'packages/doctored'}"
    assert (found["doctored, cpu"].status, found["doctored, cpu"].found[:10]) == ("wrong", "no kernels")
    said = {thing: (each.status, each.found) for thing, each in found.items() if "::" in thing and "cpu" in thing}
    assert said == {
        "doctored::doubled, cpu": ("ok", "it runs on its kernel in float32"),
        "doctored::unwritten, cpu": ("wrong", "it runs on its reference in float32"),
        "doctored::failing, cpu": ("wrong", "a call in float32 fails"),
        "doctored::composed, cpu": ("ok", "PyTorch's own operators are its kernel"),
        "doctored::of_gpus, cpu": ("absent", "no kernel is declared: it runs on its reference"),
        "doctored::unsampled, cpu": ("absent", "it has no samples to be called on"),
    }
    assert str(tmp_path / "packages/doctored/lib/doctored_cpu.so") in found["doctored::unwritten, cpu"].advice
    assert found["doctored::failing, cpu"].advice == "list index out of range"
    # Asked again, it says the same.
    again = {each.thing: each for each in doctor.examine(["doctored"])}
    assert again["doctored::unwritten, cpu"] == found["doctored::unwritten, cpu"]


@pytest.mark.parametrize(
    ("before", "found", "advice"),
    [
        (
            "import not_there_at_all",
            "not_there_at_all is not installed here",
            "install it: pip install not_there_at_all",
        ),
        ("raise RuntimeError('no such device\\nmore')", "it cannot be imported", "RuntimeError: no such device"),
    ],
    ids=["missing", "raises"],
)
def test_a_package_that_cannot_be_imported_says_why(consumer, before, found, advice):
    name = f"doctored_{len(before)}"
    [only] = consumer(name, before).values()
    assert (only.thing, only.status, only.found, only.advice) == (name, "wrong", found, advice)


def test_the_command_takes_packages():
    done = CliRunner().invoke(app, ["doctor", "not_there_at_all"])
    assert done.exit_code == 1
    assert "pip install not_there_at_all" in done.output


def test_a_library_that_did_not_load_says_why(tmp_path):
    native.load("doctors", tmp_path)
    found = finding("doctors, cpu")
    assert (found.status, found.found) == ("wrong", "no kernels: the operators run on their references")
    assert "building.build('doctors'" in found.advice


def test_variables_that_change_what_runs_are_shown(monkeypatch):
    monkeypatch.setenv("TORCHGRAFT_JIT", "0")
    assert finding("TORCHGRAFT_JIT").found == "0"
