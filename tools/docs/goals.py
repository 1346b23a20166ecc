"""Writes the tables of goals and of the rows that miss them, which the pages of operators show.

A goal is a bound on figures that are made of measured rows, all of benchmarks/results: nobody types a figure. `python
tools/docs/goals.py` writes the tables of shift and lltm (tools/docs/depthwise.py those of depthwise_conv2d); with
`--check` it only says which are not current, and exits with 1 where there are any.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from generated import ROOT, write_or_check
from torchgraft.benchmarking.results import BenchReport, report_from_dict
from torchgraft.benchmarking.standing import standing

LAYOUTS = {"contiguous": "NCHW", "channels_last": "NHWC"}


@dataclass(frozen=True)
class Row:
    """A measured call.

    Attributes:
        what: the operator, or the pass that it is.
        floors: how many times the floor it takes.
        ratios: how many times as long others take, by name, in the same layout and dtype; none where one does not run.
    """

    operator: str
    what: str
    suite: str
    sample: str
    dtype: str
    layout: str
    direction: str
    seconds: float
    moved: int
    bound: str
    floors: float
    ratios: Mapping[str, float] = field(default_factory=dict)

    @property
    def kernel(self) -> int:
        """The longer side of a convolution's kernel."""
        found = re.search(r"k(\d+)(?:x(\d+))?", self.sample)
        return max(int(side) for side in found.groups() if side) if found else 0

    @property
    def size(self) -> int:
        """The height of a convolution's images."""
        found = re.search(r"(\d+)x\d+,k", self.sample)
        return int(found[1]) if found else 0

    @property
    def is_half(self) -> bool:
        """Whether it is computed in a dtype of two bytes."""
        return self.dtype in ("float16", "bfloat16")

    @property
    def name(self) -> str:
        """The row, in words."""
        layout = f" {LAYOUTS[self.layout]}" if "x" in self.sample else ""
        backward = " and its gradients" if self.direction == "backward" else ""
        return f"{self.sample}, {self.dtype}{layout}, {self.what}{backward}"


def report(device: str) -> BenchReport:
    """All that was measured on a device."""
    return report_from_dict(json.loads((ROOT / f"benchmarks/results/{device}/bench.json").read_text()))


def read(device: str, operators: Mapping[str, str]) -> list[Row]:
    """The rows of operators, given as names with what to call them, that have a time."""
    rows = []
    for row in json.loads((ROOT / f"benchmarks/results/{device}/bench.json").read_text())["rows"]:
        if row["operator"] not in operators or not row["time"]:
            continue
        others = {**row["rivals"], **row["yardsticks"]}
        rows.append(
            Row(
                operator=row["operator"],
                what=operators[row["operator"]],
                seconds=row["time"]["median"],
                floors=row["time"]["median"] / row["floor"],
                ratios={name: other["ratio"]["median"] for name, other in others.items() if other["ratio"]},
                **{name: row[name] for name in ("suite", "sample", "dtype", "layout", "direction", "moved", "bound")},
            )
        )
    return rows


Figures = Callable[[list[Row]], Iterable[tuple[str, float]]]
Choose = Callable[[Row], bool]


@dataclass(frozen=True)
class Goal:
    """A figure that should be reached.

    Attributes:
        what: in words.
        limit: what a figure should be at most, or at least.
        at_most: which of them.
        figures: of measured rows, by name.
    """

    what: str
    limit: float
    at_most: bool
    figures: Figures

    def misses(self, figure: float) -> bool:
        """Whether a figure does not reach it."""
        return self.distance(figure) > 1

    def distance(self, figure: float) -> float:
        """How many times the goal a figure is off; 1 at the goal."""
        return figure / self.limit if self.at_most else self.limit / figure


def floors(choose: Choose) -> Figures:
    """Times the floor."""
    return lambda rows: ((row.name, row.floors) for row in rows if choose(row))


def microseconds(choose: Choose) -> Figures:
    """The time itself."""
    return lambda rows: ((row.name, row.seconds * 1e6) for row in rows if choose(row))


def ratios(other: str, choose: Choose = lambda row: True) -> Figures:
    """How many times as long another takes."""
    return lambda rows: ((row.name, row.ratios[other]) for row in rows if other in row.ratios and choose(row))


def geometric_mean(figures: Figures) -> Figures:
    """The mean of figures, as one."""

    def mean(rows: list[Row]) -> Iterator[tuple[str, float]]:
        found = [figure for _, figure in figures(rows)]
        if found:
            yield "the mean", math.exp(sum(map(math.log, found)) / len(found))

    return mean


def table(rows: list[Row], goals: Collection[Goal]) -> str:
    """A row a goal, then the rows that miss one, the farthest first."""
    text = ["| goal | | reached by | worst |", "| --- | ---: | ---: | ---: |"]
    missed: list[tuple[float, str, float, str]] = []
    for goal in goals:
        figures = list(goal.figures(rows))
        sign = "<=" if goal.at_most else ">="
        if not figures:
            text.append(f"| {goal.what} | {sign} {goal.limit:g} | not measured | |")
            continue
        worst = (max if goal.at_most else min)(figure for _, figure in figures)
        misses = [(name, figure) for name, figure in figures if goal.misses(figure)]
        reached = f"{len(figures) - len(misses)} of {len(figures)}"
        text.append(f"| {goal.what} | {sign} {goal.limit:g} | {reached} | {worst:.2f}{' ✗' if misses else ''} |")
        missed += [(goal.distance(figure), name, figure, f"{sign} {goal.limit:g}") for name, figure in misses]
    if missed:
        text += ["", "| row that misses a goal | figure | goal | times off |", "| --- | ---: | ---: | ---: |"]
    text += [
        f"| {name} | {figure:.2f} | {limit} | {off:.2f} |"
        for off, name, figure, limit in sorted(missed, key=lambda each: -each[0])
    ]
    return "\n".join(text) + "\n"


_SHIFT = {
    "shift": "forward",
    "shift_input_grad": "input gradient",
    "shift_offset_grad": "offset gradients",
    "shift_grads": "all gradients",
}
# Of Shift-GCN's own CUDA kernels on an H200, in float32. With a stride of 2 its forward pass takes 2.5 times the floor:
# nothing is three times as fast.
_PUBLISHED = {"128,64,300x25 Shift-GCN": {"shift": 430e-6, "shift_grads": 1237e-6}}


def _over_published(operator: str) -> Figures:
    return lambda rows: (
        (row.name, _PUBLISHED[row.sample][operator] / row.seconds)
        for row in rows
        if row.operator == operator and row.sample in _PUBLISHED and row.dtype == "float32"
    )


def _of_shift(operator: str) -> Choose:
    return lambda row: row.operator == operator and row.suite == "networks"


_LLTM = {"lltm": "sequence", "lltm_cell": "cell"}
_LONG = ("T256,B32,I512,S512", "T512,B128,I256,S256")
_SMALL_CELL = "B16,I32,S128"


def _is_forward(*samples: str, dtypes: Collection[str] = ("float32", "tf32", "float16", "bfloat16")) -> Choose:
    def choose(row: Row) -> bool:
        return row.direction == "forward" and row.sample in samples and row.dtype in dtypes

    return choose


def _is_small_cell(direction: str) -> Choose:
    small = ("lltm_cell", _SMALL_CELL, direction, "float32")
    return lambda row: (row.operator, row.sample, row.direction, row.dtype) == small


_SHIFT_GOALS = {
    "h200": (
        Goal("forward: times the floor", 1.15, True, floors(_of_shift("shift"))),
        Goal("all gradients: times the floor", 1.3, True, floors(_of_shift("shift_grads"))),
        Goal("forward, float32: times as fast as Shift-GCN's own kernels", 3, False, _over_published("shift")),
        Goal("all gradients, float32: times as fast as those", 5, False, _over_published("shift_grads")),
        Goal("no row slower than `grid_sample`: times as fast", 1, False, ratios("grid_sample")),
    ),
    "cpu": (
        Goal("forward: times the floor", 1.5, True, floors(_of_shift("shift"))),
        Goal("all gradients: times the floor", 1.5, True, floors(_of_shift("shift_grads"))),
        Goal("no row slower than `grid_sample`: times as fast", 1, False, ratios("grid_sample")),
    ),
}
_LLTM_GOALS = {
    "h200": (
        Goal("no sequence slower than `nn.LSTM`: times as fast", 1, False, ratios("nn.LSTM")),
        Goal(
            "32 x 512 and 128 x 256 units, float16: times as fast as `nn.LSTM`",
            2,
            False,
            ratios("nn.LSTM", _is_forward(*_LONG, dtypes=["float16"])),
        ),
        Goal(
            "32 x 512 and 128 x 256 units, bfloat16: times as fast",
            8,
            False,
            ratios("nn.LSTM", _is_forward(*_LONG, dtypes=["bfloat16"])),
        ),
        Goal(
            "32 x 512 and 128 x 256 units, tf32: times as fast",
            5,
            False,
            ratios("nn.LSTM", _is_forward(*_LONG, dtypes=["tf32"])),
        ),
        Goal("the same: times as fast as the loop in Python", 50, False, ratios("pytorch", _is_forward(*_LONG))),
        Goal(
            "batch 1: times as fast as `nn.LSTM`",
            10,
            False,
            ratios("nn.LSTM", lambda row: "B1," in row.sample and row.direction == "forward"),
        ),
        Goal(
            "32 x 512 units and more, float32: times the floor of its multiply-adds",
            1.5,
            True,
            floors(_is_forward(*_LONG, "T256,B64,I1024,S1024", dtypes=["float32"])),
        ),
        Goal(f"cell, {_SMALL_CELL}: microseconds", 30, True, microseconds(_is_small_cell("forward"))),
        Goal(f"cell, {_SMALL_CELL}, gradients: microseconds", 60, True, microseconds(_is_small_cell("backward"))),
    ),
    "cpu": (
        Goal(
            "sequence: times as fast as `nn.LSTM`",
            1.5,
            False,
            ratios("nn.LSTM", lambda row: row.direction == "forward"),
        ),
        Goal(
            "cell: times as fast as in PyTorch's operators",
            1,
            False,
            ratios("pytorch", lambda row: row.operator == "lltm_cell"),
        ),
    ),
}


_COLUMNS = ("float32", "tf32", "float16", "bfloat16")


def times(rows: list[Row]) -> str:
    """The table of sequences, forward and gradients: microseconds, and how many times as long nn.LSTM takes."""
    found = {(row.sample, row.direction, row.dtype): row for row in rows if row.operator == "lltm"}
    text = ["| sequence | | " + " | ".join(_COLUMNS) + " |", "| --- | --- |" + " ---: |" * len(_COLUMNS)]
    for sample in dict.fromkeys(sample for sample, _, _ in found):
        for direction, what in (("forward", "forward"), ("backward", "gradients")):
            cells = []
            for dtype in _COLUMNS:
                row = found.get((sample, direction, dtype))
                ratio = f", {row.ratios['nn.LSTM']:.2f}x" if row and "nn.LSTM" in row.ratios else ""
                cells.append(f"{row.seconds * 1e6:,.0f}{ratio}" if row else "")
            text.append(f"| {sample if direction == 'forward' else ''} | {what} | " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def origin(device: str, operators: Collection[str]) -> str:
    """Returns a paragraph that says which rows of operators were measured at an earlier commit."""
    measured = report(device)
    return f"\n{standing([row for row in measured.rows if row.operator in operators], measured.environment.device)}\n"


def made() -> dict[Path | str, str]:
    """Returns all that is written: blocks of pages."""
    tables: dict[Path | str, str] = {
        f"{name}-goals-{device}": table(read(device, operators), goals) + origin(device, operators)
        for name, operators, of_devices in (("shift", _SHIFT, _SHIFT_GOALS), ("lltm", _LLTM, _LLTM_GOALS))
        for device, goals in of_devices.items()
    }
    return {**tables, "lltm-times-h200": times(read("h200", _LLTM)) + origin("h200", _LLTM)}


def main() -> int:
    """Writes, or checks, every file."""
    return write_or_check("goals", made())


if __name__ == "__main__":
    sys.exit(main())
