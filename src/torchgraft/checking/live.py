"""A check as a person sees it: a table that fills while it runs, and what is said when it has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from torchgraft.checking.jobs import SMOKE, Job
from torchgraft.checking.report import CheckReport, describe, group_alike
from torchgraft.checking.result import Result

# In the order in which a cell shows them: a sign, a word where the terminal has no such sign, a style, a legend.
_STATES = {
    "fail": ("✗", "FAIL", "bold red", "does not hold"),
    "pass": ("✓", "ok", "green", "holds"),
    "not applicable": ("-", "n/a", "dim", "not applicable"),
    "running": ("…", "...", "yellow", ""),
    "waiting": ("·", ".", "dim", ""),
}
_GAP = 2
# Of a column: a cell such as `✗ 1 ✓ 3`, and the shortest line that a heading is broken into.
_WIDTH = 12
_REFRESHES_PER_SECOND = 4
# Of a condensed table: what runs is cut where it would say more.
_DOING = 3
_FEW_LINES = 2

Place = tuple[str, str]


class Board:
    """The state of every job, or of the calls that jobs draw.

    A row is a property, or a kernel where kernels are forced; a column is an operator and device.
    """

    def __init__(self, jobs: Sequence[Job], *, signs: bool = True) -> None:
        self._signs = signs
        self._several_devices = len({job.where for job in jobs}) > 1
        self._rows = list(dict.fromkeys(_row(job) for job in jobs))
        self._columns = list(dict.fromkeys((job.name, job.where) for job in jobs))
        self._cells: dict[tuple[str, Place], Counter[str]] = {}
        self._counts_calls = all(job.calls is not None for job in jobs)
        self._counts_properties = any(job.kernel for job in jobs)
        for job in jobs:
            self._cell(job)["waiting"] += _weight(job)

    def start(self, job: Job) -> None:
        """Notes that a job runs."""
        self._move(job, "waiting", "running")

    def finish(self, job: Job, result: Result) -> None:
        """Notes that a job has ended; one that was not worth running ends without having started."""
        before = "running" if self._cell(job)["running"] else "waiting"
        if job.calls is None:
            self._move(job, before, result.status)
            return
        # The first call that fails ends a job: those behind it are never made.
        cell = self._cell(job)
        cell[before] -= job.calls
        cell[result.status] += 1
        cell["pass"] += max(result.called, 1) - 1

    def tables(self, width: int) -> list[Table]:
        """The whole table, or several with some of the columns each where one would be wider than the terminal."""
        chosen: list[list[Place]] = []
        left = 0
        for place in self._columns:
            needed = max(_WIDTH, *(len(line) for line in self._heading(place))) + _GAP
            if not chosen or left < needed:
                chosen.append([])
                left = width - max(len(row) for row in self._rows)
            left -= needed
            chosen[-1].append(place)
        return [self._table(places) for places in chosen]

    def height(self, width: int) -> int:
        """How many lines the tables take."""
        tables = self.tables(width)
        heading = max(len(self._heading(place)) for place in self._columns)
        return len(tables) * (len(self._rows) + heading + 1)

    def condensed(self, most: int) -> Table:
        """A line an operator and device: the counts, and what runs.

        Args:
            most: lines; of more operators those are shown of which something runs.
        """
        columns = (Column(no_wrap=True), Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis"))
        table = _table(*columns, show_header=False)
        places = self._columns
        if len(places) > most:
            running = {place for (_, place), cell in self._cells.items() if cell["running"]}
            places = [place for place in places if place in running][:most]
        for name, device in places:
            cells = {row: cell for (row, place), cell in self._cells.items() if place == (name, device)}
            doing = [row for row, cell in cells.items() if cell["running"]]
            more = ", …" if len(doing) > _DOING else ""
            title = f"{name} {device}" if self._several_devices else name
            total = sum(cells.values(), Counter[str]())
            table.add_row(title, self._shown(total), Text(", ".join(doing[:_DOING]) + more, "yellow"))
        return table

    def legend(self) -> Text:
        """What the signs mean."""
        text = Text()
        for sign, word, style, meaning in _STATES.values():
            if meaning:
                text.append(sign if self._signs else word, style)
                text.append(f" {meaning}   ", "dim")
        if any(cell.total() > 1 for cell in self._cells.values()):
            repeated = "properties and dtypes" if self._counts_properties else "dtypes and repetitions"
            text.append(f"numbers count {'calls' if self._counts_calls else repeated}", "dim")
        return text

    def _table(self, places: Sequence[Place]) -> Table:
        headings = ("\n".join(self._heading(place)) for place in places)
        columns = (Column(heading, no_wrap=True, min_width=_WIDTH) for heading in headings)
        table = _table(Column("", no_wrap=True), *columns, header_style="bold")
        for row in self._rows:
            table.add_row(row, *(self._shown(self._cells.get((row, place), Counter())) for place in places))
        return table

    def _heading(self, place: Place) -> list[str]:
        name, device = place
        lines = [""]
        for word in name.replace("_", "_ ").replace("::", ":: ").split():
            if lines[-1] and len(lines[-1]) + len(word) > _WIDTH:
                lines.append("")
            lines[-1] += word
        return [*lines, device] if self._several_devices else lines

    def _cell(self, job: Job) -> Counter[str]:
        return self._cells.setdefault((_row(job), (job.name, job.where)), Counter())

    def _move(self, job: Job, before: str, after: str) -> None:
        cell = self._cell(job)
        cell[before] -= _weight(job)
        cell[after] += _weight(job)

    def _shown(self, cell: Counter[str]) -> Text:
        text = Text(no_wrap=True)
        for state, (sign, word, style, _) in _STATES.items():
            if cell[state] > 0:
                shown = sign if self._signs else word
                text.append(" " if text else "")
                text.append(f"{shown} {cell[state]:,}" if cell.total() > 1 else shown, style)
        return text


def _table(*columns: Column, **style: Any) -> Table:
    return Table(*columns, box=None, pad_edge=False, padding=(0, _GAP, 0, 0), **style)


def _weight(job: Job) -> int:
    """What a job counts for: its calls, where it draws so many."""
    return job.calls or 1


def _row(job: Job) -> str:
    return job.under or job.kernel or job.property_name


class LiveCheck:
    """Shows a check while it runs, in a terminal; where there is none, nothing."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self._console = console
        self.board = Board(jobs, signs=console.encoding.lower().startswith("utf"))
        self._progress = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            auto_refresh=False,
            console=console,
        )
        self._task = self._progress.add_task("", total=sum(_weight(job) for job in jobs))
        # Transient: the table is printed once more at the end, whole, however little of it the terminal could show.
        self._live = Live(
            console=console,
            get_renderable=self._render,
            refresh_per_second=_REFRESHES_PER_SECOND,
            transient=True,
        )

    def __enter__(self) -> LiveCheck:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def start(self, job: Job) -> None:
        """Shows that a job runs."""
        self.board.start(job)
        self.say("")

    def finish(self, job: Job, result: Result) -> None:
        """Shows that a job has ended."""
        self.board.finish(job, result)
        self._progress.advance(self._task, _weight(job))
        if job.property_name == SMOKE and result.status == "fail":
            self._tell_at_once(result)

    def _tell_at_once(self, result: Result) -> None:
        """What is wrong with an operator that is not even wired: much of what follows fails of it."""
        self._console.print(Text(describe(result), "bold red"), soft_wrap=True)
        told = "The other properties are still checked. Press Ctrl-C to stop with the results so far."
        self._console.print(Text(f"{told}\n", "dim"), soft_wrap=True)

    def say(self, what: str) -> None:
        """Shows what is being done for no job alone."""
        self._progress.update(self._task, description=what)

    def _render(self) -> RenderableType:
        # Anew each time: terminals change their size. A line must stay free, or the terminal scrolls.
        width, height = self._console.size
        bar = self._progress.get_renderable()
        if self.board.height(width) + 2 <= height:
            return Group(*self.board.tables(width), bar)
        # Of a terminal of few lines nothing but the bar.
        lines = height - 2
        return Group(self.board.condensed(lines), bar) if lines > _FEW_LINES else bar


def print_report(console: Console, board: Board, report: CheckReport, seconds: float) -> None:
    """Prints the table, what failed and how, what was not asked and why, what was measured, and the verdict."""
    for table in board.tables(console.width):
        console.print(table)
        console.print()
    console.print(board.legend())
    _print_failures(console, report)
    _print_reasons(console, report)
    _print_facts(console, report)
    _print_called(console, report)
    _print_left_out(console, report)
    _print_verdict(console, report, seconds)


def _print_failures(console: Console, report: CheckReport) -> None:
    """Each failure of a property of an operator on a device; those that are alike in a line."""
    for alike in group_alike(report.failures):
        console.print()
        title, *lines = describe(*alike).splitlines()
        console.print(Text(title, "bold red"), soft_wrap=True)
        for line in lines:
            style = "dim" if line.startswith("  |") else "bold" if line.startswith("  again") else ""
            console.print(Text(line, style), soft_wrap=True)


def _print_reasons(console: Console, report: CheckReport) -> None:
    """Why properties were not applicable, each reason once; of forced kernels, those that served no call at all."""
    reached = {
        (result.operator, result.device, result.kernel)
        for result in report.results
        if result.kernel and result.status != "not applicable"
    }
    operators: dict[tuple[str, str], dict[str, None]] = {}
    for result in report.results:
        if result.status == "not applicable" and (result.operator, result.device, result.kernel) not in reached:
            row = result.kernel or result.property.partition(": ")[0]
            operators.setdefault((row, result.reason), {})[result.operator] = None
    if not operators:
        return
    checked = {result.operator for result in report.results}
    table = _table(Column(no_wrap=True), Column(), show_header=False, style="dim")
    for (row, reason), names in operators.items():
        of = "" if set(names) == checked else f" ({', '.join(names)})"
        table.add_row(Text(row), Text(f"{reason}{of}"))
    console.print()
    console.print(Text("not applicable", "dim"))
    console.print(table)


def _print_facts(console: Console, report: CheckReport) -> None:
    """What properties measured on the way."""
    measured = [result for result in report.results if result.facts]
    if not measured:
        return
    console.print()
    console.print(Text("measured", "dim"))
    for result in measured:
        facts = ", ".join(f"{name} {value:,.6g}" for name, value in result.facts.items())
        line = f"{result.property} of {result.operator} on {result.device} in {result.dtype}: {facts}"
        console.print(Text(line, "dim"), soft_wrap=True)


def _print_called(console: Console, report: CheckReport) -> None:
    """How many calls were drawn of each operator, where nothing else was asked."""
    if not report.called or not all(result.called or result.kernel for result in report.results):
        return
    names: dict[tuple[str, int], list[str]] = {}
    for (name, device), count in report.called.items():
        names.setdefault((device, count), []).append(name)
    console.print()
    for (device, count), alike in names.items():
        each = "each of " if len(alike) > 1 else ""
        console.print(Text(f"{count:,} calls of {each}{', '.join(alike)} on {device}", "dim"), soft_wrap=True)


def _print_left_out(console: Console, report: CheckReport) -> None:
    """Which kernels did not run where their users run them."""
    if report.left_out:
        console.print()
    for each in report.left_out:
        console.print(Text(str(each), "yellow"), soft_wrap=True)


def _print_verdict(console: Console, report: CheckReport, seconds: float) -> None:
    failed, passed, left_out = (report.count(status) for status in ("fail", "pass", "not applicable"))
    if failed:
        rows = len({(result.operator, result.device, result.property, result.kernel) for result in report.failures})
        verdict = Text("one property does not hold" if rows == 1 else f"{rows} properties do not hold", "bold red")
    elif report.unfinished:
        verdict = Text("the check was stopped", "bold yellow")
    elif passed:
        verdict = Text(report.verdict, "bold green")
    else:
        verdict = Text("no property was applicable", "bold yellow")
    minutes, rest = divmod(round(seconds), 60)
    duration = f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
    counts = f"{passed} passed, {failed} failed, {left_out} not applicable, in {duration}"
    if report.unfinished:
        counts += f"; {report.unfinished} not run to the end, as the check was stopped"
    console.print()
    console.print(Text.assemble(verdict, f": {counts}"))
