"""leaky_rnn: a continuous-time recurrent network in steps of time, whose units fire at the rate tanh(h)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchgraft import Cell, Recurrence


def leaky_rnn_step(gates: Sequence[Tensor], message_gates: Sequence[Tensor], h: Tensor, alpha: Tensor) -> Tensor:
    """One step of Euler's method: `tau dh/dt = -h + weight_hh r + weight_ih u + bias`, with alpha = dt / tau."""
    return (1 - alpha) * h + alpha * (gates[0] + message_gates[0])


# leaky_rnn(input, weight_ih, weight_hh, bias, initial, parameters=[alpha]): the rates, and the last h. The units tell
# each other their rates, which are also the output.
leaky_rnn = Recurrence(
    "gallery::leaky_rnn",
    Cell(leaky_rnn_step, gates=1, states=1, parameters=1, message=torch.tanh, output=torch.tanh),
    # A potential of which more than all leaks grows from step to step.
    ranges={"alpha": (0.0, 1.0)},
)
