"""The comparison of a network before and after grafting."""

import math
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from torchgraft.benchmarking.environment import Environment, describe_environment
from torchgraft.demo.data import Data
from torchgraft.demo.experiment import Experiment
from torchgraft.demo.timing import StepTime, time_steps
from torchgraft.demo.training import Curve, Progress, build_model, train
from torchgraft.fallback import Fallback, PerformanceWarning, fallbacks
from torchgraft.grafting import graft, graft_report

ORIGINAL = "PyTorch"
GRAFTED = "torchgraft"


class Watch(Protocol):
    """Someone who is told how far a comparison is."""

    def training(self, run: str, progress: Progress) -> None:
        """After each step of a training."""

    def timing(self, share: float) -> None:
        """While steps are timed, with the share that is done."""


@dataclass(frozen=True)
class Comparison:
    """A network trained twice, from the same seed and in the same order.

    Attributes:
        experiment: what was trained.
        environment: where and when.
        epochs: passes over the training data.
        seed: of the network and of the order of the examples.
        parameters: numbers that the network learns.
        grafted_layers: names of the layers that grafting replaced.
        left_layers: names of the convolutions that it left.
        original: the curve of PyTorch's layers.
        grafted: the curve of torchgraft's.
        step_times: a step of both, timed in turn.
        fallbacks: what had no kernel and ran on a reference.
    """

    experiment: Experiment
    environment: Environment
    epochs: int
    seed: int
    parameters: int
    grafted_layers: tuple[str, ...]
    left_layers: tuple[str, ...]
    original: Curve
    grafted: Curve
    step_times: tuple[StepTime, ...]
    fallbacks: tuple[Fallback, ...]

    @property
    def differences(self) -> tuple[float, ...]:
        """How far the two losses of each step are from each other."""
        return tuple(abs(a - b) for a, b in zip(self.original.losses, self.grafted.losses, strict=True))

    @property
    def first_epoch_difference(self) -> float:
        """The largest difference in the first epoch, before training has magnified what rounding began."""
        return _largest(self.differences[: len(self.differences) // self.epochs])

    @property
    def largest_difference(self) -> float:
        """The largest difference of all."""
        return _largest(self.differences)

    @property
    def problems(self) -> tuple[str, ...]:
        """In what respects the comparison failed; none where it passed."""
        # The comparisons say "not at least", since nan is never less.
        problems = []
        if not self.grafted_layers:
            problems.append("no layer was grafted")
        for name, curve in ((ORIGINAL, self.original), (GRAFTED, self.grafted)):
            if not curve.accuracy >= self.experiment.least_accuracy:
                problems.append(
                    f"{name} gets {curve.accuracy:.1%} of the test data right, "
                    f"less than {self.experiment.least_accuracy:.0%}"
                )
        if not self.largest_difference <= self.experiment.tolerance:
            problems.append(
                f"the loss curves differ by {self.largest_difference:.2g}, more than {self.experiment.tolerance:g}"
            )
        return tuple(problems)


def compare(
    experiment: Experiment, device: torch.device, watch: Watch, epochs: int | None = None, seed: int = 0
) -> Comparison:
    """Trains a network as it is and grafted, and times a step of both.

    Args:
        experiment: what to train.
        device: where.
        watch: told of the progress.
        epochs: passes over the training data; None for the experiment's own number.
        seed: of the network and of the order of the examples.

    Returns:
        Both curves, and what they have in common.
    """
    epochs = epochs or experiment.epochs
    before = fallbacks()
    data = experiment.load().to(device)
    original = build_model(experiment, seed, device)
    grafted = graft(build_model(experiment, seed, device))
    report = graft_report(grafted)

    with _repeatable(), warnings.catch_warnings():
        # What ran on a reference is in the result.
        warnings.simplefilter("ignore", PerformanceWarning)

        def run(name: str, model: torch.nn.Module, data: Data) -> Curve:
            return train(model, data, experiment, epochs, seed, lambda progress: watch.training(name, progress))

        original_curve, grafted_curve = run(ORIGINAL, original, data), run(GRAFTED, grafted, data)
        step_times = time_steps(experiment, data, seed, device, watch.timing)

    return Comparison(
        experiment,
        describe_environment(device),
        epochs,
        seed,
        sum(parameter.numel() for parameter in original.parameters()),
        report.grafted,
        tuple(report.left),
        original_curve,
        grafted_curve,
        step_times,
        tuple(each for each in fallbacks() if each not in before),
    )


def _largest(differences: Sequence[float]) -> float:
    """The largest, and nan where there is one, which `max` may pass over."""
    return max(differences, key=lambda difference: (math.isnan(difference), difference))


def _repeatable() -> AbstractContextManager[object]:
    """A scope in which cuDNN gives the same bits at each run, and float32 means float32."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
