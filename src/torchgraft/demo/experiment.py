"""Describes an experiment: the networks, the data, and when the comparison counts as passed."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from torchgraft.demo.data import Data

BOTH_LAYOUTS = ("contiguous", "channels_last")


@dataclass(frozen=True)
class Network:
    """One of two networks.

    Attributes:
        name: the head of its column.
        build: makes it from PyTorch's random numbers.
    """

    name: str
    build: Callable[[], nn.Module]


@dataclass(frozen=True)
class Experiment:
    """Two classifiers to be trained from the same random numbers, on the same data in the same order.

    Attributes:
        name: one word, for the command line.
        title: what is trained on what, for a heading.
        rival: the network of PyTorch's layers.
        ours: the network with torchgraft's.
        load: the data.
        epochs: passes over the training data.
        batch_size: examples a step.
        learning_rate: the largest; it rises over the first epoch and then falls along a cosine.
        least_accuracy: the share of the test data that both networks must get right.
        tolerance: the largest difference between the two losses of a step that rounding explains; None where the two
            networks are not the same function.
        timing_seconds: how long steps are timed once both are trained.
        layouts: of images and weights, in which steps are timed.
        without: makes the network without the layers in which the two differ, so that a step's share in them is known.
        describe: a sentence on both networks, to stand below the figures.
    """

    name: str
    title: str
    rival: Network
    ours: Network
    load: Callable[[], Data]
    epochs: int
    batch_size: int
    learning_rate: float
    least_accuracy: float
    tolerance: float | None
    timing_seconds: float
    layouts: tuple[str, ...] = ("contiguous",)
    without: Callable[[], nn.Module] | None = None
    describe: Callable[[nn.Module, nn.Module], str] = lambda rival, ours: ""

    @property
    def module(self) -> str:
        """The module of our network: what it imports decides how long a step takes."""
        return str(getattr(self.ours.build, "func", self.ours.build).__module__)
