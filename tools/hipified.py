"""Counts what PyTorch's hipify makes of our CUDA kernels, and what it leaves that HIP does not have.

`python tools/hipified.py` writes docs/hipified.json, of which `tools/docs/support.py` makes tables; with `--json` it
prints the same instead. Nothing of ROCm is needed. With `--compile gfx90a` clang also parses what hipify made of each
source, for the host and for that GPU, with the headers of HIP that are installed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import torch
from torch.utils.hipify import hipify_python

from torchgraft.machine.figures import as_json

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/torchgraft"
WRITTEN = ROOT / "docs/hipified.json"
# The parts of the package that CUDA compiles; the emulator has headers of its own.
_PARTS = ("operators", "recurrence", "benchmarking", "include")
_PTX = PACKAGE / "include/torchgraft/ptx.cuh"
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)', re.MULTILINE)
# Functions of ptx.cuh: what they are for, by the beginnings of their names. All others load, store and compute what C++
# can say too.
_INSTRUCTIONS = {
    "tensor cores": ("mma_", "ldmatrix", "stmatrix", "movmatrix"),
    "asynchronous copies": ("cp_async",),
    "clusters": ("mapa", "mbarrier", "fence_mbarrier", "st_async"),
}
_KNOWN = "|".join(name for names in _INSTRUCTIONS.values() for name in names)
# What HIP has not, or has otherwise, by the words in a source that say so.
NEEDS = {
    **{need: rf"\bptx::(?:{'|'.join(names)})" for need, names in _INSTRUCTIONS.items()},
    "other instructions": rf"\bptx::(?!{_KNOWN})\w+|\basm\b",
    "votes and shuffles": r"__(?:shfl|ballot|any|all|match|reduce)\w*_sync|__activemask",
    "attributes of launches": r"cudaLaunchKernelEx|cudaLaunchAttribute|cudaGridDependencySynchronize",
    "cooperative groups": r"\bcooperative_groups\b",
}
# What hipify leaves of names that HIP has otherwise or not, changed by hand before a compiler sees it.
BY_HAND = {
    "cudaDevAttrClusterLaunch": (r"\battribute\(cudaDevAttrClusterLaunch\)", "0"),
    "cudaFuncAttribute": (r"\bcudaFuncAttribute (?=attribute)", "hipFuncAttribute "),
}
# PyTorch's header for complex numbers asks HIP for this one, whose library comes apart from the compiler.
_THRUST = """#pragma once
namespace thrust {
template <typename T>
struct complex {
  T r, i;
  __host__ __device__ complex(T r = T(), T i = T()) : r(r), i(i) {}
  __host__ __device__ T real() const { return r; }
  __host__ __device__ T imag() const { return i; }
};
template <typename T> __host__ __device__ T abs(const complex<T>&);
template <typename T> __host__ __device__ T arg(const complex<T>&);
template <typename T> __host__ __device__ complex<T> polar(const T&, const T&);
}
"""
_CLANG = ("clang++", "clang++-21", "clang++-20", "clang++-19", "clang++-18", "clang++-17", "clang++-16")
# Names that only CUDA has, once hipify has renamed what it knows. Libraries of ours have such names too.
_OF_CUDA = re.compile(r"\b(?:cuda[A-Z]\w+|cu[A-Z][a-z]+[A-Z]\w+|cublas[A-Z]\w+|__nv_\w+)\b")


@dataclass(frozen=True)
class Hipified:
    """A source or a header.

    Attributes:
        file: below src/torchgraft.
        lines: how many it has.
        changed: how many of them hipify changes.
        left: names of CUDA that it leaves.
        needs: what it uses that HIP has not, or has otherwise, itself or in headers of ours that it includes.
        refused: the first error of a compiler of HIP in it; empty if there is none, None if it was not asked.
    """

    file: str
    lines: int
    changed: int
    left: tuple[str, ...]
    needs: tuple[str, ...]
    refused: str | None = None


@cache
def code_of(path: Path) -> str:
    """The text of a source without comments."""
    return _COMMENT.sub("", path.read_text())


@cache
def included_by(path: Path) -> tuple[Path, ...]:
    """The headers of ours that a file includes."""
    found = []
    for opening, name in _INCLUDE.findall(path.read_text()):
        beside = [path.parent] if opening == '"' else []
        places = (folder / name for folder in (*beside, PACKAGE / "include"))
        found += [place.resolve() for place in places if place.is_file()][:1]
    return tuple(found)


def reached(path: Path) -> set[Path]:
    """A file, and the headers of ours that it includes, and those that these include."""
    found, waiting = {path}, [path]
    while waiting:
        new = set(included_by(waiting.pop())) - found
        found |= new
        waiting += new
    return found


def needs_of(path: Path) -> tuple[str, ...]:
    """Names of what a source uses, with its headers, that HIP has not, or has otherwise.

    ptx.cuh defines all instructions, and who includes it uses some.
    """
    text = "\n".join(code_of(each) for each in reached(path) - {_PTX})
    return tuple(name for name, words in NEEDS.items() if re.search(words, text))


def sources() -> list[Path]:
    """All that nvcc compiles or includes: sources of CUDA, and the headers of ours that these reach."""
    compiled = [path for part in _PARTS for path in sorted((PACKAGE / part).rglob("*.cu"))]
    headers = {header for path in compiled for header in reached(path)} - set(compiled)
    unused = set((PACKAGE / "include").rglob("*.cuh")) - headers
    return [*compiled, *sorted(headers | unused)]


def hipify(folder: Path) -> dict[str, Path]:
    """Runs hipify on a copy of the package.

    Args:
        folder: gets the copy.

    Returns:
        The files that it writes, by those that it reads, both relative to the package.
    """
    copied = folder / "torchgraft"
    for part in _PARTS:
        shutil.copytree(PACKAGE / part, copied / part)
    results = hipify_python.hipify(
        project_directory=str(copied),
        output_directory=str(copied),
        header_include_dirs=[str(copied / "include")],
        includes=[f"{copied}/*"],
        extensions=(".cu", ".cuh", ".h"),
        show_progress=False,
        is_pytorch_extension=True,
    )
    return {str(Path(name).relative_to(copied)): Path(result.hipified_path or name) for name, result in results.items()}


def changed_lines(before: str, after: str) -> int:
    """How many lines of a text are not in what hipify makes of it, in order."""
    lines = before.splitlines()
    blocks = difflib.SequenceMatcher(None, lines, after.splitlines(), autojunk=False).get_matching_blocks()
    return len(lines) - sum(block.size for block in blocks)


def describe(path: Path, made: Path, refused: str | None) -> Hipified:
    """Describes a file, what hipify made of it, and what a compiler says of that."""
    text, after = path.read_text(), made.read_text()
    left = tuple(sorted(set(_OF_CUDA.findall(_COMMENT.sub("", after)))))
    file = str(path.relative_to(PACKAGE))
    return Hipified(file, text.count("\n"), changed_lines(text, after), left, needs_of(path), refused)


def compile_all(made: dict[str, Path], folder: Path, architecture: str) -> tuple[str, dict[str, str]]:
    """Has clang parse what hipify made of each source, for the host and for a GPU of AMD's.

    Args:
        made: by the source; its headers lie where they belong.
        folder: gets stand-ins.
        architecture: of the GPU, as `gfx90a`.

    Returns:
        The compiler, and the first error in each source; empty where there is none.
    """
    compiler = next(filter(shutil.which, _CLANG))
    for path in folder.rglob("*"):
        if path.suffix in (".hip", ".cuh", ".h"):
            text = before = path.read_text()
            for old, new in BY_HAND.values():
                text = re.sub(old, new, text)
            if text != before:
                path.write_text(text)
    (folder / "stand_ins/thrust").mkdir(parents=True)
    (folder / "stand_ins/thrust/complex.h").write_text(_THRUST)
    options = ["-x", "hip", f"--offload-arch={architecture}", "-nogpulib", "-fsyntax-only", "-std=c++20", "-w"]
    options += ["-D__HIP_PLATFORM_AMD__", "-DUSE_ROCM", "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020b000000000000ULL"]
    headers = Path(torch.__file__).parent / "include"
    options += [f"-I{folder / 'torchgraft/include'}", "-isystem", str(folder / "stand_ins"), "-isystem", str(headers)]

    def first_error(name: str) -> str:
        done = subprocess.run([compiler, *options, str(made[name])], capture_output=True, text=True, check=False)
        found = re.search(r"error: (.*)", done.stderr)
        return found[1] if found else "" if done.returncode == 0 else done.stderr.strip()[-200:]

    names = [name for name in made if name.endswith(".cu")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = dict(zip(names, pool.map(first_error, names), strict=True))
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    return said.partition("\n")[0], errors


def summary(files: Iterable[Hipified]) -> dict[str, object]:
    """The counts of all files: of sources, of headers, and of sources by what they need."""
    files = list(files)
    kinds = {"sources": [each for each in files if each.file.endswith(".cu")]}
    kinds["headers"] = [each for each in files if each not in kinds["sources"]]
    counts: dict[str, object] = {
        kind: {
            "files": len(of_kind),
            "lines": sum(each.lines for each in of_kind),
            "changed_files": sum(each.changed > 0 for each in of_kind),
            "changed_lines": sum(each.changed for each in of_kind),
        }
        for kind, of_kind in kinds.items()
    }
    counts["needs"] = Counter(need for each in kinds["sources"] for need in each.needs)
    counts["left"] = Counter(name for each in files for name in each.left)
    return counts


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print what is found, and write nothing")
    parser.add_argument("--compile", metavar="GPU", help="have clang parse each source for such a GPU, as gfx90a")
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = hipify(folder)
        texts = {path: made[str(path.relative_to(PACKAGE))] for path in sources()}
        before = {path: path.read_text() for path in texts.values()}
        compiler, errors = compile_all(made, folder, wanted.compile) if wanted.compile else ("", {})
        for path, text in before.items():
            path.write_text(text)
        files = [describe(path, after, errors.get(str(path.relative_to(PACKAGE)))) for path, after in texts.items()]
    asked = {"compiler": compiler, "gpu": wanted.compile, "by_hand": list(BY_HAND)} if wanted.compile else {}
    found = {"torch": torch.__version__, **asked, **summary(files), "files": [asdict(each) for each in files]}
    if wanted.json:
        print(json.dumps(found, indent=1))
    else:
        WRITTEN.write_text(as_json(found))


if __name__ == "__main__":
    main()
