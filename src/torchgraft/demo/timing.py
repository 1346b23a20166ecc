"""Times training steps, with the networks interleaved, so that a drift of the machine changes all times alike."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from torchgraft.demo.data import Data
from torchgraft.demo.experiment import Experiment
from torchgraft.demo.training import WARM_UP_STEPS, Trainer, build_model

# Enough for quartiles, however long they take.
_LEAST_STEPS = 8
_LARGEST_SPREAD = 0.25

_MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class StepTime:
    """Medians of the milliseconds of a training step in one memory layout.

    Attributes:
        layout: of images and weights.
        rival: with PyTorch's layers.
        ours: with torchgraft's.
        without: with the layers in which the two differ left out, the part of a step that neither can change; or None.
        spread: the largest distance between the quartiles of any of them, as a share of its median.
    """

    layout: str
    rival: float
    ours: float
    without: float | None
    spread: float

    @property
    def trusted(self) -> bool:
        """Whether the times agree well enough among themselves to be compared."""
        return self.spread <= _LARGEST_SPREAD

    @property
    def speedup(self) -> float:
        """How many times faster a step of ours is."""
        return self.rival / self.ours

    @property
    def shares(self) -> tuple[float, float] | None:
        """The share of the rival's step, and of ours, that is spent in the layers in which the two differ."""
        if self.without is None:
            return None
        return max(0.0, 1 - self.without / self.rival), max(0.0, 1 - self.without / self.ours)


def time_steps(
    experiment: Experiment, data: Data, seed: int, device: torch.device, watch: Callable[[float], None]
) -> tuple[StepTime, ...]:
    """Times training steps of both networks, and of what they have in common where the experiment tells that.

    Args:
        experiment: whose networks.
        data: the batch of the steps is its beginning.
        seed: of the networks.
        device: where.
        watch: told the share of the time that has passed.

    Returns:
        The medians, a row a memory layout.
    """
    inputs, targets = (each[: experiment.batch_size] for each in data[:2])
    builds = {"rival": experiment.rival.build, "ours": experiment.ours.build, "without": experiment.without}
    runs = {}
    for layout in experiment.layouts:
        memory_format = _MEMORY_FORMATS[layout]
        for name, build in builds.items():
            if build is not None:
                model = build_model(build, seed, device)
                model.to(memory_format=memory_format)  # type: ignore[call-overload]
                batch = inputs.contiguous(memory_format=memory_format)
                runs[layout, name] = (Trainer(model, experiment.learning_rate), batch)

    times: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
    start, seconds = time.perf_counter(), experiment.timing_seconds
    forwards, backwards = list(runs), list(reversed(runs))
    while (passed := time.perf_counter() - start) < seconds or len(times[forwards[0]]) < WARM_UP_STEPS + _LEAST_STEPS:
        watch(min(1.0, passed / seconds))
        # There and back, so that none always follows the same other.
        for key in (*forwards, *backwards):
            trainer, batch = runs[key]
            times[key].append(trainer.step(batch, targets)[2])
    watch(1.0)
    return tuple(
        _make_step_time(layout, {name: each[WARM_UP_STEPS:] for (of, name), each in times.items() if of == layout})
        for layout in experiment.layouts
    )


def _make_step_time(layout: str, times: dict[str, list[float]]) -> StepTime:
    quartiles = {name: statistics.quantiles(each, n=4) for name, each in times.items()}
    medians = {name: median for name, (_, median, _) in quartiles.items()}
    spread = max((high - low) / median for low, median, high in quartiles.values())
    return StepTime(layout, medians["rival"], medians["ours"], medians.get("without"), spread)
