"""Counts which lines and branches of kernels and host functions a quick check reaches: `make coverage`.

CUDA kernels run on the emulator, compiled for several architectures and on devices of several sizes, as they are chosen
and each forced on all that it supports. C++ kernels run compiled for any processor, on one thread, and for this
machine's, on two. Tests of the operators ask both as well. Which kernel is chosen, and what each supports, is also
asked for problems of any size by the programs of tests/choice.

Branches are counted as the compiler sees them, so that each part of a condition counts by itself. The instantiations of
a template are merged. The counts leave out

- the edges of exceptions;
- lines that only say that no call gets there: `fail(...)` and `__trap()`;
- branches on lines without a condition, where the compiler destroys temporary objects;
- the way past a `switch` without a default: the compiler demands that such a `switch` names every value;
- the branches of assertions: in host functions of CUDA those of what supports.h has promised, and everywhere those that
  a C function of PyTorch did not fail, or returned what its documentation says.

A question that was answered is not asked again until sources or samples change, so that an interrupted run, or one that
ended after `--seconds`, goes on where it ended. The answers lie in build/coverage/*.answered and *.json. Another
machine with the same compiler can go on from them.

The program writes a table for each operator, docs/fragments/coverage-*.md, as soon as the operator was asked on the CPU
and on the first GPU, and the lines that were not reached, build/coverage/missing.txt. Once everything was asked
everywhere, it writes those lines to docs/fragments/coverage-left.md too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import counting
from counting import DEVICES, KINDS, PROPERTIES, PROPERTIES_ELSEWHERE, PROPERTIES_UNFORCED, ROOT, Answered
from torchgraft.benchmarking.table import Table
from torchgraft.emulation import own

FRAGMENTS = ROOT / "docs/fragments"
# Lines that no call should reach, and lines without a word: a bracket runs if an exception passes. gcovr does not find
# the texts of translated sources by itself.
NOT_ASKED = re.compile(r"\s*(fail\(|__trap\(\)).*|\W*")
# An assertion in host functions of CUDA. In functions that both devices share it checks the caller's arguments.
ASSERTION = re.compile(r"\s*TORCHGRAFT_CHECK\(")
# A condition, or a part of one on a line of its own. Comparisons have spaces around them, template arguments none.
CONDITION = re.compile(r"\b(if|for|while|switch|case)\b|&&|\|\||[?!]| [<>](\s|$)|[=<>]=|TORCHGRAFT_CHECK\(")
# An assertion in every function.
CALL_OF_PYTORCH = re.compile(r"\s*TORCH_ERROR_CODE_CHECK\(|\s*TORCHGRAFT_CHECK\(.*\"PyTorch (gives|pads) ")
SWITCH = re.compile(r"(\s*)switch \(")


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


def _share(some: int, all: int) -> str:
    # Rounded down: a hundred are all.
    return f"{1000 * some // all / 10:.1f} % of {all:,}" if all else ""


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="Folders of operators; none: all.")
    parser.add_argument(
        "--device",
        action="append",
        choices=("cpu", *DEVICES),
        help="One of these emulated GPUs, beside the CPU, or the CPU alone; none: all.",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="How many questions are asked at a time.")
    parser.add_argument("--seconds", type=float, help="After which nothing more is asked; none: until all is.")
    given = parser.parse_args()
    end = None if given.seconds is None else time.monotonic() + given.seconds
    counting.WORK.mkdir(parents=True, exist_ok=True)
    folders = own.find_folders(given.operators)
    answered = {folder: Answered(folder) for folder in folders}
    # The libraries of C++ kernels are built soonest.
    places = (*KINDS, *(each for each in given.device or DEVICES if each != "cpu"))
    _count(answered, places, given.jobs, end)
    choice = _of_choice()
    missing = []
    for folder in folders:
        files = _merged(folder, choice)
        table = _table(files, answered[folder].places())
        print(table)
        if {DEVICES[0], *KINDS} <= {*answered[folder].places()}:
            (FRAGMENTS / f"coverage-{folder.name}.md").write_text(table)
        missing += _missing(files)
    (counting.WORK / "missing.txt").write_text("".join(f"{line}\n" for line in missing))
    if not given.operators and all({*DEVICES, *KINDS} <= {*each.places()} for each in answered.values()):
        (FRAGMENTS / "coverage-left.md").write_text(_left(missing))
    print(f"what was not reached: {(counting.WORK / 'missing.txt').relative_to(ROOT)}")
    return 0


def _count(answered: dict[Path, Answered], places: tuple[str, ...], jobs: int, end: float | None) -> None:
    """Asks what was not asked yet, as counting.ask_all does, and writes reports of it."""
    questions = counting.ask_all(answered, places, jobs, end)
    reported = {counting.WORK / f"{each.folder.name}-{each.kind()}.json": each.objects for each in questions}
    with ThreadPoolExecutor(jobs) as pool:
        for each in [pool.submit(counting.report, objects, path) for path, objects in reported.items()]:
            each.result()
    for library, asked in questions.items():
        known = answered[library.folder]
        if all(counting.answer(library, question) in known.lines for question in asked):
            known.add(f"all of {library.place}")


def _merged(folder: Path, choice: Path) -> dict[str, dict[int, Line]]:
    """The lines of an operator's sources, by path, as far as anything asked them.

    A library that is compiled for another processor has other branches: gcovr would take one's for another's.
    """
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for report in (choice, *sorted(counting.WORK.glob(f"{folder.name}-*.json"))):
        for file in json.loads(report.read_text())["files"]:
            if file["file"].startswith(f"{folder.relative_to(ROOT)}/"):
                found[file["file"]] += file["lines"]
    return {name: _lines_of(name, lines) for name, lines in found.items()}


def _of_choice() -> Path:
    objects = counting.WORK / "choice"
    shutil.rmtree(objects, ignore_errors=True)
    objects.mkdir()
    tests = [str(ROOT / f"tests/test_{name}_choice.py") for name in ("kernel", "depthwise")]
    variables = {**os.environ, "CHOICE_COVERAGE": str(objects)}
    subprocess.run([sys.executable, "-m", "pytest", "-q", *tests], check=True, cwd=ROOT, env=variables)
    path = counting.WORK / "choice.json"
    path.unlink(missing_ok=True)
    counting.report(objects, path)
    return path


def _lines_of(name: str, counted: list[dict[str, Any]]) -> dict[int, Line]:
    """The lines of a file, of which gcovr's reports have one for each instantiation."""
    text = (ROOT / name).read_text().splitlines()
    lines: dict[int, Line] = defaultdict(Line)
    # Those that run first: gcov does not tell edges of exceptions of what never ran.
    for each in sorted(counted, key=lambda each: -each["count"]):
        shown = text[each["line_number"] - 1] if each["line_number"] <= len(text) else ""
        if NOT_ASKED.fullmatch(shown):
            continue
        line = lines[each["line_number"]]
        line.runs |= each["count"] > 0
        if (line.runs and not each["count"]) or CALL_OF_PYTORCH.match(shown):
            continue
        if "/cuda" in name and ASSERTION.match(shown):
            continue
        if not CONDITION.search(shown):
            continue
        for number, branch in enumerate(each["branches"]):
            key = len(each["branches"]), number
            line.branches[key] = line.branches.get(key, False) or branch["count"] > 0
    for number, line in lines.items():
        if (switch := SWITCH.match(text[number - 1])) and not _has_default(text[number:], switch[1]):
            _leave_out_default(line)
    return lines


def _has_default(following: list[str], indent: str) -> bool:
    """Whether a `switch` has a default, by the lines that follow its first line."""
    return any("default:" in line for line in itertools.takewhile(lambda line: line != f"{indent}}}", following))


def _leave_out_default(line: Line) -> None:
    """Takes from a `switch` one branch that never runs, of each number of branches: a second one is a case."""
    for count in {count for count, _ in line.branches}:
        never = [key for key, runs in line.branches.items() if key[0] == count and not runs]
        if never:
            del line.branches[never[0]]


def _table(files: dict[str, dict[int, Line]], places: list[str]) -> str:
    """The table: a sentence about what was asked where, a row for each folder of sources, and one for all."""
    by_folder: dict[str, Counts] = {}
    total = Counts()
    for name, lines in sorted(files.items()):
        by_folder.setdefault(str(Path(name).parent.relative_to("src/torchgraft/operators")), Counts()).add(lines)
        total.add(lines)
    rows = [counts.row(f"`{folder}`") for folder, counts in by_folder.items()]
    asked, unforced, elsewhere = (
        ", ".join(f"`{name}`" for name in names) for names in (PROPERTIES, PROPERTIES_UNFORCED, PROPERTIES_ELSEWHERE)
    )
    devices = [each.partition(":") for each in DEVICES if each in places]
    shown = [f"{int(architecture) / 10} x {count}" for architecture, _, count in devices]
    said = (
        f"CUDA kernels on emulated GPUs of compute capability x multiprocessors {', '.join(shown)}"
        if shown
        else "No CUDA kernels"
    )
    said += f", C++ kernels for any processor and for the one that ran them, asked {asked}"
    said += f", and the kernel that is chosen {unforced}"
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


def _left(missing: list[str]) -> str:
    """The same for the docs: without the numbers of lines, which change."""
    lines = (re.sub(r"^src/torchgraft/operators/([^:]*):\d+", r"\1", line) for line in missing)
    return "".join(f"{line}\n" for line in ("```text", *lines, "```"))


if __name__ == "__main__":
    sys.exit(main())
