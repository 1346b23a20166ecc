"""Programs that say which kernel serves a problem: the policies of operators are host code, asked without a GPU."""

import os
import re
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "src/torchgraft"
_KERNEL = re.compile(r"__global__ void (?:__launch_bounds__\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s+)?(\w+)\(")


def build(operator: str, folder: Path, program: str = "") -> Path:
    """A program of an operator, compiled into a folder; where CHOICE_COVERAGE names one, so that it counts there.

    Args:
        operator: the folder whose headers it includes.
        folder: where it is written.
        program: the name of its source; empty: that of the operator.
    """
    counted = os.environ.get("CHOICE_COVERAGE")
    folder = Path(counted) if counted else folder
    source = HERE / f"{program or operator}.cpp"
    included = [f"-I{HERE}", f"-I{PACKAGE / 'include'}", f"-I{PACKAGE / 'operators' / operator}"]
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror", *included]
    # As torchgraft.emulation compiles them: branches are those of the compiler.
    counts = ["--coverage", "-Og", "-fno-inline"] if counted else []
    command = [*compiler, *counts, str(source), "-o", str(folder / source.stem)]
    subprocess.run(command, check=True, cwd=folder)
    return folder / source.stem


def kernels_in(folder: Path) -> dict[str, list[Path]]:
    """The kernels of an operator's `cuda` folder by name, each with the paths that it stands in."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("**/*.cu*")):
        for name in _KERNEL.findall(path.read_text()):
            found.setdefault(name, []).append(path.relative_to(folder))
    return found
