"""The recurrences of PyTorch's own recurrent layers, `torchgraft_recurrences::lstm` and the like.

They are declared when this file is imported, which takes seconds, as PyTorch traces the cells.
"""

from __future__ import annotations

from pathlib import Path

from torchgraft import native
from torchgraft.operator import FLOATING
from torchgraft.recurrence.cells import NAMESPACE, cell
from torchgraft.recurrence.sequence import Recurrence

_KERNELS = {"cpu": FLOATING, "cuda": FLOATING}

lstm = Recurrence(f"{NAMESPACE}::lstm", cell("lstm"), kernels=_KERNELS)
gru = Recurrence(f"{NAMESPACE}::gru", cell("gru"), kernels=_KERNELS)
rnn_tanh = Recurrence(f"{NAMESPACE}::rnn_tanh", cell("rnn_tanh"), kernels=_KERNELS)
rnn_relu = Recurrence(f"{NAMESPACE}::rnn_relu", cell("rnn_relu"), kernels=_KERNELS)

_here = Path(__file__).parent
native.load(NAMESPACE, _here.parents[1] / "lib", sources=sorted([*_here.glob("*/*.cpp"), *_here.glob("*/*.cu")]))
