"""The state of every job, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from torchgraft.checking.jobs import Job
from torchgraft.checking.result import Result

# A cell shows states in this order: a sign, a word for terminals without the sign, a style, a legend.
STATES = {
    "fail": ("✗", "FAIL", "bold red", "does not hold"),
    "pass": ("✓", "ok", "green", "holds"),
    "not applicable": ("-", "n/a", "dim", "not applicable"),
    "running": ("…", "...", "yellow", ""),
    "waiting": ("·", ".", "dim", ""),
}
GAP = 2
# The least width of a column, and of a line of its heading: a cell may be `✗ 1 ✓ 3`.
_WIDTH = 12
# A condensed table names at most so many properties that run.
_DOING = 3

Place = tuple[str, str]


class Board:
    """The state of every job, or of the random calls that jobs make.

    A row is a property, or a kernel where kernels are forced; a column is an operator and device.
    """

    def __init__(self, jobs: Sequence[Job], *, signs: bool = True) -> None:
        self._signs = signs
        self._several_devices = len({job.where for job in jobs}) > 1
        self._rows = list(dict.fromkeys(row_of(job) for job in jobs))
        self._columns = list(dict.fromkeys((job.name, job.where) for job in jobs))
        self._cells: dict[tuple[str, Place], Counter[str]] = {}
        self._counts_calls = all(job.calls is not None for job in jobs)
        self._counts_properties = any(job.kernel for job in jobs)
        for job in jobs:
            self._cell(job)["waiting"] += weight(job)

    def start(self, job: Job) -> None:
        """Notes that a job runs."""
        self._move(job, "waiting", "running")

    def finish(self, job: Job, result: Result) -> None:
        """Notes that a job has ended; one that was skipped ends without having started."""
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
        """Makes the table, or several with some of the columns each, if one would be wider than the terminal."""
        chosen: list[list[Place]] = []
        left = 0
        for place in self._columns:
            needed = max(_WIDTH, *(len(line) for line in self._heading(place))) + GAP
            if not chosen or left < needed:
                chosen.append([])
                left = width - max(len(row) for row in self._rows)
            left -= needed
            chosen[-1].append(place)
        return [self._table(places) for places in chosen]

    def height(self, width: int) -> int:
        """The number of lines that the tables take."""
        tables = self.tables(width)
        heading = max(len(self._heading(place)) for place in self._columns)
        return len(tables) * (len(self._rows) + heading + 1)

    def condensed(self, most: int) -> Table:
        """Makes a table with a line for each operator and device: the counts, and the jobs that run.

        Args:
            most: lines; of more operators those are shown of which something runs.
        """
        columns = (Column(no_wrap=True), Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis"))
        table = make_table(*columns, show_header=False)
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
        """The meaning of the signs."""
        text = Text()
        for sign, word, style, meaning in STATES.values():
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
        table = make_table(Column("", no_wrap=True), *columns, header_style="bold")
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
        return self._cells.setdefault((row_of(job), (job.name, job.where)), Counter())

    def _move(self, job: Job, before: str, after: str) -> None:
        cell = self._cell(job)
        cell[before] -= weight(job)
        cell[after] += weight(job)

    def _shown(self, cell: Counter[str]) -> Text:
        text = Text(no_wrap=True)
        for state, (sign, word, style, _) in STATES.items():
            if cell[state] > 0:
                shown = sign if self._signs else word
                text.append(" " if text else "")
                text.append(f"{shown} {cell[state]:,}" if cell.total() > 1 else shown, style)
        return text


def make_table(*columns: Column, **style: Any) -> Table:
    """Makes a table without lines, as all tables of a check are."""
    return Table(*columns, box=None, pad_edge=False, padding=(0, GAP, 0, 0), **style)


def weight(job: Job) -> int:
    """The weight of a job: its number of calls, or one."""
    return job.calls or 1


def row_of(job: Job) -> str:
    """The row of a job: its sanitizer, its kernel, or else its property."""
    return job.under or job.kernel or job.property_name
