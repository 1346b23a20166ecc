"""Writes the tables of docs/recurrence.md from what `python benchmarks/recurrences.py` measured.

`python tools/docs/recurrences.py` writes them; with `--check` it only says whether they are current, and exits with 1
if they are not.
"""

import json
import statistics
import sys
from collections.abc import Iterator
from typing import Any

from generated import ROOT, write_or_check

RESULTS = ROOT / "benchmarks/results/h200/recurrences.json"
CPU_RESULTS = ROOT / "benchmarks/results/cpu/recurrences.json"
# The weights of so many fit into a cluster.
MOST_UNITS = 512
PASSES = ("forward", "with all gradients")

Rows = list[dict[str, Any]]


def speedups(rows: Rows, rival: str, place: int) -> list[float]:
    """How many times as fast as a rival the recurrence is, forward (place 0) or with all gradients (1)."""
    return [row[rival][place] / row["ours"][place] for row in rows]


def summary(rows: Rows, rival: str) -> Iterator[str]:
    """The cells of a row of the table: of both passes the mean, the range, and how many are slower."""
    for place in range(len(PASSES)):
        found = speedups(rows, rival, place)
        yield f"{statistics.geometric_mean(found):.2f}x"
        yield f"{min(found):.2f} to {max(found):.2f}"
        yield f"{sum(each < 1 for each in found)} of {len(found)}"


def cells_table(figures: dict[str, Any]) -> str:
    """A row a cell, dtype, and whether one kernel runs all steps."""
    lines = ["| cell | dtype | units | forward | range | slower | with all gradients | range | slower |"]
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for cell in ("lstm", "gru"):
        for dtype in ("bfloat16", "float16", "float32"):
            for is_few in (True, False):
                rows = [
                    row
                    for row in figures["rows"]
                    if (row["cell"], row["dtype"]) == (cell, dtype) and (row["sizes"][3] <= MOST_UNITS) == is_few
                ]
                units = f"up to {MOST_UNITS}" if is_few else "more"
                lines.append(f"| {cell} | {dtype} | {units} | {' | '.join(summary(rows, 'cudnn'))} |")
    environment = figures["environment"]
    where = f"{environment['chip']}, PyTorch {environment['torch']}, {environment['date'][:10]}"
    drawn = "16 to 500 steps, 1 to 512 rows, 32 to 512 inputs, 32 to 1,536 units"
    return "\n".join(lines) + f"\n\n{where}. Sizes drawn by seed {figures['seed']}:\n{drawn}."


def cpu_table(figures: dict[str, Any]) -> str:
    """A row a cell beside PyTorch's layer, and one of the page's recurrence beside its loop."""
    lines = ["| cell | beside | forward | range | slower | with all gradients | range | slower |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    beside = {
        "lstm": ("pytorch", "`nn.LSTM`"),
        "gru": ("pytorch", "`nn.GRU`"),
        "leaky": ("loop", "its loop in PyTorch"),
    }
    for cell, (rival, words) in beside.items():
        rows = [row for row in figures["rows"] if row["cell"] == cell]
        lines.append(f"| {cell} | {words} | {' | '.join(summary(rows, rival))} |")
    environment = figures["environment"]
    threads = environment["threads"]
    where = f"{environment['chip']}, {threads} threads, PyTorch {environment['torch']}, {environment['date'][:10]}"
    drawn = "16 to 500 steps, 1 to 512 rows, 32 to 512 inputs, 32 to 1,536 units, and at most 2**31 products"
    return "\n".join(lines) + f"\n\nfloat32; {where}. Sizes drawn by seed {figures['seed']}:\n{drawn}."


def loop_table(figures: dict[str, Any]) -> str:
    """The recurrence of the page beside its loop."""
    rows = [row for row in figures["rows"] if row["cell"] == "leaky"]
    steps, batch, features, units = rows[0]["sizes"]
    lines = ["| dtype | a step forward | the loop | a step with all gradients | the loop |"]
    lines.append("| --- | ---: | ---: | ---: | ---: |")
    for row in rows:
        times = (time[place] / steps for place in range(len(PASSES)) for time in (row["ours"], row["loop"]))
        lines.append(f"| {row['dtype']} | {' | '.join(f'{time:.2f} us' for time in times)} |")
    return "\n".join(lines) + f"\n\n{steps} steps, {batch} rows, {features} inputs, {units} units."


def main() -> int:
    """Writes the blocks, or checks them."""
    figures = json.loads(RESULTS.read_text())
    blocks = {"recurrence-cells": cells_table(figures), "recurrence-loop": loop_table(figures)}
    blocks["recurrence-cpu"] = cpu_table(json.loads(CPU_RESULTS.read_text()))
    return write_or_check("recurrences", blocks)


if __name__ == "__main__":
    sys.exit(main())
