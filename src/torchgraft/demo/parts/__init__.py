"""What the demo shows, a file each."""

from torchgraft.demo.experiment import Experiment
from torchgraft.demo.parts.convnext import CONVNEXT

PARTS: tuple[Experiment, ...] = (CONVNEXT,)
"""In the order in which they are shown."""
