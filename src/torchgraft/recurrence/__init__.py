"""Write the cell; get the sequence: a recurrence from one step in PyTorch."""

from torchgraft.recurrence.cell import Cell
from torchgraft.recurrence.sequence import Recurrence

__all__ = ["Cell", "Recurrence"]
