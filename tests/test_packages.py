"""Packages that were made with earlier versions: they load and hold under this one, without a compiler."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from torchgraft.authoring.wheel import paths_in, unpack

RELEASES = sorted(path for path in (Path(__file__).parent / "packages").iterdir() if any(path.glob("*.whl")))
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or sys.platform != "linux", reason="the kept packages were compiled for x86-64 Linux"
)


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def installed(request, tmp_path):
    """A folder with the packages of a release, as pip would lay them out."""
    for wheel in request.param.glob("*.whl"):
        unpack(wheel, tmp_path / "packages")
    return tmp_path / "packages"


def check(folder, *options):
    """Runs `graft check --quick` of all packages in a folder, in a fresh process that can compile nothing."""
    report = folder.parent / "report.json"
    command = [sys.executable, "-m", "torchgraft", "check", *sorted(each.parent.name for each in folder.glob("*/lib"))]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TORCHGRAFT_")},
        # No compiler, and nothing that was compiled before.
        "PATH": str(folder.parent),
        "TORCHGRAFT_JIT": "0",
        "TORCHGRAFT_CACHE": str(folder.parent / "cache"),
    }
    done = subprocess.run(
        [*command, "--quick", "--device", "cpu", "--json", str(report), *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(report.read_text())["results"]


def held(results, name):
    return {each["operator"] for each in results if each["property"] == name and each["status"] == "pass"}


ALL = {
    "kept_kinds::kept_kinds",
    "kept_backward::kept_backward",
    "kept_backward::kept_backward_backward",
}


def test_a_package_of_an_earlier_release_runs_on_its_kernels(installed):
    results = check(installed, *(word for name in ("value", "gradient", "fallbacks") for word in ("--property", name)))
    # `fallbacks` calls all samples and then finds nothing new in torchgraft.fallbacks().
    assert held(results, "value") == held(results, "gradient") == held(results, "fallbacks") == ALL
    # Nothing was compiled; Hypothesis keeps its own there.
    cache = installed.parent / "cache"
    assert {each.name for each in cache.glob("*")} <= {"hypothesis"}


@pytest.mark.slow
def test_a_package_of_an_earlier_release_holds_every_property(installed):
    results = check(installed)
    assert {each["status"] for each in results} <= {"pass", "not applicable"}
    assert held(results, "compile") == held(results, "vmap") == ALL


def test_no_kept_library_names_a_folder_of_the_machine_that_built_it(installed):
    for library in installed.rglob("*.so"):
        content = library.read_bytes()
        assert b"torchgraft/layout.h" in content
        # What begins with a slash would be a path from the root.
        assert [
            each for each in paths_in(content, ["/"]) if each.count("/") > 1 and f"\0{each}".encode() in content
        ] == []


def test_each_kept_wheel_lies_beside_its_sources():
    for release in RELEASES:
        for wheel in release.glob("*.whl"):
            name = wheel.name.partition("-")[0]
            assert wheel.stat().st_size < 100_000
            assert "TORCHGRAFT_KERNEL" in (release / name / "src" / name / "cpu.cpp").read_text()
