"""Programs that say which kernel serves a problem: the policies of operators are host code, asked without a GPU."""

import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "src/torchgraft"


def build(operator: str, folder: Path) -> Path:
    """The program of an operator, compiled into a folder."""
    program = folder / operator
    included = [f"-I{PACKAGE / 'include'}", f"-I{PACKAGE / 'operators' / operator}"]
    compiler = [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror", *included]
    subprocess.run([*compiler, str(HERE / f"{operator}.cpp"), "-o", str(program)], check=True)
    return program
