"""The report of a benchmark as one page that opens offline, and its picture for a README.

Needs the extra `torchgraft[bench]`. Style, script, plots and figures are all inside the page.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from torchgraft.benchmarking import summary
from torchgraft.benchmarking.page.charts import Axis, draw_bandwidth, draw_ratios, draw_roofline, short_rate
from torchgraft.benchmarking.results import BenchReport
from torchgraft.benchmarking.rows import KERNEL, Row
from torchgraft.benchmarking.standing import standing
from torchgraft.benchmarking.suite import LAYOUTS
from torchgraft.benchmarking.timing import Ratio

# Of a plot on a desktop and on a phone, in pixels: each is drawn for its width, or letters would shrink with it.
_WIDE, _NARROW = 1100, 358
# Operators in a title, and rows in an answer.
_FEW_NAMES, _SHOWN = 3, 3


def render_page(report: BenchReport) -> str:
    """The whole report as HTML."""
    return (
        _environment(report)
        .get_template("page.html")
        .render(
            report=report,
            title=_title(report),
            provenance=_provenance(report),
            to_do=[*report.doubts, *_refused(report)],
            answers=_answers(report),
            rivals=summary.rivals_of(report.rows),
            yardsticks=summary.yardsticks_of(report.rows),
            unverified=summary.UNVERIFIED,
            overview=_overview(report),
            parts=sorted({(row.dtype, row.layout): None for row in report.rows}, key=_rank),
            suites=[_suite(*key, rows) for key, rows in report.suites.items()],
            ratios=[draw_ratios(report, width) for width in (_WIDE, _NARROW)],
            rooflines=[draw_roofline(report, width) for width in (_WIDE, _NARROW)],
            bandwidth=draw_bandwidth(report, _NARROW),
            unplotted=sum(not (row.operations and row.time) for row in report.rows),
            on_gpu=any(row.warm for row in report.rows),
            names_kernels=any(row.chosen for row in report.rows),
            machine=_machine(report),
            how=summary.how_measured(report),
            origin=summary.origin(report),
            refusals=summary.refusals(report.rows),
            figures=base64.b64encode(report.as_json().encode()).decode(),
        )
    )


def render_picture(report: BenchReport) -> str:
    """How many times as fast, every row a dot, as an SVG that stands alone."""
    return _environment(report).get_template("picture.svg").render(plot=draw_ratios(report, 860), report=report)


def _rank(part: tuple[str, str]) -> tuple[int, int]:
    """Wider dtypes first, tf32 behind float32, contiguous before channels_last."""
    dtype, layout = part
    bits = 19 if dtype == "tf32" else torch.finfo(getattr(torch, dtype)).bits
    return -bits, LAYOUTS.index(layout)


def _environment(report: BenchReport) -> Environment:
    environment = Environment(
        loader=PackageLoader("torchgraft.benchmarking.page", "templates"),
        # What operators, samples and errors are called is anyone's text.
        autoescape=lambda name: name is not None and name.endswith((".html", ".svg")),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "marked": summary.marked,
        "name": partial(_name, several=len({row.operator for row in report.rows}) > 1),
        "dtype": summary.short_dtype,
        "ratio": summary.format_ratio,
        "share": summary.format_share,
        "spread": summary.format_spread,
        "time": summary.format_time,
        "seconds": summary.format_seconds,
        "sign": summary.sign_of,
        "rate": short_rate,
        "breakable": lambda name: escape(name).replace("_", Markup("_<wbr>")),
        "place": lambda value: f"{value:.1f}".removesuffix(".0"),
    }
    environment.tests["missing"] = lambda value: value is None or math.isnan(value)
    return environment


def _title(report: BenchReport) -> str:
    """The lines that say what was measured, and where."""
    operators = list(dict.fromkeys(row.operator for row in report.rows))
    named = ", ".join(operators) if len(operators) <= _FEW_NAMES else f"{len(operators)} operators"
    return f"{named} on {report.environment.chip}"


def _provenance(report: BenchReport) -> list[str]:
    """With what it was measured, in a line."""
    environment, count = report.environment, len(report.rows)
    found = standing(report.rows, environment.device)
    facts = [f"{count} {'row' if count == 1 else 'rows'}, results verified"]
    facts += [f"{len(found.stale)} at an earlier commit"] if found.stale else []
    return [
        *facts,
        f"PyTorch {environment.torch}",
        f"torchgraft {environment.torchgraft}",
        *([f"{environment.threads} threads"] if environment.device == "cpu" else []),
        environment.date[:10],
    ]


def _refused(report: BenchReport) -> list[str]:
    """The rows of ours that were refused, which the author of an operator must mend."""
    refused = [row for row in report.rows if row.problem]
    if not refused:
        return []
    which = "1 row of ours was" if len(refused) == 1 else f"{len(refused)} rows of ours were"
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    first = f"{_name(refused[0], several=True)}: {refused[0].problem}{more}"
    return [f"{which} refused. {first}. It has no time until that is fixed."]


def _name(row: Row, *, several: bool) -> str:
    """The words that tell a row from the others; its operator too if there are several."""
    parts = [summary.name_of(row), summary.short_dtype(row.dtype), row.layout]
    return ", ".join([row.operator, *parts] if several else parts)


def _answers(report: BenchReport) -> dict[str, Any]:
    """The answers to a reader's first questions: am I faster, where do I lose, how far from the floor."""
    found = summary.summarise_rows(report.rows)
    # How the kernels of one operator stand to each other is another question.
    others = {name: each for name, each in found.against.items() if not name.startswith(KERNEL)}
    losses = [(row, name, ratio) for row in report.rows for name in row.loses_to if (ratio := row.rivals[name].ratio)]
    return {
        "against": others or found.against,
        "losses": sorted(losses, key=lambda loss: loss[2].median),
        "compared": sum(any(rival.ratio for rival in row.rivals.values()) for row in report.rows),
        "share": found.share,
        "far": sorted((row for row in report.rows if not math.isnan(row.share)), key=lambda row: row.share),
        "shown": _SHOWN,
    }


def _overview(report: BenchReport) -> list[dict[str, Any]]:
    """A line a suite: what each dtype and layout of it comes to, and against which rivals."""
    return [
        {
            "operator": operator,
            "suite": suite,
            "parts": {(dtype, layout): summary.summarise_rows(part) for dtype, layout, part in summary.parts_of(rows)},
            "compared": {name: name in summary.rivals_of(rows) for name in summary.rivals_of(report.rows)},
        }
        for (operator, suite), rows in report.suites.items()
    ]


def _suite(operator: str, suite: str, rows: Sequence[Row]) -> dict[str, Any]:
    """A suite's bars: where each begins and ends, in per cent of the width, on a logarithmic scale."""
    ratios = [each.ratio for row in rows for each in row.rivals.values() if each.ratio]
    low = min([0.8, *(ratio.median for ratio in ratios)]) * 0.95
    high = max([2.0, *(ratio.median for ratio in ratios)]) * 1.1
    axis = Axis(low, high, 0.0, 100.0)

    def bar(ratio: Ratio) -> dict[str, float]:
        left, right = sorted((axis.at(1.0), axis.at(ratio.median)))
        # An interval may reach beyond all medians.
        ends = {"low": max(0.0, axis.at(ratio.low)), "high": min(100.0, axis.at(ratio.high))}
        return {"left": left, "width": max(right - left, 0.3), **ends}

    samples: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        bars = [(name, each, bar(each.ratio) if each.ratio else None) for name, each in row.rivals.items()]
        samples.setdefault(summary.name_of(row), []).append({"row": row, "bars": bars})
    return {
        "operator": operator,
        "suite": suite,
        "summary": summary.summarise_rows(rows),
        "samples": samples,
        "one": axis.at(1.0),
        "ticks": [(f"{value:g}", axis.at(value)) for value in axis.ticks(9)],
        "several_rivals": len(summary.rivals_of(rows)) > 1,
    }


def _machine(report: BenchReport) -> list[tuple[str, str]]:
    environment, card, roofs = report.environment, report.card, report.roofs
    facts = [
        ("chip", environment.chip),
        ("CPU threads", str(environment.threads)),
        ("torchgraft", environment.torchgraft),
        ("PyTorch", environment.torch),
        ("Python", environment.python),
        ("system", environment.platform),
        ("date", environment.date.replace("T", " ").replace("+00:00", " UTC")),
        ("duration", f"{report.seconds:.0f} s{', a quick run' if report.quick else ''}"),
    ]
    if card.clocks:
        facts.append(("clock", " to ".join(f"{clock} MHz" for clock in card.clocks)))
        facts.append(("temperature", " to ".join(f"{each} °C" for each in card.temperatures)))
    if load := report.load:
        most = max((row.others for row in report.rows if row.others is not None), default=0.0)
        facts.append(("other programs", f"up to {most:.1f} of {load.processors} processors"))
        facts.append(("waited for them", f"{load.waited:.0f} s"))
    facts.append(("least kernel", summary.format_seconds(roofs.launch)))
    for what, rates in (("multiply-adds", roofs.multiply_add), ("matrix product", roofs.matrix)):
        facts += [(f"{what}, {summary.short_dtype(name)}", short_rate(each)) for name, each in rates.items()]
    return facts
