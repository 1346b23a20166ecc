"""The tree: every operator's folder has the same files, and code outside of these folders names no operator."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import torchgraft
from torchgraft import Operator
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.subject import find_subjects

PACKAGE = Path(torchgraft.__file__).parent
FOLDERS = sorted(path.parent.name for path in (PACKAGE / "operators").glob("*/__init__.py"))
FURNITURE = {"__init__.py", "operator.py", "reference.py", "samples.py"}
KERNELS = {"cpu": "cpu.cpp", "cuda": "cuda.cu"}
# What may name an operator, beside its own folder.
MAY_NAME = (
    *("operators/", "nn/", "demo/", "__init__.py", "grafting.py"),
    # Written from the declarations.
    *("schemas.cpp", "include/torchgraft/operators.h"),
)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_operator_has_the_same_files(folder):
    declared = [
        each for each in Operator.registered.values() if each.module.startswith(f"torchgraft.operators.{folder}.")
    ]
    files = {path.name for path in (PACKAGE / "operators" / folder).iterdir()}
    assert files >= FURNITURE
    # Each kernel that is declared is registered in one file, of this folder or of another one.
    for each in declared:
        for device in each.declaration.kernels if each.declaration.kernels != "reference" else ():
            registered = f"{device.upper()}, {each.name},"
            sources = (PACKAGE / "operators").glob(f"*/{KERNELS[device]}")
            assert sum(registered in source.read_text() for source in sources) == 1, each.name


def test_every_folder_is_imported_by_one_line_and_the_other_way_round():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    prefix = "torchgraft.operators."
    imported = [
        node.module.removeprefix(prefix)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(prefix)
    ]
    assert sorted(imported) == FOLDERS


MODULES = {
    ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}


def imported_by(text, module=""):
    """The modules of the package that a module imports: inside functions too, for its types alone, and by name."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {each if each in MODULES else node.module for each in names}
        elif isinstance(node, ast.Call):
            function = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            values = [*node.args, *(each.value for each in node.keywords if each.arg == "name")]
            if function in ("import_module", "__import__") and values:
                found |= named_by(values[0], module)
    return found & MODULES.keys()


def named_by(node, module):
    """The modules that the argument of `import_module` may name: of an f-string, all that begin and end like it."""
    pieces = node.values if isinstance(node, ast.JoinedStr) else [node]
    pattern = ""
    for piece in pieces:
        value = getattr(piece, "value", None)
        if isinstance(value, str):
            pattern += re.escape(value)
        elif getattr(value, "id", None) == "__name__":
            pattern += re.escape(module)
        else:
            pattern += r"\w+"
    # A name that is not known before it runs, such as that of a user's module, ties nothing together.
    return {each for each in MODULES if re.fullmatch(pattern, each)} if "torchgraft" in pattern else set()


def circle_in(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return ""


@pytest.fixture(scope="module")
def imports():
    return {name: imported_by(path.read_text(), name) for name, path in MODULES.items()}


def test_no_modules_import_each_other(imports):
    assert not circle_in(imports)


def test_no_packages_import_each_other(imports):
    def package(name):
        return name.partition(".")[2].partition(".")[0]

    packages = {}
    # What nobody imports is found by its name, as samples are, which may be of layers: it ties nothing together.
    for name in set().union(*imports.values()):
        others = {package(each) for each in imports[name]} - {package(name)}
        packages.setdefault(package(name), set()).update(others)
    assert not circle_in(packages)


def test_rooms_of_the_checks_do_not_import_each_other(imports):
    prefix = f"{PACKAGE.name}.checking."

    def room(name):
        return name.removeprefix(prefix).partition(".")[0]

    rooms = {}
    for name in imports:
        if name.startswith(prefix):
            others = {room(each) for each in imports[name] if each.startswith(prefix)} - {room(name)}
            rooms.setdefault(room(name), set()).update(others)
    assert {"case", "properties", "report"} <= rooms.keys()
    assert not circle_in(rooms)


def test_no_function_of_the_checks_is_long():
    """A reader holds one function in view; a file has one subject."""
    for path in (PACKAGE / "checking").rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 500, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 80, (path, node.name)


def test_a_circle_is_seen():
    text = "if TYPE_CHECKING:\n    from torchgraft.checking.case import Case\ndef f():\n    from torchgraft import cli"
    assert imported_by(text) == {"torchgraft.checking.case", "torchgraft.cli"}
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) in ("b -> c -> b", "c -> b -> c")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('importlib.import_module("torchgraft.checking.case")', {"torchgraft.checking.case"}),
        ('def f():\n    return import_module("torchgraft.cli").app', {"torchgraft.cli"}),
        ('_importlib.import_module(name="torchgraft.cli")', {"torchgraft.cli"}),
        ('__import__("torchgraft.declaration.schema")', {"torchgraft.declaration.schema"}),
        ('import_module(f"torchgraft.cli.{name}").run', {"torchgraft.cli.check", "torchgraft.cli.adopt"}),
        ('import_module(f"{__name__}.{name}")', {"torchgraft.nn.shift"}),
        ("from torchgraft.checking import check, case", {"torchgraft.checking", "torchgraft.checking.case"}),
        ("import_module(name)", set()),
        ('import_module("numpy")', set()),
        ('print("torchgraft.cli")', set()),
    ],
)
def test_an_import_by_name_is_seen(text, found):
    seen = imported_by(text, "torchgraft.nn")
    assert seen >= found
    assert bool(seen) == bool(found)


def test_operators_use_public_modules_only(imports):
    """Whoever writes one elsewhere must do so too."""
    for name, others in imports.items():
        if name.startswith(f"{PACKAGE.name}.operators."):
            assert not [each for each in others if "._" in each], name


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
        for paragraph in ("Proves", "Cannot prove", "Mend", "Example"):
            assert f"\n{paragraph}: " in text, (name, paragraph)


# An operator, what belongs to it (lltm_cell), and its layer.
# Layers that have the names of PyTorch's are of recurrences, and these of no operator in a folder.
LAYERS = [each for each in torchgraft.nn.__all__ if each not in ("GRU", "LSTM", "RNN")]
NAMES = re.compile(rf"\b(?:{'|'.join(FOLDERS)})(?:_[a-z0-9]\w*)?\b|\b(?:{'|'.join(LAYERS)})\b|depthwise", re.IGNORECASE)
# Where such a word means something else: each with the words around it, so that nothing more is let through.
OTHER_MEANINGS = ("a multiplication and a shift",)  # of bits, in place of a division


def lines_that_name_an_operator(path):
    text = path.read_text()
    for phrase in OTHER_MEANINGS:
        text = text.replace(phrase, "")
    return [number for number, line in enumerate(text.splitlines(), 1) if NAMES.search(line)]


def test_no_operator_is_named_outside_its_place():
    strangers = [
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in PACKAGE.rglob("*")
        if path.suffix in {".py", ".h", ".cuh", ".cpp", ".cu", ".cmake", ".html", ".js", ".svg"}
        and not str(path.relative_to(PACKAGE)).startswith(MAY_NAME)
        for number in lines_that_name_an_operator(path)
    ]
    assert not strangers


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_file_that_names_an_operator_is_seen(folder):
    declaration = PACKAGE / "operators" / folder / "operator.py"
    assert lines_that_name_an_operator(declaration)
    for line in (f"from torchgraft import {folder}", f"return {folder.upper()} + 1", f"{folder}_grads(x)"):
        assert NAMES.search(line), line


def test_all_that_is_public_is_described():
    for name in torchgraft.__all__:
        if name.startswith("__"):
            continue
        assert getattr(torchgraft, name).__doc__, name


def test_what_a_gpu_can_do_is_asked_in_one_place():
    """There an error is not left behind, and a kernel is chosen by what it is compiled for, not by the device."""
    asks = re.compile(r"cudaDeviceGetAttribute|cudaDevAttr|cudaFuncSetAttribute|cudaFuncGetAttributes")
    # The emulator does not ask: it answers.
    rooms = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "emulation"]
    files = [path for room in rooms for path in room.rglob("*") if path.suffix in {".h", ".cuh", ".cu"}]
    assert {path.name for path in files if asks.search(path.read_text())} == {"device.cuh"}
