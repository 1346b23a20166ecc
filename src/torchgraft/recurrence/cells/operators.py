"""The recurrences of PyTorch's own recurrent layers, `torchgraft::lstm` and the like.

They are declared when this file is imported, which takes seconds, as PyTorch traces the cells.
"""

from __future__ import annotations

from torchgraft.operator import FLOATING
from torchgraft.recurrence.cells import cell
from torchgraft.recurrence.sequence import Recurrence

_KERNELS = {"cpu": FLOATING, "cuda": FLOATING}

lstm = Recurrence("torchgraft::lstm", cell("lstm"), kernels=_KERNELS)
gru = Recurrence("torchgraft::gru", cell("gru"), kernels=_KERNELS)
rnn_tanh = Recurrence("torchgraft::rnn_tanh", cell("rnn_tanh"), kernels=_KERNELS)
rnn_relu = Recurrence("torchgraft::rnn_relu", cell("rnn_relu"), kernels=_KERNELS)
