"""A packed sequence as a few whole ones: steps in which equally many sequences take part are one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from torchgraft.arguments import require_tensor


def over_packed(
    name: str,
    run: Callable[..., Sequence[Tensor]],
    input: Tensor,
    states: Mapping[str, Tensor],
    batch_sizes: Tensor,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """Runs a recurrence over a packed sequence, as `torch.nn.utils.rnn.PackedSequence` holds it.

    Args:
        name: of the recurrence, for errors.
        run: the recurrence over a whole sequence: `run(input, *states)` returns its output and the states after it.
        input: (sum of batch_sizes, I).
        states: before the first step, (B, S) each, B the first of batch_sizes; by their names, for errors.
        batch_sizes: how many sequences take part in each step; they never become more.
        reverse: from the last step to the first.

    Returns:
        The output, packed as input is, and the states after each sequence's last step.

    Raises:
        RuntimeError: it is recorded by `torch.jit.trace`.
        TypeError: a state is not a tensor.
        ValueError: batch_sizes make no sense, or do not fit input and states.
    """
    sizes = _checked_sizes(name, input, states, batch_sizes)
    runs = [(batch, len(list(steps))) for batch, steps in groupby(sizes)]
    pieces = input.split([batch * steps for batch, steps in runs])
    first, outputs = tuple(states.values()), list[Tensor]()
    if not reverse:
        current: Sequence[Tensor] = first
        # Of the sequences that have ended, the shortest first.
        ended: list[Sequence[Tensor]] = []
        for (batch, steps), piece in zip(runs, pieces, strict=True):
            if batch < current[0].shape[0]:
                ended.append([state[batch:] for state in current])
                current = [state[:batch] for state in current]
            output, *current = run(piece.unflatten(0, (steps, batch)), *current)
            outputs.append(output.flatten(0, 1))
        ended.append(current)
        return torch.cat(outputs), *(torch.cat(each) for each in zip(*reversed(ended), strict=True))

    current = [state[:0] for state in first]
    for (batch, steps), piece in zip(reversed(runs), reversed(pieces), strict=True):
        begun = current[0].shape[0]
        current = [torch.cat((state, each[begun:batch])) for state, each in zip(current, first, strict=True)]
        output, *current = run(piece.unflatten(0, (steps, batch)), *current)
        outputs.append(output.flatten(0, 1))
    return torch.cat(outputs[::-1]), *current


def _checked_sizes(name: str, input: Tensor, states: Mapping[str, Tensor], batch_sizes: Any) -> list[int]:
    if not isinstance(batch_sizes, Tensor) or batch_sizes.is_floating_point() or batch_sizes.dim() != 1:
        raise ValueError(f"{name}: batch_sizes must be a one-dimensional tensor of integers, as in a PackedSequence")
    if torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise RuntimeError(
            f"{name}: torch.jit.trace would compute sequences of the lengths of its example alone, whatever the program"
            " is given: trace it with sequences that are not packed, or with PyTorch's layer"
        )
    sizes: list[int] = batch_sizes.tolist()
    if not sizes or min(sizes) < 1 or sizes != sorted(sizes, reverse=True):
        raise ValueError(f"{name}: batch_sizes must be positive and never grow from step to step, got {sizes}")
    if input.dim() != 2 or input.shape[0] != sum(sizes):
        raise ValueError(f"{name}: input must be ({sum(sizes)}, I) for these batch_sizes, got {tuple(input.shape)}")
    for argument, state in states.items():
        require_tensor(name, argument, state)
        if state.dim() != 2 or state.shape[0] != sizes[0]:
            raise ValueError(
                f"{name}: {argument} must be ({sizes[0]}, S) for these batch_sizes, got {tuple(state.shape)}"
            )
    return sizes
