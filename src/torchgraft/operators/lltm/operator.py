"""The declarations of lltm, of lltm_cell, and of what both are differentiated with.

A step is differentiated at its gates: `lltm_cell_grads` and `lltm_grads` find the gradients of what goes into the
activations of the gates, from the activations that the forward pass kept, and multiply with them, of all steps at once,
for the gradients of inputs and weights. float16 and bfloat16 keep activations and gradients in float32 until the last
rounding. A second derivative computes the activations again, so that they depend on what they are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft.arguments import flag, record_call, require_tensor
from torchgraft.kernels.precision import recurrent_products, recurrent_tf32
from torchgraft.operator import Operator, gradient_by_reference
from torchgraft.operators.lltm import reference
from torchgraft.operators.shared import require
from torchgraft.packed_steps import over_packed


def lltm_cell(
    input: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of the Long-Long-Term-Memory unit.

    With gates = input @ weight_ih.T + h @ weight_hh.T + bias, of which the first third is a, the second b, the last d:

        c' = c + elu(d) * sigmoid(a)
        h' = tanh(c') * sigmoid(b)

    Args:
        input: (B, I), float64, float32, float16 or bfloat16.
        h: (B, S), the hidden state.
        c: (B, S), the cell's state, which has no gate to forget by.
        weight_ih: (3 * S, I).
        weight_hh: (3 * S, S).
        bias: (3 * S), or None.

    Returns:
        (h', c'), each (B, S).

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together.

    Source: the LLTM of PyTorch's tutorial on C++ extensions.
    """
    if not isinstance(input, Tensor):
        recorded = record_call(lltm_cell, input, h, c, weight_ih, weight_hh, bias)
        if recorded is not None:
            return recorded[0], recorded[1]
        require_tensor("lltm_cell", "input", input)
    with recurrent_products(input):
        return cell.call(input, h, c, weight_ih, weight_hh, bias)


def lltm(
    input: Tensor,
    h0: Tensor,
    c0: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    batch_sizes: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The Long-Long-Term-Memory unit over a whole sequence, each step as by `lltm_cell`.

    float16 and bfloat16 keep both states in float32 from step to step.

    Args:
        input: (T, B, I), at least one step; with batch_sizes (the sum of them, I).
        h0: (B, S), the hidden state before the first step.
        c0: (B, S), the cell's state before the first step.
        weight_ih: (3 * S, I).
        weight_hh: (3 * S, S).
        bias: (3 * S), or None.
        batch_sizes: how many sequences take part in each step, on CPU, as in `torch.nn.utils.rnn.PackedSequence`.
        reverse: whether the sequence runs from its end to its beginning; results stay in the order of the input.

    Returns:
        (output, h_n, c_n): h after each step, (T, B, S) or packed as input is, and both states after each sequence's
        last step, (B, S).

    Raises:
        TypeError: an argument has another type or dtype than these.
        ValueError: sizes that do not fit together, or a sequence without steps.

    Source: the LLTM of PyTorch's tutorial on C++ extensions.
    """
    if not isinstance(input, Tensor) or batch_sizes is not None:
        recorded = record_call(lltm, input, h0, c0, weight_ih, weight_hh, bias, batch_sizes, reverse)
        if recorded is not None:
            return recorded[0], recorded[1], recorded[2]
        require_tensor("lltm", "input", input)
    if type(reverse) is not bool:
        reverse = flag("lltm", "reverse", reverse)
    with recurrent_products(input):
        allow_tf32 = recurrent_tf32(input)
        if batch_sizes is not None:

            def run(piece: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
                return sequence.call(piece, h, c, weight_ih, weight_hh, bias, reverse, allow_tf32)

            output, h_n, c_n = over_packed("lltm", run, input, {"h0": h0, "c0": c0}, batch_sizes, reverse)
            return output, h_n, c_n
        return sequence.call(input, h0, c0, weight_ih, weight_hh, bias, reverse, allow_tf32)


_Gradients = tuple[Tensor | None, ...]


# How sums are kept: the dtype of hidden results, and of gradients until their last rounding.
def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _empty(like: Tensor, *size: int | torch.SymInt, accumulated: bool = False) -> Tensor:
    return like.new_empty(size, dtype=_accumulated(like.dtype) if accumulated else like.dtype)


def _cell_output(
    input: Tensor, h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None
) -> tuple[Tensor, ...]:
    batch, size = input.shape[0], weight_hh.shape[1]
    return (
        _empty(input, batch, size),
        _empty(input, batch, size),
        _empty(input, batch, 3 * size, accumulated=True),
    )


def _grads_output(
    input: Tensor, h: Tensor, weight_ih: Tensor, weight_hh: Tensor, wanted: Sequence[bool]
) -> tuple[Tensor, ...]:
    of_input, of_h, of_weight_ih, of_weight_hh, of_bias = wanted
    return (
        _empty(input, *(input.shape if of_input else (0,))),
        _empty(input, *(h.shape if of_h else (0,))),
        _empty(input, *h.shape),
        _empty(input, *(weight_ih.shape if of_weight_ih else (0,))),
        _empty(input, *(weight_hh.shape if of_weight_hh else (0,))),
        _empty(input, *(weight_hh.shape[:1] if of_bias else (0,))),
    )


def _cell_grads_output(
    input: Tensor, h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    return _grads_output(input, h, weight_ih, weight_hh, others[-5:])


def _sequence_output(
    input: Tensor, h0: Tensor, c0: Tensor, weight_ih: Tensor, weight_hh: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    torch._check(input.dim() == 3, lambda: f"lltm: input must be (T, B, I), got {tuple(input.shape)}")
    steps, batch, _ = input.shape
    size = weight_hh.shape[1]
    return (
        _empty(input, steps, batch, size),
        _empty(input, batch, size),
        _empty(input, batch, size),
        _empty(input, steps, batch, 3 * size, accumulated=True),
        _empty(input, steps, batch, size, accumulated=True),
    )


def _sequence_grads_output(
    input: Tensor, h0: Tensor, weight_ih: Tensor, weight_hh: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    return _grads_output(input, h0, weight_ih, weight_hh, others[-5:])


def _to(tensor: Tensor | None, dtype: torch.dtype) -> Any:
    # A call that has nothing to do takes half a microsecond.
    return tensor if tensor is None or tensor.dtype == dtype else tensor.to(dtype)


def _exactly(function: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """A reference computed in the dtype that sums are kept in, so that each of its results is rounded once."""

    def exact(*arguments: Any) -> tuple[Tensor, ...]:
        dtype = arguments[0].dtype
        kept = _accumulated(dtype)
        results = function(*(value.to(kept) if isinstance(value, Tensor) else value for value in arguments))
        return tuple(result.to(dtype) for result in results)

    return exact


def _in_recurrent_precision(gradient: Callable[..., _Gradients]) -> Callable[..., _Gradients]:
    """A gradient whose products are as precise as those of PyTorch's recurrent layers."""

    def precise(
        needs_grad: Sequence[bool],
        output_grads: Sequence[Tensor | None],
        saved: Sequence[Tensor],
        input: Tensor,
        *others: Any,
    ) -> _Gradients:
        with recurrent_products(input):
            return gradient(needs_grad, output_grads, saved, input, *others)

    return precise


def _where_needed(results: Sequence[Tensor], needs_grad: Sequence[bool]) -> _Gradients:
    """The gradients that are needed; the others, which a kernel left empty, are None."""
    if False not in needs_grad[:6]:
        return tuple(results)
    return tuple(each if needed else None for each, needed in zip(results, needs_grad, strict=False))


def _cell_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    *arguments: Any,
) -> _Gradients:
    input, h, c, weight_ih, weight_hh, _ = arguments
    (activations,) = saved
    if torch.is_grad_enabled():
        activations = reference.lltm_cell(*(_to(each, _accumulated(input.dtype)) for each in arguments))[2]
    wanted = (*needs_grad[:2], *needs_grad[3:6])
    results = cell_grads.call(input, h, c, weight_ih, weight_hh, activations, *output_grads, *wanted)
    return _where_needed(results, needs_grad)


def _sequence_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    *arguments: Any,
) -> _Gradients:
    input, h0, _, weight_ih, weight_hh, _, reverse, allow_tf32 = arguments
    activations, cells = saved
    if torch.is_grad_enabled():
        exact = [_to(each, _accumulated(input.dtype)) for each in arguments[:6]]
        *_, activations, cells = reference.lltm(*exact, reverse, allow_tf32)  # type: ignore
    wanted = (*needs_grad[:2], *needs_grad[3:6])
    results = sequence_grads.call(
        input, h0, weight_ih, weight_hh, activations, cells, *output_grads, reverse, allow_tf32, *wanted
    )
    return _where_needed(results, needs_grad)


def _flops(input_shape: Sequence[int], *others: Any) -> int:
    weight_ih_shape, weight_hh_shape = others[2:4]
    return 2 * math.prod(input_shape[:-1]) * (math.prod(weight_ih_shape) + math.prod(weight_hh_shape))


def _products_flops(weight_ih_shape: Sequence[int], weight_hh_shape: Sequence[int], wanted: Sequence[bool]) -> int:
    of_input, of_h, of_weight_ih, of_weight_hh, _ = wanted
    of_features = (of_input + of_weight_ih) * math.prod(weight_ih_shape)
    return 2 * (of_features + (of_h + of_weight_hh) * math.prod(weight_hh_shape))


def _cell_grads_flops(input_shape: Sequence[int], *others: Any) -> int:
    return input_shape[0] * _products_flops(others[2], others[3], others[-5:])


def _sequence_grads_flops(input_shape: Sequence[int], *others: Any) -> int:
    # Of every h there is a gradient: each step's goes into those of the step before.
    of_input, _, *of_weights = others[-5:]
    wanted = of_input, True, *of_weights
    return math.prod(input_shape[:2]) * _products_flops(others[1], others[2], wanted)


def _explain_some(name: str) -> Callable[..., None]:
    """Builds the function that raises ValueError if a size that every call needs is zero."""

    def explain(input: Tensor, h: Tensor, *others: Any) -> None:
        steps = 1 if input.dim() == 2 else input.shape[0]
        require(steps > 0, name, f"input must have at least one step, got {tuple(input.shape)}")
        require(input.shape[-1] > 0, name, "input must have at least one feature")
        require(h.shape[1] > 0, name, "weight_hh must have at least one column, and states one unit")

    return explain


# Why nothing but the batch may be cut.
_UNITS = "; a step needs all units of the one before, which devices would exchange at each step"

_GRADS_RESULTS = ", ".join(6 * ["..."])

cell = Operator(
    "torchgraft::lltm_cell(Tensor input, Tensor h, Tensor c, Tensor weight_ih, Tensor weight_hh, Tensor? bias)"
    " -> (Tensor, Tensor, Tensor)",
    reference=reference.lltm_cell,
    shapes="B I, B S, B S, 3*S I, 3*S S, 3*S -> B S, B S, B 3*S",
    output=_cell_output,
    gradient=_in_recurrent_precision(_cell_gradient),
    visible_outputs=2,
    autocast="lower",
    flops=_flops,
    sharding=f"B _, B _, B _, _ _, _ _, _ -> B _, B _, B _{_UNITS}",
    explain=_explain_some("lltm_cell"),
)

cell_grads = Operator(
    "torchgraft::lltm_cell_grads(Tensor input, Tensor h, Tensor c, Tensor weight_ih, Tensor weight_hh,"
    " Tensor activations, Tensor? h_grad, Tensor? c_grad, bool of_input, bool of_h, bool of_weight_ih,"
    " bool of_weight_hh, bool of_bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=reference.lltm_cell_grads,
    shapes=f"B I, B S, B S, 3*S I, 3*S S, B 3*S, B S, B S -> {_GRADS_RESULTS}",
    output=_cell_grads_output,
    # A derivative of the second order: PyTorch's own composition, as there is nothing to be kept on chip.
    gradient=gradient_by_reference(_exactly(reference.lltm_cell_grads), 8),
    flops=_cell_grads_flops,
    # Those of a cell of two bytes are in float32.
    mixed=("activations",),
    sharding=f"B _, B _, B _, _ _, _ _, B _, B _, B _ -> B _, B _, B _, _ _, _ _, _{_UNITS}",
    explain=_explain_some("lltm_cell_grads"),
)

sequence = Operator(
    "torchgraft::lltm(Tensor input, Tensor h0, Tensor c0, Tensor weight_ih, Tensor weight_hh, Tensor? bias,"
    " bool reverse, bool allow_tf32) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=reference.lltm,
    shapes="T B I, B S, B S, 3*S I, 3*S S, 3*S -> T B S, B S, B S, T B 3*S, T B S",
    output=_sequence_output,
    gradient=_in_recurrent_precision(_sequence_gradient),
    visible_outputs=3,
    autocast="lower",
    flops=_flops,
    sharding=f"_ B _, B _, B _, _ _, _ _, _ -> _ B _, B _, B _, _ B _, _ B _{_UNITS}",
    explain=_explain_some("lltm"),
)

sequence_grads = Operator(
    "torchgraft::lltm_grads(Tensor input, Tensor h0, Tensor weight_ih, Tensor weight_hh, Tensor activations,"
    " Tensor cells, Tensor? output_grad, Tensor? h_n_grad, Tensor? c_n_grad, bool reverse, bool allow_tf32,"
    " bool of_input, bool of_h0, bool of_weight_ih, bool of_weight_hh, bool of_bias)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=reference.lltm_grads,
    shapes=f"T B I, B S, 3*S I, 3*S S, T B 3*S, T B S, T B S, B S, B S -> {_GRADS_RESULTS}",
    output=_sequence_grads_output,
    gradient=gradient_by_reference(_exactly(reference.lltm_grads), 9),
    flops=_sequence_grads_flops,
    # Those of a sequence of two bytes are in float32.
    mixed=("activations", "cells"),
    sharding=f"_ B _, B _, _ _, _ _, _ B _, _ B _, _ B _, B _, B _ -> _ B _, B _, B _, _ _, _ _, _{_UNITS}",
    explain=_explain_some("lltm_grads"),
)
