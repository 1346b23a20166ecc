"""Compiles kernels into libraries: an author's with the same CMake module as torchgraft's own."""

import errno
import hashlib
import itertools
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch

from torchgraft import native
from torchgraft.building import cache
from torchgraft.machine import locks

Sanitizer = Literal["address", "thread"]
# Given instead of architectures: all that torchgraft supports, which the CMake module lists.
SUPPORTED = "supported"
# CMake 3.25.2 is the first version that knows nvcc's option for C++20.
OLDEST_CMAKE, OLDEST_CMAKE_FOR_CUDA = "3.24", "3.25.2"

_MODULE = Path(__file__).parents[1] / "cmake/TorchgraftKernels.cmake"
# As compilers write it: `file.cpp:3:7: error: ...`, `file.cu(3): error: ...`, `fatal error: ...`; not `-Werror`.
_ERROR = re.compile(r"\berror(?: [#A-Z]*\d+)?: |^CMake Error", re.MULTILINE)
# The number of lines shown from a tool's first error on: enough for the message, the code and the mark below it.
_ERROR_LINES = 8
_NO_SPACE = os.strerror(errno.ENOSPC)
# The beginning of a line of Ninja's own.
_NINJA = re.compile(r"\[\d+/\d+\] |FAILED: |ninja: ")

_CMAKE_LISTS = """\
cmake_minimum_required(VERSION {cmake})
project({namespace} LANGUAGES CXX)
include("{module}")
torchgraft_add_kernels({namespace} CPU {cpu} CUDA {cuda} SCHEMAS {schemas})
"""


class BuildError(Exception):
    """Kernels could not be built. The text gives the reason, in the words of the tool that failed."""


class _ForbiddenError(BuildError):
    """TORCHGRAFT_JIT=0 forbids to compile."""


class MissingToolError(BuildError):
    """A tool for the build is missing. The text says what to install."""


def build(
    namespace: str,
    sources: Sequence[Path],
    directory: Path,
    *,
    sanitizer: Sanitizer | None = None,
    cuda: bool = False,
    architectures: str | None = None,
    native: bool = False,
    schemas: Path | None = None,
    defined: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Compiles kernels into `<namespace>_cpu.so` and `<namespace>_cuda.so`, the names that `native.load` looks for.

    Sources that did not change since the last build are not compiled again. Several processes may build in one folder:
    they take turns, and each library is replaced in one step.

    Args:
        namespace: of the operators in `torch.ops`.
        sources: the files: `.cpp` go into the CPU library, `.cu` into the CUDA library; others are left out, so that a
            folder's whole content may be given.
        directory: where the libraries are put, and a folder `build` with what they were made from.
        sanitizer: 'address' instruments the CPU library with AddressSanitizer and UndefinedBehaviorSanitizer, 'thread'
            with ThreadSanitizer. Such a library loads only where the sanitizer's runtime was loaded first.
        cuda: whether the CUDA library is wanted.
        architectures: the GPUs to compile for, as CMake writes them: `90-real`, or several with semicolons;
            `SUPPORTED`: all that are supported. None: those that the environment variable CUDAARCHS names, or that of
            this machine's GPU, or else all that are supported.
        native: whether the CPU library is for this machine's processor alone, with its widest vectors.
        schemas: the file that torchgraft.authoring.cpp writes. It becomes `<namespace>_schemas.so`, which C++ programs
            without Python load.
        defined: further variables for CMake.

    Raises:
        MissingToolError: there is no CMake, Ninja or compiler, or CMake is too old. It is a BuildError.
        BuildError: the first error of the compiler.
        OSError: the directory cannot be written.
    """
    cpu_sources = [path for path in sources if path.suffix == ".cpp"]
    cuda_sources = [path for path in sources if path.suffix == ".cu"] if cuda else []
    given = _listed(sources) or "[]"
    if not cpu_sources and not cuda_sources:
        raise BuildError(f"{namespace}: sources must hold a .cpp file, or a .cu file and cuda=True, got {given}")
    if cuda and not cuda_sources:
        raise BuildError(f"{namespace}: with cuda=True, sources must hold a .cu file, got {given}")
    oldest_cmake = OLDEST_CMAKE_FOR_CUDA if cuda_sources else OLDEST_CMAKE
    cmake, ninja = find_tool("cmake", oldest=oldest_cmake), find_tool("ninja")
    require_compiler("CXX", ("c++", "g++", "clang++"), "C++ compiler: install g++")
    if cuda_sources:
        require_compiler("CUDACXX", ("nvcc",), "CUDA compiler: install the CUDA toolkit and put nvcc on PATH")

    folder = (directory := directory.resolve()) / "build" / (sanitizer or "plain")
    log, ninjas = folder / "build.log", folder / "ninja"
    folder.mkdir(parents=True, exist_ok=True)
    lists = _CMAKE_LISTS.format(
        cmake=OLDEST_CMAKE,
        namespace=namespace,
        module=_MODULE,
        cpu=_listed(cpu_sources),
        cuda=_listed(cuda_sources),
        schemas=_listed([schemas] if schemas else []),
    )
    options = {
        "CMAKE_MAKE_PROGRAM": ninja,
        "CMAKE_BUILD_TYPE": "Debug" if sanitizer else "Release",
        "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(ninjas),
        "Python_EXECUTABLE": sys.executable,
        "TORCHGRAFT_SANITIZER": sanitizer or "",
        "TORCHGRAFT_NATIVE": "ON" if native else "OFF",
        **_cuda_options(architectures, wanted=bool(cuda_sources)),
        **defined,
    }
    # The architectures of an earlier build in this folder are forgotten.
    arguments = ["-UCMAKE_CUDA_ARCHITECTURES", *(f"-D{name}={value}" for name, value in options.items())]
    # The system releases the lock when a process ends, however it ends. The file stays, because a lock on a removed
    # file excludes nobody.
    with (folder / "lock").open("w") as lock:
        locks.lock(lock)
        (folder / "CMakeLists.txt").write_text(lists)
        run_tool([cmake, "-S", str(folder), "-B", str(ninjas), "-G", "Ninja", "-Wno-dev", *arguments], namespace, log)
        run_tool([cmake, "--build", str(ninjas)], namespace, log)
        for kind, compiled in (("cpu", cpu_sources), ("cuda", cuda_sources), ("schemas", schemas)):
            if compiled:
                _replace(ninjas / f"{namespace}_{kind}.so", directory)


def _cuda_options(architectures: str | None, *, wanted: bool) -> dict[str, str]:
    """The variables of CMake for the CUDA library; arguments as for `build`."""
    if not wanted:
        return {"TORCHGRAFT_CUDA": "OFF"}
    if architectures == SUPPORTED:
        return {"TORCHGRAFT_CUDA": "ALL"}
    chosen = architectures or _chosen_architectures()
    return {"TORCHGRAFT_CUDA": "ON", **({"CMAKE_CUDA_ARCHITECTURES": chosen} if chosen else {})}


def build_once(
    namespace: str,
    sources: Sequence[Path],
    *,
    sanitizer: Sanitizer | None = None,
    cuda: bool = False,
    native: bool = False,
    header: str = "",
) -> Path:
    """Builds kernels as `build` does, unless the cache (`torchgraft.building.cache`) has them from the same sources.

    "The same" means: the bytes of the sources and of the headers that they include, the options, the compilers, PyTorch
    and this package. Any number of processes may call this at once, and may end at any time.

    Args:
        namespace: of the operators in `torch.ops`.
        sources: as `build` takes them.
        sanitizer: as `build` takes it.
        cuda: as `build` takes it.
        native: as `build` takes it.
        header: a header of torchgraft with which each source for the CPU begins, such as `torchgraft/cpu.h`. It is
            compiled once, for all sources that begin with it. Empty: none.

    Returns:
        The folder of the libraries. It belongs to the cache: do not write to it.

    Raises:
        MissingToolError: there is no CMake, Ninja or compiler. It is a BuildError.
        BuildError: the first error of the compiler; or the cache has no library, and TORCHGRAFT_JIT=0 forbids compiling
            one; or the disk is full.
    """
    options = {"sanitizer": sanitizer, "cuda": cuda, "native": native}
    key = f"{namespace}-{_identity(namespace, sources, options)}"

    def make(directory: Path) -> None:
        if os.environ.get("TORCHGRAFT_JIT") == "0":
            raise _ForbiddenError(
                f"{namespace} has no compiled library in {cache.folder()}, and TORCHGRAFT_JIT=0 forbids compiling one:"
                " unset TORCHGRAFT_JIT, or set TORCHGRAFT_CACHE to a folder that has it"
            )
        defined = _precompiled(header) if header and not any(options.values()) else {}
        try:
            build(namespace, sources, directory, sanitizer=sanitizer, cuda=cuda, native=native, defined=defined)
        except BuildError as error:
            # The folder is removed, and the compiler's output is kept for a day.
            for log in (directory / "build").glob("*/build.log"):
                kept = shutil.copy(log, directory.with_suffix(".log"))
                raise BuildError(str(error).replace(str(log), str(kept))) from None
            raise
        shutil.rmtree(directory / "build")

    try:
        return cache.keep(key, make)
    except OSError as error:
        advice = (
            f"\nCompilers also write to {tempfile.gettempdir()}. Free some space, or set TORCHGRAFT_CACHE and TMPDIR to"
            " folders on another disk."
        )
        raise BuildError(f"{namespace} cannot be built: {error}{advice * (error.errno == errno.ENOSPC)}") from None


def _precompiled(header: str) -> dict[str, str]:
    """Returns variables for CMake with which GCC finds a compiled header of torchgraft; none for other compilers.

    The libraries do not depend on it: GCC ignores a compiled header that does not fit.
    """
    if "Free Software Foundation" not in version_of(os.environ.get("CXX") or "c++"):
        return {}

    def make(directory: Path) -> None:
        empty = directory / "empty.cpp"
        empty.touch()
        build("header", [empty], directory, defined={"TORCHGRAFT_PRECOMPILE": header})
        compiled = directory / f"{header}.gch"
        compiled.parent.mkdir(parents=True)
        shutil.move(directory / "build/plain/ninja/CMakeFiles/header_cpu.dir/cmake_pch.hxx.gch", compiled)
        for path in (empty, directory / "header_cpu.so"):
            path.unlink()
        shutil.rmtree(directory / "build")

    options = dict.fromkeys(("sanitizer", "cuda", "native"), False)
    return {"TORCHGRAFT_PRECOMPILED": str(cache.keep(f"header-{_identity(header, [], options)}", make))}


def load(namespace: str, sources: Sequence[Path], *, cuda: bool | None = None) -> None:
    """Loads the libraries of a package: built from its sources, or from the cache, or those in its folder `lib`.

    A wheel has no sources: a folder `lib` with the libraries stands where they were. If there are both sources and
    libraries, the libraries may be older, so new ones are built. If nothing can be compiled, those in `lib` are loaded
    with a warning.

    Args:
        namespace: of the operators in `torch.ops`.
        sources: the files, as `build` takes them.
        cuda: whether to build the CUDA library too. None: if there is a GPU and a compiler for it.

    Raises:
        MissingToolError: there is no CMake, Ninja or compiler, and there are no libraries. It is a BuildError.
        BuildError: as for `build_once`.
    """
    folders = dict.fromkeys(path.parent / "lib" for path in sources)
    names = [f"{namespace}_{device}.so" for device in ("cpu", "cuda")]
    installed = next((folder for folder in folders if any((folder / name).is_file() for name in names)), None)
    if installed is not None and not all(path.is_file() for path in sources):
        native.load(namespace, installed)
        return
    if cuda is None:
        cuda = can_build_cuda(sources)
    try:
        directory = build_once(namespace, sources, cuda=cuda)
    except (MissingToolError, _ForbiddenError) as error:
        if installed is None:
            raise
        directory = installed
        warnings.warn(
            f"{namespace}: torchgraft uses the libraries in {installed}. The sources beside them may be newer, but they"
            f" cannot be compiled here: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
    native.load(namespace, directory, sources=sources)


def can_build_cuda(sources: Sequence[Path]) -> bool:
    """Whether there are CUDA kernels among the sources, a GPU, and a compiler for them."""
    wanted = any(path.suffix == ".cu" for path in sources)
    return wanted and torch.cuda.is_available() and shutil.which(os.environ.get("CUDACXX", "nvcc")) is not None


# Environment variables that change what a compiler makes of sources.
_VARIABLES = (
    *("CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_INCLUDE_PATH"),
    *("CUDAFLAGS", "CUDAARCHS", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"),
)
_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include(?:_next)?\b[ \t]*(.*)$", re.MULTILINE)


def _identity(namespace: str, sources: Sequence[Path], options: dict[str, Any]) -> str:
    """Returns a hash of everything that decides the libraries that `build_once` makes."""
    made_of = hashlib.sha256(repr((namespace, sorted(options.items()))).encode())
    package = Path(__file__).parents[1]
    for root in (package / "include", package / "cmake"):
        # Python writes byte code beside a module when it first imports it; no library depends on that.
        for path in sorted(each for each in root.rglob("*") if each.is_file() and each.suffix != ".pyc"):
            made_of.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    for number, source in enumerate(sources):
        files = {source.resolve(): source.name}
        # The path from the source to each header counts, and the folder of the source does not.
        for path, name in _with_headers(source.resolve(), files).items():
            made_of.update(f"{number}\0{name}\0".encode() + path.read_bytes() + b"\0")
    said = [torch.__version__, torch.version.git_version, platform.machine(), *platform.libc_ver()]
    said += [version_of(os.environ.get("CXX") or "c++")]
    if options["cuda"]:
        said += [version_of(os.environ.get("CUDACXX") or "nvcc"), _chosen_architectures() or "all"]
    if options["native"]:
        said += [_processor()]
    if options["sanitizer"]:
        # A sanitizer reports lines by the path that the compiler saw.
        said += [str(source.resolve()) for source in sources]
    said += [f"{name}={os.environ.get(name, '')}" for name in _VARIABLES]
    made_of.update(repr(said).encode())
    return made_of.hexdigest()[:32]


def _with_headers(source: Path, found: dict[Path, str]) -> dict[Path, str]:
    """Adds the files that a source includes in quotes to those found, each with the includes that lead to it."""
    for word in _INCLUDE.findall(source.read_bytes()):
        name = word.decode(errors="replace").strip()
        if name.startswith('"'):
            paths = {source.parent / name[1:].partition('"')[0]: name}
        elif name.startswith("<"):
            continue
        else:
            # A macro names the header: it may be any of them.
            paths = {path: f"{name} {path.name}" for path in sorted(source.parent.rglob("*.*h*"))}
        for path, reached in paths.items():
            # A header that is not beside the file belongs to this package or to the compiler.
            if path.is_file() and (resolved := path.resolve()) not in found:
                found[resolved] = f"{found[source]} {reached}"
                _with_headers(resolved, found)
    return found


def version_of(compiler: str) -> str:
    """The version that a compiler prints. Empty if there is no compiler; the build then reports it."""
    try:
        done = subprocess.run([*shlex.split(compiler), "--version"], capture_output=True, text=True, check=False)
    except (OSError, ValueError):
        return ""
    return done.stdout


def _processor() -> str:
    """Returns a text that describes this machine's processor, for a library that is made for it alone."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.is_file() else [platform.processor()]
    return "".join(line for line in lines[:40] if line.startswith(("flags", "Features", "model name")))


def _replace(built: Path, directory: Path) -> None:
    """Puts a library into a folder in one step. A process that has loaded the earlier one keeps that."""
    with tempfile.TemporaryDirectory(prefix=f".{built.stem}-", dir=directory) as aside:
        shutil.copy2(built, aside)
        Path(aside, built.name).replace(directory / built.name)


def _listed(paths: Sequence[Path]) -> str:
    return " ".join(f'"{path.resolve()}"' for path in paths)


def find_tool(name: str, extra: str = "check", *, oldest: str = "") -> str:
    """Finds a program that a Python package installs: in this environment, activated or not, or on PATH.

    Args:
        name: of the program, and of the package on PyPI that brings it.
        extra: the extra of torchgraft that brings it.
        oldest: the oldest version that will do, as `3.24`; an older program is passed over. Empty: any version.

    Returns:
        Its path.

    Raises:
        MissingToolError: there is none, or none that is new enough; the text says what to install.
    """
    found = _which(name)
    versions = {path: _numbers(version_of(shlex.quote(path))) if oldest else () for path in found}
    for path, version in versions.items():
        if version >= _numbers(oldest):
            return path
    for path, version in versions.items():
        # A program without a version does not run in this environment.
        if version:
            raise MissingToolError(
                f"{name} in {Path(path).parent} is version {'.'.join(map(str, version))}, and this build needs {oldest}"
                f" or newer: run pip install '{name}>={oldest}'"
            )
    raise MissingToolError(f"{name} is not installed: run pip install 'torchgraft[{extra}]'")


def has_tool(name: str, *, oldest: str = "") -> bool:
    """Whether `find_tool` finds a program."""
    try:
        find_tool(name, oldest=oldest)
    except MissingToolError:
        return False
    return True


def _which(name: str) -> list[str]:
    found = [shutil.which(name, path=str(Path(sys.executable).parent)), shutil.which(name)]
    return [path for path in found if path is not None]


def _numbers(version: str) -> tuple[int, ...]:
    """The first version in a text; empty if there is none."""
    found = re.search(r"\d+(?:\.\d+)+", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def require_compiler(variable: str, names: Sequence[str], what: str) -> None:
    """Raises an error that names a missing compiler, in one line, before CMake starts."""
    named = os.environ.get(variable)
    if named and shutil.which(named.split()[0]) is None:
        raise MissingToolError(
            f"the environment variable {variable} names {named}, but there is no such program: set it to a compiler, or"
            " unset it"
        )
    if not named and not any(shutil.which(name) for name in names):
        raise MissingToolError(f"there is no {what}, or set the environment variable {variable} to one")


def _chosen_architectures() -> str | None:
    """The GPUs that the environment variable CUDAARCHS names, or the one that PyTorch uses; None if it uses none."""
    if named := os.environ.get("CUDAARCHS"):
        return named
    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"{major}{minor}-real"


def run_tool(command: Sequence[str], namespace: str, log: Path) -> None:
    """Runs a step of a build.

    Args:
        command: a tool and its arguments.
        namespace: what is built, for the message.
        log: the file that gets all the output if the step fails.

    Raises:
        BuildError: the step failed; the message has the first error.
        OSError: the disk is full.
    """
    # In English, because the first error is found by the word "error".
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        if _NO_SPACE in done.stdout:
            raise OSError(errno.ENOSPC, _NO_SPACE, str(log.parent))
        log.write_text(done.stdout)
        raise BuildError(f"{namespace} does not build:\n{_first_error(done.stdout)}\n(all of it: {log})")


def _first_error(output: str) -> str:
    """Returns the first error in a tool's output with the lines that explain it, or else the end of the output."""
    lines = output.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if _ERROR.search(line)), None)
    if first is None:
        return "\n".join(lines[-_ERROR_LINES:])
    shown = itertools.takewhile(lambda line: not _NINJA.match(line), lines[first : first + _ERROR_LINES])
    return "\n".join(shown)
