"""Measures which lines and branches of the kernels and host functions a quick check reaches: `make coverage`.

CUDA kernels run on the emulator, compiled for several architectures and on devices of several sizes, as they are chosen
and each forced on all that it supports. C++ kernels run compiled for any processor, on one thread, and for this
machine's, on two. Which kernel is chosen, and what each supports, is asked for problems of any size by the programs of
tests/choice as well.

Branches are those of the compiler, so that each part of a condition is counted by itself; what instantiations of a
template reach is merged. Left out are the edges of exceptions, lines that only say that nothing comes there, that is
`fail(...)`, and the branches of assertions in host functions of CUDA, of what supports.h has promised.

A question that was answered is not asked again until sources or samples change, so that an interrupted run goes on
where it ended. Written are a table for each operator, docs/fragments/coverage-*.md, once it was asked on the CPU and on
the first GPU, and what was not reached, build/coverage/missing.txt.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from subprocess import PIPE
from threading import Lock
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/emulation"))

import emulate  # noqa: E402  it lies below this file

from torchgraft.benchmarking.table import Table  # noqa: E402
from torchgraft.building import find_tool  # noqa: E402

PACKAGE = ROOT / "src/torchgraft"
# What answers depend on: kernels and samples.
SOURCES = (".h", ".cuh", ".cu", ".cpp", ".py")
WORK = ROOT / "build/coverage"
FRAGMENTS = ROOT / "docs/fragments"
# Architectures that are compiled for, and the multiprocessors of a device that runs them. The first is asked all of
# PROPERTIES. The others differ in which kernels there are and in how work is shared out: a call of each sample tells.
DEVICES = ("90:16", "90:84", "90:132", "80:16", "75:16")
# C++ kernels as they are compiled: for the least of processors, and for this machine's; asked on so many threads. The
# definition of a convolution's gradient crashes on bad input on one thread: it is PyTorch's.
KINDS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "cpu": ("OFF", 1, ()),
    "cpu-native": ("ON", 2, ("bad_input",)),
}
# Reads questions, a line each, and answers with the status and the text of each. A process that is forked asks, since
# what it counted is written as it ends; imports take longer than most questions do. So a property that may end its
# process is asked in that one. The first word says what lltm's products of float32 are made in, as
# torchgraft/precision.py tells it on a GPU.
ASKED = """
import json, os, sys, tempfile
from torchgraft import native
from torchgraft.checking import running
from torchgraft.cli import main
running._in_worker = True
for question in sys.stdin:
    with tempfile.TemporaryFile("w+") as said:
        if child := os.fork():
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            print(json.dumps([status, said.read()]), flush=True)
            continue
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        products, *sys.argv = json.loads(question)
        if products:
            native.libraries_of("torchgraft", "cpu")[0].function("torchgraft_set_products")(int(products))
        main()
"""
PROPERTIES = ("value", "sizes", "empty", "non_finite", "layouts")
PROPERTIES_ELSEWHERE = ("value",)
# Properties of samples that a quick check on a CPU leaves out, each with the kernel that it is there for.
SAMPLES = {
    "lltm_grads": (
        ("steps_backward", "value", "step by step, more units than a block has threads for"),
        ("steps_backward_in_parts", "value", "step by step, more units than a block has threads for"),
    ),
    "shift_input_grad": (("channels_last", "non_finite", "whole along x alone, nhwc"),),
}
# Lines that are not to be reached, and those without a word: a bracket runs where an exception passes. gcovr does not
# find the texts of sources that were translated.
NOT_ASKED = re.compile(r"\s*fail\(.*|\W*")
# In a host function of CUDA; in those that both devices share it checks what a caller gives.
ASSERTION = re.compile(r"\s*TORCHGRAFT_CHECK\(")
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
    """A library that counts what runs of the sources of an operator's folder.

    Attributes:
        place: where it runs: one of DEVICES or KINDS.
        folder: of the operators.
        objects: the folder of what the sources were compiled to.
        variables: of a process that asks it.
    """

    place: str
    folder: Path
    objects: Path
    variables: dict[str, str]

    def kind(self) -> str:
        """What it was compiled for."""
        return self.place.partition(":")[0]

    def questions(self) -> Iterator[list[str]]:
        """What products are made in, or nothing, an operator, and options of its check."""
        emulated = self.place in DEVICES
        elsewhere = emulated and self.place != DEVICES[0]
        properties = PROPERTIES_ELSEWHERE if elsewhere else (*PROPERTIES, *KINDS.get(self.place, ("", 0, ()))[2])
        kernels = self._kernels() if emulated else {}
        for operator in emulate.find_operators(self.folder):
            for kernel in kernels.get(operator, ()):
                yield ["", operator, "--kernel", kernel, *_asked(*properties)]
            for name in properties:
                yield ["", operator, *_asked(name)]
            for said in ("1", "2") if emulated and self.folder.name == "lltm" else ():
                yield [said, operator, *_asked("value")]
            for kernel, name, sample in SAMPLES.get(operator, ()) if emulated and not elsewhere else ():
                yield ["", operator, "--kernel", kernel, "--sample", sample, *_asked(name)]

    def _kernels(self) -> dict[str, list[str]]:
        variables = {**os.environ, **self.variables}
        listed = subprocess.run([sys.executable, "-c", LIST_KERNELS], env=variables, check=True, capture_output=True)
        return dict(json.loads(listed.stdout))


class Answered:
    """What was asked of an operator so far, of the sources as they are: lines of a file beside what they counted."""

    def __init__(self, folder: Path) -> None:
        self.path = WORK / f"{folder.name}.answered"
        sources = [*_sources(folder), *_sources(PACKAGE / "include"), *_sources(ROOT / "tests/emulation")]
        now = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
        known = self.path.read_text().splitlines() if self.path.is_file() else []
        fresh = known[:1] == [now]
        self.lines = set(known[1:]) if fresh else set()
        if not fresh:
            self.path.write_text(f"{now}\n")
            for report in WORK.glob(f"{folder.name}-*.json"):
                report.unlink()

    def add(self, line: str) -> None:
        """Notes that something was answered."""
        with self.path.open("a") as file:
            file.write(f"{line}\n")
        self.lines.add(line)

    def places(self) -> list[str]:
        """Those where all was asked."""
        return [each for each in (*DEVICES, *KINDS) if f"all of {each}" in self.lines]


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in SOURCES)


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
    WORK.mkdir(parents=True, exist_ok=True)
    choice = _of_choice()
    missing = []
    for folder in emulate.find_folders(given.operators):
        answered = Answered(folder)
        for place in (*(each for each in given.device or DEVICES if each != "cpu"), *KINDS):
            library = _of_emulated(place, folder) if place in DEVICES else _of_cpu(place, folder)
            _ask(library, answered)
        files = _merged(folder, choice)
        table = _table(files, answered.places())
        print(table)
        if {DEVICES[0], *KINDS} <= {*answered.places()}:
            (FRAGMENTS / f"coverage-{folder.name}.md").write_text(table)
        missing += _missing(files)
        (WORK / "missing.txt").write_text("".join(f"{line}\n" for line in missing))
    print(f"what was not reached: {(WORK / 'missing.txt').relative_to(ROOT)}")
    return 0


def _merged(folder: Path, choice: Path) -> dict[str, dict[int, Line]]:
    """The lines of an operator's sources, by path, as far as anything asked them."""
    merged = WORK / "all.json"
    reports = (choice, *WORK.glob(f"{folder.name}-*.json"))
    _gcovr(*(word for report in reports for word in ("--add-tracefile", str(report))), "--json", str(merged))
    files = json.loads(merged.read_text())["files"]
    return {each["file"]: _lines_of(each) for each in files if each["file"].startswith(f"{folder.relative_to(ROOT)}/")}


def _of_emulated(device: str, folder: Path) -> Library:
    architecture, _, count = device.partition(":")
    built = emulate.build([folder], architecture=int(architecture), sanitizer="coverage")
    objects = built.parent / "ninja"
    # Operators share a folder of objects.
    [own] = (path for path in objects.rglob(f"translated/{folder.name}") if path.is_dir())
    return Library(device, folder, own, emulate.environment(built, multiprocessors=int(count)))


def _of_cpu(kind: str, folder: Path) -> Library:
    objects = WORK / kind
    native, threads, _ = KINDS[kind]
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
    [own] = (path for path in objects.rglob(f"operators/{folder.name}") if path.is_dir())
    return Library(kind, folder, own, variables)


def _of_choice() -> Path:
    objects = WORK / "choice"
    shutil.rmtree(objects, ignore_errors=True)
    objects.mkdir()
    tests = [str(ROOT / f"tests/test_{name}_choice.py") for name in ("kernel", "depthwise")]
    variables = {**os.environ, "CHOICE_COVERAGE": str(objects)}
    subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], check=True, cwd=ROOT, env=variables)
    return _report(objects, WORK / "choice.json")


def _asked(*properties: str) -> tuple[str, ...]:
    return tuple(word for name in properties for word in ("--property", name))


def _ask(library: Library, answered: Answered) -> None:
    """Asks a library what it was not asked yet: a process each, which writes what it counted as it ends."""
    if library.place in answered.places():
        return
    # Places of one architecture count in the same objects, which a source compiled anew starts again.
    kind = library.kind()
    if not any(line.partition(" ")[0].partition(":")[0] == kind for line in answered.lines):
        for counted in library.objects.rglob("*.gcda"):
            counted.unlink()

    waiting = (
        question for question in library.questions() if " ".join([library.place, *question]) not in answered.lines
    )
    turns = Lock()

    def ask() -> None:
        command = [sys.executable, "-c", ASKED]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **library.variables}
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=variables) as asked:
            assert asked.stdin
            assert asked.stdout
            while True:
                with turns:
                    question = next(waiting, None)
                if question is None:
                    break
                products, operator, *options = question
                check = ["graft", "check", operator, "--device", "cpu", "--quick", "--workers", "0", *options]
                print(json.dumps([products, *check]), file=asked.stdin, flush=True)
                status, said = json.loads(asked.stdout.readline())
                with turns:
                    if status:
                        print(f"{' '.join(question)} does not hold:\n{said}", file=sys.stderr)
                    answered.add(" ".join([library.place, *question]))
            asked.stdin.close()

    with ThreadPoolExecutor() as pool:
        for each in [pool.submit(ask) for _ in range(os.cpu_count() or 1)]:
            each.result()
    _report(library.objects, WORK / f"{library.folder.name}-{kind}.json")
    answered.add(f"all of {library.place}")


def _report(objects: Path, path: Path) -> Path:
    # What was compiled and wrote no counts is of a source that is there no more.
    for compiled in objects.rglob("*.gcno"):
        if not compiled.with_suffix(".gcda").is_file():
            compiled.unlink()
    _gcovr(
        "--object-directory",
        str(objects),
        str(objects),
        "--exclude-throw-branches",
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
    text = (ROOT / file["file"]).read_text().splitlines()
    lines: dict[int, Line] = defaultdict(Line)
    # Those that run first: gcov does not tell edges of exceptions of what never ran.
    for each in sorted(file["lines"], key=lambda each: -each["count"]):
        shown = text[each["line_number"] - 1] if each["line_number"] <= len(text) else ""
        if NOT_ASKED.fullmatch(shown):
            continue
        line = lines[each["line_number"]]
        line.runs |= each["count"] > 0
        if (line.runs and not each["count"]) or ("/cuda" in file["file"] and ASSERTION.match(shown)):
            continue
        for number, branch in enumerate(each["branches"]):
            key = len(each["branches"]), number
            line.branches[key] = line.branches.get(key, False) or branch["count"] > 0
    return lines


def _table(files: dict[str, dict[int, Line]], places: list[str]) -> str:
    """What was asked where; a row a folder of sources, one for all."""
    by_folder: dict[str, Counts] = {}
    total = Counts()
    for name, lines in sorted(files.items()):
        by_folder.setdefault(str(Path(name).parent.relative_to("src/torchgraft/operators")), Counts()).add(lines)
        total.add(lines)
    rows = [counts.row(f"`{folder}`") for folder, counts in by_folder.items()]
    asked, elsewhere = (", ".join(f"`{name}`" for name in names) for names in (PROPERTIES, PROPERTIES_ELSEWHERE))
    devices = [f"{int(each[:2]) / 10} with {each[3:]} multiprocessors" for each in DEVICES if each in places]
    said = (
        f"CUDA kernels on emulated GPUs of compute capability {' and '.join(devices)}" if devices else "No CUDA kernels"
    )
    said += f", C++ kernels for any processor and for the one that ran them, asked {asked}"
    said += f"; on each GPU but the first {elsewhere} alone." if devices[1:] else "."
    table = Table("", ["sources", "lines that run", "branches that run"], [*rows, total.row("all")])
    return f"{said}\n\n{table.markdown()}"


def _missing(files: dict[str, dict[int, Line]]) -> list[str]:
    """The lines that never run, and those of whose branches some never do, with their text."""
    found = []
    for name, lines in sorted(files.items()):
        text = (ROOT / name).read_text().splitlines()
        for number, line in sorted(lines.items()):
            shown = " ".join(text[number - 1].split())
            never = sum(not runs for runs in line.branches.values())
            if not line.runs:
                found.append(f"{name}:{number}: never: {shown}")
            elif never:
                found.append(f"{name}:{number}: {never} of {len(line.branches)} branches: {shown}")
    return found


if __name__ == "__main__":
    sys.exit(main())
