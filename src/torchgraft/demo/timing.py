"""What a training step costs, with networks timed in turn: a drift of the machine meets all of them alike."""

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from torchgraft.demo.data import Data
from torchgraft.demo.experiment import Experiment
from torchgraft.demo.training import WARM_UP_STEPS, Trainer, build_model
from torchgraft.grafting import graft, graft_report

# Enough for quartiles, however long they take.
_LEAST_STEPS = 8
_LARGEST_SPREAD = 0.25

_LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


@dataclass(frozen=True)
class StepTime:
    """Medians of the milliseconds of a training step in one memory layout.

    Attributes:
        layout: of images and weights.
        original: with PyTorch's layers.
        grafted: with torchgraft's.
        without: with the layers that were grafted left out, which is the part of a step that grafting cannot change.
        spread: the largest distance between the quartiles of any of the three, as a share of its median.
    """

    layout: str
    original: float
    grafted: float
    without: float
    spread: float

    @property
    def trusted(self) -> bool:
        """Whether the times agree well enough among themselves to be compared."""
        return self.spread <= _LARGEST_SPREAD

    @property
    def speedup(self) -> float:
        """How many times faster a step is after grafting."""
        return self.original / self.grafted

    @property
    def share(self) -> float:
        """The share of the original step that the grafted layers take."""
        return max(0.0, 1 - self.without / self.original)


def time_steps(
    experiment: Experiment, data: Data, seed: int, device: torch.device, watch: Callable[[float], None]
) -> tuple[StepTime, ...]:
    """Times training steps of the network as it is, grafted, and without the layers that are grafted.

    Args:
        experiment: whose network; the layers that are grafted must keep the shape of their input.
        data: the batch of the steps is its beginning.
        seed: of the network.
        device: where.
        watch: told the share of the time that has passed.

    Returns:
        The medians, a row a memory layout.
    """
    inputs, targets = (each[: experiment.batch_size] for each in data[:2])
    runs = {}
    for layout, memory_format in _LAYOUTS.items():
        original = build_model(experiment, seed, device)
        original.to(memory_format=memory_format)  # type: ignore[call-overload]
        variants = {
            "original": original,
            "grafted": graft(copy.deepcopy(original)),
            "without": _without_graftable(copy.deepcopy(original)),
        }
        batch = inputs.contiguous(memory_format=memory_format)
        for name, model in variants.items():
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
        _make_step_time(layout, {name: times[layout, name][WARM_UP_STEPS:] for name in variants}) for layout in _LAYOUTS
    )


def _make_step_time(layout: str, times: dict[str, list[float]]) -> StepTime:
    quartiles = {name: statistics.quantiles(each, n=4) for name, each in times.items()}
    medians = {name: median for name, (_, median, _) in quartiles.items()}
    return StepTime(layout, **medians, spread=max((high - low) / median for low, median, high in quartiles.values()))


def _without_graftable(model: nn.Module) -> nn.Module:
    for name in graft_report(model).graftable:
        model.set_submodule(name, nn.Identity())
    return model
