"""The definition of lltm and lltm_cell, and how their gates are differentiated."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def activate(gates: Tensor) -> Tensor:
    """The values of the three gates: sigmoid of the first two, elu of the third."""
    input_gate, output_gate, candidate = gates.chunk(3, -1)
    return torch.cat((torch.sigmoid(input_gate), torch.sigmoid(output_gate), F.elu(candidate)), -1)


def advance(activations: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The states (h', c') after a step."""
    i, o, z = activations.chunk(3, -1)
    c = c + z * i
    return torch.tanh(c) * o, c


def lltm_cell(
    input: Tensor, h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The states after a step, and the activations of its gates."""
    activations = activate(F.linear(input, weight_ih, bias) + F.linear(h, weight_hh))
    return *advance(activations, c), activations


def lltm_cell_grads(
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
    """The gradients of input, h, c, weight_ih, weight_hh and bias; without elements where not wanted."""
    activations = activations.to(input.dtype)
    i, _, z = activations.chunk(3, -1)
    gates_grad, c_grad = _step_back(activations, c + z * i, h_grad, c_grad)
    return _of_gates(gates_grad, input, h, weight_ih, gates_grad @ weight_hh, c_grad, wanted)


def lltm(
    input: Tensor,
    h: Tensor,
    c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None,
    reverse: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The cell over all steps: every h, the last h and c, every activation and every c.

    What products in float32 may be computed in is PyTorch's matter here.
    """
    gates = F.linear(input, weight_ih, bias)
    steps = range(input.shape[0])
    outputs, cells, activations = ([torch.empty(0)] * len(steps) for _ in range(3))
    for t in reversed(steps) if reverse else steps:
        activations[t] = activate(gates[t] + F.linear(h, weight_hh))
        h, c = advance(activations[t], c)
        outputs[t], cells[t] = h, c
    # Copies, as results are never aliased.
    return torch.stack(outputs), h.clone(), c.clone(), torch.stack(activations), torch.stack(cells)


def lltm_grads(
    input: Tensor,
    h0: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    activations: Tensor,
    cells: Tensor,
    output_grad: Tensor | None,
    h_n_grad: Tensor | None,
    c_n_grad: Tensor | None,
    reverse: bool,
    allow_tf32: bool,
    *wanted: bool,
) -> tuple[Tensor, ...]:
    """The gradients of input, h0, c0, weight_ih, weight_hh and bias; without elements where not wanted."""
    activations, cells = activations.to(input.dtype), cells.to(input.dtype)
    steps = range(cells.shape[0])
    h_grad = torch.zeros_like(h0) if h_n_grad is None else h_n_grad
    c_grad = torch.zeros_like(h0) if c_n_grad is None else c_n_grad
    gates_grads = [torch.empty(0)] * len(steps)
    for t in steps if reverse else reversed(steps):
        if output_grad is not None:
            h_grad = h_grad + output_grad[t]
        gates_grads[t], c_grad = _step_back(activations[t], cells[t], h_grad, c_grad)
        h_grad = gates_grads[t] @ weight_hh
    output = torch.tanh(cells) * activations.chunk(3, -1)[1]
    before = (*output[1:], h0) if reverse else (h0, *output[:-1])
    return _of_gates(torch.stack(gates_grads), input, torch.stack(before), weight_ih, h_grad, c_grad, wanted)


def _of_gates(
    gates_grad: Tensor,
    input: Tensor,
    h: Tensor,
    weight_ih: Tensor,
    h_grad: Tensor,
    c_grad: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor, ...]:
    """All gradients from those of the gates of all steps, of which h went into each."""
    of_input, of_h, of_weight_ih, of_weight_hh, of_bias = wanted
    rows = gates_grad.flatten(0, -2)
    # Made of an argument, so that it is differentiable too.
    nothing = input.flatten()[:0]
    return (
        gates_grad @ weight_ih if of_input else nothing.clone(),
        h_grad if of_h else nothing.clone(),
        c_grad,
        rows.t() @ input.flatten(0, -2) if of_weight_ih else nothing.clone(),
        rows.t() @ h.flatten(0, -2) if of_weight_hh else nothing.clone(),
        rows.sum(0) if of_bias else nothing.clone(),
    )


def _step_back(
    activations: Tensor, c_after: Tensor, h_grad: Tensor | None, c_grad: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of a step's gates, before their activation, and of the c that it began with."""
    i, o, z = activations.chunk(3, -1)
    h_grad = torch.zeros_like(c_after) if h_grad is None else h_grad
    squashed = torch.tanh(c_after)
    through_c = h_grad * o * (1 - squashed * squashed)
    c_grad = through_c if c_grad is None else c_grad + through_c
    gates_grad = torch.cat(
        (
            c_grad * z * i * (1 - i),
            h_grad * squashed * o * (1 - o),
            # The derivative of elu, from its value : 1 above zero, z + 1 below.
            c_grad * i * (1 - torch.relu(-z)),
        ),
        -1,
    )
    # A copy, as results are never aliased.
    return gates_grad, c_grad.clone()
