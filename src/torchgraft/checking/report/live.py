"""A check as a person sees it while it runs: a table that fills."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from torchgraft.checking.jobs import SMOKE, Job
from torchgraft.checking.report.board import Board, weight
from torchgraft.checking.report.check_report import describe
from torchgraft.checking.result import Result

_REFRESHES_PER_SECOND = 4
_FEW_LINES = 2


class LiveCheck:
    """Shows a check in a terminal while it runs; shows nothing elsewhere."""

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
        self._task = self._progress.add_task("", total=sum(weight(job) for job in jobs))
        # The live table vanishes at the end, when the whole table is printed: the terminal may have shown a part of it.
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
        self._progress.advance(self._task, weight(job))
        if job.property_name == SMOKE and result.status == "fail":
            self._tell_at_once(result)

    def _tell_at_once(self, result: Result) -> None:
        """Prints the failure of an operator that cannot be called at all, as it makes many other properties fail."""
        self._console.print(Text(describe(result), "bold red"), soft_wrap=True)
        told = "The other properties are still checked. Press Ctrl-C to stop with the results so far."
        self._console.print(Text(f"{told}\n", "dim"), soft_wrap=True)

    def say(self, what: str) -> None:
        """Shows a step that belongs to no single job."""
        self._progress.update(self._task, description=what)

    def _render(self) -> RenderableType:
        # The size is read each time, as terminals change theirs. One line must stay free, or the terminal scrolls.
        width, height = self._console.size
        bar = self._progress.get_renderable()
        if self.board.height(width) + 2 <= height:
            return Group(*self.board.tables(width), bar)
        # A terminal of few lines shows the bar alone.
        lines = height - 2
        return Group(self.board.condensed(lines), bar) if lines > _FEW_LINES else bar
