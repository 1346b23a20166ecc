"""The progress of a comparison, live in a terminal."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from torchgraft.demo.experiment import Experiment
from torchgraft.demo.training import Progress

_TIMING = "timing"
_TIMING_TICKS = 100
# The weight of the past in the figures shown: those of single steps jump too much to be read.
_SMOOTHING = 0.9


class LiveProgress:
    """A bar a run, with its loss, accuracy and time a step; where there is no terminal, a line each at the end."""

    def __init__(self, console: Console, experiment: Experiment) -> None:
        self._bars = Bars(
            TextColumn("{task.description:<10}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._tasks = {
            name: self._bars.add_task(name, total=None, start=False, figures="")
            for name in (experiment.rival.name, experiment.ours.name, _TIMING)
        }
        self._means: dict[str, Sequence[float]] = {}

    def __enter__(self) -> "LiveProgress":
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bars.stop()

    def training(self, run: str, progress: Progress) -> None:
        """Shows a step of a training."""
        latest = progress.loss, progress.accuracy, progress.milliseconds
        means = self._means.get(run, latest)
        smoothed = [_SMOOTHING * mean + (1 - _SMOOTHING) * new for mean, new in zip(means, latest, strict=True)]
        loss, accuracy, milliseconds = self._means[run] = smoothed
        figures = f"loss {loss:.4f}  accuracy {accuracy:4.0%}  {milliseconds:5.1f} ms a step"
        self._update(run, progress.step, progress.steps, figures)

    def timing(self, share: float) -> None:
        """Shows how much of the timing is done."""
        self._update(_TIMING, round(share * _TIMING_TICKS), _TIMING_TICKS, "timing steps of both")

    def _update(self, name: str, completed: int, total: int, figures: str) -> None:
        task = self._tasks[name]
        self._bars.start_task(task)
        self._bars.update(task, completed=completed, total=total, figures=figures)
