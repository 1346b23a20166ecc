"""A packed sequence as a few whole ones: steps in which equally many sequences take part are one call."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from torchgraft.arguments import require_tensor


def over_packed(
    run: Callable[..., tuple[Tensor, Tensor, Tensor]],
    input: Tensor,
    h0: Tensor,
    c0: Tensor,
    weights: tuple[Tensor, Tensor, Tensor | None],
    batch_sizes: Tensor,
    reverse: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs a recurrence over a packed sequence; see `lltm`.

    Args:
        run: the recurrence over a whole sequence: `run(input, h, c, *weights, reverse, allow_tf32)`.
        input: (sum of batch_sizes, I).
        h0: (B, S), B the first of batch_sizes.
        c0: (B, S).
        weights: passed on.
        batch_sizes: how many sequences take part in each step; they never become more.
        reverse: from the last step to the first.
        allow_tf32: passed on.

    Returns:
        (output, h_n, c_n).

    Raises:
        TypeError: a state is not a tensor.
        ValueError: batch_sizes make no sense, or do not fit input and states.
    """
    sizes = _checked_sizes(input, h0, c0, batch_sizes)
    runs = [(batch, len(list(steps))) for batch, steps in groupby(sizes)]
    pieces = input.split([batch * steps for batch, steps in runs])
    outputs: list[Tensor] = []
    if not reverse:
        h, c = h0, c0
        # Of the sequences that have ended, the shortest first.
        ended: list[tuple[Tensor, Tensor]] = []
        for (batch, steps), piece in zip(runs, pieces, strict=True):
            if batch < h.shape[0]:
                ended.append((h[batch:], c[batch:]))
                h, c = h[:batch], c[:batch]
            output, h, c = run(piece.unflatten(0, (steps, batch)), h, c, *weights, reverse, allow_tf32)
            outputs.append(output.flatten(0, 1))
        ended.append((h, c))
        h_n, c_n = (torch.cat(states) for states in zip(*reversed(ended), strict=True))
        return torch.cat(outputs), h_n, c_n

    h, c = h0[:0], c0[:0]
    for (batch, steps), piece in zip(reversed(runs), reversed(pieces), strict=True):
        begun = h.shape[0]
        h, c = torch.cat((h, h0[begun:batch])), torch.cat((c, c0[begun:batch]))
        output, h, c = run(piece.unflatten(0, (steps, batch)), h, c, *weights, reverse, allow_tf32)
        outputs.append(output.flatten(0, 1))
    return torch.cat(outputs[::-1]), h, c


def _checked_sizes(input: Tensor, h0: Tensor, c0: Tensor, batch_sizes: Any) -> list[int]:
    if not isinstance(batch_sizes, Tensor) or batch_sizes.is_floating_point() or batch_sizes.dim() != 1:
        raise ValueError("lltm: batch_sizes must be a one-dimensional tensor of integers, as in a PackedSequence")
    sizes: list[int] = batch_sizes.tolist()
    if not sizes or min(sizes) < 1 or sizes != sorted(sizes, reverse=True):
        raise ValueError(f"lltm: batch_sizes must be positive and never grow from step to step, got {sizes}")
    if input.dim() != 2 or input.shape[0] != sum(sizes):
        raise ValueError(f"lltm: input must be ({sum(sizes)}, I) for these batch_sizes, got {tuple(input.shape)}")
    for name, state in (("h0", h0), ("c0", c0)):
        require_tensor("lltm", name, state)
        if state.dim() != 2 or state.shape[0] != sizes[0]:
            raise ValueError(f"lltm: {name} must be ({sizes[0]}, S) for these batch_sizes, got {tuple(state.shape)}")
    return sizes
