"""Writes the tables of benchmarks/results into the pages that show them, and its plots.

Nothing is measured. `python tools/docs/results.py` writes the files; with `--check` it only says which are not current,
and exits with 1 where there are any. They say which rows were measured at an earlier commit, so an edit of a
kernel changes them.
"""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from generated import ROOT, write_or_check
from kernel_files import kernel_files
from torchgraft.benchmarking.distribution import distribution_markdown, quantile
from torchgraft.benchmarking.page import render_picture
from torchgraft.benchmarking.predicting import kernels_today
from torchgraft.benchmarking.provenance import provenance_of_calls, provenance_of_module, sources_of_memory
from torchgraft.benchmarking.results import BenchReport, geometric_mean, report_from_dict
from torchgraft.benchmarking.rows import Row
from torchgraft.benchmarking.standing import standing
from torchgraft.benchmarking.summary import as_markdown, format_ratio, short_dtype, summary_table
from torchgraft.benchmarking.table import Table
from torchgraft.benchmarking.timing import Ratio
from torchgraft.demo import PARTS

RESULTS = ROOT / "benchmarks/results"
CHIPS = ("cpu", "h200")
# On these machines `graft bench` has measured random samples of calls, and models on one of them.
ALSO_SAMPLED = ("epyc", "h100")
PASSES = {
    "forward": "forward",
    "input_grad": "gradient of the input",
    "weight_grad": "gradient of the weights",
    "forward_backward": "forward and backward",
    # The input of a transposed convolution is the incoming gradient of the operator that computes it.
    "output_grad_grad": "gradient of the input",
}
# The layers that users replace, by operator, and what each is compared with.
LAYERS = {
    "depthwise_conv2d": "depthwise convolution",
    "depthwise_conv1d": "depthwise convolution of sequences",
    "depthwise_conv3d": "depthwise convolution of volumes",
    "depthwise_conv1d_input_grad": "transposed, of sequences",
    "depthwise_conv2d_input_grad": "transposed, of images",
    "depthwise_conv3d_input_grad": "transposed, of volumes",
    "causal_conv1d": "causal convolution",
    "lltm": "recurrent layer (LLTM)",
    "lltm_cell": "recurrent cell (LLTMCell)",
    "shift": "shift",
}
# Fixed calls of these operators stand in the table for the machines on which no calls were sampled.
FIXED = {
    "lltm_cell": {"lltm_cell": "forward", "lltm_cell, backward": "gradients"},
    "shift": {"shift": "forward", "shift_grads": "gradients"},
}
# What a user has without torchgraft, the nearest first: rivals and yardsticks of a row.
COMPARED = {
    "nn.LSTM": "`nn.LSTM`",
    "nn.LSTMCell": "`nn.LSTMCell`",
    "grid_sample": "`grid_sample`",
    "conv_transpose": "PyTorch",
    "pytorch": "PyTorch",
}
# Of README's table.
MODEL_ROWS = 6
DEMO = {part.name: part.module for part in PARTS}


@cache
def report(chip: str, name: str = "bench") -> BenchReport:
    """The rows that were measured on a chip: of our operators, or of the gallery's."""
    return report_from_dict(figures(chip, name))


def sampled_on(chip: str) -> list[str]:
    """Returns the names of the files of random samples: one for each seed."""
    return sorted(path.stem for path in (RESULTS / chip).glob("draw*.json"))


def figures(chip: str, name: str) -> dict[str, Any]:
    """The contents of a file of results."""
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
    said = (
        f"A training step, before and after. {every} were measured. For each machine the table shows the largest gain, "
    )
    said += "the smallest, and some that are evenly spaced between them. "
    earlier = sum(not step.is_current for step in shown)
    said += f"{earlier} of these rows were measured at an earlier commit." if earlier else "All rows are current."
    return "\n".join([*lines, "", said, ""])


@dataclass(frozen=True)
class Group:
    """Calls of one pass of an operator on one machine.

    Attributes:
        calls: 'random' for random samples, 'fixed' for the calls of the benchmarks.
        ratios: of each call, how many times as fast ours is than what a user has otherwise.
    """

    operator: str
    title: str
    calls: str
    measured: BenchReport
    rows: Sequence[Row]
    ratios: Sequence[Ratio]

    @property
    def name(self) -> str:
        """The operator and its pass."""
        return f"{self.operator}, {self.title}" if self.title else self.operator

    @property
    def machine(self) -> str:
        """The GPU, or the processor with the number of threads."""
        environment = self.measured.environment
        name = re.sub(r"\(R\)| Processor| 80GB HBM3|NVIDIA ", "", environment.chip)
        return name if environment.device == "cuda" else f"{name}, {environment.threads} threads"

    @property
    def slower(self) -> list[int]:
        """The places of the calls that are slower beyond noise, the slowest first."""
        found = [place for place, ratio in enumerate(self.ratios) if ratio.high < 1]
        return sorted(found, key=lambda place: self.ratios[place].median)

    @property
    def stale(self) -> int:
        """The number of calls that were measured at an earlier commit."""
        return len(self.rows) - len(standing(self.rows, self.measured.environment.device).current)


def compared(row: Row) -> tuple[str, Ratio | None]:
    """Returns what a user has in place of our layer, and how many times as fast ours is."""
    others = {**row.rivals, **row.yardsticks}
    name = next((name for name in COMPARED if name in others), "")
    return COMPARED.get(name, ""), others[name].ratio if name else None


@cache
def groups() -> list[Group]:
    """Returns all calls on all machines that are compared with what a user has otherwise."""
    found = []
    for chip in ("h200", "h100", "cpu", "epyc"):
        reports = [(report(chip, name), "random") for name in sampled_on(chip) if "measured" not in name]
        for measured, calls in [*reports, *([(report(chip), "fixed")] if chip in CHIPS else [])]:
            rows: dict[tuple[str, str], list[Row]] = {}
            for row in measured.rows:
                if row.direction != "training" and compared(row)[1]:
                    title = (
                        PASSES.get(row.direction, row.direction)
                        if calls == "random" or row.direction != "forward"
                        else ""
                    )
                    rows.setdefault((row.operator, title), []).append(row)
            for (operator, title), own in rows.items():
                ratios = [ratio for _, ratio in map(compared, own) if ratio]
                found.append(Group(operator, title, calls, measured, own, ratios))
    return found


def layers() -> str:
    """Returns the first table of docs/results.md: how many times as fast each layer is on each machine."""
    lines = []
    stale = total = 0
    for operator, layer in LAYERS.items():
        random = [each for each in groups() if each.operator == operator and each.calls == "random"]
        sampled = {each.machine for each in random}
        titles = FIXED.get(operator, {})
        fixed = [each for each in groups() if each.name in titles and each.calls == "fixed"]
        for each in (*random, *(each for each in fixed if each.machine not in sampled)):
            medians = [ratio.median for ratio in each.ratios]
            low, high = (format_ratio(quantile(medians, share)) for share in (0.05, 0.95))
            title = titles[each.name] if each.calls == "fixed" else each.title
            cells = [title, each.machine, each.measured.environment.torch.partition("+")[0], compared(each.rows[0])[0]]
            share = f"{len(each.slower) / len(medians):.1%}"
            mean = f"**{format_ratio(geometric_mean(medians))}**"
            lines.append([layer, *cells, f"{len(medians)} {each.calls}", mean, f"{low} to {high}", share])
            layer = ""
            stale, total = stale + each.stale, total + len(each.rows)
    header = ["layer", "pass", "machine", "PyTorch", "compared with", "calls", "times as fast", "5% to 95%", "slower"]
    note = f"{stale:,} of these {total:,} calls were measured at an earlier commit."
    return Table("", header, lines, [note] if stale else []).markdown()


def slower() -> str:
    """Returns the second table: where calls are slower than the rival, beyond noise."""
    lines = []
    for each in groups():
        if each.slower:
            row, ratio = each.rows[each.slower[0]], each.ratios[each.slower[0]].median
            call = ", ".join([row.sample, short_dtype(row.dtype), *([row.layout] if "x" in row.sample else [])])
            counted = f"{len(each.slower)} of {len(each.rows)} {each.calls}"
            lines.append([each.name, each.machine, compared(row)[0], counted, f"{format_ratio(ratio)}: {call}"])
    return Table("", ["operator", "machine", "compared with", "slower calls", "the slowest"], lines).markdown()


def origins() -> str:
    """Which results are current, and which were measured at an earlier commit."""
    rows = [cells for chip in CHIPS for cells in _origins(chip)]
    rows += [cells for chip in ALSO_SAMPLED for cells in _origins_of_samples(chip)]
    return Table("", ["results", "machine", "measured", "current"], rows).markdown()


def _said(stale: int, count: int) -> str:
    """Says whether results are current."""
    if not stale:
        return "yes"
    return "no: measured at an earlier commit" if stale == count else f"{count - stale} of {count} rows"


def _origins(chip: str) -> Iterator[list[str]]:
    bench = report(chip)
    device = bench.environment.device
    found = standing(bench.rows, device)
    count = len(found.current) + len(found.stale)
    said = _said(len(found.stale), count)
    yield ["`graft bench`", chip, bench.environment.date[:10], said]
    for part in figures(chip, "demo")["parts"]:
        now = provenance_of_module(DEMO[part["name"]], device).sources
        yield _origin(f"demo, {part['title']}", chip, part, part["provenance"], now)
    overhead = figures(chip, "overhead")
    yield _origin("`graft bench overhead`", chip, overhead, overhead["provenance"], provenance_of_calls().sources)
    yield from _origins_of_samples(chip)
    memory = figures(chip, "lltm-memory")
    for name, provenance in memory["provenance"].items():
        yield _origin(f"`graft bench memory {name}`", chip, memory, provenance, sources_of_memory(name, device))


def _origins_of_samples(chip: str) -> Iterator[list[str]]:
    for name in sampled_on(chip):
        drawn = report(chip, name)
        stale = len(standing(drawn.rows, drawn.environment.device).stale)
        said = _said(stale, len(drawn.rows))
        operators = " ".join(dict.fromkeys(row.operator for row in drawn.rows))
        yield [f"`graft bench {operators} --draw`", chip, drawn.environment.date[:10], said]


def _origin(name: str, chip: str, measured: dict[str, Any], provenance: dict[str, Any], now: str) -> list[str]:
    same = _said(provenance["sources"] != now, 1) if provenance["sources"] else "unknown"
    return [name, chip, measured["environment"]["date"][:10], same]


def made() -> dict[Path | str, str]:
    """Returns all that is written: blocks of pages, and plots."""
    written: dict[Path | str, str] = {"models": models(), "origins": origins(), "layers": layers(), "slower": slower()}
    for chip in CHIPS:
        today = kernels_today(report(chip))
        written[f"rows-{chip}"] = as_markdown(report(chip), today)
        if chip != "cpu":
            written[f"kernel-files-{chip}"] = kernel_files(report(chip), today)
        written[RESULTS / chip / "bench.svg"] = render_picture(report(chip))
        if (RESULTS / chip / "gallery.json").is_file():
            written[f"gallery-{chip}"] = as_markdown(report(chip, "gallery"))
    for chip in (*CHIPS, *ALSO_SAMPLED):
        for name in sampled_on(chip):
            written[name.replace("draw", f"random-samples-{chip}")] = distribution_markdown(report(chip, name))
        if (RESULTS / chip / "models.json").is_file():
            written[f"models-{chip}"] = summary_table(report(chip, "models")).markdown()
    return written


def main() -> int:
    """Writes, or checks, every file."""
    return write_or_check("results", made())


if __name__ == "__main__":
    sys.exit(main())
