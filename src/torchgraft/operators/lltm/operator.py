"""The declarations of lltm, of lltm_cell, and of what both are differentiated with.

A step is differentiated at its gates: `lltm_cell_gates_grad` and `lltm_gates_grad` find the gradients of what goes into
the activations of the gates, from the activations that the forward pass kept; the gradients of inputs and weights are
matrix products with those, one for all steps. `lltm_cell_grads` does both for a cell, at once. float16 and bfloat16
keep activations and gradients in float32 until the last rounding. A second derivative computes the activations again,
so that they depend on what they are made of.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft._differentiation import gradient_by_reference
from torchgraft._torch_private import transform_active
from torchgraft.operator import Operator
from torchgraft.operators.lltm import reference
from torchgraft.operators.lltm.packing import over_packed
from torchgraft.precision import recurrent_products, recurrent_tf32


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
        TypeError: an argument of another type or dtype.
        ValueError: sizes that do not fit together.

    Source: the LLTM of PyTorch's tutorial on C++ extensions.
    """
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
        TypeError: an argument of another type or dtype.
        ValueError: sizes that do not fit together, or a sequence without steps.

    Source: the LLTM of PyTorch's tutorial on C++ extensions.
    """
    with recurrent_products(input):
        allow_tf32 = recurrent_tf32(input)
        if batch_sizes is not None:
            weights = weight_ih, weight_hh, bias
            return over_packed(sequence.call, input, h0, c0, weights, batch_sizes, reverse, allow_tf32)
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


def _cell_gates_grad_output(
    activations: Tensor, c: Tensor, h_grad: Tensor | None, c_grad: Tensor | None
) -> tuple[Tensor, ...]:
    return _empty(activations, *activations.shape), _empty(activations, *c.shape)


def _cell_grads_output(
    input: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    activations: Tensor,
    h_grad: Tensor | None,
    c_grad: Tensor | None,
    *wanted: bool,
) -> tuple[Tensor, ...]:
    of_input, of_h, of_weight_ih, of_weight_hh, of_bias = wanted
    return (
        _empty(input, *(input.shape if of_input else (0,))),
        _empty(input, *(h.shape if of_h else (0,))),
        _empty(input, *c.shape),
        _empty(input, *(weight_ih.shape if of_weight_ih else (0,))),
        _empty(input, *(weight_hh.shape if of_weight_hh else (0,))),
        _empty(input, *(weight_hh.shape[:1] if of_bias else (0,))),
    )


def _sequence_output(
    input: Tensor,
    h0: Tensor,
    c0: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    reverse: bool,
    allow_tf32: bool,
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


def _gates_grad_output(activations: Tensor, cells: Tensor, *others: Tensor | bool | None) -> tuple[Tensor, ...]:
    return (
        _empty(activations, *activations.shape),
        _empty(activations, *cells.shape[1:]),
        _empty(activations, *cells.shape[1:]),
    )


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


# So many multiply-adds, and several products of halves on tensor cores take less time than one in float32.
_MANY_PRODUCTS = 2**31


class _Halves:
    """A matrix of float32 as one or two in a dtype of two bytes, which tensor cores multiply with sums in float32.

    The second is what rounding to the first leaves over. In float16 both are of the matrix divided by a power of two
    near its largest number, as what is above 65504 would be infinite, and what is very small zero.
    """

    def __init__(self, matrix: Tensor, dtype: torch.dtype) -> None:
        self.scale: Tensor | None = None
        if matrix.dtype == dtype:
            self.parts = [matrix]
            return
        if dtype == torch.float16:
            exponent = torch.linalg.vector_norm(matrix, math.inf).log2().ceil().clamp(-100, 100)
            # Of what is not finite there is no near power.
            self.scale = torch.exp2(torch.where((exponent > -100) & (exponent < 100), exponent, 0))
            matrix = matrix / self.scale
        high = matrix.to(dtype)
        self.parts = [high, torch.sub(matrix, high, out=torch.empty_like(high))]

    def multiply(self, other: _Halves, dtype: torch.dtype) -> Tensor:
        """The product, rounded once to a dtype."""
        high, *low = self.parts
        other_high, *other_low = other.parts
        product = torch.mm(high, other_high, out_dtype=torch.float32)
        for left, right in [(each, other_high) for each in low] + [(high, each) for each in other_low]:
            # Added up where it is computed: a sum of its own would read and write as much again as the product.
            torch.addmm(product, left, right, out_dtype=torch.float32, out=product)
        scales = [each for each in (self.scale, other.scale) if each is not None]
        if not scales:
            return product.to(dtype)
        return torch.mul(product, math.prod(scales, start=1), out=product.new_empty(product.shape, dtype=dtype))

    def t(self) -> _Halves:
        transposed = copy.copy(self)
        transposed.parts = [each.t() for each in self.parts]
        return transposed


def _pays_in_halves(gates_grad: Tensor, input: Tensor) -> bool:
    """Whether products with the gradients of gates are to be made of halves. A compiler makes its own."""
    return (
        input.is_cuda
        and input.dtype in (torch.float16, torch.bfloat16)
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        # vmap has no rule for products that write into a result.
        and not transform_active()
        and gates_grad.numel() * min(input.shape[-1], gates_grad.shape[-1] // 3) >= _MANY_PRODUCTS
    )


def _of_products(
    needs_grad: Sequence[bool], gates_grad: Tensor, input: Tensor, h: Tensor, weight_ih: Tensor, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of input, weight_ih, weight_hh and bias, from those of the gates of all steps."""
    kept = gates_grad.dtype
    rows = gates_grad.flatten(0, -2)
    if _pays_in_halves(gates_grad, input):
        halves, inputs, states, weight = (
            _Halves(each, dtype) for each in (rows, input.flatten(0, -2), h.flatten(0, -2), weight_ih)
        )
        return (
            halves.multiply(weight, dtype).view(input.shape) if needs_grad[0] else None,
            halves.t().multiply(inputs, dtype) if needs_grad[3] else None,
            halves.t().multiply(states, dtype) if needs_grad[4] else None,
            rows.sum(0).to(dtype) if needs_grad[5] else None,
        )
    return (
        _to(gates_grad @ _to(weight_ih, kept), dtype) if needs_grad[0] else None,
        _to(rows.t() @ _to(input.flatten(0, -2), kept), dtype) if needs_grad[3] else None,
        _to(rows.t() @ _to(h.flatten(0, -2), kept), dtype) if needs_grad[4] else None,
        _to(rows.sum(0), dtype) if needs_grad[5] else None,
    )


def _cell_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    input: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
) -> _Gradients:
    dtype = input.dtype
    kept = _accumulated(dtype)
    if torch.is_grad_enabled():
        exact = [_to(each, kept) for each in (input, h, c, weight_ih, weight_hh, bias)]
        activations = reference.lltm_cell(*exact)[2]
    else:
        (activations,) = saved
        if not _pays_in_halves(activations, input):
            wanted = (*needs_grad[:2], *needs_grad[3:6])
            results = cell_grads.call(input, h, c, weight_ih, weight_hh, activations, *output_grads, *wanted)
            if False not in needs_grad[:6]:
                return results
            return tuple(each if needed else None for each, needed in zip(results, needs_grad, strict=False))
    h_grad, c_grad = (_to(each, kept) for each in output_grads)
    gates_grad, c_grad = cell_gates_grad.call(activations, c.to(kept), h_grad, c_grad)
    input_grad, *weight_grads = _of_products(needs_grad, gates_grad, input, h, weight_ih, dtype)
    return (
        input_grad,
        (gates_grad @ weight_hh.to(kept)).to(dtype) if needs_grad[1] else None,
        c_grad.to(dtype) if needs_grad[2] else None,
        *weight_grads,
    )


def _sequence_gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    input: Tensor,
    h0: Tensor,
    c0: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    reverse: bool,
    allow_tf32: bool,
) -> _Gradients:
    dtype = input.dtype
    kept = _accumulated(dtype)
    activations, cells = saved
    if torch.is_grad_enabled():
        exact = [_to(each, kept) for each in (input, h0, c0, weight_ih, weight_hh, bias)]
        *_, activations, cells = reference.lltm(*exact, reverse, allow_tf32)  # type: ignore
    output_grad, h_n_grad, c_n_grad = (_to(each, kept) for each in output_grads)
    # On CUDA weights of two bytes are multiplied as they are.
    weight = weight_hh if input.is_cuda else _to(weight_hh, kept)
    gates_grad, h0_grad, c0_grad = gates_grad_of_sequence.call(
        activations, cells, weight, output_grad, h_n_grad, c_n_grad, reverse, allow_tf32
    )
    # h before each step: what came out of the one before.
    size = cells.shape[-1]
    before = torch.tanh(cells) * activations[..., size : 2 * size] if needs_grad[4] else cells
    first = _to(h0, kept).unsqueeze(0)
    before = torch.cat((before[1:], first) if reverse else (first, before[:-1]))
    input_grad, *weight_grads = _of_products(needs_grad, gates_grad, input, before, weight_ih, dtype)
    return (
        input_grad,
        _to(h0_grad, dtype) if needs_grad[1] else None,
        _to(c0_grad, dtype) if needs_grad[2] else None,
        *weight_grads,
    )


def _cell_flops(
    input_shape: Sequence[int],
    h_shape: Sequence[int],
    c_shape: Sequence[int],
    weight_ih_shape: Sequence[int],
    weight_hh_shape: Sequence[int],
    bias_shape: Sequence[int] | None,
) -> int:
    return 2 * input_shape[0] * (math.prod(weight_ih_shape) + math.prod(weight_hh_shape))


def _cell_grads_flops(
    input_shape: Sequence[int],
    h_shape: Sequence[int],
    c_shape: Sequence[int],
    weight_ih_shape: Sequence[int],
    weight_hh_shape: Sequence[int],
    *others: Sequence[int] | bool | None,
) -> int:
    of_input, of_h, of_weight_ih, of_weight_hh, _ = (bool(each) for each in others[3:])
    products = (of_input + of_weight_ih) * math.prod(weight_ih_shape) + (of_h + of_weight_hh) * math.prod(
        weight_hh_shape
    )
    return 2 * input_shape[0] * products


def _sequence_flops(input_shape: Sequence[int], *others: Sequence[int]) -> int:
    weight_ih_shape, weight_hh_shape = others[2:4]
    return 2 * math.prod(input_shape[:2]) * (math.prod(weight_ih_shape) + math.prod(weight_hh_shape))


def _gates_grad_flops(
    activations_shape: Sequence[int],
    cells_shape: Sequence[int],
    weight_hh_shape: Sequence[int],
    *others: Sequence[int] | bool | None,
) -> int:
    return 2 * math.prod(cells_shape[:2]) * math.prod(weight_hh_shape)


def _require_shape(name: str, argument: str, tensor: Tensor | None, expected: Sequence[int], why: str) -> None:
    if tensor is not None and tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name}: {argument} must be {tuple(expected)}, {why}, got {tuple(tensor.shape)}")


def _require_dim(name: str, argument: str, tensor: Tensor, dim: int, shape: str) -> None:
    if tensor.dim() != dim:
        raise ValueError(f"{name}: {argument} must be {shape}, got {tuple(tensor.shape)}")


def _explain_states(
    name: str,
    rows: Sequence[int],
    states: Sequence[tuple[str, Tensor]],
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
) -> None:
    batch, features = rows
    _require_dim(name, "weight_hh", weight_hh, 2, "(3 * S, S)")
    size = weight_hh.shape[1]
    _require_shape(name, "weight_hh", weight_hh, (3 * size, size), "three times as many rows as columns")
    if size == 0:
        raise ValueError(f"{name}: weight_hh must have at least one column, got {tuple(weight_hh.shape)}")
    if features == 0:
        raise ValueError(f"{name}: input must have at least one feature")
    _require_shape(name, "weight_ih", weight_ih, (3 * size, features), "as weight_hh and input")
    for argument, state in states:
        _require_shape(name, argument, state, (batch, size), "as input and weight_hh")
    _require_shape(name, "bias", bias, (3 * size,), "as weight_hh")


def _explain_cell(
    input: Tensor, h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None
) -> None:
    name = "lltm_cell"
    _require_dim(name, "input", input, 2, "(B, I)")
    _explain_states(name, input.shape, (("h", h), ("c", c)), weight_ih, weight_hh, bias)


def _explain_cell_gates_grad(activations: Tensor, c: Tensor, h_grad: Tensor | None, c_grad: Tensor | None) -> None:
    name = "lltm_cell_gates_grad"
    _require_dim(name, "activations", activations, 2, "(B, 3 * S)")
    _require_dim(name, "c", c, 2, "(B, S)")
    _require_shape(name, "activations", activations, (c.shape[0], 3 * c.shape[1]), "as c")
    _require_shape(name, "h_grad", h_grad, c.shape, "as c")
    _require_shape(name, "c_grad", c_grad, c.shape, "as c")


def _explain_cell_grads(
    input: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    activations: Tensor,
    h_grad: Tensor | None,
    c_grad: Tensor | None,
    *wanted: bool,
) -> None:
    name = "lltm_cell_grads"
    _require_dim(name, "input", input, 2, "(B, I)")
    _explain_states(name, input.shape, (("h", h), ("c", c)), weight_ih, weight_hh, None)
    _require_shape(name, "activations", activations, (c.shape[0], 3 * c.shape[1]), "as c")
    _require_shape(name, "h_grad", h_grad, c.shape, "as c")
    _require_shape(name, "c_grad", c_grad, c.shape, "as c")


def _explain_sequence(
    input: Tensor,
    h0: Tensor,
    c0: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    reverse: bool,
    allow_tf32: bool,
) -> None:
    name = "lltm"
    _require_dim(name, "input", input, 3, "(T, B, I)")
    if input.shape[0] == 0:
        raise ValueError(f"{name}: input must have at least one step, got {tuple(input.shape)}")
    _explain_states(name, input.shape[1:], (("h0", h0), ("c0", c0)), weight_ih, weight_hh, bias)


def _explain_gates_grad(
    activations: Tensor,
    cells: Tensor,
    weight_hh: Tensor,
    output_grad: Tensor | None,
    h_n_grad: Tensor | None,
    c_n_grad: Tensor | None,
    reverse: bool,
    allow_tf32: bool,
) -> None:
    name = "lltm_gates_grad"
    _require_dim(name, "cells", cells, 3, "(T, B, S)")
    steps, batch, size = cells.shape
    if steps == 0 or size == 0:
        raise ValueError(f"{name}: cells must have at least one step and one unit, got {tuple(cells.shape)}")
    _require_shape(name, "activations", activations, (steps, batch, 3 * size), "as cells")
    _require_shape(name, "weight_hh", weight_hh, (3 * size, size), "as cells")
    _require_shape(name, "output_grad", output_grad, cells.shape, "as cells")
    _require_shape(name, "h_n_grad", h_n_grad, (batch, size), "as cells")
    _require_shape(name, "c_n_grad", c_n_grad, (batch, size), "as cells")


cell = Operator(
    "torchgraft::lltm_cell(Tensor input, Tensor h, Tensor c, Tensor weight_ih, Tensor weight_hh, Tensor? bias)"
    " -> (Tensor, Tensor, Tensor)",
    reference=reference.lltm_cell,
    output=_cell_output,
    gradient=_in_recurrent_precision(_cell_gradient),
    visible_outputs=2,
    autocast="lower",
    flops=_cell_flops,
    explain=_explain_cell,
)

cell_gates_grad = Operator(
    "torchgraft::lltm_cell_gates_grad(Tensor activations, Tensor c, Tensor? h_grad, Tensor? c_grad)"
    " -> (Tensor, Tensor)",
    reference=reference.lltm_cell_gates_grad,
    output=_cell_gates_grad_output,
    # A derivative of the second order: PyTorch's own composition, as there is nothing to be kept on chip.
    gradient=gradient_by_reference(_exactly(reference.lltm_cell_gates_grad), 4),
    explain=_explain_cell_gates_grad,
)

cell_grads = Operator(
    "torchgraft::lltm_cell_grads(Tensor input, Tensor h, Tensor c, Tensor weight_ih, Tensor weight_hh,"
    " Tensor activations, Tensor? h_grad, Tensor? c_grad, bool of_input, bool of_h, bool of_weight_ih,"
    " bool of_weight_hh, bool of_bias) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=reference.lltm_cell_grads,
    output=_cell_grads_output,
    gradient=gradient_by_reference(_exactly(reference.lltm_cell_grads), 8),
    flops=_cell_grads_flops,
    # Those of a cell of two bytes are in float32.
    mixed=("activations",),
    explain=_explain_cell_grads,
)

sequence = Operator(
    "torchgraft::lltm(Tensor input, Tensor h0, Tensor c0, Tensor weight_ih, Tensor weight_hh, Tensor? bias,"
    " bool reverse, bool allow_tf32) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    reference=reference.lltm,
    output=_sequence_output,
    gradient=_in_recurrent_precision(_sequence_gradient),
    visible_outputs=3,
    autocast="lower",
    flops=_sequence_flops,
    explain=_explain_sequence,
)

gates_grad_of_sequence = Operator(
    "torchgraft::lltm_gates_grad(Tensor activations, Tensor cells, Tensor weight_hh, Tensor? output_grad,"
    " Tensor? h_n_grad, Tensor? c_n_grad, bool reverse, bool allow_tf32) -> (Tensor, Tensor, Tensor)",
    reference=reference.lltm_gates_grad,
    output=_gates_grad_output,
    gradient=gradient_by_reference(_exactly(reference.lltm_gates_grad), 6),
    flops=_gates_grad_flops,
    # Gradients in float32 may be of a layer with weights of two bytes.
    mixed=("weight_hh",),
    explain=_explain_gates_grad,
)
