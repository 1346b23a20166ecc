"""Writes what docs/performance/depthwise.md shows: the choice of kernels, goals and results, and the pictures.

The choice is read from cuda_choice.h, all figures from benchmarks/results. `python docs/depthwise.py` writes the
fragments and pictures; with `--check` it only says which are not current, and exits with 1 where there are any.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import depthwise_pictures

ROOT = Path(__file__).parent.parent
FRAGMENTS = ROOT / "docs/fragments"
PICTURES = ROOT / "docs/performance"
CHOICE = ROOT / "src/torchgraft/operators/depthwise_conv2d/cuda_choice.h"
RULE = re.compile(r'\{Kernel::\w+,\s*"([^"]+)",\s*"([^"]+)",\s*"([^"]+)",\s*\w+\}')
PASSES = {
    "depthwise_conv2d": "forward",
    "depthwise_conv2d_input_grad": "input gradient",
    "depthwise_conv2d_weight_grad": "weight gradient",
}
LAYOUTS = {"contiguous": "NCHW", "channels_last": "NHWC"}
MEGABYTE = 1e6
# Kernels that were given up: what they did, its case and pass, and their microseconds on an H200 in float32 and
# bfloat16, as their headers told them at commit 6b11f61.
_K3, _K7, _K31 = "128,144,56x56,k3 MobileNetV2", "128,96,56x56,k7 ConvNeXt", "64,128,56x56,k31 RepLKNet"
_TILES = "tiles of planes in shared memory, in fp32, moved an element at a time"
_PATCHES = (
    "a thread owns 2 x 4 pixels of four channels and loads its window through L1, eight bytes at a time in halves"
)
_WINDOWS = "seven threads share a window; each loads and converts it"
_ROWS = "eight pixels of a row and four channels a thread: a load from L1 feeds too few multiply-adds"
TRIED = (
    (_TILES, _K3, "depthwise_conv2d", "contiguous", 260, 210),
    (_TILES, _K7, "depthwise_conv2d", "contiguous", 250, 220),
    (_TILES, _K3, "depthwise_conv2d_weight_grad", "contiguous", 280, 220),
    (_TILES, _K7, "depthwise_conv2d_weight_grad", "contiguous", 400, 320),
    (_PATCHES, _K3, "depthwise_conv2d", "channels_last", 170, 190),
    (_PATCHES, _K7, "depthwise_conv2d", "channels_last", 250, 250),
    (_WINDOWS, _K3, "depthwise_conv2d_weight_grad", "channels_last", 180, 180),
    (_WINDOWS, _K7, "depthwise_conv2d_weight_grad", "channels_last", 400, 500),
    (_ROWS, _K31, "depthwise_conv2d", "channels_last", 3100, 4300),
)


@dataclass(frozen=True)
class Row:
    """A measured pass.

    Attributes:
        floors: how many times the floor it takes.
        ratio: how many times as long PyTorch takes, in the same layout and dtype; nan where it does not run.
    """

    operator: str
    suite: str
    sample: str
    dtype: str
    layout: str
    seconds: float
    moved: int
    floors: float
    ratio: float

    @property
    def kernel(self) -> int:
        """Its longer side."""
        found = re.search(r"k(\d+)(?:x(\d+))?", self.sample)
        return max(int(side) for side in found.groups() if side) if found else 0

    @property
    def size(self) -> int:
        """Of the images: their height."""
        found = re.search(r"(\d+)x\d+,k", self.sample)
        return int(found[1]) if found else 0

    @property
    def rival(self) -> float:
        """PyTorch's seconds."""
        return self.seconds * self.ratio

    @property
    def name(self) -> str:
        """The row, in words."""
        return f"{self.sample}, {self.dtype} {LAYOUTS[self.layout]}, {PASSES[self.operator]}"


def read(device: str) -> list[Row]:
    """The rows of depthwise_conv2d and its gradients that have a time."""
    rows = []
    for row in json.loads((ROOT / f"benchmarks/results/{device}/bench.json").read_text())["rows"]:
        if row["operator"] in PASSES and row["time"]:
            ratio = (row["rivals"].get("pytorch") or {}).get("ratio")
            seconds = row["time"]["median"]
            rows.append(
                Row(
                    row["operator"],
                    row["suite"],
                    row["sample"],
                    row["dtype"],
                    row["layout"],
                    seconds,
                    row["moved"],
                    seconds / row["floor"],
                    ratio["median"] if ratio else math.nan,
                )
            )
    return rows


@dataclass(frozen=True)
class Goal:
    """What should be reached.

    Attributes:
        what: in words.
        limit: what a figure should be at most, or at least.
        at_most: which of them.
        figures: of measured rows, by name.
    """

    what: str
    limit: float
    at_most: bool
    figures: Callable[[list[Row]], Iterable[tuple[str, float]]]

    def misses(self, figure: float) -> bool:
        """Whether a figure does not reach it."""
        return self.distance(figure) > 1

    def distance(self, figure: float) -> float:
        """How many times the goal a figure is off; 1 at the goal."""
        return figure / self.limit if self.at_most else self.limit / figure


def _floors(choose: Callable[[Row], bool]) -> Callable[[list[Row]], Iterator[tuple[str, float]]]:
    return lambda rows: ((row.name, row.floors) for row in rows if choose(row))


def _is_half(row: Row) -> bool:
    return row.dtype != "float32"


def _all_passes(choose: Callable[[Row], bool]) -> Callable[[list[Row]], Iterator[tuple[str, float]]]:
    """PyTorch's forward pass and both gradients, in the better of its layouts, over ours in each."""

    def figures(rows: list[Row]) -> Iterator[tuple[str, float]]:
        chosen = [row for row in rows if row.kernel >= 13 and choose(row)]
        for sample, dtype in dict.fromkeys((row.sample, row.dtype) for row in chosen):
            same = [row for row in chosen if (row.sample, row.dtype) == (sample, dtype)]
            best = min(sum(row.rival for row in same if row.layout == layout) for layout in LAYOUTS)
            for layout, name in LAYOUTS.items():
                yield f"{sample}, {dtype} {name}", best / sum(row.seconds for row in same if row.layout == layout)

    return figures


def _mean(layout: str) -> Callable[[list[Row]], Iterator[tuple[str, float]]]:
    def figures(rows: list[Row]) -> Iterator[tuple[str, float]]:
        ratios = [row.ratio for row in rows if layout in ("", row.layout) and row.suite == "networks" and row.ratio > 0]
        yield "the mean", math.exp(sum(map(math.log, ratios)) / len(ratios))

    return figures


def _ratios(rows: list[Row]) -> Iterator[tuple[str, float]]:
    return ((row.name, row.ratio) for row in rows if not math.isnan(row.ratio))


GOALS = {
    "h200": (
        Goal(
            "k <= 5, 64 MB and more: times the floor",
            1.25,
            True,
            _floors(lambda row: row.kernel <= 5 and row.moved >= 64 * MEGABYTE),
        ),
        Goal(
            "k = 7 in networks, float32: times the floor",
            1.5,
            True,
            _floors(lambda row: row.kernel == 7 and row.suite == "networks" and not _is_half(row)),
        ),
        Goal(
            "k = 7 in networks, halves: times the floor",
            1.6,
            True,
            _floors(lambda row: row.kernel == 7 and row.suite == "networks" and _is_half(row)),
        ),
        Goal(
            "k >= 13, halves, 28 x 28 and larger, all passes: times as fast as PyTorch in its better layout",
            40,
            False,
            _all_passes(lambda row: _is_half(row) and row.size >= 28),
        ),
        Goal(
            "k >= 13, halves, smaller images, all passes: times as fast",
            10,
            False,
            _all_passes(lambda row: _is_half(row) and row.size < 28),
        ),
        Goal("k >= 13, float32, all passes: times as fast", 8, False, _all_passes(lambda row: not _is_half(row))),
        Goal("networks, NCHW, geometric mean: times as fast as PyTorch", 6, False, _mean("contiguous")),
        Goal("networks, NHWC, geometric mean: times as fast", 3, False, _mean("channels_last")),
        Goal("no row slower than PyTorch: times as fast", 1, False, _ratios),
    ),
    "cpu": (
        Goal("networks, geometric mean: times as fast as PyTorch", 2.5, False, _mean("")),
        Goal("no row slower than PyTorch: times as fast", 1, False, _ratios),
    ),
}


def goals(device: str) -> str:
    """A row a goal, then the rows that miss one, the farthest first."""
    rows = read(device)
    table = ["| goal | | reached by | worst |", "| --- | ---: | ---: | ---: |"]
    missed: list[tuple[float, str, float, str]] = []
    for goal in GOALS[device]:
        figures = list(goal.figures(rows))
        sign = "<=" if goal.at_most else ">="
        worst = (max if goal.at_most else min)(figure for _, figure in figures)
        misses = [(name, figure) for name, figure in figures if goal.misses(figure)]
        reached = f"{len(figures) - len(misses)} of {len(figures)}"
        table.append(f"| {goal.what} | {sign} {goal.limit:g} | {reached} | {worst:.2f}{' ✗' if misses else ''} |")
        missed += [(goal.distance(figure), name, figure, f"{sign} {goal.limit:g}") for name, figure in misses]
    text = ["", "| row that misses a goal | figure | goal | times off |", "| --- | ---: | ---: | ---: |"]
    text += [
        f"| {name} | {figure:.2f} | {limit} | {off:.2f} |"
        for off, name, figure, limit in sorted(missed, key=lambda each: -each[0])
    ]
    return "\n".join(table + (text if missed else [])) + "\n"


def results(device: str) -> str:
    """A row a case of a suite: each pass in microseconds, times the floor, times as fast as PyTorch."""
    rows = read(device)
    missing = {
        name
        for goal in GOALS[device]
        for name, figure in goal.figures(rows)
        if goal.misses(figure) and any(name == row.name for row in rows)
    }
    text = []
    for suite in dict.fromkeys(row.suite for row in rows):
        text += [f"**{suite}**", "", f"| | | {' | '.join(PASSES.values())} |", "| --- | --- | ---: | ---: | ---: |"]
        cases: dict[tuple[str, str], dict[str, Row]] = {}
        for row in rows:
            if row.suite == suite:
                cases.setdefault((row.sample, f"{row.dtype} {LAYOUTS[row.layout]}"), {})[row.operator] = row
        for (sample, kind), passes in cases.items():
            cells = [_cell(passes[name], passes[name].name in missing) if name in passes else "" for name in PASSES]
            text.append(f"| {sample} | {kind} | {' | '.join(cells)} |")
        text.append("")
    environment = json.loads((ROOT / f"benchmarks/results/{device}/bench.json").read_text())["environment"]
    chip, commit = environment["chip"], environment["commit"][:12]
    text.append(f"Microseconds (times the floor, times as fast as PyTorch); ✗ misses a goal. {chip}, commit {commit}.")
    return "\n".join(text) + "\n"


def _cell(row: Row, misses: bool) -> str:
    ratio = "" if math.isnan(row.ratio) else f", {row.ratio:.2f} x"
    return f"{row.seconds * 1e6:,.0f} ({row.floors:.2f}{ratio}){' ✗' if misses else ''}"


def tried() -> str:
    """What kernels took that were given up, and what takes their place."""
    rows = {(row.sample, row.operator, row.layout, row.dtype): row.seconds * 1e6 for row in read("h200")}
    text = ["| what | of | float32, then now | bfloat16, then now |", "| --- | --- | ---: | ---: |"]
    for what, sample, operator, layout, *before in TRIED:
        cells = [
            f"{was:,} → {rows[sample, operator, layout, dtype]:,.0f}"
            for dtype, was in zip(("float32", "bfloat16"), before, strict=True)
        ]
        text.append(f"| {what} | {sample}, {LAYOUTS[layout]}, {PASSES[operator]} | {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def choice() -> str:
    """Both tables of cuda_choice.h."""
    text = []
    source = CHOICE.read_text()
    for passes, begin, end in (
        ("Forward pass and input gradient", "kCorrelationRules[]", "kWeightGradRules[]"),
        ("Weight gradient", "kWeightGradRules[]", "first_rule"),
    ):
        rules = RULE.findall(source[source.index(begin) : source.index(end)])
        text += [f"**{passes}**", "", "| kernel | takes | because |", "| --- | --- | --- |"]
        text += [f"| `{name}` | {regime} | {reason} |" for name, regime, reason in rules]
        text.append("")
    return "\n".join(text)


def files() -> dict[Path, str]:
    """Everything that is written."""
    return {
        FRAGMENTS / "depthwise-choice.md": choice(),
        FRAGMENTS / "depthwise-tried.md": tried(),
        **{FRAGMENTS / f"depthwise-goals-{device}.md": goals(device) for device in GOALS},
        **{FRAGMENTS / f"depthwise-results-{device}.md": results(device) for device in GOALS},
        **{PICTURES / f"{name}.svg": picture for name, picture in depthwise_pictures.pictures().items()},
    }


def main() -> int:
    """Writes, or checks, every file."""
    check = "--check" in sys.argv[1:]
    stale = [path for path, text in files().items() if not path.is_file() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)}: not current; run `python docs/depthwise.py` and `python docs/include.py`")
        else:
            path.write_text(files()[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
