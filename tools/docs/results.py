"""Writes the tables and plots of benchmarks/results from its JSON files, and what README and docs/results.md show.

Nothing is measured. `python tools/docs/results.py` writes the files; with `--check` it only says which are not current,
and exits with 1 where there are any. They say which rows were measured on earlier sources, so an edit of a kernel
changes them.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from generated import ROOT, write_or_check

from torchgraft.benchmarking.distribution import distribution_markdown
from torchgraft.benchmarking.page import render_picture
from torchgraft.benchmarking.predicting import kernels_today
from torchgraft.benchmarking.provenance import provenance_of_calls, provenance_of_module, sources_of_memory
from torchgraft.benchmarking.results import BenchReport, report_from_dict
from torchgraft.benchmarking.standing import standing
from torchgraft.benchmarking.summary import as_markdown, short_dtype, summary_table
from torchgraft.benchmarking.table import Table
from torchgraft.demo import PARTS

RESULTS = ROOT / "benchmarks/results"
FRAGMENTS = ROOT / "docs/fragments"
CHIPS = ("cpu", "h200")
# On these `graft bench` has measured drawn calls, and models on one.
ALSO_DRAWN = ("epyc", "h100")
# Of README's table.
MODEL_ROWS = 6
DEMO = {part.name: part.module for part in PARTS}


@cache
def report(chip: str, name: str = "bench") -> BenchReport:
    """The rows that were measured on a chip: of our operators, or of the gallery's."""
    return report_from_dict(figures(chip, name))


def drawn_on(chip: str) -> list[str]:
    """The names of the files of what was drawn: one for each seed."""
    return sorted(path.stem for path in (RESULTS / chip).glob("draw*.json"))


def figures(chip: str, name: str) -> dict[str, Any]:
    """What a file of results holds."""
    return json.loads((RESULTS / chip / f"{name}.json").read_text())


@dataclass(frozen=True)
class Step:
    """A training step of a model, in milliseconds, before and after graft(model)."""

    model: str
    how: str
    machine: str
    before: float
    after: float
    gain: float
    is_noise: bool
    is_current: bool

    def cells(self) -> list[str]:
        """A row of README's table."""
        gain = f"{self.gain:.2f}x{', within noise' if self.is_noise else ', slower' if self.gain < 1 else ''}"
        return [self.model, self.how, self.machine, _milliseconds(self.before), _milliseconds(self.after), gain]


def _milliseconds(value: float) -> str:
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def _machine(chip: str, threads: int) -> str:
    return f"{threads} CPU threads" if chip == "cpu" else chip.upper()


def steps(chip: str) -> list[Step]:
    """Every model whose training step was measured on a chip: the benchmark's, and the one of the demo."""
    found = []
    for row in report(chip).rows:
        ratio = row.rivals["pytorch"].ratio if row.direction == "training" and row.time else None
        if ratio is not None:
            how = f"{short_dtype(row.dtype)}, {row.layout}{', compiled' if 'compiled' in row.sample else ''}"
            machine = _machine(chip, report(chip).environment.threads)
            after = row.time.median * 1e3
            before = row.rivals["pytorch"].time.median * 1e3
            current = bool(standing([row], report(chip).environment.device).current)
            found.append(Step(row.operator, how, machine, before, after, ratio.median, ratio.is_noise, current))
    for part in figures(chip, "demo")["parts"]:
        if part["name"] == "convnext":
            machine = _machine(chip, part["environment"]["threads"])
            now = provenance_of_module(DEMO["convnext"], part["environment"]["device"]).sources
            current = part["provenance"]["sources"] == now
            found += [
                Step("ConvNeXt of the demo", f"fp32, {each['layout']}", machine, *_demo_times(each), False, current)
                for each in part["step_milliseconds_in_turn"]
            ]
    return sorted(found, key=lambda step: -step.gain)


def _demo_times(times: dict[str, Any]) -> tuple[float, float, float]:
    return times["rival"], times["ours"], times["speedup"]


def spread(found: Sequence[Step], count: int) -> list[Step]:
    """So many of steps that are sorted by what they gain: the first, the last, and those evenly between."""
    if len(found) <= count:
        return list(found)
    return [found[round(place * (len(found) - 1) / (count - 1))] for place in range(count)]


def models() -> str:
    """README's table: of each machine the model that gains most, the one that gains least, and some between."""
    cpu = spread(steps("cpu"), MODEL_ROWS // 2)
    gpu = spread(steps("h200"), MODEL_ROWS - len(cpu))
    header = ["model", "computed in", "machine", "ms before", "ms after", "times as fast"]
    lines = [f"| {' | '.join(cells)} |" for cells in (header, [*["---"] * 3, *["---:"] * 3])]
    shown = (*gpu, *cpu)
    lines += [f"| {' | '.join(step.cells())} |" for step in shown]
    every = len(steps("cpu")) + len(steps("h200"))
    said = f"A training step, before and after. Of {every} measured these are, on each machine, the one that gains "
    said += "most, the one that gains least, and those evenly between. "
    earlier = sum(not step.is_current for step in shown)
    said += f"{earlier} of them are of earlier sources." if earlier else "All of them are of these sources."
    return "\n".join([*lines, "", said, ""])


def origins() -> str:
    """Which results were measured on the sources that lie here."""
    rows = [cells for chip in CHIPS for cells in _origins(chip)]
    rows += [cells for chip in ALSO_DRAWN for cells in _origins_of_drawn(chip)]
    return Table("", ["results", "machine", "measured", "sources"], rows).markdown()


def _origins(chip: str) -> Iterator[list[str]]:
    bench = report(chip)
    device = bench.environment.device
    found = standing(bench.rows, device)
    count = len(found.current) + len(found.stale)
    said = f"{len(found.stale)} of {count} rows are of earlier ones" if found.stale else "these"
    yield ["`graft bench`", chip, bench.environment.date[:10], said]
    for part in figures(chip, "demo")["parts"]:
        now = provenance_of_module(DEMO[part["name"]], device).sources
        yield _origin(f"demo, {part['title']}", chip, part, part["provenance"], now)
    overhead = figures(chip, "overhead")
    yield _origin("`graft bench overhead`", chip, overhead, overhead["provenance"], provenance_of_calls().sources)
    yield from _origins_of_drawn(chip)
    memory = figures(chip, "lltm-memory")
    for name, provenance in memory["provenance"].items():
        yield _origin(f"`graft bench memory {name}`", chip, memory, provenance, sources_of_memory(name, device))


def _origins_of_drawn(chip: str) -> Iterator[list[str]]:
    for name in drawn_on(chip):
        drawn = report(chip, name)
        stale = len(standing(drawn.rows, drawn.environment.device).stale)
        said = f"{stale} of {len(drawn.rows)} rows are of earlier ones" if stale else "these"
        operators = " ".join(dict.fromkeys(row.operator for row in drawn.rows))
        yield [f"`graft bench {operators} --draw`", chip, drawn.environment.date[:10], said]


def _origin(name: str, chip: str, measured: dict[str, Any], provenance: dict[str, Any], now: str) -> list[str]:
    same = "these" if provenance["sources"] == now else "earlier ones" if provenance["sources"] else "unknown"
    return [name, chip, measured["environment"]["date"][:10], same]


def files() -> dict[Path, str]:
    """Everything that is written."""
    written = {FRAGMENTS / "models.md": models(), FRAGMENTS / "origins.md": origins()}
    for chip in CHIPS:
        written[RESULTS / chip / "bench.md"] = summary_table(report(chip)).markdown()
        written[RESULTS / chip / "bench-rows.md"] = as_markdown(report(chip), kernels_today(report(chip)))
        written[RESULTS / chip / "bench.svg"] = render_picture(report(chip))
        if (RESULTS / chip / "gallery.json").is_file():
            written[RESULTS / chip / "gallery.md"] = as_markdown(report(chip, "gallery"))
    for chip in (*CHIPS, *ALSO_DRAWN):
        for name in drawn_on(chip):
            written[RESULTS / chip / f"{name}.md"] = distribution_markdown(report(chip, name))
        if (RESULTS / chip / "models.json").is_file():
            written[RESULTS / chip / "models.md"] = summary_table(report(chip, "models")).markdown()
    return written


def main() -> int:
    """Writes, or checks, every file."""
    return write_or_check("results", files())


if __name__ == "__main__":
    sys.exit(main())
