"""The parts of the demo, one file each."""

from torchgraft.demo.experiment import Experiment
from torchgraft.demo.parts.characters import CHARACTER_MODEL
from torchgraft.demo.parts.convnext import CONVNEXT
from torchgraft.demo.parts.shifts import SHIFTS

PARTS: tuple[Experiment, ...] = (CONVNEXT, SHIFTS, CHARACTER_MODEL)
"""In the order in which they are shown."""
