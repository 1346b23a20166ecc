"""The table that says which file computes a row: the file of each CUDA kernel that the rows of a report name."""

import re
from pathlib import Path

from generated import ROOT
from torchgraft.benchmarking.results import BenchReport
from torchgraft.benchmarking.summary import KernelsToday
from torchgraft.benchmarking.table import Table

_OPERATORS = ROOT / "src/torchgraft/operators"
# The table stands in pages of docs/results.
_FROM_PAGE = Path("../..")
# nvcc compiles the first; the second is included.
_SUFFIXES = (".cu", ".cuh")


def kernel_files(report: BenchReport, today: KernelsToday) -> str:
    """Returns the table: folders of operators, files in them, and the kernels in each file.

    Args:
        report: the rows.
        today: the kernels that are chosen today, by the keys of rows that do not say which kernels ran.

    Raises:
        LookupError: a kernel's name leads to no file.
    """
    kernels: dict[tuple[str, Path], set[str]] = {}
    for row in report.rows:
        for name in row.chosen or today.get(row.key, ()):
            folder = _folder_of(row.operator)
            kernels.setdefault((folder.name, file_of(folder, name)), set()).add(name)
    lines = []
    before = ""
    for (operator, path), names in sorted(kernels.items()):
        link = f"[{path.relative_to(_OPERATORS / operator)}]({_FROM_PAGE / path.relative_to(ROOT)})"
        lines.append([operator if operator != before else "", link, ", ".join(sorted(names))])
        before = operator
    return Table("", ["operators in", "file", "kernels"], lines).markdown()


def file_of(folder: Path, kernel: str) -> Path:
    """Returns the file of a CUDA kernel.

    Its name is its path, and may end in words for a variant or a shape. If there is no such path, several kernels share
    a file: the one that holds `__global__` with this name, or else the one that launches it.

    Args:
        folder: of the operator.
        kernel: the name that the operator's library gives it.

    Raises:
        LookupError: there is no such file.
    """
    files = sorted((folder / "cuda").rglob("*.cu*"), key=lambda path: _SUFFIXES.index(path.suffix))
    names = {path: "_".join(path.relative_to(folder / "cuda").with_suffix("").parts) for path in files}
    words = kernel.split("_")
    for count in range(len(words), 0, -1):
        for path, name in names.items():
            if name == "_".join(words[:count]):
                return path
    for pattern in (rf"__global__[^;{{}}]*?\b{kernel}\(", rf"^void launch_{kernel}\("):
        for path in files:
            if re.search(pattern, path.read_text(), re.MULTILINE):
                return path
    raise LookupError(f"{folder}/cuda has no file for the kernel {kernel}: name the kernel after its file")


def _folder_of(operator: str) -> Path:
    """Returns the folder of an operator: the longest beginning of its name that is a folder with CUDA kernels."""
    words = operator.split("_")
    for count in range(len(words), 0, -1):
        folder = _OPERATORS / "_".join(words[:count])
        if (folder / "cuda").is_dir():
            return folder
    raise LookupError(f"no folder in {_OPERATORS} has CUDA kernels of {operator}")
