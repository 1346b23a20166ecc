"""Runs CUDA kernels on the CPU: `python -m torchgraft.emulation OPERATOR... -- --property value`.

The kernels of the operators named are translated to C++, compiled on an emulator of CUDA, and loaded in the place of
the operators' CPU kernels; then `graft check` runs on those operators, with what stands behind `--`. Nothing of the
CUDA toolkit is needed. `--package examples/rms_norm/src/rms_norm` does so with the kernels of a package. `graft check
--emulate` is the same with fewer options.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from torchgraft.building import BuildError
from torchgraft.emulation import library, own


def main() -> int:
    """Runs the command."""
    arguments, rest = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, rest = arguments[:at], arguments[at + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m torchgraft.emulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("operators", nargs="*", help="Operators to run; default: all that have CUDA kernels.")
    parser.add_argument(
        "--package", type=Path, help="The folder of a package with .cu files; it has the name of the namespace."
    )
    parser.add_argument(
        "--architecture", type=int, default=library.ARCHITECTURE, help="Compute capability to build for."
    )
    parser.add_argument("--device", type=int, help="Compute capability of the device; default: that of --architecture.")
    parser.add_argument("--launches", type=Path, help="Write launches to this file instead of running them.")
    parser.add_argument("--order", type=int, default=0, help="Seed of the order in which threads run; 0: in order.")
    parser.add_argument("--multiprocessors", type=int, help="How many multiprocessors the device has.")
    parser.add_argument("--sanitize", choices=("address", "races"), help="Mistakes to look for in accesses of memory.")
    parser.add_argument("--workers", type=int, help="How many compilers run at a time.")
    parser.add_argument("--run", action="store_true", help="Run the command behind `--` instead of `graft check`.")
    given = parser.parse_args(arguments)

    try:
        folders = [given.package.resolve()] if given.package else own.find_folders(given.operators)
        sources = own.sources_in(folders)
        if not sources:
            raise LookupError(f"there are no sources of CUDA kernels, *.cu, in {given.package or library.PACKAGE}")
        namespace = folders[0].name if given.package else own.NAMESPACE
        built = library.build_once(
            namespace,
            sources,
            architecture=given.architecture,
            sanitizer=given.sanitize or "",
            workers=given.workers,
            said=sys.stderr,
        )
    except (LookupError, BuildError) as mistake:
        parser.error(str(mistake))
    device = library.environment(
        built,
        namespace,
        order=given.order,
        multiprocessors=given.multiprocessors,
        device=given.device,
        launches=given.launches and given.launches.absolute(),
    )
    variables = {**os.environ, **device}
    if given.sanitize == "address":
        variables |= library.sanitizer_variables()
    check = [sys.executable, "-m", "torchgraft", "check", str(given.package), "--device", "cpu", *rest]
    command = rest if given.run else check if given.package else own.check_command(folders, rest)
    return subprocess.run(command, check=False, env=variables).returncode


if __name__ == "__main__":
    sys.exit(main())
