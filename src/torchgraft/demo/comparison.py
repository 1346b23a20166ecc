"""The comparison of two networks, each trained."""

import math
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from torchgraft.benchmarking.provenance import Provenance, provenance_of_module
from torchgraft.demo.experiment import Experiment, Network
from torchgraft.demo.timing import StepTime, time_steps
from torchgraft.demo.training import Curve, Progress, build_model, train
from torchgraft.kernels.fallback import Fallback, PerformanceWarning, fallbacks
from torchgraft.machine.environment import Environment, describe_environment


class TrainingWatch(Protocol):
    """Someone who is told how far a comparison is."""

    def training(self, run: str, progress: Progress) -> None:
        """After each step of a training."""

    def timing(self, share: float) -> None:
        """While steps are timed, with the share that is done."""


@dataclass(frozen=True)
class Comparison:
    """Two networks trained from the same seed, on the same examples in the same order.

    Attributes:
        experiment: what was trained.
        environment: where and when.
        epochs: passes over the training data.
        seed: of the networks and of the order of the examples.
        parameters: numbers that each network learns, the rival's first.
        description: what the experiment says of its networks.
        rival: the curve of the rival.
        ours: the curve of the network with torchgraft's layers.
        step_times: a step of both, timed in turn.
        fallbacks: what had no kernel and ran on a reference.
        provenance: of which sources it was measured.
    """

    experiment: Experiment
    environment: Environment
    epochs: int
    seed: int
    parameters: tuple[int, int]
    description: str
    rival: Curve
    ours: Curve
    step_times: tuple[StepTime, ...]
    fallbacks: tuple[Fallback, ...]
    provenance: Provenance

    @property
    def differences(self) -> tuple[float, ...]:
        """How far the two losses of each step are from each other."""
        return tuple(abs(a - b) for a, b in zip(self.rival.losses, self.ours.losses, strict=True))

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
        experiment = self.experiment
        for network, curve in ((experiment.rival, self.rival), (experiment.ours, self.ours)):
            if not curve.accuracy >= experiment.least_accuracy:
                problems.append(
                    f"{network.name} gets {curve.accuracy:.1%} of the test data right, "
                    f"less than {experiment.least_accuracy:.0%}"
                )
        if experiment.tolerance is not None and not self.largest_difference <= experiment.tolerance:
            problems.append(
                f"the loss curves differ by {self.largest_difference:.2g}, more than {experiment.tolerance:g}"
            )
        return tuple(problems)


def compare(
    experiment: Experiment, device: torch.device, watch: TrainingWatch, epochs: int | None = None, seed: int = 0
) -> Comparison:
    """Trains both networks of an experiment, and times a step of each.

    Args:
        experiment: what to train.
        device: where.
        watch: told of the progress.
        epochs: passes over the training data; None for the experiment's own number.
        seed: of the networks and of the order of the examples.

    Returns:
        Both curves, and what they have in common.
    """
    epochs = epochs or experiment.epochs
    before = fallbacks()
    data = experiment.load().to(device)
    rival, ours = (build_model(network.build, seed, device) for network in (experiment.rival, experiment.ours))

    with _repeatable(), warnings.catch_warnings():
        # What ran on a reference is in the result.
        warnings.simplefilter("ignore", PerformanceWarning)

        def run(network: Network, model: torch.nn.Module) -> Curve:
            return train(model, data, experiment, epochs, seed, lambda progress: watch.training(network.name, progress))

        rival_curve, our_curve = run(experiment.rival, rival), run(experiment.ours, ours)
        step_times = time_steps(experiment, data, seed, device, watch.timing)

    return Comparison(
        experiment,
        describe_environment(device),
        epochs,
        seed,
        (_count_parameters(rival), _count_parameters(ours)),
        experiment.describe(rival, ours),
        rival_curve,
        our_curve,
        step_times,
        tuple(each for each in fallbacks() if each not in before),
        provenance_of_module(experiment.module, device.type),
    )


def _count_parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _largest(differences: Sequence[float]) -> float:
    """The largest, and nan where there is one, which `max` may pass over."""
    return max(differences, key=lambda difference: (math.isnan(difference), difference))


def _repeatable() -> AbstractContextManager[object]:
    """A scope in which cuDNN gives the same bits at each run, and float32 means float32."""
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
