"""slstm: the sLSTM of xLSTM, with exponential gates, a normaliser, a stabiliser, and heads."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchgraft import Cell, Recurrence

_GATES = 4


def slstm_step(
    gates: Sequence[Tensor], message_gates: Sequence[Tensor], h: Tensor, c: Tensor, n: Tensor, m: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One step, with the gates in the order input, forget, candidate, output."""
    i, f, z, o = (gate + more for gate, more in zip(gates, message_gates, strict=True))
    # c and n are exp(-m) times those of the paper: a step divides one by the other. Where n is zero there is no past,
    # and m must not come from it.
    log_f = torch.where(n > 0, m + F.logsigmoid(f), i)
    m = torch.maximum(log_f, i)
    kept, new = torch.exp(log_f - m), torch.exp(i - m)
    c, n = kept * c + new * torch.tanh(z), kept * n + new
    return torch.sigmoid(o) * c / n, c, n, m


# recurrence(input, weight_ih, weight_hh, bias, (h, c, n, m)): all h, and the last states. n is a sum of exponentials.
recurrence = Recurrence("gallery::slstm", Cell(slstm_step, gates=_GATES, states=4), ranges={"n": (0.5, 2.0)})


def across_heads(weight: Tensor) -> Tensor:
    """The recurrent weights of all heads as one matrix, block-diagonal in each gate.

    Args:
        weight: (heads, 4 * D, D), the weights of each head of D units, in four gates.

    Returns:
        (4 * H, H), where H = heads * D.
    """
    heads, _, units = weight.shape
    blocks = weight.view(heads, _GATES, units, units).permute(1, 2, 3, 0)
    return torch.diag_embed(blocks, dim1=1, dim2=3).reshape(_GATES * heads * units, heads * units)


def slstm(
    input: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    initial: Sequence[Tensor] | None = None,
    **options: Any,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Runs an sLSTM over all steps, all heads in one recurrence.

    Args:
        input: (T, B, I).
        weight_ih: (4 * H, I), of the gates input, forget, candidate and output, where H = heads * D units.
        weight_hh: (heads, 4 * D, D); the units of a head send messages to each other alone.
        bias: (4 * H), or None.
        initial: h, c, n and m before the first step, (B, H) each; n is positive, or zero if there is no past. None:
            zeros.
        options: `reverse` and `batch_sizes`, as a `Recurrence` takes them.

    Returns:
        (output, (h, c, n, m)): the output of each step, (T, B, H), and the last states, (B, H) each.
    """
    output, final = recurrence(input, weight_ih, across_heads(weight_hh), bias, initial, **options)
    return output, final
