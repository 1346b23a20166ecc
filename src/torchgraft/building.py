"""Builds kernels: yours by the same CMake module that builds ours."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from torchgraft import native

Sanitizer = Literal["address", "thread"]

_MODULE = Path(__file__).parent / "cmake/TorchgraftKernels.cmake"
# As compilers write it: `file.cpp:3:7: error: ...`, `file.cu(3): error: ...`, `fatal error: ...`; not `-Werror`.
_ERROR = re.compile(r"\berror(?: [#A-Z]*\d+)?: |^CMake Error", re.MULTILINE)
# Of what a tool says from its first error on: enough for the line, the code and the mark under it.
_ERROR_LINES = 8
# Where Ninja speaks again.
_NINJA = re.compile(r"\[\d+/\d+\] |FAILED: |ninja: ")

_CMAKE_LISTS = """\
cmake_minimum_required(VERSION 3.24)
project({namespace} LANGUAGES CXX)
include("{module}")
torchgraft_add_kernels({namespace} CPU {cpu} CUDA {cuda})
"""


class BuildError(Exception):
    """Kernels that could not be built; the text says why, in the words of the tool that refused."""


class MissingToolError(BuildError):
    """There is nothing to build with; the text says what to install."""


def build(
    namespace: str,
    sources: Sequence[Path],
    directory: Path,
    *,
    sanitizer: Sanitizer | None = None,
    cuda: bool = False,
    architectures: str | None = None,
    native: bool = False,
) -> None:
    """Compiles kernels into `<namespace>_cpu.so` and `<namespace>_cuda.so`, the names that `native.load` looks for.

    What did not change since the last time is not compiled again.

    Args:
        namespace: of the operators in `torch.ops`.
        sources: the files: `.cpp` go into the CPU library, `.cu` into the CUDA library; others are left out, so that a
            folder's whole content may be given.
        directory: where the libraries are put, and a folder `build` with what they were made from.
        sanitizer: 'address' instruments the CPU library with AddressSanitizer and UndefinedBehaviorSanitizer, 'thread'
            with ThreadSanitizer. Such a library loads only where the sanitizer's runtime was loaded first.
        cuda: whether the CUDA library is wanted.
        architectures: the GPUs to compile for, as CMake writes them: `90-real`, or several with semicolons. None:
            that of this machine's GPU, or else all that are supported.
        native: whether the CPU library is for this machine's processor alone, with its widest vectors.

    Raises:
        MissingToolError: there is no CMake, Ninja or compiler; a BuildError too.
        BuildError: the first error of the compiler.
    """
    cpu_sources = [path for path in sources if path.suffix == ".cpp"]
    cuda_sources = [path for path in sources if path.suffix == ".cu"] if cuda else []
    if not cpu_sources and not cuda_sources:
        raise BuildError(f"{namespace}: there is nothing to compile among {_listed(sources)}")

    cmake, ninja = _find_tool("cmake"), _find_tool("ninja")
    _require_compiler("CXX", ("c++", "g++", "clang++"), "C++ compiler: install g++")
    if cuda_sources:
        _require_compiler("CUDACXX", ("nvcc",), "CUDA compiler: install the CUDA toolkit and put nvcc on PATH")

    directory = directory.resolve()
    folder = directory / "build" / (sanitizer or "plain")
    folder.mkdir(parents=True, exist_ok=True)
    lists = _CMAKE_LISTS.format(
        namespace=namespace, module=_MODULE, cpu=_listed(cpu_sources), cuda=_listed(cuda_sources)
    )
    (folder / "CMakeLists.txt").write_text(lists)

    options = {
        "CMAKE_MAKE_PROGRAM": ninja,
        "CMAKE_BUILD_TYPE": "Debug" if sanitizer else "Release",
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(directory),
        "Python_EXECUTABLE": sys.executable,
        "TORCHGRAFT_SANITIZER": sanitizer or "",
        "TORCHGRAFT_NATIVE": "ON" if native else "OFF",
        "TORCHGRAFT_CUDA": "ON" if cuda_sources else "OFF",
    }
    if cuda_sources and (chosen := architectures or _present_architecture()):
        options["CMAKE_CUDA_ARCHITECTURES"] = chosen
    defined = [f"-D{name}={value}" for name, value in options.items()]
    log = folder / "build.log"
    _run([cmake, "-S", str(folder), "-B", str(folder / "ninja"), "-G", "Ninja", "-Wno-dev", *defined], namespace, log)
    _run([cmake, "--build", str(folder / "ninja")], namespace, log)


def load(namespace: str, sources: Sequence[Path], directory: Path) -> None:
    """Loads the CPU library of a package that compiles its kernels where it is imported: builds it where it is older.

    Args:
        namespace: of the operators in `torch.ops`.
        sources: the files, as `build` takes them.
        directory: where the library is put, and looked for.

    Raises:
        MissingToolError: there is no CMake, Ninja or compiler; a BuildError too.
        BuildError: the first error of the compiler.
    """
    library = directory / f"{namespace}_cpu.so"
    newest = max(path.stat().st_mtime for path in sources)
    if not library.is_file() or library.stat().st_mtime < newest:
        build(namespace, sources, directory)
    native.load(namespace, directory)


def _listed(paths: Sequence[Path]) -> str:
    return " ".join(f'"{path.resolve()}"' for path in paths)


def _find_tool(name: str) -> str:
    """A program that a Python package brings: that of this environment, which need not be activated, or of PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise MissingToolError(f"{name} is not installed; pip install 'torchgraft[check]' brings it")
    return found


def _require_compiler(variable: str, names: Sequence[str], what: str) -> None:
    """Names what is missing, before CMake says it in forty lines."""
    named = os.environ.get(variable)
    if named and shutil.which(named.split()[0]) is None:
        raise MissingToolError(f"the variable {variable} says {named}, and there is no such program")
    if not named and not any(shutil.which(name) for name in names):
        raise MissingToolError(f"there is no {what}, or set {variable}")


def _present_architecture() -> str | None:
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"{major}{minor}-real"


def _run(command: Sequence[str], namespace: str, log: Path) -> None:
    # In English: the first error is looked for by its name.
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        log.write_text(done.stdout)
        raise BuildError(f"{namespace} does not build:\n{_first_error(done.stdout)}\n(all of it: {log})")


def _first_error(output: str) -> str:
    """The first error in a tool's output, with what explains it; the end of the output where none is marked."""
    lines = output.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if _ERROR.search(line)), None)
    if first is None:
        return "\n".join(lines[-_ERROR_LINES:])
    shown = itertools.takewhile(lambda line: not _NINJA.match(line), lines[first : first + _ERROR_LINES])
    return "\n".join(shown)
