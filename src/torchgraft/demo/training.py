"""Training: the same steps for every network, so that two differ in their layers alone."""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchgraft.demo.data import Data
from torchgraft.demo.experiment import Experiment

# Steps at the beginning that a median leaves out: memory is first allocated, kernels are first chosen.
WARM_UP_STEPS = 5


@dataclass(frozen=True)
class Progress:
    """How far a training is: steps done of all, and of the last step its loss, its accuracy and its time."""

    step: int
    steps: int
    loss: float
    accuracy: float
    milliseconds: float


@dataclass(frozen=True)
class Curve:
    """The losses and times of a training.

    Attributes:
        losses: of each step, on its batch.
        milliseconds: that each step took.
        accuracy: the share of the test data that the trained network gets right.
    """

    losses: tuple[float, ...]
    milliseconds: tuple[float, ...]
    accuracy: float

    @property
    def step_milliseconds(self) -> float:
        """The median time of a step, the first few left out."""
        return statistics.median(self.milliseconds[WARM_UP_STEPS:] or self.milliseconds)


class Trainer:
    """A network and its optimiser."""

    def __init__(self, model: nn.Module, learning_rate: float, warm_up: int = 1, steps: int = 1) -> None:
        self._model = model.train()
        self._optimizer = torch.optim.AdamW(model.parameters(), learning_rate)

        def factor(step: int) -> float:
            return min((step + 1) / warm_up, (1 + math.cos(math.pi * step / steps)) / 2)

        self._schedule = torch.optim.lr_scheduler.LambdaLR(self._optimizer, factor)

    def step(self, inputs: Tensor, targets: Tensor) -> tuple[float, float, float]:
        """One step of training: its loss, its accuracy, and the milliseconds that it took."""
        start = _now(inputs.device)
        self._optimizer.zero_grad()
        logits = self._model(inputs)
        # A class may be asked for at each step of a sequence.
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        self._optimizer.step()
        milliseconds = (_now(inputs.device) - start) * 1e3
        self._schedule.step()
        return loss.item(), _accuracy(logits, targets), milliseconds


def build_model(build: Callable[[], nn.Module], seed: int, device: torch.device) -> nn.Module:
    """A network, the same for the same seed; PyTorch's random state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().to(device)


def train(
    model: nn.Module, data: Data, experiment: Experiment, epochs: int, seed: int, watch: Callable[[Progress], None]
) -> Curve:
    """Trains a model in place.

    Args:
        model: on the device of data.
        data: what to learn, and what to be tested on.
        experiment: how to train.
        epochs: passes over the training data.
        seed: of the order of the examples.
        watch: told of each step.

    Returns:
        The curve of this training; the same for the same model, data, epochs and seed.
    """
    batches = len(data.train_targets) // experiment.batch_size
    steps = epochs * batches
    trainer = Trainer(model, experiment.learning_rate, warm_up=batches, steps=steps)
    order = torch.Generator().manual_seed(seed)
    losses, times = [], []
    for _ in range(epochs):
        shuffled = torch.randperm(len(data.train_targets), generator=order).to(data.train_targets.device)
        for batch in shuffled[: batches * experiment.batch_size].split(experiment.batch_size):
            loss, accuracy, milliseconds = trainer.step(data.train_inputs[batch], data.train_targets[batch])
            losses.append(loss)
            times.append(milliseconds)
            watch(Progress(len(losses), steps, loss, accuracy, milliseconds))
    return Curve(tuple(losses), tuple(times), _test(model, data))


@torch.no_grad()
def _test(model: nn.Module, data: Data) -> float:
    return _accuracy(model.eval()(data.test_inputs), data.test_targets)


def _accuracy(logits: Tensor, targets: Tensor) -> float:
    return (logits.argmax(-1) == targets).float().mean().item()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
