"""Sequences through the layers of a recurrent network: batches, packed ones, directions and dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from torchgraft.arguments import record_call, require_tensor

# Runs one layer in one direction: (values, states, weights, batch_sizes, reverse) -> (output, last states).
RunLayer = Callable[..., tuple[Tensor, Sequence[Tensor]]]


class Kind(NamedTuple):
    """A kind of recurrent network.

    Attributes:
        state_names: of the states before the first step, as in errors; where there is one it is no tuple.
        run: one layer in one direction.
    """

    state_names: tuple[str, ...]
    run: RunLayer


# By the names of their layers: a call that torch.fx records holds the name.
kinds: dict[str, Kind] = {}


def run_sequences(
    name: str,
    input: Tensor | PackedSequence,
    hx: Any,
    weights: Sequence[Sequence[Tensor | None]],
    directions: int,
    batch_first: bool,
    dropout: float,
    training: bool,
) -> tuple[Tensor | PackedSequence, Any]:
    """Sequences through all layers of a network, whose forward pass says what goes in and what comes out.

    Args:
        name: of the kind of network.
        input: as there.
        hx: as there.
        weights: weight_ih, weight_hh and biases of each layer and direction.
        directions: 1 or 2.
        batch_first: as in the layer.
        dropout: as in the layer.
        training: whether outputs are dropped.

    Returns:
        (output, last states).

    Raises:
        TypeError: input is not a tensor, or hx is not tensors.
        ValueError: sizes do not fit.
    """
    kind = kinds[name]
    are_tensors = isinstance(input, (Tensor, PackedSequence)) and isinstance(weights[0][0], Tensor)
    if not (are_tensors and _are_states(kind, hx)):
        recorded = record_call(run_sequences, name, input, hx, weights, directions, batch_first, dropout, training)
        if recorded is not None:
            return recorded[0], recorded[1]
        _require_states(name, kind, hx)
        if not isinstance(input, PackedSequence):
            require_tensor(name, "input", input)
    features, size = weights[0][0].shape[1], weights[0][1].shape[1]  # type: ignore[union-attr]

    def states_of(values: Tensor, *batch: int) -> list[Tensor]:
        expected = (len(weights), *batch, size)
        if hx is None:
            return [values.new_zeros(expected)] * len(kind.state_names)
        states = list(hx) if len(kind.state_names) > 1 else [hx]
        for state_name, state in zip(kind.state_names, states, strict=True):
            if tuple(state.shape) != expected:
                raise ValueError(f"{name}: {state_name} must be {expected}, got {tuple(state.shape)}")
        return states

    def run(values: Tensor, states: Sequence[Tensor], batch_sizes: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        return run_layers(kind, values, states, batch_sizes, weights, directions, dropout, training)

    def given(states: Sequence[Tensor]) -> Any:
        return tuple(states) if len(states) > 1 else states[0]

    if isinstance(input, PackedSequence):
        _require_features(name, input.data, features)
        states = states_of(input.data, int(input.batch_sizes[0]))
        if hx is not None and input.sorted_indices is not None:
            states = [state.index_select(1, input.sorted_indices) for state in states]
        output, last = run(input.data, states, input.batch_sizes)
        if input.unsorted_indices is not None:
            last = [state.index_select(1, input.unsorted_indices) for state in last]
        packed = PackedSequence(output, input.batch_sizes, input.sorted_indices, input.unsorted_indices)
        return packed, given(last)

    if input.dim() not in (2, 3):
        raise ValueError(f"{name}: input must have two or three dimensions, got {tuple(input.shape)}")
    batched = input.dim() == 3
    _require_features(name, input, features)
    if not batched:
        input = input.unsqueeze(1)
    elif batch_first:
        input = input.transpose(0, 1)
    states = states_of(input, *((input.shape[1],) if batched else ()))
    if not batched:
        states = [state.unsqueeze(1) for state in states]
    output, last = run(input, states, None)
    if not batched:
        return output.squeeze(1), given([state.squeeze(1) for state in last])
    return output.transpose(0, 1) if batch_first else output, given(last)


def run_layers(
    kind: Kind,
    values: Tensor,
    states: Sequence[Tensor],
    batch_sizes: Tensor | None,
    weights: Sequence[Sequence[Tensor | None]],
    directions: int,
    dropout: float,
    training: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Runs all layers of a network over a batch of sequences, or a packed one.

    Args:
        kind: of network.
        values: (T, B, I), or with batch_sizes (the sum of them, I).
        states: before the first step, (L * D, B, S) each.
        batch_sizes: how many sequences take part in each step of a packed sequence.
        weights: weight_ih, weight_hh and biases of each layer and direction.
        directions: 1 or 2.
        dropout: the probability with which an output of any layer but the last becomes zero.
        training: whether outputs are dropped.

    Returns:
        The output of the last layer, and the last states of every layer and direction.
    """
    last: list[Sequence[Tensor]] = []
    for first in range(0, len(weights), directions):
        outputs = []
        for place in range(first, first + directions):
            begin = [state[place] for state in states]
            output, ended = kind.run(values, begin, weights[place], batch_sizes, place > first)
            outputs.append(output)
            last.append(ended)
        values = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        if dropout > 0 and first + directions < len(weights):
            values = torch.nn.functional.dropout(values, dropout, training)
    return values, [torch.stack(each) for each in zip(*last, strict=True)]


def _are_states(kind: Kind, hx: Any) -> bool:
    """Whether a layer can take states as they are: a tensor or tensors, or None."""
    if hx is None:
        return True
    if len(kind.state_names) == 1:
        return isinstance(hx, Tensor)
    is_right = isinstance(hx, (tuple, list)) and len(hx) == len(kind.state_names)
    return is_right and all(isinstance(each, Tensor) for each in hx)


def _require_states(name: str, kind: Kind, hx: Any) -> None:
    if hx is None:
        return
    if len(kind.state_names) == 1:
        require_tensor(name, kind.state_names[0], hx)
        return
    if not isinstance(hx, (tuple, list)) or len(hx) != len(kind.state_names):
        raise TypeError(f"{name}: hx must be a pair ({', '.join(kind.state_names)}), got {type(hx).__name__}")
    for state_name, state in zip(kind.state_names, hx, strict=True):
        require_tensor(name, state_name, state)


def _require_features(name: str, input: Tensor, features: int) -> None:
    if input.shape[-1] != features:
        raise ValueError(f"{name}: input must have {features} features, got {input.shape[-1]}")
