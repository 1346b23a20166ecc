"""A benchmark as a person sees it: a bar while it runs, each suite when it is done, and what it all comes to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from torchgraft.benchmarking import summary
from torchgraft.benchmarking.explaining import describe
from torchgraft.benchmarking.results import BenchReport, Change
from torchgraft.benchmarking.rows import KERNEL, RivalResult, Row
from torchgraft.benchmarking.suite import Planned

_LAYOUTS = {"contiguous": "NCHW", "channels_last": "NHWC"}
_GAP = 2
# A sample's name is broken into lines no shorter than this before a column is left out.
_LEAST_NAME = 20
_VERDICTS = {"slower": "bold red", "lost": "bold red", "faster": "green", "same": "dim"}


class LiveBench:
    """Shows a run while it goes on, in a terminal; each suite is printed when its last row is measured.

    Args:
        console: where.
        planned: the rows.
        prints_suites: whether each suite is printed; nobody reads hundreds of drawn rows one by one.
    """

    def __init__(self, console: Console, planned: Sequence[Planned], *, prints_suites: bool = True) -> None:
        self._console = console
        self._prints_suites = prints_suites
        self._left = len(planned)
        self._rows: list[Row] = []
        self._told = False
        self._progress = Progress(
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            # One line, however narrow the terminal.
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=console,
            transient=True,
            expand=True,
        )
        self._task = self._progress.add_task("", total=len(planned))

    def __enter__(self) -> LiveBench:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self._print_suite()
        self._progress.stop()

    def start(self, title: str) -> None:
        """Shows what is measured."""
        self._told = False
        self._progress.update(self._task, description=title)

    def wait(self, why: str) -> None:
        """Shows why nothing is measured now; without a terminal, only once for each row."""
        if not self._console.is_terminal and not self._told:
            self._console.print(Text(why, "yellow"))
        self._told = True
        self._progress.update(self._task, description=why)

    def finish(self, planned: Planned, row: Row) -> None:
        """Takes a row that was measured."""
        if self._rows and (self._rows[-1].operator, self._rows[-1].suite) != (row.operator, row.suite):
            self._print_suite()
        self._rows.append(row)
        self._progress.advance(self._task)

    def _print_suite(self) -> None:
        if self._rows and self._prints_suites:
            print_suite(self._console, self._rows)
        self._rows = []


def print_suite(console: Console, rows: Sequence[Row]) -> None:
    """A suite's rows, its geometric means, and what was refused."""
    first = rows[0]
    same = [
        name
        for name, values in (
            (summary.short_dtype(first.dtype), {row.dtype for row in rows}),
            (first.layout, {row.layout for row in rows}),
        )
        if len(values) == 1
    ]
    title = Text.assemble((first.operator, "bold"), f"  {', '.join([first.suite, *same])}")
    console.print(title)
    console.print(_suite_table(rows, console.width, console.encoding))
    for line in summary.refusals(rows):
        console.print(Text(line, "yellow" if line.startswith("no kernel") else "red"))
    for row in rows:
        _print_details(console, row, same)
    console.print()


def _print_details(console: Console, row: Row, same: Sequence[str]) -> None:
    """The kernels of a row with their times, if that was asked for; `same` is what the title says already."""
    kernels = {name: each for name, each in row.rivals.items() if name.startswith(KERNEL)}
    if not row.served and not kernels:
        return
    own = {
        summary.short_dtype(row.dtype): summary.short_dtype(row.dtype),
        row.layout: _LAYOUTS.get(row.layout, row.layout),
    }
    console.print(
        Text(", ".join([summary.name_of(row), *(shown for key, shown in own.items() if key not in same)]), "bold")
    )
    table = Table.grid(padding=(0, _GAP, 0, 0))
    for name, each in kernels.items():
        table.add_row(f"  {name}", summary.format_time(each.time), _rival(each, console.encoding))
    if kernels:
        console.print(table)
    width = max([9, *map(len, row.served)])
    for contender, served in row.served.items():
        for line in describe(served):
            console.print(Text(f"  {contender:{width}} {line}", "" if contender == "ours" else "dim"), soft_wrap=True)


def _suite_table(rows: Sequence[Row], width: int, encoding: str) -> Table:
    # An operator may have more kernels than a line has room for.
    rivals = [name for name in summary.rivals_of(rows) if not name.startswith(KERNEL)]
    yardsticks = summary.yardsticks_of(rows)
    columns: dict[str, list[str | Text]] = {"sample": [summary.name_of(row) for row in rows]}
    if len({row.dtype for row in rows}) > 1:
        columns["dtype"] = [summary.short_dtype(row.dtype) for row in rows]
    if len({row.layout for row in rows}) > 1:
        columns["layout"] = [_LAYOUTS.get(row.layout, row.layout) for row in rows]
    columns["time"] = [summary.format_time(row.time) for row in rows]
    columns["±"] = [summary.format_spread(row.time).removeprefix("±") for row in rows]
    if any(row.warm for row in rows):
        columns["warm"] = [summary.format_time(row.warm) for row in rows]
        columns["host"] = ["" if row.host is None else summary.format_seconds(row.host) for row in rows]
    if any(row.bound for row in rows):
        columns["floor"] = [summary.format_share(row.share) for row in rows]
        columns["bound"] = [row.bound for row in rows]
    for name in rivals:
        columns[name] = [_rival(row.rivals.get(name), encoding) for row in rows]
    for name in yardsticks:
        columns[summary.marked(name)] = [_rival(row.yardsticks.get(name), encoding) for row in rows]
    if any(row.chosen for row in rows):
        columns["kernel"] = [", ".join(row.chosen) for row in rows]
    mean = summary.summarise_rows(rows)
    foot = {"sample": "geometric mean", "floor": summary.format_share(mean.share)}
    foot |= {name: summary.format_ratio(mean.against[name].ratio) for name in rivals}
    foot |= {summary.marked(name): summary.format_ratio(summary.mean_of_yardstick(rows, name)) for name in yardsticks}

    for name in ("host", "bound", "warm", "kernel", "±"):
        if _needed(columns, foot) > width:
            columns.pop(name, None)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim", show_footer=True)
    for name, cells in columns.items():
        left = name in ("sample", "dtype", "layout", "bound", "kernel")
        table.add_column(
            name,
            Text(foot.get(name, ""), "bold"),
            no_wrap=name != "sample",
            justify="left" if left else "right",
            min_width=None if name == "sample" else _width(name, cells, foot),
        )
    for cells_of_row in zip(*columns.values(), strict=True):
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells_of_row))
    return table


def _rival(result: RivalResult | None, encoding: str) -> Text:
    if result is None:
        return Text("")
    if result.ratio is None:
        return Text("refused", "red")
    sign = summary.sign_of(result.ratio)
    style = {"▼": "bold red", "~": "dim"}.get(sign, "green")
    return Text(f"{summary.format_ratio(result.ratio.median)} {_shown(sign, encoding) or ' '}", style)


def _shown(sign: str, encoding: str) -> str:
    """A sign, or what stands for it where the terminal has no such letter."""
    return sign if encoding.lower().startswith("utf") else sign.replace("▼", "<")


def _width(name: str, cells: Sequence[str | Text], foot: dict[str, str]) -> int:
    return max(len(name), len(foot.get(name, "")), *(len(cell) for cell in cells))


def _needed(columns: dict[str, list[str | Text]], foot: dict[str, str]) -> int:
    widths = [_LEAST_NAME if name == "sample" else _width(name, cells, foot) for name, cells in columns.items()]
    return sum(widths) + _GAP * len(widths)


def print_report(console: Console, report: BenchReport) -> None:
    """A summary of all rows: where they were measured, and how."""
    slower = _shown("▼", console.encoding)
    legend = (
        f"2.4x: we are 2.4 times as fast; ~ within noise, {slower} slower. floor: share of the least possible time."
    )
    if report.environment.device == "cuda":
        legend += " The second-level cache is cold, except for warm; cudnn.benchmark is on, and tf32 is off, except "
        legend += "in rows called tf32."
    console.print(Text(legend, "dim"))
    if summary.yardsticks_of(report.rows):
        console.print(Text(summary.UNVERIFIED, "dim"))
    for line in summary.origin(report):
        console.print(Text(line, "dim"))
    console.print(Text(f"{report.environment}{_card(report)}", "dim"))
    console.print()
    for line in report.doubts:
        console.print(Text(line, "yellow"))
    mean = summary.summarise_rows(report.rows)
    for name, against in mean.against.items():
        console.print(_verdict(name, against))
    if not math.isnan(mean.share):
        measured = sum(not math.isnan(row.share) for row in report.rows)
        console.print(f"{summary.format_share(mean.share)} of the floor, geometric mean of {_rows(measured)}")
    refused = sum(bool(row.problem) for row in report.rows)
    if refused:
        console.print(Text(f"{_rows(refused)} refused", "bold red"))
    console.print(f"measured in {_duration(report.seconds)}")


def _verdict(name: str, against: summary.Against) -> Text:
    text = Text(f"{summary.format_ratio(against.ratio) or 'no ratio'} against {name}: {against}")
    text.stylize("bold red" if against.lost else "bold green", 0, len(summary.format_ratio(against.ratio)))
    return text


def _card(report: BenchReport) -> str:
    card = report.card
    if not card.clocks:
        return ""
    clocks, temperatures = (" to ".join(map(str, ends)) for ends in (card.clocks, card.temperatures))
    return f"; {clocks} MHz, {temperatures} °C"


def print_changes(console: Console, old: BenchReport, new: BenchReport, changes: Sequence[Change]) -> None:
    """Compares each row with another run; rows within noise are only counted."""
    console.print(Text(f"old  {old.environment}", "dim"))
    console.print(Text(f"new  {new.environment}", "dim"))
    console.print()
    order = ("lost", "slower", "faster")
    shown = sorted(
        (change for change in changes if change.verdict in order),
        key=lambda change: (order.index(change.verdict), -abs(math.log(min(change.ratio, 1e9)))),
    )
    if shown:
        console.print(_changes_table(shown))
        console.print()
    counts = {verdict: sum(change.verdict == verdict for change in changes) for verdict in _VERDICTS}
    words = {"same": "within noise", "lost": "without a time now"}
    text = ", ".join(f"{count} {words.get(verdict, verdict)}" for verdict, count in counts.items() if count)
    console.print(text or "the two runs have no row in common")
    for count, which in (
        (len({row.key for row in old.rows} - {row.key for row in new.rows}), "old"),
        (len({row.key for row in new.rows} - {row.key for row in old.rows}), "new"),
    ):
        if count:
            console.print(f"{_rows(count)} only in the {which} run")


def _changes_table(changes: Sequence[Change]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for name in ("", "row", "time", "of the old", "noise"):
        table.add_column(name, justify="left" if name in ("", "row") else "right", no_wrap=name != "row")
    for change in changes:
        row = change.row
        parts = [row.operator, row.suite, summary.name_of(row), summary.short_dtype(row.dtype), row.layout]
        table.add_row(
            Text(change.verdict, _VERDICTS[change.verdict]),
            Text(", ".join(parts)),
            summary.format_time(row.time),
            "" if math.isinf(change.ratio) else f"{change.ratio:.0%}",
            "" if math.isinf(change.ratio) else f"±{change.noise:.0%}",
        )
    return table


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
