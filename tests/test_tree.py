"""The tree tells the story: every operator is the same room, and nothing general knows one by name."""

import ast
import re
from pathlib import Path

import pytest

import torchgraft
from torchgraft import Operator
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.subject import find_subjects

PACKAGE = Path(torchgraft.__file__).parent
FOLDERS = sorted(path.parent.name for path in (PACKAGE / "operators").glob("*/__init__.py"))
FURNITURE = {"__init__.py", "operator.py", "reference.py", "samples.py"}
KERNELS = {"cpu.cpp", "cuda.cu"}
# What may name an operator, beside its own folder.
MAY_NAME = ("operators/", "nn/", "demo/", "__init__.py", "grafting.py")


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_operator_has_the_same_files(folder):
    declared = [
        each for each in Operator.registered.values() if each.module.startswith(f"torchgraft.operators.{folder}.")
    ]
    has_kernels = any(each.kernels != "reference" for each in declared)
    files = {path.name for path in (PACKAGE / "operators" / folder).iterdir()}
    assert files >= FURNITURE | (KERNELS if has_kernels else set())


def test_every_folder_is_imported_by_one_line_and_the_other_way_round():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    prefix = "torchgraft.operators."
    imported = [
        node.module.removeprefix(prefix)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(prefix)
    ]
    assert sorted(imported) == FOLDERS


def test_every_operator_has_samples_and_benchmarks():
    for subject in find_subjects([]):
        assert subject.samples.table, subject.name
        assert subject.samples.benchmarks, subject.name


def test_every_property_is_a_file_and_says_what_it_proves():
    files = {path.stem for path in (PACKAGE / "checking" / "properties").glob("*.py")} - {"__init__"}
    assert set(PROPERTIES) == files
    for name, each in PROPERTIES.items():
        assert each.name == name
        text = (PACKAGE / "checking" / "properties" / f"{name}.py").read_text()
        assert "\nProves: " in text, name
        assert "\nCannot prove: " in text, name


def test_no_operator_is_named_outside_its_place():
    names = re.compile(rf"\\b(?:{'|'.join(FOLDERS)})\\b|depthwise", re.IGNORECASE)
    strangers = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in PACKAGE.rglob("*")
        if path.suffix in {".py", ".h", ".cuh", ".cpp", ".cu"}
        and not str(path.relative_to(PACKAGE)).startswith(MAY_NAME)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if names.search(line)
    ]
    assert not strangers


def test_all_that_is_public_is_described():
    for name in torchgraft.__all__:
        if name.startswith("__"):
            continue
        assert getattr(torchgraft, name).__doc__, name


def test_what_a_gpu_can_do_is_asked_in_one_place():
    """There an error is not left behind, and a kernel is chosen by what it is compiled for, not by the device."""
    asks = re.compile(r"cudaDeviceGetAttribute|cudaDevAttr|cudaFuncSetAttribute|cudaFuncGetAttributes")
    files = [path for path in PACKAGE.rglob("*") if path.suffix in {".h", ".cuh", ".cu"}]
    assert {path.name for path in files if asks.search(path.read_text())} == {"device.cuh"}
