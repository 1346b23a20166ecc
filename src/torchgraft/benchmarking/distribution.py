"""Random rows, summarised: how ratios and floors are distributed, and which rows are the worst."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torchgraft.benchmarking.results import BenchReport, geometric_mean
from torchgraft.benchmarking.rows import KERNEL, RivalResult, Row
from torchgraft.benchmarking.summary import (
    UNVERIFIED,
    format_ratio,
    format_time,
    marked,
    origin,
    refusals,
    short_dtype,
    yardsticks_of,
)
from torchgraft.benchmarking.table import Table
from torchgraft.machine.figures import as_json

_LAYOUTS = {"contiguous": "NCHW", "channels_last": "NHWC"}
_WORST, _FURTHEST, _BETTER = 20, 10, 20
# A share of the time, from which another kernel is told to be faster than the chosen one.
_NOTABLE = 0.95
_LEAST = (0.98, 0.9)
_SHARES = ("slower", *(f"< {least}" for least in _LEAST))
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def beside(row: Row) -> tuple[str, RivalResult | None]:
    """The rival of a random row, and its name."""
    others = {**row.rivals, **row.yardsticks}
    name = next((name for name in others if not name.startswith(KERNEL)), "")
    return (marked(name) if name in row.yardsticks else name), others.get(name)


def ratio_of_row(row: Row) -> float:
    """How many times as fast ours is; nan where there is no ratio."""
    _, result = beside(row)
    return result.ratio.median if result and result.ratio else math.nan


def floors_of(row: Row) -> float:
    """How many times the least possible time ours takes; nan where there is no time."""
    return row.time.median / row.floor if row.time and row.floor else math.nan


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which so large a share lies, between two of them where it falls there; nan of nothing."""
    found = sorted(value for value in values if not math.isnan(value))
    if not found:
        return math.nan
    place = share * (len(found) - 1)
    below = math.floor(place)
    above = min(below + 1, len(found) - 1)
    return found[below] + (place - below) * (found[above] - found[below])


def is_slower(row: Row) -> bool:
    """Whether ours is slower, beyond noise."""
    _, result = beside(row)
    return bool(result and result.ratio and result.ratio.high < 1)


def distribution_tables(report: BenchReport) -> list[Table]:
    """A table an operator: a line for each pass, and below it one for each dtype and layout."""
    header = ["", "rows", "mean", *(f"{share:.0%}" for share in _QUANTILES), *_SHARES, "worst", "floors", "90%"]
    tables = []
    for (operator, name), rows in _groups(report.rows, lambda row: (row.operator, beside(row)[0])).items():
        lines = []
        for (direction,), own in _groups(rows, lambda row: (row.direction,)).items():
            lines.append([direction, *_cells(own)])
            parts = _groups(own, lambda row: (short_dtype(row.dtype), _LAYOUTS.get(row.layout, row.layout)))
            has_images = any(layout == "NHWC" for _, layout in parts)
            if len(parts) > 1:
                lines += [
                    [f"… {dtype}{f' {layout}' if has_images else ''}", *_cells(part)]
                    for (dtype, layout), part in sorted(parts.items())
                ]
        tables.append(Table(f"{operator}: times as fast as {name}", header, lines))
    return tables


def notes(report: BenchReport) -> list[str]:
    """The lines below the tables: their meaning, refused rows, and the machine."""
    refused = [line for line in refusals(report.rows) if line.startswith("refused")]
    return [
        *(["{} calls of each operator, sampled at random with seed {}.".format(*report.drawn)] if report.drawn else []),
        "mean: the geometric mean. 5% to 95%: quantiles. slower: rows that are slower beyond noise. worst: the row "
        "that loses most. floors: how many times the least time that the device allows, median and 90% quantile.",
        *([UNVERIFIED] if yardsticks_of(report.rows) else []),
        *refused[:_WORST],
        *([f"and {len(refused) - _WORST} more refused"] if len(refused) > _WORST else []),
        *report.doubts,
        *origin(report),
        str(report.environment),
    ]


def _groups(rows: Iterable[Row], key: Callable[[Row], tuple[str, ...]]) -> dict[tuple[str, ...], list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _cells(rows: Sequence[Row]) -> list[str]:
    ratios = [each for each in map(ratio_of_row, rows) if not math.isnan(each)]
    floors = [floors_of(row) for row in rows]
    if not ratios:
        return [str(len(rows)), *[""] * (len(_QUANTILES) + len(_SHARES) + 4)]
    return [
        str(len(rows)),
        format_ratio(geometric_mean(ratios)),
        *(format_ratio(quantile(ratios, share)) for share in _QUANTILES),
        f"{sum(map(is_slower, rows)) / len(ratios):.1%}",
        *(f"{sum(each < least for each in ratios) / len(ratios):.1%}" for least in _LEAST),
        format_ratio(min(ratios)),
        *(f"{quantile(floors, share):.3g}" for share in (0.5, 0.9)),
    ]


def worst_tables(report: BenchReport) -> list[Table]:
    """The rows that lose most, those furthest from the floor, and those where another kernel would be faster."""
    timed = [row for row in report.rows if row.time and not math.isnan(ratio_of_row(row))]
    tables = [
        _rows_table("Worst against the rival", sorted(timed, key=ratio_of_row)[:_WORST]),
        _rows_table("Furthest from the floor", sorted(timed, key=floors_of, reverse=True)[:_FURTHEST]),
    ]
    better = [row for row in timed if _fastest_kernel(row)[1] < _NOTABLE]
    if better:
        better.sort(key=lambda row: _fastest_kernel(row)[1])
        tables.append(
            Table(
                f"Where another kernel is faster: {len(better)} of {len(timed)} rows",
                ["row", "time", "times as long", "chosen", "faster", "its share"],
                [
                    [_name(row), *_times(row), served_by(row), name, f"{share:.2f}"]
                    for row in better[:_BETTER]
                    for name, share in [_fastest_kernel(row)]
                ],
            )
        )
    return [table for table in tables if table.rows]


def _rows_table(title: str, rows: Sequence[Row]) -> Table:
    lines = [[_name(row), *_times(row), f"{floors_of(row):.3g}", row.bound, served_by(row)] for row in rows]
    return Table(title, ["row", "time", "times as fast", "floors", "bound", "kernel"], lines)


def _name(row: Row) -> str:
    layout = f", {_LAYOUTS[row.layout]}" if "x" in row.sample and row.layout in _LAYOUTS else ""
    return f"{row.operator}, {row.direction}: {row.sample}, {short_dtype(row.dtype)}{layout}"


def _times(row: Row) -> tuple[str, str]:
    return format_time(row.time), format_ratio(ratio_of_row(row))


def served_by(row: Row) -> str:
    """The kernels that our library chose, or that ran, as far as the row knows."""
    return ", ".join(row.chosen or dict.fromkeys(each.name for each in row.served.get("ours", ())))


def _fastest_kernel(row: Row) -> tuple[str, float]:
    """The kernel that takes least of those that were forced, and its share of our time; infinity of none."""
    forced = {name: each.ratio.median for name, each in row.rivals.items() if name.startswith(KERNEL) and each.ratio}
    name = min(forced, key=lambda name: forced[name], default="")
    return name.removeprefix(KERNEL), forced.get(name, math.inf)


def distribution_markdown(report: BenchReport) -> str:
    """All tables, for a file."""
    tables = [*distribution_tables(report), *worst_tables(report)]
    return "\n".join([*(table.markdown() for table in tables), *(f"- {line}" for line in notes(report)), ""])


# Entries that the document of drawn rows leaves out of a row if they are empty.
MAY_BE_EMPTY = ("rivals", "yardsticks", "problem", "fallbacks", "served", "chosen", "others")


def distribution_json(report: BenchReport) -> str:
    """The report for a file that `results.report_from_dict` reads: a row a line, with five digits of each figure."""
    figures = report.as_dict()
    rows = [
        {name: value for name, value in row.items() if value or name not in MAY_BE_EMPTY} for row in figures["rows"]
    ]
    return as_json(_short({**figures, "rows": rows}))


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_short(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value
