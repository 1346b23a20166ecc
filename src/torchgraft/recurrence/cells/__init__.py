"""The cells of PyTorch's own recurrent layers, for which torchgraft's libraries hold kernels (operators.py).

`python tools/recurrent_kernels.py` writes those kernels, a folder each; a test compares them with the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from torchgraft.recurrence.cell import Cell

_Gates = Sequence[Tensor]


def lstm_step(gates: _Gates, message_gates: _Gates, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of `torch.nn.LSTM`."""
    i, f, g, o = (gate + more for gate, more in zip(gates, message_gates, strict=True))
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def gru_step(gates: _Gates, message_gates: _Gates, h: Tensor) -> Tensor:
    """One step of `torch.nn.GRU`."""
    r, z = torch.sigmoid(gates[0] + message_gates[0]), torch.sigmoid(gates[1] + message_gates[1])
    n = torch.tanh(gates[2] + r * message_gates[2])
    return (1 - z) * n + z * h


def rnn_tanh_step(gates: _Gates, message_gates: _Gates, h: Tensor) -> Tensor:
    """One step of `torch.nn.RNN`."""
    return torch.tanh(gates[0] + message_gates[0])


def rnn_relu_step(gates: _Gates, message_gates: _Gates, h: Tensor) -> Tensor:
    """One step of `torch.nn.RNN`, with relu."""
    return torch.relu(gates[0] + message_gates[0])


# The step of each, its gates and its states.
_STEPS: dict[str, tuple[Callable[..., Any], int, int]] = {
    "lstm": (lstm_step, 4, 2),
    "gru": (gru_step, 3, 1),
    "rnn_tanh": (rnn_tanh_step, 1, 1),
    "rnn_relu": (rnn_relu_step, 1, 1),
}
NAMES = tuple(_STEPS)
# The namespace of the operators, and the beginning of the names of their libraries.
NAMESPACE = "torchgraft_recurrences"


@cache
def cell(name: str) -> Cell:
    """The cell of a recurrence.

    Args:
        name: one of NAMES.
    """
    step, gates, states = _STEPS[name]
    return Cell(step, gates=gates, states=states)
