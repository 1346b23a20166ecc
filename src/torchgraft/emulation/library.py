"""Builds CUDA kernels for the emulator: a library that stands in the place of a namespace's CPU kernels."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TextIO

import torch

from torchgraft import building
from torchgraft.building import BuildError, MissingToolError, cache
from torchgraft.building.compile import run_tool
from torchgraft.emulation.translate import Tree, find_included, read_tree, write_tree
from torchgraft.machine import locks

HERE = Path(__file__).parent
PACKAGE = HERE.parent
Sanitizer = Literal["", "address", "races", "coverage"]
# The default compute capability that kernels are compiled for. It has clusters and all newer instructions.
ARCHITECTURE = 90
# Environment variables that change what the compiler makes of the sources.
_VARIABLES = ("CXX", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "CPATH", "CPLUS_INCLUDE_PATH")


def expect_tools() -> None:
    """Raises MissingToolError if a tool is missing that the emulator needs; the text says what to install."""
    if sys.platform != "linux":
        raise MissingToolError(
            f"the emulator of CUDA runs on Linux, and this is {sys.platform}: check on another machine"
        )
    building.find_tool("cmake")
    building.find_tool("ninja")
    building.require_compiler("CXX", ("c++", "g++", "clang++"), "C++ compiler: install g++")


def build(
    namespace: str,
    sources: Sequence[Path],
    directory: Path,
    *,
    architecture: int = ARCHITECTURE,
    sanitizer: Sanitizer = "",
    workers: int | None = None,
    said: TextIO | None = None,
) -> Path:
    """Builds a library `<namespace>_cpu.so` whose CPU kernels are the CUDA kernels of some sources, on the emulator.

    What did not change since the last time is not compiled again.

    Args:
        namespace: of the operators in `torch.ops`.
        sources: the `.cu` files; what they include by quotes is translated with them.
        directory: where it is built, in folders of its own.
        architecture: the compute capability that kernels are compiled for, as 75 or 90.
        sanitizer: 'address' adds AddressSanitizer and UndefinedBehaviorSanitizer; 'races' makes accesses of memory by
            several threads errors where no barrier orders them; 'coverage' counts which lines and branches run.
        workers: how many compilers run at a time.
        said: where the compiler writes to. None: its first error is in the BuildError.

    Returns:
        The folder of the library.

    Raises:
        MissingToolError: there is no C++ compiler, CMake or Ninja; a BuildError too.
        BuildError: the kernels do not compile, or are written as the emulator does not know it.
    """
    expect_tools()
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        locks.lock(lock)
        translated = directory / "translated"
        compiled = write_tree(read_tree(sources, _root(sources)), translated / "sources")
        write_tree(_headers(), translated)
        # Several libraries of some of a folder's sources share what they are compiled to, and none replaces another.
        output = directory / f"lib-{_digest(repr(compiled))[:16]}"
        ninjas, log = directory / "ninja", directory / "build.log"
        options = {
            "CMAKE_BUILD_TYPE": "Debug" if sanitizer else "Release",
            "CMAKE_CXX_FLAGS_RELEASE": "",
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(output),
            "CMAKE_MAKE_PROGRAM": building.find_tool("ninja"),
            "Python_EXECUTABLE": sys.executable,
            "NAMESPACE": namespace,
            "TORCHGRAFT_SANITIZER": sanitizer if sanitizer in ("address", "coverage") else "",
            "TRANSLATED": str(translated),
            "SOURCES": ";".join(map(str, compiled)),
            "ARCHITECTURE": str(architecture * 10),
            "ARITHMETIC": ";".join(_arithmetic()),
            "RACES": "ON" if sanitizer == "races" else "OFF",
        }
        defined = [f"-D{name}={value}" for name, value in options.items()]
        cmake = building.find_tool("cmake")
        parallel = ["--parallel", str(workers)] if workers else []
        _run([cmake, "-S", str(HERE), "-B", str(ninjas), "-G", "Ninja", "-Wno-dev", *defined], namespace, log, None)
        _run([cmake, "--build", str(ninjas), *parallel], namespace, log, said)
    return output


def build_once(
    namespace: str,
    sources: Sequence[Path],
    *,
    architecture: int = ARCHITECTURE,
    sanitizer: Sanitizer = "",
    workers: int | None = None,
    said: TextIO | None = None,
) -> Path:
    """Builds a library as `build` does, unless the cache (`torchgraft.building.cache`) has it from the same sources.

    Where something has changed, only that is compiled again: the cache keeps what the library is made from, too.

    Args:
        namespace: as `build` takes it, like all else.
        sources: as there.
        architecture: as there.
        sanitizer: as there.
        workers: as there.
        said: as there.

    Returns:
        The folder of the library, which nobody may write to.

    Raises:
        MissingToolError: there is no C++ compiler, CMake or Ninja; a BuildError too.
        BuildError: the kernels do not compile, or are written as the emulator does not know it; or there is no room.
    """
    kind = "-".join(filter(None, (namespace, "emulated", str(architecture), sanitizer)))

    def make(directory: Path) -> None:
        work = cache.keep_environment(
            f"{kind}-{_digest(f'{Path(__file__)}{_root(sources)}')[:16]}", lambda folder: folder.mkdir()
        )
        built = build(
            namespace, sources, work, architecture=architecture, sanitizer=sanitizer, workers=workers, said=said
        )
        shutil.copy2(built / f"{namespace}_cpu.so", directory)

    try:
        return cache.keep(f"{kind}-{_identity(sources)}", make)
    except OSError as error:
        raise BuildError(f"{namespace} cannot be built on the emulator: {error}") from None


def environment(
    library: Path,
    namespace: str,
    *,
    order: int = 0,
    multiprocessors: int | None = None,
    device: int | None = None,
    launches: Path | None = None,
) -> dict[str, str]:
    """Variables under which a process runs the kernels of a folder that `build` gave.

    Args:
        library: the folder.
        namespace: of the operators.
        order: 0 runs each warp as far as it can before the next; another number is the seed of an order of its own.
        multiprocessors: how many the device is said to have; None: a few.
        device: its compute capability, as 75 or 90, which may be newer than what kernels are compiled for; None: what
            they are compiled for.
        launches: a file to which launches are added, a line each: the kernel, the grid, the block, and dynamic shared
            memory in bytes, with tabs between. They are then not run, so that calls of any size are quick; results
            hold nothing. A device may be older here than what kernels are compiled for.
    """
    variables = {
        "TORCHGRAFT_LIBRARIES": str(library),
        "TORCHGRAFT_EMULATED": namespace,
        "TORCHGRAFT_EMULATION_ORDER": str(order),
    }
    if multiprocessors is not None:
        variables["TORCHGRAFT_EMULATED_MULTIPROCESSORS"] = str(multiprocessors)
    if device is not None:
        variables["TORCHGRAFT_EMULATED_ARCHITECTURE"] = str(device)
    if launches is not None:
        variables["TORCHGRAFT_EMULATED_LAUNCHES"] = str(launches)
    return variables


def sanitizer_variables() -> dict[str, str]:
    """Further variables for a library that was built with the sanitizer 'address'."""
    compiler = os.environ.get("CXX", "c++").split()
    found = [
        subprocess.run([*compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
        for name in ("libasan.so", "libstdc++.so")
    ]
    return {
        "LD_PRELOAD": " ".join(str(Path(path.strip()).resolve()) for path in found),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def _root(sources: Sequence[Path]) -> Path:
    """The folder around all of some sources and what they include; one for all of our own operators."""
    files = find_included(sources)
    ours = PACKAGE / "operators"
    if all(ours in path.parents for path in files):
        return ours
    return Path(os.path.commonpath([path.parent for path in files]))


def _headers() -> Tree:
    """The translations of our headers."""
    headers = PACKAGE / "include"
    return read_tree([path for path in sorted(headers.rglob("*")) if path.suffix in (".h", ".cuh")], headers)


def _identity(sources: Sequence[Path]) -> str:
    """A digest of everything that decides what is built, except the options."""
    trees = _headers(), read_tree(sources, _root(sources))
    # The work of the Python files is in the translations.
    own = [path for room in (HERE, PACKAGE / "cmake") for path in sorted(room.rglob("*")) if path.is_file()]
    files = [path.read_bytes() for path in own if path.suffix not in (".py", ".pyc")]
    compiler = building.version_of(os.environ.get("CXX") or "c++")
    said = [torch.__version__, torch.version.git_version, platform.machine(), compiler, *_arithmetic()]
    return _digest(repr((trees, files, said, [os.environ.get(name) for name in _VARIABLES])))[:32]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _run(command: Sequence[str], namespace: str, log: Path, said: TextIO | None) -> None:
    """Runs a step of a build."""
    try:
        if said is None:
            run_tool(command, namespace, log)
        else:
            subprocess.run(command, check=True, stdout=said, stderr=said)
    except subprocess.CalledProcessError:
        raise BuildError(f"{namespace} does not build on the emulator: the compiler has said why") from None


def _arithmetic() -> list[str]:
    """The compiler's flags for fused multiply-adds and conversions of halves, if this processor has them."""
    if platform.machine() != "x86_64":
        return []
    information = Path("/proc/cpuinfo")
    flags = information.read_text().split() if information.is_file() else []
    return [f"-m{name}" for name in ("fma", "f16c") if name in flags]
