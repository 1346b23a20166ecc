"""Writes what docs/performance/depthwise.md shows: the choice of kernels, goals and results, and the pictures.

The choice is read from cuda/kernel_table.h, all figures from benchmarks/results. `python tools/docs/depthwise.py`
writes the tables and pictures; with `--check` it only says which are not current, and exits with 1 if there are any.
"""

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import depthwise_pictures
import goals
from generated import ROOT, write_or_check
from goals import LAYOUTS, Choose, Figures, Goal, Row, floors, geometric_mean, ratios, table

PICTURES = ROOT / "docs/performance"
CHOICE = ROOT / "src/torchgraft/operators/depthwise_conv2d/cuda/kernel_table.h"
ROW = re.compile(r'ROW\((\w+), \w+, \w+,[\s\\]*"([^"]+)",[\s\\]*"([^"]+)",[\s\\]*\w+, \w+\)')
PASSES = {
    "depthwise_conv2d": "forward",
    "depthwise_conv2d_input_grad": "input gradient",
    "depthwise_conv2d_weight_grad": "weight gradient",
}
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


def read(device: str) -> list[Row]:
    """The rows of depthwise_conv2d and its gradients that have a time."""
    return goals.read(device, PASSES)


def _pytorch(row: Row) -> float:
    return row.ratios.get("pytorch", math.nan)


def _all_passes(choose: Choose) -> Figures:
    """PyTorch's forward pass and both gradients, in the better of its layouts, over ours in each."""

    def figures(rows: list[Row]) -> Iterator[tuple[str, float]]:
        chosen = [row for row in rows if row.kernel >= 13 and row.suite == "networks" and choose(row)]
        for sample, dtype in dict.fromkeys((row.sample, row.dtype) for row in chosen):
            same = [row for row in chosen if (row.sample, row.dtype) == (sample, dtype)]
            best = min(sum(row.seconds * _pytorch(row) for row in same if row.layout == layout) for layout in LAYOUTS)
            for layout, name in LAYOUTS.items():
                yield f"{sample}, {dtype} {name}", best / sum(row.seconds for row in same if row.layout == layout)

    return figures


def _mean(layout: str = "") -> Figures:
    return geometric_mean(ratios("pytorch", lambda row: row.suite == "networks" and layout in ("", row.layout)))


GOALS = {
    "h200": (
        Goal(
            "k <= 5, 64 MB and more: times the floor",
            1.25,
            True,
            floors(lambda row: row.kernel <= 5 and row.moved >= 64 * MEGABYTE),
        ),
        Goal(
            "k = 7 in networks, float32: times the floor",
            1.5,
            True,
            floors(lambda row: row.kernel == 7 and row.suite == "networks" and not row.is_half),
        ),
        Goal(
            "k = 7 in networks, halves: times the floor",
            1.6,
            True,
            floors(lambda row: row.kernel == 7 and row.suite == "networks" and row.is_half),
        ),
        Goal(
            "k >= 13 in networks, halves, 28 x 28 and larger, all passes: times PyTorch in its better layout",
            40,
            False,
            _all_passes(lambda row: row.is_half and row.size >= 28),
        ),
        Goal(
            "k >= 13 in networks, halves, smaller images, all passes: times as fast",
            10,
            False,
            _all_passes(lambda row: row.is_half and row.size < 28),
        ),
        Goal(
            "k >= 13 in networks, float32, all passes: times as fast",
            8,
            False,
            _all_passes(lambda row: not row.is_half),
        ),
        Goal("networks, NCHW, geometric mean: times as fast as PyTorch", 6, False, _mean("contiguous")),
        Goal("networks, NHWC, geometric mean: times as fast", 3, False, _mean("channels_last")),
        Goal("no row slower than PyTorch: times as fast", 1, False, ratios("pytorch")),
    ),
    "cpu": (
        Goal("networks, geometric mean: times as fast as PyTorch", 2.5, False, _mean()),
        Goal("no row slower than PyTorch: times as fast", 1, False, ratios("pytorch")),
    ),
}


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
    chip = goals.report(device).environment.chip
    text.append(f"Microseconds (times the floor, times as fast as PyTorch); ✗ misses a goal. {chip}.")
    return "\n".join(text) + "\n" + goals.origin(device, PASSES)


def _cell(row: Row, misses: bool) -> str:
    ratio = f", {row.ratios['pytorch']:.2f} x" if "pytorch" in row.ratios else ""
    return f"{row.seconds * 1e6:,.0f} ({row.floors:.2f}{ratio}){' ✗' if misses else ''}"


def tried() -> str:
    """The table of kernels that were given up: their times, and those of the kernels in their place."""
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
    """Both tables of cuda/kernel_table.h."""
    text = []
    source = CHOICE.read_text()
    for passes, begin, end in (
        ("Forward pass and input gradient", "DEPTHWISE_CORRELATIONS(ROW)", "DEPTHWISE_WEIGHT_GRADS(ROW)"),
        ("Weight gradient", "DEPTHWISE_WEIGHT_GRADS(ROW)", "clang-format on"),
    ):
        rows = ROW.findall(source[source.index(begin) : source.index(end)])
        text += [f"**{passes}**", "", "| kernel | takes | because |", "| --- | --- | --- |"]
        text += [f"| `{name}` | {regime} | {reason} |" for name, regime, reason in rows]
        text.append("")
    return "\n".join(text)


def made() -> dict[Path | str, str]:
    """Returns all that is written: blocks of pages, and pictures."""
    return {
        "depthwise-choice": choice(),
        "depthwise-tried": tried(),
        **{f"depthwise-goals-{device}": table(read(device), GOALS[device]) for device in GOALS},
        **{f"depthwise-results-{device}": results(device) for device in GOALS},
        **{PICTURES / f"{name}.svg": picture for name, picture in depthwise_pictures.pictures().items()},
    }


def main() -> int:
    """Writes, or checks, every file."""
    return write_or_check("depthwise", made())


if __name__ == "__main__":
    sys.exit(main())
