"""The demo: one network trained twice, on PyTorch's layers and on torchgraft's, and the two compared.

Needs the extra `torchgraft[demo]`. Another demo is another `Experiment`.
"""

from torchgraft.demo.comparison import Comparison, compare
from torchgraft.demo.experiment import DIGITS, Experiment

__all__ = ["DIGITS", "Comparison", "Experiment", "compare"]
