"""What is trained, on what, and when the comparison counts as passed."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from torchgraft.demo.data import Data, digits
from torchgraft.demo.network import SmallConvNeXt


@dataclass(frozen=True)
class Experiment:
    """A classifier to be trained twice, before and after `torchgraft.graft`.

    Attributes:
        title: what is trained on what, for a heading.
        build: makes the network, of PyTorch's own layers, from PyTorch's random numbers.
        load: the data.
        epochs: passes over the training data.
        batch_size: examples a step.
        learning_rate: the largest; it rises over the first epoch and then falls along a cosine.
        least_accuracy: the share of the test data that both networks must get right.
        tolerance: the largest difference between the two losses of a step that rounding explains.
        timing_seconds: how long steps are timed once both are trained.
    """

    title: str
    build: Callable[[], nn.Module]
    load: Callable[[], Data]
    epochs: int
    batch_size: int
    learning_rate: float
    least_accuracy: float
    tolerance: float
    timing_seconds: float


DIGITS = Experiment(
    title="A small ConvNeXt on handwritten digits",
    build=lambda: SmallConvNeXt(in_channels=1, classes=10),
    load=digits,
    epochs=10,
    batch_size=32,
    learning_rate=2e-3,
    least_accuracy=0.97,
    # Rounding alone gives differences of 1e-6; a wrong gradient gives 0.1.
    tolerance=1e-3,
    # A median over some fifty steps of each of the six networks on two CPU cores.
    timing_seconds=12.0,
)
