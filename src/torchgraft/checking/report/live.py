"""A check as a person sees it while it runs: a table that fills."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from torchgraft.checking.jobs import SMOKE, Job
from torchgraft.checking.report.board import Board, row_of, weight
from torchgraft.checking.report.check_report import describe
from torchgraft.checking.result import Result

_REFRESHES_PER_SECOND = 4
_FEW_LINES = 2
# Without a terminal a line on standard error says each time how far the check is.
_SECONDS_BETWEEN_LINES = 20.0


class LiveCheck:
    """Shows a check while it runs: as a table in a terminal, and elsewhere in a line now and then.

    Attributes:
        board: the state of every job.
    """

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
        self._jobs, self._ended = len(jobs), 0
        self._running: dict[int, Job] = {}
        self._is_over = threading.Event()

    @property
    def running(self) -> list[str]:
        """The jobs that run, as `compile of NAME on cpu in float32`."""
        several = [f"{row_of(job)} of {job.name} on {job.where} in {job.dtype_name}" for job in self._running.values()]
        return list(dict.fromkeys(several))

    def __enter__(self) -> LiveCheck:
        if self._console.is_terminal:
            self._live.start()
        else:
            threading.Thread(target=self._tell_now_and_then, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._live.stop()

    def start(self, job: Job) -> None:
        """Shows that a job runs."""
        self.board.start(job)
        self._running[id(job)] = job
        self.say("")

    def finish(self, job: Job, result: Result) -> None:
        """Shows that a job has ended."""
        self.board.finish(job, result)
        self._running.pop(id(job), None)
        self._ended += 1
        self._progress.advance(self._task, weight(job))
        if job.property_name == SMOKE and result.status == "fail":
            self._tell_at_once(result)

    def _tell_at_once(self, result: Result) -> None:
        """Prints the failure of an operator that cannot be called at all, as it makes many other properties fail."""
        self._console.print(Text(describe(result), "bold red"), soft_wrap=True)
        told = "The other properties are still checked. Press Ctrl-C to stop with the results so far."
        self._console.print(Text(f"{told}\n", "dim"), soft_wrap=True)

    def _tell_now_and_then(self) -> None:
        """Says how far the check is, on standard error, until it is over: a log then tells what does not end."""
        seconds = 0.0
        while not self._is_over.wait(_SECONDS_BETWEEN_LINES):
            seconds += _SECONDS_BETWEEN_LINES
            running = f"; running: {', '.join(self.running)}" if self.running else ""
            typer.echo(f"{self._ended} of {self._jobs} done after {seconds:.0f} s{running}", err=True)

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
