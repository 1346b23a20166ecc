"""The declaration of causal_conv1d_update, a step of decoding."""

import torch
from torch import Tensor

from torchgraft.arguments import record_call, stands_for_tensor
from torchgraft.operator import Operator
from torchgraft.operators.causal_conv1d import flops, reference
from torchgraft.operators.causal_conv1d.arguments import (
    Activation,
    check_dims,
    contents,
    dtypes_of,
    is_silu,
    like,
    require_width,
)
from torchgraft.operators.shared import require


def causal_conv1d_update(
    input: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: Activation = None,
    cache_seqlens: Tensor | None = None,
    state_indices: Tensor | None = None,
) -> Tensor:
    """Computes the next outputs of causal_conv1d from the last inputs, and keeps the new inputs: a step of decoding.

    Args:
        input: (batch, channels), or (batch, channels, length) for several elements at once.
        state: (batch, channels, state_length), the last inputs, of at least width - 1 elements; with state_indices
            (rows, channels, state_length). It is written to: without cache_seqlens its elements move to the front and
            the new ones are put at their end.
        weight: (channels, width), of a width of 1 to 256; may have another floating dtype than input, as for
            causal_conv1d.
        bias: (channels,); None: zero.
        activation: 'silu', or None for none.
        cache_seqlens: (batch,), int32, how many elements each sequence had before. The state is then a circular buffer:
            element i of a sequence lies at i modulo state_length, and nothing moves.
        state_indices: (batch,), int32, the row of the state of each entry of the batch, no row twice. A negative one
            marks a padding entry, whose output is zero and which writes nothing. On a CUDA device an index that is
            too large is taken for padding.

    Returns:
        The output, of the shape of input.

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: shapes do not fit, the state is too short or expanded, there is no such activation; on a CPU,
            state_indices has a row that is not there or the same one twice, or cache_seqlens is negative.
    """
    if stands_for_tensor(input):
        # How many dimensions it has is known when the recorded graph runs.
        return record_call(_causal_conv1d_update, input, state, weight, bias, activation, cache_seqlens, state_indices)
    silu = is_silu("causal_conv1d_update", activation)
    is_step = isinstance(input, Tensor) and input.dim() == 2
    inputs = input.unsqueeze(2) if is_step else input
    output = update.call(inputs, state, weight, bias, cache_seqlens, state_indices, silu)
    return output.squeeze(2) if is_step else output


@torch.fx.has_side_effect
def _causal_conv1d_update(
    input: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: Activation,
    cache_seqlens: Tensor | None,
    state_indices: Tensor | None,
) -> Tensor:
    """Calls causal_conv1d_update; arguments by position, as a recorded graph passes them.

    It writes to the state, so `torch.fx` must keep the call where nobody reads its result.
    """
    return causal_conv1d_update(
        input,
        state,
        weight,
        bias,
        activation=activation,
        cache_seqlens=cache_seqlens,
        state_indices=state_indices,
    )


def _update_output(
    input: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cache_seqlens: Tensor | None,
    state_indices: Tensor | None,
    silu: bool,
) -> Tensor:
    check_dims("causal_conv1d_update", input, weight)
    return like(input)


def _explain_update(
    input: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cache_seqlens: Tensor | None,
    state_indices: Tensor | None,
    silu: bool,
) -> None:
    name = "causal_conv1d_update"
    past, of_state = require_width(name, weight) - 1, tuple(state.shape)
    require(of_state[2] >= past, name, f"state must keep {past} times or more, got {of_state}")
    require(
        state_indices is not None or of_state[0] == input.shape[0],
        name,
        f"state must have {input.shape[0]} rows, as input has such a batch, got {of_state}",
    )
    # Tensors of other layouts have no strides.
    steps = state.stride() if state.layout == torch.strided else of_state
    is_expanded = any(size > 1 and step == 0 for size, step in zip(of_state, steps, strict=True))
    require(not is_expanded, name, "state is written to, and must not be expanded: clone it first")
    lengths = contents(cache_seqlens)
    require(min(lengths, default=0) >= 0, name, f"cache_seqlens must not be negative, got {lengths}")
    places = [place for place in contents(state_indices) if place >= 0]
    is_there = max(places, default=-1) < of_state[0]
    require(is_there, name, f"state_indices must be below the {of_state[0]} rows of state, got {places}")
    once = len(set(places)) == len(places)
    require(once, name, f"state_indices must name each row of state once at most, got {places}")


update = Operator(
    "torchgraft::causal_conv1d_update(Tensor input, Tensor(a!) state, Tensor weight, Tensor? bias,"
    " Tensor? cache_seqlens, Tensor? state_indices, bool silu) -> Tensor",
    reference=reference.causal_conv1d_update,
    shapes="batch channels length, rows channels _, channels width, channels, batch, batch -> batch channels length",
    output=_update_output,
    dtypes=dtypes_of("input", "state", "weight", "bias", "cache_seqlens", "state_indices"),
    mixed=("weight", "bias"),
    flops=flops.update,
    explain=_explain_update,
)
