"""Compares the kernels that policies choose with those that are chosen by measuring, on calls drawn at random.

Both are captured as CUDA graphs in one process and timed in turn, in every pass of each operator. The seed is published
with the results; nothing was tuned on it.

    python benchmarks/measured_choice.py benchmarks/results/h200/measured_choice.json --count 75 --seed 1
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from torchgraft import measure_kernels
from torchgraft.benchmarking.drawn import Bench, plan_drawn
from torchgraft.benchmarking.graphs import Capturing
from torchgraft.benchmarking.measuring import functions_of, precision_of
from torchgraft.benchmarking.passes import Candidate, bind
from torchgraft.benchmarking.suite import Wanted
from torchgraft.benchmarking.timing import Stopwatch
from torchgraft.checking.subject import find_subjects
from torchgraft.machine.environment import describe_environment
from torchgraft.machine.figures import as_json

_SECONDS = 0.02
# A ratio nearer to one is noise.
_NOISE = 0.03
_OPERATORS = ("depthwise_conv2d", "shift", "lltm")


def _times(candidate: Candidate, bench: Bench, stopwatch: Stopwatch) -> dict[str, float]:
    """Microseconds of a pass by either choice."""
    arguments = bench.inputs.take(candidate)
    assert bench.capturing is not None
    with warnings.catch_warnings(), precision_of(candidate):
        warnings.simplefilter("ignore")
        contenders = {}
        for name, wanted in (("policy", False), ("measured", True)):
            measure_kernels(wanted)
            contenders[name] = bench.capturing.capture(bind(candidate, functions_of(candidate)["ours"], arguments))
        measure_kernels(False)
        timings = stopwatch.time(contenders, warm=())
    return {name: statistics.median(timing.rounds) * 1e6 for name, timing in timings.items()}


def _rows(name: str, count: int, seed: int) -> Iterator[dict[str, Any]]:
    device = torch.device("cuda")
    bench, stopwatch = Bench(Capturing(device)), Stopwatch(device, _SECONDS)
    for planned in plan_drawn(find_subjects([name]), Wanted(device, directions=()), count, seed, named=True):
        candidate: Candidate = planned.measure.args[0]  # type: ignore[attr-defined]
        yield {"row": planned.title, **_times(candidate, bench, stopwatch)}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How the ratios of measured to policy are distributed."""
    ratios = sorted(row["measured"] / row["policy"] for row in rows)
    return {
        "passes": len(ratios),
        "mean": statistics.geometric_mean(ratios),
        "faster": sum(ratio < 1 - _NOISE for ratio in ratios),
        "slower": sum(ratio > 1 + _NOISE for ratio in ratios),
        "best": ratios[0],
        "worst": ratios[-1],
    }


def _table(figures: dict[str, Any]) -> str:
    """The summaries for a page."""
    lines = [
        "| operator | passes | time, measured / policy | faster by over 3 % | slower by over 3 % | best | worst |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, each in figures["summaries"].items():
        lines.append(
            f"| {name} | {each['passes']} | {each['mean']:.3f} | {each['faster']} | {each['slower']} |"
            f" {each['best']:.2f} | {each['worst']:.2f} |"
        )
    environment = figures["environment"]
    where = f"{environment['chip']}, PyTorch {environment['torch']}, seed {figures['seed']}, {environment['date'][:10]}"
    return "\n".join([*lines, "", f"{where}. The mean is geometric; times are those of CUDA graphs.", ""])


def main() -> None:
    """Draws, measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("path", type=Path, help="the JSON to write; a table goes beside it")
    parser.add_argument("--count", type=int, default=75, help="how many calls to draw of each operator")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows = {name: list(_rows(name, options.count, options.seed)) for name in _OPERATORS}
    figures = {
        "environment": vars(describe_environment(torch.device("cuda"))),
        "seed": options.seed,
        "summaries": {name: _summary(each) for name, each in rows.items()},
        "rows": rows,
    }
    options.path.write_text(as_json(figures))
    options.path.with_suffix(".md").write_text(_table(figures))


if __name__ == "__main__":
    main()
