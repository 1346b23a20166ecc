"""Measures which lines and branches of the kernels and host functions a quick check reaches: `make coverage`.

CUDA kernels run on the emulator, compiled for several architectures and on devices of several sizes, as they are chosen
and each forced on all that it supports. C++ kernels run compiled for any processor, on one thread, and for this
machine's, on two. Branches are those of the compiler, so that each part of a condition is counted by itself; what
instantiations of a template reach is merged; the edges of exceptions are left out, and lines that only say that nothing
comes there, `fail(...)`. Which kernel is chosen, and what each supports, is asked for problems of any size by the
programs of tests/choice as well.

Written are a table by folder, docs/fragments/coverage.md, and what was not reached, build/coverage/missing.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/emulation"))

import emulate  # noqa: E402  it lies below this file

from torchgraft.benchmarking.table import Table  # noqa: E402
from torchgraft.building import find_tool  # noqa: E402

OPERATORS = ROOT / "src/torchgraft/operators"
WORK = ROOT / "build/coverage"
TABLE = ROOT / "docs/fragments/coverage.md"
# Architectures that are compiled for, and the multiprocessors of a device that runs them. The first is asked all of
# PROPERTIES. The others differ in which kernels there are and in how work is shared out: a call of each sample tells.
DEVICES = ("90:16", "90:84", "90:132", "80:16", "75:16")
# C++ kernels as they are compiled: for the least of processors, and for this machine's; asked on so many threads. The
# definition of a convolution's gradient crashes on bad input on one thread: it is PyTorch's.
KINDS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "cpu": ("OFF", 1, ()),
    "cpu-native": ("ON", 2, ("bad_input",)),
}
# A property that may end its process is asked in this one: a worker ends without writing what it counted. PRODUCTS says
# what lltm's products of float32 are made in, as torchgraft/precision.py tells it on a GPU.
CHECK = """
import os
from torchgraft import native
from torchgraft.checking import running
from torchgraft.cli import main
running._in_worker = True
if products := os.environ.get("PRODUCTS"):
    native.libraries_of("torchgraft", "cpu")[0].function("torchgraft_set_products")(int(products))
main()
"""
PROPERTIES = ("value", "sizes", "empty", "non_finite", "layouts")
PROPERTIES_ELSEWHERE = ("value",)
# The kernels between which each operator of torchgraft chooses in a library.
LIST_KERNELS = """
import json
from torchgraft.checking.subject import find_subjects, listed_kernels
print(json.dumps({each.name: listed_kernels(each.operator, "cpu") for each in find_subjects([])}))
"""


@dataclass
class Line:
    """A line of a source: whether it runs, and which of its branches do, over all instantiations of a template.

    A branch is known by its number among so many: where instantiations differ in what they ask, they differ in that.
    """

    runs: bool = False
    branches: dict[tuple[int, int], bool] = field(default_factory=dict)


@dataclass
class Counts:
    """Lines and branches of some sources, and how many of them ran."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def add(self, lines: dict[int, Line]) -> None:
        """Adds the lines of a file."""
        for line in lines.values():
            self.lines += 1
            self.lines_run += line.runs
            self.branches += len(line.branches)
            self.branches_run += sum(line.branches.values())

    def row(self, name: str) -> list[str]:
        """A row of the table."""
        return [name, _share(self.lines_run, self.lines), _share(self.branches_run, self.branches)]


@dataclass(frozen=True)
class Library:
    """A library that counts what runs.

    Attributes:
        name: of its report.
        objects: the folder of what it was compiled to.
        questions: operators, each with variables and options of its check.
    """

    name: str
    objects: Path
    questions: list[tuple[str, dict[str, str], tuple[str, ...]]]


def _share(some: int, all: int) -> str:
    return f"{100 * some / all:.1f} % of {all:,}" if all else ""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="Folders of operators; none: all.")
    parser.add_argument(
        "--device",
        action="append",
        choices=("cpu", *DEVICES),
        help="One of these emulated GPUs, beside the CPU, or the CPU alone; none: all.",
    )
    given = parser.parse_args()
    folders = emulate.find_folders(given.operators)
    devices = tuple(each for each in given.device or DEVICES if each != "cpu")
    WORK.mkdir(parents=True, exist_ok=True)
    architectures = dict.fromkeys(int(each.partition(":")[0]) for each in devices)
    libraries = [_of_emulated(folders, each, devices) for each in architectures]
    libraries += [_of_cpu(folders, name) for name in KINDS]
    _ask(libraries)
    libraries.append(_of_choice())
    reports = [_report(library) for library in libraries]
    merged = WORK / "all.json"
    tracefiles = [word for report in reports for word in ("--add-tracefile", str(report))]
    _gcovr(*tracefiles, "--json", str(merged))
    wanted = tuple(str(folder.relative_to(ROOT)) for folder in folders)
    files = {
        each["file"]: _lines_of(each)
        for each in json.loads(merged.read_text())["files"]
        if each["file"].startswith(wanted)
    }
    if not given.operators and not given.device:
        TABLE.write_text(_table(files, devices))
    (WORK / "missing.txt").write_text("".join(f"{line}\n" for line in _missing(files)))
    print(_table(files, devices))
    print(f"what was not reached: {(WORK / 'missing.txt').relative_to(ROOT)}")
    return 0


def _of_emulated(folders: list[Path], architecture: int, devices: Iterable[str]) -> Library:
    library = emulate.build(folders, architecture=architecture, sanitizer="coverage")
    kernels = _kernels_of(library)
    questions = [
        (operator, {**emulate.environment(library, multiprocessors=int(count)), **products}, options)
        for each in devices
        for built_for, _, count in [each.partition(":")]
        if int(built_for) == architecture
        for properties in [PROPERTIES if each == DEVICES[0] else PROPERTIES_ELSEWHERE]
        for folder in folders
        for operator in emulate.find_operators(folder)
        for options, products in (
            *((("--kernel", kernel, *_asked(*properties)), {}) for kernel in kernels[operator]),
            *((_asked(name), {}) for name in properties),
            *((_asked("value"), {"PRODUCTS": said}) for said in ("1", "2") if folder.name == "lltm"),
        )
    ]
    return Library(f"cuda-{architecture}", ROOT / f"build/emulation/{architecture}-coverage/ninja", questions)


def _kernels_of(library: Path) -> dict[str, list[str]]:
    variables = {**os.environ, **emulate.environment(library)}
    listed = subprocess.run([sys.executable, "-c", LIST_KERNELS], env=variables, check=True, capture_output=True)
    return dict(json.loads(listed.stdout))


def _of_cpu(folders: list[Path], kind: str) -> Library:
    objects = WORK / kind
    native, threads, more = KINDS[kind]
    defined = ["-DTORCHGRAFT_SANITIZER=coverage", "-DTORCHGRAFT_CUDA=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
    defined.append(f"-DTORCHGRAFT_NATIVE={native}")
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    configure = [cmake, "-S", str(ROOT), "-B", str(objects), "-G", "Ninja", "-Wno-author", *defined]
    subprocess.run([*configure, f"-DCMAKE_MAKE_PROGRAM={ninja}"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", str(objects)], check=True, stdout=sys.stderr)
    # A thread that waits leaves its core to other checks.
    variables = {
        "TORCHGRAFT_LIBRARIES": str(objects),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
    }
    operators = [operator for folder in folders for operator in emulate.find_operators(folder)]
    questions = [(each, variables, _asked(name)) for each in operators for name in (*PROPERTIES, *more)]
    return Library(kind, objects, questions)


def _of_choice() -> Library:
    objects = WORK / "choice"
    shutil.rmtree(objects, ignore_errors=True)
    objects.mkdir()
    tests = [str(ROOT / f"tests/test_{name}_choice.py") for name in ("kernel", "depthwise")]
    variables = {**os.environ, "CHOICE_COVERAGE": str(objects)}
    subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], check=True, cwd=ROOT, env=variables)
    return Library("choice", objects, [])


def _asked(*properties: str) -> tuple[str, ...]:
    return tuple(word for name in properties for word in ("--property", name))


def _ask(libraries: list[Library]) -> None:
    """Asks the questions of libraries: a process each, which writes what it counted as it ends."""
    for counted in (each for library in libraries for each in library.objects.rglob("*.gcda")):
        counted.unlink()

    def ask(operator: str, variables: dict[str, str], options: tuple[str, ...]) -> None:
        command = [sys.executable, "-c", CHECK, "check", operator, "--device", "cpu", "--quick", *options]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        done = subprocess.run([*command, "--workers", "0"], env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{operator} does not hold:\n{done.stdout}{done.stderr}", file=sys.stderr)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(ask, *zip(*(each for library in libraries for each in library.questions), strict=True)))


def _report(library: Library) -> Path:
    path = WORK / f"{library.name}.json"
    # What was compiled and wrote no counts is of a source that is there no more.
    for compiled in library.objects.rglob("*.gcno"):
        if not compiled.with_suffix(".gcda").is_file():
            compiled.unlink()
    # What has no text but a bracket runs where an exception passes.
    real = ["--exclude-throw-branches", "--exclude-unreachable-branches", "--exclude-noncode-lines"]
    real += ["--exclude-lines-by-pattern", r"\s*fail\("]
    _gcovr(
        "--object-directory",
        str(library.objects),
        str(library.objects),
        *real,
        "-j",
        str(os.cpu_count()),
        "--json",
        str(path),
    )
    return path


def _gcovr(*arguments: str) -> None:
    command = [sys.executable, "-m", "gcovr", "--root", str(ROOT), "--filter", "src/torchgraft/"]
    subprocess.run([*command, *arguments], check=True, cwd=ROOT)


def _lines_of(file: dict[str, Any]) -> dict[int, Line]:
    """The lines of a file in gcovr's report, which has them once for each instantiation."""
    lines: dict[int, Line] = defaultdict(Line)
    for each in file["lines"]:
        line = lines[each["line_number"]]
        line.runs |= each["count"] > 0
        for number, branch in enumerate(each["branches"]):
            key = len(each["branches"]), number
            line.branches[key] = line.branches.get(key, False) or branch["count"] > 0
    return lines


def _table(files: dict[str, dict[int, Line]], devices: Iterable[str]) -> str:
    """A row a folder of sources, and one for all."""
    emulated = " and ".join(
        f"{int(architecture) / 10} with {count}" for architecture, _, count in (each.partition(":") for each in devices)
    )
    by_folder: dict[str, Counts] = {}
    total = Counts()
    for name, lines in sorted(files.items()):
        by_folder.setdefault(str(Path(name).parent.relative_to("src/torchgraft/operators")), Counts()).add(lines)
        total.add(lines)
    rows = [counts.row(f"`{folder}`") for folder, counts in by_folder.items()]
    asked, elsewhere = (", ".join(f"`{name}`" for name in names) for names in (PROPERTIES, PROPERTIES_ELSEWHERE))
    said = f"CUDA kernels on emulated GPUs of compute capability {emulated} multiprocessors, " if emulated else ""
    said += f"C++ kernels for any processor and for the one that ran them, asked {asked}"
    said += f"; on each GPU but the first {elsewhere} alone." if emulated else "."
    table = Table("", ["sources", "lines that run", "branches that run"], [*rows, total.row("all")])
    return f"{said}\n\n{table.markdown()}"


def _missing(files: dict[str, dict[int, Line]]) -> list[str]:
    """The lines that never run, and those of whose branches some never do, with their text."""
    found = []
    for name, lines in sorted(files.items()):
        text = (ROOT / name).read_text().splitlines()
        for number, line in sorted(lines.items()):
            shown = " ".join(text[number - 1].split()) if number <= len(text) else ""
            never = sum(not runs for runs in line.branches.values())
            if not line.runs:
                found.append(f"{name}:{number}: never: {shown}")
            elif never:
                found.append(f"{name}:{number}: {never} of {len(line.branches)} branches: {shown}")
    return found


if __name__ == "__main__":
    sys.exit(main())
