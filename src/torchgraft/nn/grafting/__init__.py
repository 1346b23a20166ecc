"""graft(model): PyTorch's depthwise and recurrent layers stay what they are, and compute on torchgraft's operators."""

from torchgraft.nn.grafting.functional import functional_calls
from torchgraft.nn.grafting.layers import graft, ungraft
from torchgraft.nn.grafting.report import GraftReport, graft_report

__all__ = ["GraftReport", "functional_calls", "graft", "graft_report", "ungraft"]
