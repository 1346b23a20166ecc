"""The demo: pairs of networks, PyTorch's and ours, trained on the same data in the same order, and compared.

Needs the extra `torchgraft[demo]`. Another part of it is another file in `parts`.
"""

from torchgraft.demo.comparison import Comparison, compare
from torchgraft.demo.experiment import Experiment, Network
from torchgraft.demo.parts import PARTS

__all__ = ["PARTS", "Comparison", "Experiment", "Network", "compare"]
