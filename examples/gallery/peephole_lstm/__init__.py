"""peephole_lstm: an LSTM whose gates also see the cell state."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchgraft import Cell, Recurrence


def peephole_lstm_step(
    gates: Sequence[Tensor],
    message_gates: Sequence[Tensor],
    h: Tensor,
    c: Tensor,
    peephole_i: Tensor,
    peephole_f: Tensor,
    peephole_o: Tensor,
) -> tuple[Tensor, Tensor]:
    """One step, with the gates in the order of `torch.nn.LSTM`: input, forget, candidate, output."""
    i, f, g, o = (gate + more for gate, more in zip(gates, message_gates, strict=True))
    c_before = c
    c = torch.sigmoid(f + peephole_f * c_before) * c_before + torch.sigmoid(i + peephole_i * c_before) * torch.tanh(g)
    # The output gate sees the new cell state, the other two that of the step before.
    return torch.sigmoid(o + peephole_o * c) * torch.tanh(c), c


# peephole_lstm(input, weight_ih, weight_hh, bias, (h, c), parameters=[peephole_i, peephole_f, peephole_o]): all h, and
# the last (h, c).
peephole_lstm = Recurrence("gallery::peephole_lstm", Cell(peephole_lstm_step, gates=4, states=2, parameters=3))
