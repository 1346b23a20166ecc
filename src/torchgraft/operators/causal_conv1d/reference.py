"""The definition of causal_conv1d and of its step of decoding: kernels are compared with this."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torchgraft.operators.causal_conv1d.arguments import contents


class _Packing(NamedTuple):
    """Where packed sequences lie.

    Attributes:
        begin: (batch, length), where the sequence of each element begins.
        row: (batch, length), the row of the initial state that this sequence goes on from; negative: zeros.
        is_padding: (batch, length), or None if no element is padding.
        final_item: (states), the item in which the sequence of each row of the final state lies.
        final_begin: (states), where it begins.
        final_end: (states), where it ends.
        final_row: (states), its row of the initial state.
        is_final_padding: (states), or None.
    """

    begin: Tensor
    row: Tensor
    is_padding: Tensor | None
    final_item: Tensor
    final_begin: Tensor
    final_end: Tensor
    final_row: Tensor
    is_final_padding: Tensor | None


def _by_ids(seq_idx: Tensor) -> _Packing:
    """Finds the sequences as runs of equal ids."""
    batch, length = seq_idx.shape
    items = torch.arange(batch, device=seq_idx.device)
    times = torch.arange(length, device=seq_idx.device)
    is_first = torch.cat([torch.ones_like(seq_idx[:, :1], dtype=torch.bool), seq_idx[:, 1:] != seq_idx[:, :-1]], 1)
    begin = torch.where(is_first, times, 0).cummax(1).values if length else seq_idx.long()
    row = torch.where(begin == 0, items[:, None], -1)
    if length == 0:
        nothing = torch.zeros_like(items)
        return _Packing(begin, row, None, items, nothing, nothing, items, None)
    final_end = torch.full_like(items, length)
    is_padding = seq_idx < 0
    return _Packing(begin, row, is_padding, items, begin[:, -1], final_end, row[:, -1], is_padding[:, -1])


def _by_offsets(cu_seqlens: Tensor, length: int) -> _Packing:
    """Finds the sequences from their offsets; whatever the offsets are, nothing outside the input is read.

    Raises:
        IndexError: there are other offsets than there may be, as far as nothing has to be waited for.
    """
    # What is traced has no values.
    is_traced = type(cu_seqlens) is not Tensor or torch.compiler.is_compiling()
    known = [] if is_traced else contents(cu_seqlens)
    if known and (known[0] != 0 or known[-1] != length or known != sorted(known)):
        raise IndexError(f"cu_seqlens must begin with 0, never fall, and end with {length}, got {known}")
    offsets = cu_seqlens.long().clamp(0, length)
    sequences = offsets.shape[0] - 1
    times = torch.arange(length, device=offsets.device)
    # How many sequences end at or before an element; `torch.searchsorted` has no rule for DTensor.
    ends = offsets.new_zeros(length + 1).scatter_add(0, offsets[1:], torch.ones_like(offsets[1:]))
    row = ends.cumsum(0)[:length].clamp(max=max(sequences - 1, 0))
    begin = torch.minimum(offsets[row], times)
    rows = torch.arange(sequences, device=offsets.device)
    final_begin = torch.minimum(offsets[:-1], offsets[1:])
    return _Packing(begin[None], row[None], None, torch.zeros_like(rows), final_begin, offsets[1:], rows, None)


def _choose(input: Tensor, state: Tensor, item: Tensor, row: Tensor, begin: Tensor, time: Tensor) -> Tensor:
    """Elements of the input, or of the state if they lie before the beginning of their sequence.

    Args:
        input: (batch, channels, length).
        state: (states, channels, width - 1).
        item: the item of each wanted element; all of one shape.
        row: its row of the state; negative: zeros.
        begin: where its sequence begins.
        time: its place in the input.

    Returns:
        (that shape, channels).
    """
    past, length = state.shape[2], input.shape[2]
    chosen = torch.zeros((), dtype=input.dtype, device=input.device)
    if past > 0 and state.shape[0] > 0:
        before = (past + time - begin).clamp(0, past - 1)
        of_state = state[row.clamp(0, state.shape[0] - 1), :, before]
        chosen = torch.where((row >= 0)[..., None], of_state, chosen)
    if length > 0:
        of_input = input[item, :, time.clamp(0, length - 1)]
        chosen = torch.where((time >= begin)[..., None], of_input, chosen)
    return chosen.expand(*time.shape, input.shape[1])


def _packed_taps(input: Tensor, state: Tensor, width: int, packing: _Packing) -> Iterator[Tensor]:
    """For each tap what it reads (batch, channels, length)."""
    batch, _, length = input.shape
    items = torch.arange(batch, device=input.device)[:, None].expand(batch, length)
    times = torch.arange(length, device=input.device).expand(batch, length)
    for tap in range(width):
        chosen = _choose(input, state, items, packing.row, packing.begin, times + (tap - width + 1))
        if packing.is_padding is not None:
            chosen = torch.where(packing.is_padding[..., None], 0, chosen)
        yield chosen.transpose(1, 2)


def _packed_final_state(input: Tensor, state: Tensor, packing: _Packing) -> Tensor:
    past = state.shape[2]
    time = packing.final_end[:, None] + torch.arange(-past, 0, device=input.device)
    item, row, begin = (
        each[:, None].expand_as(time) for each in (packing.final_item, packing.final_row, packing.final_begin)
    )
    found = _choose(input, state, item, row, begin, time).transpose(1, 2)
    if packing.is_final_padding is not None:
        found = torch.where(packing.is_final_padding[:, None, None], 0, found)
    return found


def _wide(tensor: Tensor) -> Tensor:
    """A tensor in the dtype that sums are kept in: float32 for dtypes of two bytes."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _convolve(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    seq_idx: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The sums before SiLU, and the final state, all in one dtype, of an initial state that is there."""
    length, width = input.shape[2], weight.shape[1]
    if seq_idx is None and cu_seqlens is None:
        extended = torch.cat([state, input], 2)
        taps: Iterator[Tensor] = (extended[..., tap : tap + length] for tap in range(width))
        final_state, is_padding = extended[..., length:], None
    else:
        packing = _by_offsets(cu_seqlens, length) if seq_idx is None else _by_ids(seq_idx)  # type: ignore[arg-type]
        taps = _packed_taps(input, state, width, packing)
        final_state, is_padding = _packed_final_state(input, state, packing), packing.is_padding
    sums = torch.zeros_like(input) if bias is None else bias[:, None]
    for tap, values in enumerate(taps):
        sums = sums + weight[:, tap, None] * values
    if is_padding is not None:
        # SiLU keeps the zeros.
        sums = torch.where(is_padding[:, None], 0, sums)
    return sums, final_state


def _arguments(
    input: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """The tensors in the dtype of the sums, and zeros for a state that is not given."""
    rows = input.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if initial_state is None:
        initial_state = input.new_zeros(rows, input.shape[1], weight.shape[1] - 1)
    weight, bias = weight.to(input.dtype), None if bias is None else bias.to(input.dtype)
    return _wide(input), _wide(weight), None if bias is None else _wide(bias), _wide(initial_state)


def _forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    seq_idx: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    arguments = _arguments(input, weight, bias, initial_state, cu_seqlens)
    sums, final_state = _convolve(*arguments, seq_idx, cu_seqlens)
    # torch.nn.functional.silu has no second derivative in forward mode.
    output = sums * torch.sigmoid(sums) if silu else sums
    return output.to(input.dtype), final_state.to(input.dtype, copy=True)


def _backward(
    output_grad: Tensor,
    final_state_grad: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    seq_idx: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of input, weight, bias and initial state; the last two also if there are none of these."""
    wide_input, wide_weight, wide_bias, state = _arguments(input, weight, bias, initial_state, cu_seqlens)
    if wide_bias is None:
        wide_bias = wide_weight.new_zeros(wide_weight.shape[0])

    def function(input: Tensor, weight: Tensor, bias: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return _convolve(input, weight, bias, state, seq_idx, cu_seqlens)

    (sums, final_state), vjp = torch.func.vjp(function, wide_input, wide_weight, wide_bias, state)[:2]
    final_grad = torch.zeros_like(final_state) if final_state_grad is None else _wide(final_state_grad)
    sums_grad = _wide(output_grad)
    if silu:
        sigmoid = torch.sigmoid(sums)
        sums_grad = sums_grad * (sigmoid * (1 + sums * (1 - sigmoid)))
    grads = vjp((sums_grad, final_grad))
    dtypes = input.dtype, dtype or input.dtype, dtype or input.dtype, input.dtype
    found = [grad.to(dtype, copy=True) for grad, dtype in zip(grads, dtypes, strict=True)]
    return found[0], found[1], found[2], found[3]


def causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    seq_idx: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    """The output, and the last width - 1 elements of the last sequence of each item, its past included."""
    return _forward(input, weight, bias, initial_state, seq_idx, None, silu)


def causal_conv1d_packed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    """The output, and the last width - 1 elements of each sequence, its past included."""
    return _forward(input, weight, bias, initial_state, None, cu_seqlens, silu)


def causal_conv1d_backward(
    output_grad: Tensor,
    final_state_grad: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    seq_idx: Tensor | None,
    silu: bool,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of causal_conv1d."""
    return _backward(output_grad, final_state_grad, input, weight, bias, initial_state, seq_idx, None, silu, dtype)


def causal_conv1d_packed_backward(
    output_grad: Tensor,
    final_state_grad: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
    silu: bool,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of causal_conv1d_packed."""
    return _backward(output_grad, final_state_grad, input, weight, bias, initial_state, None, cu_seqlens, silu, dtype)


def causal_conv1d_update(
    input: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cache_seqlens: Tensor | None,
    state_indices: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    """The new state, and the output."""
    batch, channels, length = input.shape
    rows, _, kept = state.shape
    past = weight.shape[1] - 1
    if batch == 0:
        return state.clone(), torch.zeros_like(input)
    device = input.device
    row = torch.arange(batch, device=device) if state_indices is None else state_indices.long()
    is_padding = (row < 0) | (row >= rows)
    own = state[row.clamp(0, max(rows - 1, 0))] if rows else state.new_zeros(batch, channels, kept)
    # The elements of each row from the oldest to the newest: a circular buffer begins anywhere.
    cached = torch.zeros_like(row) if cache_seqlens is None else cache_seqlens.long()
    order = torch.remainder(torch.arange(kept, device=device) + cached[:, None], max(kept, 1))[:, None]
    elements = torch.cat([own.gather(2, order.expand_as(own)), input], 2)
    output, _ = causal_conv1d(input, weight, bias, elements[..., kept - past : kept], None, silu)
    # The newest elements go back to where they lie in the buffer, after as many have come.
    newest = elements[..., length:]
    order = torch.remainder(order + (0 if cache_seqlens is None else length), max(kept, 1))
    changed = torch.zeros_like(own).scatter(2, order.expand_as(own), newest)
    # A padding entry changes a row behind the last, which is cut off.
    target = torch.where(is_padding, rows, row)
    new_state = torch.cat([state, state.new_zeros(1, channels, kept)]).index_copy(0, target, changed)[:rows]
    output = torch.where(is_padding[:, None, None], 0, output)
    if input.stride(1) == 1 and input.stride(2) != 1:
        # Compilers take the strides from here, where a call needs a gradient: those of the kernels' results.
        return new_state, output.transpose(1, 2).contiguous().transpose(1, 2)
    return new_state, output.contiguous()
