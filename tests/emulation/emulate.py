"""Runs CUDA kernels on the CPU: `python tests/emulation/emulate.py OPERATOR... -- --property value`.

The kernels of the operators named are translated to C++, compiled on an emulator of CUDA, and loaded in the place of
the operators' CPU kernels; then `graft check` runs on those operators, with what stands behind `--`. Nothing of the
CUDA toolkit is needed. `--package examples/rms_norm/src/rms_norm` does so with the kernels of a package.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PACKAGE = ROOT / "src/torchgraft"
sys.path.insert(0, str(HERE))

from translate import translate_tree  # noqa: E402  it lies beside this file


def find_folders(names: Sequence[str] = ()) -> list[Path]:
    """The folders of operators that have CUDA kernels: those of some names, or all.

    Raises:
        LookupError: there is none of a name.
    """
    found = {path.parent.name: path.parent for path in sorted((PACKAGE / "operators").glob("*/cuda.cu"))}
    if strangers := set(names) - set(found):
        raise LookupError(f"there are CUDA kernels in {', '.join(found)}, and none in {', '.join(sorted(strangers))}")
    return [found[name] for name in names or found]


def build(
    folders: Sequence[Path],
    *,
    namespace: str = "torchgraft",
    architecture: int = 90,
    sanitizer: str = "",
    workers: int | None = None,
    work: Path | None = None,
    said: TextIO = sys.stderr,
) -> Path:
    """The directory of a library with the CUDA kernels of some folders, as CPU kernels: `<namespace>_cpu.so`.

    What did not change since the last time is not compiled again.

    Args:
        folders: of `.cu` files and what they include.
        namespace: of their operators in `torch.ops`.
        architecture: the compute capability that kernels are compiled for, as 75 or 90.
        sanitizer: 'address' adds AddressSanitizer and UndefinedBehaviorSanitizer; 'races' makes accesses of memory by
            several threads errors where no barrier orders them; 'coverage' counts which lines and branches run.
        workers: how many compilers run at a time.
        work: where it is built; None: in the folder of all such libraries.
        said: where the compiler writes to.

    Raises:
        subprocess.CalledProcessError: it does not build; the compiler has said why.
    """
    # Of few sources other headers are compiled once. What lies in one folder with the operators would have all of them
    # compiled anew.
    strangers = [folder.name for folder in folders if PACKAGE not in folder.parents]
    kind = "-".join(filter(None, (str(architecture), sanitizer, *strangers)))
    work = work or ROOT / "build/emulation" / kind
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        translated = work / "translated"
        translate_tree(PACKAGE / "include", translated / "include")
        sources = [path for folder in folders for path in translate_tree(folder, translated / folder.name)]
        output = work / "+".join(folder.name for folder in folders)
        options = {
            "CMAKE_BUILD_TYPE": "Debug" if sanitizer else "Release",
            "CMAKE_CXX_FLAGS_RELEASE": "",
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(output),
            "CMAKE_MAKE_PROGRAM": _tool("ninja"),
            "Python_EXECUTABLE": sys.executable,
            "NAMESPACE": namespace,
            "TORCHGRAFT_SANITIZER": sanitizer if sanitizer in ("address", "coverage") else "",
            "TRANSLATED": str(translated),
            "SOURCES": ";".join(map(str, sources)),
            "ARCHITECTURE": str(architecture * 10),
            "ARITHMETIC": ";".join(_arithmetic()),
            "RACES": "ON" if sanitizer == "races" else "OFF",
        }
        defined = [f"-D{name}={value}" for name, value in options.items()]
        cmake = _tool("cmake")
        configure = [cmake, "-S", str(HERE), "-B", str(work / "ninja"), "-G", "Ninja", "-Wno-dev", *defined]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        parallel = ["--parallel", str(workers)] if workers else []
        subprocess.run([cmake, "--build", str(work / "ninja"), *parallel], check=True, stdout=said, stderr=said)
    return output


def environment(
    library: Path,
    *,
    order: int = 0,
    multiprocessors: int | None = None,
    device: int | None = None,
    launches: Path | None = None,
) -> dict[str, str]:
    """Variables under which a process runs the kernels of a directory that `build` gave.

    Args:
        library: the directory.
        order: 0 runs each warp as far as it can before the next; another number is the seed of an order of its own.
        multiprocessors: how many the device is said to have; None: a few.
        device: its compute capability, as 75 or 90, which may be newer than what kernels are compiled for; None: what
            they are compiled for.
        launches: a file to which launches are added, a line each: the kernel, the grid, the block, and dynamic shared
            memory in bytes, with tabs between. They are then not run, so that calls of any size are quick; results
            hold nothing. A device may be older here than what kernels are compiled for.
    """
    variables = {"TORCHGRAFT_LIBRARIES": str(library), "TORCHGRAFT_EMULATION_ORDER": str(order)}
    if multiprocessors is not None:
        variables["TORCHGRAFT_EMULATED_MULTIPROCESSORS"] = str(multiprocessors)
    if device is not None:
        variables["TORCHGRAFT_EMULATED_ARCHITECTURE"] = str(device)
    if launches is not None:
        variables["TORCHGRAFT_EMULATED_LAUNCHES"] = str(launches)
    return variables


def _tool(name: str) -> str:
    return shutil.which(name, path=str(Path(sys.executable).parent)) or name


def _arithmetic() -> list[str]:
    """Flags for fused multiply-adds and conversions of halves, where this processor has them."""
    if platform.machine() != "x86_64":
        return []
    information = Path("/proc/cpuinfo")
    flags = information.read_text().split() if information.is_file() else []
    return [f"-m{name}" for name in ("fma", "f16c") if name in flags]


def sanitizer_variables() -> dict[str, str]:
    found = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    return {
        "LD_PRELOAD": " ".join(str(Path(path).resolve()) for path in found),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def find_operators(folder: Path) -> list[str]:
    """The names of all that a folder of operators declares."""
    from torchgraft import Operator

    module = f"torchgraft.operators.{folder.name}."
    return [each.name for each in Operator.registered.values() if each.module.startswith(module)]


def check_command(folders: Sequence[Path], options: Sequence[str]) -> list[str]:
    """The command that checks all that some folders of operators declare."""
    names = [name for folder in folders for name in find_operators(folder)]
    return [sys.executable, "-m", "torchgraft", "check", *names, "--device", "cpu", *options]


def main() -> int:
    """The command."""
    arguments, rest = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, rest = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="None: all that have CUDA kernels.")
    parser.add_argument("--package", type=Path, help="A package's folder with .cu files, of the name of its namespace.")
    parser.add_argument("--architecture", type=int, default=90, help="Compute capability that is compiled for.")
    parser.add_argument("--device", type=int, help="Of the device; as what is compiled for without it.")
    parser.add_argument("--launches", type=Path, help="A file for launches, which are then not run.")
    parser.add_argument("--order", type=int, default=0, help="Seed of the order in which threads run; 0: in order.")
    parser.add_argument("--multiprocessors", type=int, help="Of the device that is emulated.")
    parser.add_argument("--sanitize", choices=("address", "races"), help="What to watch accesses of memory for.")
    parser.add_argument("--workers", type=int, help="Compilers at a time.")
    parser.add_argument("--run", action="store_true", help="What stands behind `--` is a command of its own.")
    given = parser.parse_args(arguments)

    try:
        folders = [given.package.resolve()] if given.package else find_folders(given.operators)
    except LookupError as mistake:
        parser.error(str(mistake))
    library = build(
        folders,
        namespace=folders[0].name if given.package else "torchgraft",
        architecture=given.architecture,
        sanitizer=given.sanitize or "",
        workers=given.workers,
    )
    device = environment(
        library,
        order=given.order,
        multiprocessors=given.multiprocessors,
        device=given.device,
        launches=given.launches and given.launches.absolute(),
    )
    variables = {**os.environ, **device}
    if given.sanitize == "address":
        variables |= sanitizer_variables()
    check = [sys.executable, "-m", "torchgraft", "check", str(given.package), "--device", "cpu", *rest]
    command = rest if given.run else check if given.package else check_command(folders, rest)
    return subprocess.run(command, check=False, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
