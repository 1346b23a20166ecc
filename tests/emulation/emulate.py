"""Runs CUDA kernels on the CPU: `python tests/emulation/emulate.py OPERATOR... -- --property value`.

The kernels of the operators named are translated to C++, compiled on an emulator of CUDA, and loaded in the place of
the operators' CPU kernels; then `graft check OPERATOR... --device cpu` runs, with what stands behind `--`. Nothing of the
CUDA toolkit is needed.
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

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PACKAGE = ROOT / "src/torchgraft"
sys.path.insert(0, str(HERE))

from translate import translate_tree  # noqa: E402  it lies beside this file


def emulated_operators() -> list[str]:
    """The operators that have CUDA kernels."""
    return sorted(path.parent.name for path in (PACKAGE / "operators").glob("*/cuda.cu"))


def build(operators: Sequence[str], *, architecture: int = 90, sanitizer: str = "", workers: int | None = None) -> Path:
    """The directory of a library that holds the CUDA kernels of some operators as CPU kernels.

    Raises:
        subprocess.CalledProcessError: it does not build; the compiler has said why.
    """
    kind = f"{architecture}-{sanitizer}" if sanitizer else str(architecture)
    work = ROOT / "build/emulation" / kind
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        translated = work / "translated"
        translate_tree(PACKAGE / "include", translated / "include")
        # The emulator has its own.
        (translated / "include/torchgraft/ptx.cuh").unlink(missing_ok=True)
        sources = []
        for operator in operators:
            folder = PACKAGE / "operators" / operator
            sources += translate_tree(folder, translated / "operators" / operator)
        output = work / "+".join(operators)
        options = {
            "CMAKE_BUILD_TYPE": "Debug",
            "CMAKE_LIBRARY_OUTPUT_DIRECTORY": str(output),
            "Python_EXECUTABLE": sys.executable,
            "TORCHGRAFT_SANITIZER": sanitizer,
            "TRANSLATED": str(translated),
            "SOURCES": ";".join(map(str, sources)),
            "ARCHITECTURE": str(architecture * 10),
            "ARITHMETIC": ";".join(_arithmetic()),
        }
        defined = [f"-D{name}={value}" for name, value in options.items()]
        cmake = _tool("cmake")
        ninja = f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}"
        configure = [cmake, "-S", str(HERE), "-B", str(work / "ninja"), "-G", "Ninja", "-Wno-dev", ninja, *defined]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
        parallel = ["--parallel", str(workers)] if workers else []
        subprocess.run([cmake, "--build", str(work / "ninja"), *parallel], check=True, stdout=sys.stderr)
    return output


def environment(library: Path, *, order: int = 0, multiprocessors: int | None = None) -> dict[str, str]:
    """Variables under which a process runs the kernels of a directory that `build` gave.

    Args:
        library: the directory.
        order: 0 runs each warp as far as it can before the next; another number is the seed of an order of its own.
        multiprocessors: how many the device is said to have; None: a few.
    """
    variables = {"TORCHGRAFT_LIBRARIES": str(library), "TORCHGRAFT_EMULATION_ORDER": str(order)}
    if multiprocessors is not None:
        variables["TORCHGRAFT_EMULATED_MULTIPROCESSORS"] = str(multiprocessors)
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


def _sanitizer_variables() -> dict[str, str]:
    found = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    return {
        "LD_PRELOAD": " ".join(str(Path(path).resolve()) for path in found),
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }


def _check(operators: Sequence[str], rest: Sequence[str]) -> list[str]:
    """The command that checks all that some folders of operators declare."""
    from torchgraft import Operator

    folders = tuple(f"torchgraft.operators.{name}." for name in operators)
    names = [each.name for each in Operator.registered.values() if each.module.startswith(folders)]
    return [sys.executable, "-m", "torchgraft", "check", *names, "--device", "cpu", *rest]


def main() -> int:
    """The command."""
    arguments, rest = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, rest = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="None: all that have CUDA kernels.")
    parser.add_argument("--architecture", type=int, default=90, help="Compute capability: 75, 80, 90.")
    parser.add_argument("--order", type=int, default=0, help="Seed of the order in which threads run; 0: in order.")
    parser.add_argument("--multiprocessors", type=int, help="Of the device that is emulated.")
    parser.add_argument("--sanitize", action="store_true", help="Under AddressSanitizer and the one of behaviour.")
    parser.add_argument("--workers", type=int, help="Compilers at a time.")
    parser.add_argument("--run", action="store_true", help="What stands behind `--` is a command of its own.")
    given = parser.parse_args(arguments)

    operators = given.operators or emulated_operators()
    library = build(
        operators,
        architecture=given.architecture,
        sanitizer="address" if given.sanitize else "",
        workers=given.workers,
    )
    variables = {**os.environ, **environment(library, order=given.order, multiprocessors=given.multiprocessors)}
    if given.sanitize:
        variables |= _sanitizer_variables()
    command = rest if given.run else _check(operators, rest)
    return subprocess.run(command, check=False, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
