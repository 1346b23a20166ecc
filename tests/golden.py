"""Writes the golden file of the choice of kernels, `tests/choice/depthwise_conv2d.txt`.

A line is a problem, and the kernel that computes it. Problems that people chose are kept, with the answer of today: to
add one, write its line without an answer. Behind them, each threshold of the operator has two problems that differ by
one step of one number and lie on both sides of it; on either side the threshold decides the answer. They are searched
for if those in the file no longer do. At the end are problems that are drawn from a seed. `python tests/golden.py`
writes the file; with `--check` it only says whether it is current, and exits with 1 if it is not.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

from choice import PACKAGE, build
from choice.depthwise import Call

GOLDEN = Path(__file__).parent / "choice/depthwise_conv2d.txt"
THRESHOLDS = PACKAGE / "operators/depthwise_conv2d/cuda/thresholds.h"
DRAWN = 200
_SEED = 20261127
_SEARCHED = 30_000
_LARGEST_SIZE = 1 << 30
_BY_HAND, _OF_THRESHOLD, _AT_RANDOM = "chosen: ", "threshold ", "drawn at random"
_ABOUT = """\
# Which kernel computes a depthwise convolution on CUDA. `python tests/golden.py` writes this file; read its docstring.
#
# A problem is a question, a dtype, a layout, and sizes: batch, channels, rows x columns and the kernel, then s(tride),
# d(ilation), p(adding in front; that of an odd kernel which keeps the size, if left out), b(ehind), m(ultiplier).
# aligned= the images' pointers, if not to 16 bytes. on= the device: multiprocessors x shared memory of a block, if it
# is not an H200 (132x227KiB).
"""


@dataclass(frozen=True)
class Answer:
    """The program's answer to a problem.

    Attributes:
        answer: the kernel, or the answer to another question.
        sides: for each threshold that was compared with, 'below' or 'above'.
        otherwise: for each, what the answer would be on the other side.
    """

    answer: str
    sides: dict[str, str]
    otherwise: dict[str, str]

    def is_decided_by(self, threshold: str) -> bool:
        """Whether the answer would be another one on the other side of a threshold."""
        return self.otherwise.get(threshold, self.answer) != self.answer


class Program:
    """The program that answers, which is compiled from the operator's headers."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._known: dict[Call, Answer] = {}

    def ask(self, calls: Iterable[Call]) -> list[Answer]:
        """The answers to some calls, in order."""
        calls = list(calls)
        new = list(dict.fromkeys(call for call in calls if call not in self._known))
        if new:
            lines = "".join(f"{call.line()}\n" for call in new)
            done = subprocess.run(
                [self._program, "thresholds"], input=lines, capture_output=True, text=True, check=True
            )
            for call, line in zip(new, done.stdout.splitlines(), strict=True):
                answer, *rest = line.split("\t")
                names, sides, otherwise = rest[::3], rest[1::3], rest[2::3]
                self._known[call] = Answer(
                    answer, dict(zip(names, sides, strict=True)), dict(zip(names, otherwise, strict=True))
                )
        return [self._known[call] for call in calls]


def thresholds() -> list[str]:
    """The names of all thresholds, in the order of the header."""
    return re.findall(r"^TORCHGRAFT_THRESHOLD\((\w+),", THRESHOLDS.read_text(), re.MULTILINE)


def read() -> dict[str, list[tuple[Call, str]]]:
    """The problems and answers of the golden file, by the titles of its sections."""
    sections: dict[str, list[tuple[Call, str]]] = {}
    title = ""
    for line in GOLDEN.read_text().splitlines():
        if line.startswith("## "):
            title = line[3:]
            sections[title] = []
        elif line and not line.startswith("#"):
            problem, _, answer = line.partition(" -> ")
            sections[title].append((Call.parse(problem), answer))
    return sections


def is_pair(program: Program, threshold: str, calls: Sequence[Call]) -> bool:
    """Whether two calls are neighbours on both sides of a threshold, which decides both answers."""
    if len(calls) != 2 or not are_neighbours(*calls):
        return False
    low, high = program.ask(calls)
    sides = low.sides.get(threshold), high.sides.get(threshold)
    return sides == ("below", "above") and low.is_decided_by(threshold) and high.is_decided_by(threshold)


def are_neighbours(one: Call, other: Call) -> bool:
    """Whether two calls differ by one step of one number."""
    for name, value in one.numbers().items():
        step = value if name == "alignment" else 1
        if other == one.with_number(name, value + step):
            return True
        if name != "alignment" and value > 1 and other == one.with_number(name, value - 1):
            return True
        if name == "alignment" and other == one.with_number(name, value // 2):
            return True
    return False


def find_pair(program: Program, threshold: str, pool: Sequence[Call]) -> tuple[Call, Call]:
    """Two neighbours on both sides of a threshold that decides both answers.

    Raises:
        LookupError: none were found among many: perhaps the threshold decides nothing.
    """
    random = Random(threshold)
    candidates = [call for call in pool if program.ask([call])[0].is_decided_by(threshold)]
    for call in random.sample(candidates, min(len(candidates), 200)):
        names = list(call.numbers())
        random.shuffle(names)
        for name in names:
            if pair := _cross(program, threshold, call, name):
                return pair
    raise LookupError(
        f"{threshold}: no problem was found on both sides of it, of {len(candidates)} whose answer it decides; write a "
        f"pair by hand in the section `{_OF_THRESHOLD}{threshold}` of {GOLDEN.name}, or remove the threshold"
    )


def _cross(program: Program, threshold: str, call: Call, name: str) -> tuple[Call, Call] | None:
    """A pair that differs in one number, between a call and some other value of the number; None if there is none."""
    start = call.numbers()[name]
    [found] = program.ask([call])
    side = found.sides[threshold]
    if name == "alignment":
        values = [2, 4, 8, 16]
    else:
        values = [start // 2**i for i in range(1, 31)] + [start * 2**i for i in range(1, 31)]
    others = [
        (value, call.with_number(name, value))
        for value in values
        if 0 < value < _LARGEST_SIZE and value != start and call.with_number(name, value).is_possible
    ]
    answers = program.ask(other for _, other in others)
    crossed = [
        value for (value, _), each in zip(others, answers, strict=True) if each.sides.get(threshold, side) != side
    ]
    if not crossed:
        return None
    near, far = start, min(crossed, key=lambda value: abs(value - start))
    while abs(far - near) > 1 and name != "alignment":
        middle = (near + far) // 2
        between = call.with_number(name, middle)
        if not between.is_possible:
            return None
        [each] = program.ask([between])
        if each.sides.get(threshold, side) == side:
            near = middle
        else:
            far = middle
    pair = call.with_number(name, near), call.with_number(name, far)
    ordered = pair if side == "below" else pair[::-1]
    return ordered if is_pair(program, threshold, ordered) else None


def write_text(program: Program) -> str:
    """The text of the golden file as it should be."""
    random = Random(_SEED)
    now = read()
    sections = {title: [call for call, _ in lines] for title, lines in now.items() if title.startswith(_BY_HAND)}
    pool: list[Call] = []
    problems: list[str] = []
    for threshold in thresholds():
        title = _OF_THRESHOLD + threshold
        pair = [call for call, _ in now.get(title, [])]
        if not is_pair(program, threshold, pair):
            if not pool:
                pool = [Call.draw(random) for _ in range(_SEARCHED)]
                program.ask(pool)
            try:
                pair = list(find_pair(program, threshold, pool))
            except LookupError as error:
                problems.append(str(error))
        sections[title] = pair
    if problems:
        raise LookupError("\n".join(problems))
    random = Random(_SEED + 1)
    sections[_AT_RANDOM] = [Call.draw(random) for _ in range(DRAWN)]
    text = [_ABOUT]
    for title, calls in sections.items():
        text.append(f"\n## {title}\n")
        text += [f"{call} -> {each.answer}\n" for call, each in zip(calls, program.ask(calls), strict=True)]
    return "".join(text)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="Write nothing; exit with 1 if the file is not current.")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = write_text(Program(build("depthwise_conv2d", Path(folder))))
    is_current = text == GOLDEN.read_text()
    if not is_current and not given.check:
        GOLDEN.write_text(text)
    print(f"{GOLDEN.name}: {'current' if is_current else 'not current' if given.check else 'written'}")
    return int(given.check and not is_current)


if __name__ == "__main__":
    sys.exit(main())
