"""`graft new`: a package with an operator that passes every check from the first minute."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torchgraft._private import pytorch
from torchgraft.authoring import stubs
from torchgraft.authoring.files import (
    cell_files,
    cell_operator_files,
    files,
    operator_files,
    with_import,
    with_sources,
)
from torchgraft.authoring.sizes import read_words
from torchgraft.authoring.stubs import Stub
from torchgraft.declaration.schema import read_schema

# What other files of the package are called.
_FILES = ("cell", "cpu", "cuda", "kernels", "operator", "reference", "samples")
# Names in the files of a recurrence.
_OF_CELLS = ("CELL", "Cell", "FLOATING", "NAME", "Path", "Recurrence", "building", "step", "torch", "torchgraft")
# File names and wheels hold the name and more.
_LONGEST = 100
# Namespaces and names in C++ that belong to the language, to PyTorch and to CUDA.
_TAKEN_IN_CPP = ("std", "main", "at", "c10", "caffe2", "cub", "cuda", "cooperative_groups", "fmt", "nvcuda", "thrust")
# Headers that kernels include, directly or not: a namespace cannot have the name of a function or macro in them.
_CPP_HEADERS = (
    *("cassert", "cerrno", "climits", "cmath", "csignal", "cstdio", "cstdlib", "cstring", "ctime", "mutex"),
    *("fcntl.h", "sys/mman.h", "sys/stat.h", "unistd.h"),
)
_SCHEMA = "(Tensor input, float factor) -> Tensor"


def make_package(
    name: str,
    directory: Path,
    *,
    schema: str | None = None,
    shapes: str | None = None,
    integers: Sequence[str] = (),
    cuda: bool = False,
    triton: bool = False,
    backward: bool = False,
    cell: bool = False,
) -> Path:
    """Makes a package with an operator: kernels, declaration, samples, a test and what builds it.

    Args:
        name: of the package, of the folder and of the operators' namespace.
        directory: where the folder is put.
        schema: of the operator, as `(Tensor input, float eps=1e-5) -> Tensor`, with or without a name before it. Its
            kernels copy tensors until their author writes what they compute. None: an operator that is complete,
            `factor * input * input`.
        shapes: of its tensors, as `"... d, d -> ... d"` (`shapes` of `torchgraft.Operator`): the declaration has them,
            and samples are made of them.
        integers: the names of the tensors that hold int64, as an index does.
        cuda: whether there is a kernel in CUDA C++, too.
        triton: whether there is one in Triton, too.
        backward: whether the gradient is an operator with kernels of its own.
        cell: whether the operator is the recurrence of a cell, whose step its author edits and whose kernels are
            written from it. It goes with none of the options before it.

    Returns:
        The folder.

    Raises:
        ValueError: the name, the schema or the shapes cannot be had; the message says why and what to do.
        OSError: the folder cannot be written.
    """
    _expect_free(name, directory)
    if cell:
        _expect_alone(schema=schema, shapes=shapes, integers=integers, cuda=cuda, triton=triton, backward=backward)
        _expect_usable(name)
        texts = cell_files(name)
    else:
        found = _operators(name, schema, shapes, integers, backward)
        texts = files(name, found, is_complete=schema is None, cuda=cuda, triton=triton)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=directory) as aside:
        folder = Path(aside, name)
        for path, text in texts.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        # All of it or nothing.
        folder.rename(directory / name)
    return directory / name


def add_operator(
    name: str,
    folder: Path,
    *,
    schema: str | None = None,
    shapes: str | None = None,
    integers: Sequence[str] = (),
    cuda: bool = False,
    triton: bool = False,
    backward: bool = False,
    cell: bool = False,
) -> list[Path]:
    """Adds an operator to a package that `make_package` made, in a folder of its own, with a test.

    Args:
        name: of the operator.
        folder: of the package, with its pyproject.toml.
        schema: as for `make_package`, and all others too.
        shapes: of its tensors.
        integers: the names of the tensors that hold int64.
        cuda: whether there is a kernel in CUDA C++, too.
        triton: whether there is one in Triton, too.
        backward: whether the gradient is an operator with kernels of its own.
        cell: whether it is the recurrence of a cell, as for `make_package`.

    Returns:
        The files that were written.

    Raises:
        ValueError: the operator cannot be added; the message says why and what to do. Nothing was written.
        OSError: a file cannot be written.
    """
    inits = sorted(folder.glob("src/*/__init__.py"))
    if len(inits) != 1:
        raise ValueError(
            f"there must be one package in {folder / 'src'}, got {len(inits)}: give the folder of a package"
        )
    [init] = inits
    package = init.parent.name
    if not _NAME.fullmatch(name) or name in _FILES:
        raise ValueError(f"{name[:_LONGEST]!r} cannot be the name of an operator: use letters, digits and underscores")
    if (init.parent / "cell.py").exists() and name in sys.stdlib_module_names:
        # cell.py is run as a program, beside which Python looks for modules first.
        raise ValueError(f"{name} cannot be the name of an operator here: cell.py could not import Python's own {name}")
    if cell:
        _expect_alone(schema=schema, shapes=shapes, integers=integers, cuda=cuda, triton=triton, backward=backward)
        _expect_usable(name)
        made, sources = cell_operator_files(package, name)
    else:
        found = _operators(package, schema, shapes, integers, backward, name)
        if found[0].name != name:
            raise ValueError(f"the schema names the operator {found[0].name}: write {name}( or leave the name out")
        made, sources = operator_files(package, found, is_complete=schema is None, cuda=cuda, triton=triton)
    loading = with_sources(init.read_text(), sources)
    # With a schema, or as the name of a recurrence.
    is_declared = re.compile(rf'"{package}::{name}["(]')
    declared = [path for path in init.parent.rglob("*.py") if is_declared.search(path.read_text())]
    if declared:
        raise ValueError(f"{declared[0]} declares {package}::{name} already: choose another name")
    if loading is None:
        raise ValueError(f"{init} does not call building.load with a list of sources: add the files by hand")
    taken = [init.parent / name, *(folder / path for path in made)]
    if there := [path for path in taken if path.exists() or path.with_suffix(".py").exists()]:
        raise ValueError(f"{there[0]} already exists: choose another name, or remove it")
    for path, text in made.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    init.write_text(with_import(loading, package, name))
    return [*(folder / path for path in made), init]


def _expect_alone(**options: object) -> None:
    """Raises ValueError if an option of other operators is given for the recurrence of a cell."""
    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        raise ValueError(
            "--cell makes a recurrence, whose schema, gradient and kernels for CPU and CUDA follow from it: leave "
            f"{' and '.join(given)} out"
        )


def _expect_usable(name: str) -> None:
    """Raises ValueError if the name of a cell's operator means something else in the files of its package."""
    if keyword.iskeyword(name) or stubs.CPP_WORDS.fullmatch(name) or name in _OF_CELLS:
        whose = "a name that its files use" if name in _OF_CELLS else "a keyword of Python or C++"
        raise ValueError(f"{name} cannot be the name of an operator, as it is {whose}: rename it, as in my_{name}")


def _expect_free(name: str, directory: Path) -> None:
    """Raises ValueError where a package cannot have a name."""
    if not _NAME.fullmatch(name) or not 2 <= len(name) <= _LONGEST:
        raise ValueError(
            f"{name[:_LONGEST]!r} cannot be the name of a package: use letters, digits and single underscores "
            f"between them, as in my_kernels, 2 to {_LONGEST} characters"
        )
    if why := _why_taken(name):
        raise ValueError(f"{name} is {why}: choose another name, such as {name}_ops")
    if (directory / name).exists():
        raise ValueError(f"{directory / name} already exists: choose another name, or remove it")


# C++ keeps names with two underscores for itself, and the name of a wheel must not end with one. Hugging Face's kernels
# (0.17.2) take no name of one letter.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*")


def _why_taken(name: str) -> str:
    """Whose name it is already, if a package of that name would fail later; empty otherwise."""
    if keyword.iskeyword(name) or stubs.CPP_WORDS.fullmatch(name):
        return "a keyword of Python or C++"
    if name in _FILES:
        return "the name of a file in the package"
    if name in pytorch.operator_namespaces():
        return "already a namespace of PyTorch or of a loaded package"
    # A folder without a module in it has a spec, too, and no origin.
    if (found := importlib.util.find_spec(name)) is not None and found.origin is not None:
        return "already a Python module"
    if name in _TAKEN_IN_CPP or _is_taken_in_cpp(name):
        return "already a name in C++"
    return ""


def _is_taken_in_cpp(name: str) -> bool:
    """Whether this machine's C++ headers have a function, type or macro of a name; no if there is no compiler."""
    compiler = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return False
    text = "".join(f"#include <{header}>\n" for header in _CPP_HEADERS) + f"namespace {name} {{ struct torchgraft; }}\n"
    command = [compiler, "-std=gnu++20", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    # A compiler that fails for another reason says nothing about the name.
    return done.returncode != 0 and name in done.stderr


def _operators(
    name: str, schema: str | None, shapes: str | None, integers: Sequence[str], backward: bool, default: str = ""
) -> list[Stub]:
    """The operator of a package, and that of its gradient where it is wanted.

    If the schema does not name it, it has the name `default`, or that of the package.
    """
    named, opened, signature = (schema or _SCHEMA).strip().partition("(")
    namespace, _, operator = named.strip().rpartition("::")
    operator = operator or default or name
    if namespace not in ("", name):
        raise ValueError(f"the namespace of the schema must be the name of the package: write {name}::{operator}(")
    if not opened or not operator.isidentifier() or operator.startswith("_"):
        raise ValueError(f"schema must be '{name}::name(Tensor input, ...) -> Tensor', got {schema!r}")
    if operator in _FILES or keyword.iskeyword(operator) or stubs.CPP_WORDS.fullmatch(operator):
        whose = "a module of the package" if operator in _FILES else "a keyword of Python or C++"
        raise ValueError(
            f"{operator} cannot be the name of an operator, as {whose} has that name: rename it, as in my_{operator}"
        )
    text = stubs.with_symbolic_numbers(f"{name}::{operator}({signature}")
    read = read_schema(text)
    if shapes is not None and schema is None:
        raise ValueError("--shapes describes the tensors of a schema: give --schema, too")
    if integers and schema is None:
        raise ValueError("--integers names tensors of a schema: give --schema, too")
    words = None if shapes is None else read_words(operator, shapes, read)
    first = stubs.read_stub(operator, text, read, words, integers)
    if schema is None:
        first = first._replace(formula="factor * input * input", summary="factor * input * input, of every element.")
    else:
        is_zero = bool(first.copies) and all(copy.zero for copy in first.copies)
        does = "sets what it writes to to zero" if first.mutated else "returns zeros" if is_zero else "copies"
        first = first._replace(summary=f"{does}, until its author writes what it computes.")
    if not backward:
        return [first]
    first = stubs.with_copies_apart(first)
    text, grads, copies = stubs.backward_of(first, read)
    second = first._replace(
        name=f"{operator}_backward",
        schema=f"{name}::{operator}_backward{text}",
        arguments=read_schema(f"{name}::{operator}_backward{text}").arguments,
        copies=copies,
        formula="2 * factor * input * output_grad" if schema is None else "",
        words=words and words.backward(grads, [each.name for each in first.tensors]),
        summary=f"the gradient of {operator}.",
    )
    return [first, second]
