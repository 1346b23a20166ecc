"""The meaning of a recurrence, in differentiable PyTorch: a loop over the steps of its cell, and the same loop back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft.recurrence.cell import Cell
from torchgraft.recurrence.graph import split


class Definition:
    """The references of a recurrence and of its gradients.

    float16 and bfloat16 are computed in float32, and each result is rounded once.

    Args:
        cell: of the recurrence.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell = cell

    def sequence(self, *arguments: Any) -> tuple[Tensor, ...]:
        """The output of all steps, the final states, and what is kept for the gradient.

        Args:
            arguments: of the operator: input, weight_ih, weight_hh, bias, message_bias if the gates are apart,
                parameters, initial states, reverse, and whether anything is kept: if not, it has no steps.
        """
        cell, dtype = self.cell, arguments[0].dtype
        input, weight_ih, weight_hh, *others, reverse, keep = _computed(arguments)
        bias, message_bias, parameters, states = self._split(others)
        steps = range(input.shape[0])
        gates = _multiplied(input, weight_ih, bias)
        outputs, kept, kept_states = ([torch.empty(0)] * len(steps) for _ in range(3))
        for t in reversed(steps) if reverse else steps:
            message_gates = _multiplied(cell.message(states), weight_hh, message_bias)
            states = cell.step(_parts(gates[t], cell.gates), _parts(message_gates, cell.gates), states, parameters)
            outputs[t], kept_states[t] = cell.output(states), torch.stack(states)
            kept[t] = message_gates if cell.gates_apart else gates[t] + message_gates
        # Copies, as results are never aliased.
        finals = (state.to(dtype, copy=True) for state in states)
        of_gates = (gates.clone(), torch.stack(kept)) if cell.gates_apart else (torch.stack(kept),)
        kept_steps = len(steps) if keep else 0
        return (
            torch.stack(outputs).to(dtype),
            *finals,
            *(each[:kept_steps].clone() for each in of_gates),
            torch.stack(kept_states, 1)[:, :kept_steps].clone(),
        )

    def gradients(self, *arguments: Any) -> tuple[Tensor, ...]:
        """The gradients of all tensor arguments, in their order; without elements where they are not wanted.

        Args:
            arguments: of the operator of gradients: input, weight_ih, weight_hh, parameters, initial states, what
                `sequence` kept, the gradients of the output and of the final states or None, reverse, and whether the
                gradients of input, weight_ih, weight_hh and the biases are wanted.
        """
        cell, dtype = self.cell, arguments[0].dtype
        input, weight_ih, weight_hh, *others = _computed(arguments)
        *others, reverse, of_input, of_weight_ih, of_weight_hh, of_bias = others
        parameters, initial, kept, (states, output_grad), finals = split(
            others, cell.parameters, cell.states, 1 + cell.gates_apart, 2, cell.states
        )
        nothing = torch.zeros_like(initial[0])
        state_grads = [nothing if each is None else each for each in finals]
        message_grad, sums = nothing, [nothing] * cell.parameters
        own = [each.expand_as(nothing) for each in parameters]
        steps = range(input.shape[0])
        gates_grads, message_gates_grads, messages = ([torch.empty(0)] * len(steps) for _ in range(3))
        for t in steps if reverse else reversed(steps):
            earlier = t + 1 if reverse else t - 1
            before = list(states[:, earlier]) if earlier in steps else initial
            gates = [part for each in kept for part in _parts(each[t], cell.gates)]
            output_grad_here = nothing if output_grad is None else output_grad[t]
            results = cell.passes.backward.evaluate(
                *gates, *before, *own, *state_grads, message_grad, output_grad_here, *sums
            )
            of_gates, state_grads, sums, (messages[t],) = split(results, len(gates), cell.states, cell.parameters, 1)
            gates_grads[t] = torch.cat(of_gates[: cell.gates], -1)
            message_gates_grads[t] = torch.cat(of_gates[-cell.gates :], -1)
            message_grad = message_gates_grads[t] @ weight_hh
        initial_grads = cell.passes.message_backward.evaluate(*initial, *state_grads, message_grad)
        of_gates_all, of_message_gates_all = (
            torch.stack(each).flatten(0, 1) for each in (gates_grads, message_gates_grads)
        )
        # Made of an argument, so that it is differentiable too.
        none = input.flatten()[:0]
        of_biases = [of_gates_all, of_message_gates_all][: 1 + cell.gates_apart]
        gradients = (
            (of_gates_all @ weight_ih).view_as(input) if of_input else none,
            of_gates_all.t() @ input.flatten(0, 1) if of_weight_ih else none,
            of_message_gates_all.t() @ torch.stack(messages).flatten(0, 1) if of_weight_hh else none,
            *(each.sum(0) if of_bias else none for each in of_biases),
            *(each.sum(0) for each in sums),
            *initial_grads,
        )
        return tuple(each.to(dtype, copy=True) for each in gradients)

    def _split(self, others: Sequence[Any]) -> list[Any]:
        """The bias, the bias of messages, parameters and initial states."""
        bias, *others = others
        message_bias = others.pop(0) if self.cell.gates_apart else None
        return [bias, message_bias, *split(others, self.cell.parameters, self.cell.states)]


def computed_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that numbers of a dtype are computed in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _computed(arguments: Sequence[Any]) -> list[Any]:
    """The arguments in the dtype that the first one is computed in."""
    dtype = computed_dtype(arguments[0].dtype)
    return [each.to(dtype) if isinstance(each, Tensor) else each for each in arguments]


def _multiplied(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product = input @ weight.t()
    return product if bias is None else product + bias


def _parts(gates: Tensor, count: int) -> tuple[Tensor, ...]:
    return gates.chunk(count, -1)
