"""Cell: one step of a recurrence, written in PyTorch for all units at once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchgraft.recurrence.graph import Builder, Graph, rebuilt, split
from torchgraft.recurrence.printing import print_cell
from torchgraft.recurrence.tracing import trace


class Passes(NamedTuple):
    """The functions of a unit that the passes over a sequence compute.

    Forward gives first what the gradient needs of the gates. If gates and message gates are only needed as their sum,
    that is the sum, which backward takes in place of both. If they are needed apart, it is the message gates with
    their bias, which forward then takes behind them; backward takes gates and message gates, and gives a gradient of
    each.

    Attributes:
        forward: (gates, message gates, states, parameters) -> (sums, states, message, output)
        backward: (sums, states before the step, parameters, gradients of the states after it, of the message and of
            the output, gradients of parameters so far) -> (gradients of gates, of states before the step, of
            parameters; the message that went into the step)
        message: (states) -> (message)
        message_backward: (states, gradients of states, gradient of the message) -> (gradients of states)
    """

    forward: Graph
    backward: Graph
    message: Graph
    message_backward: Graph


class Cell:
    """One step of a recurrence, pointwise in its units, and the step back that is derived from it.

    The function is called as `step(gates, message_gates, *states, *parameters)` and returns the new states, in the
    order in which it takes them. All that it takes are tensors of one shape, (rows, units), and so must be what it
    returns. `gates` is a tuple of what the input gives to each unit, `input @ weight_ih.T + bias` in equal parts, and
    `message_gates` of what the message of the step before gives, `message @ weight_hh.T`. Add the two first where they
    are only needed as a sum: then one number of each gate is kept for the gradient, and not two.

    The function may use what is computed for each unit by itself: arithmetic, comparisons, `torch.where`, exp, log,
    tanh, sigmoid, relu, clamp and the like, and the functions of `torch.nn.functional` that are made of them.

    Args:
        step: the function.
        gates: how many gates a unit has.
        states: how many states a unit has; at least one.
        parameters: how many numbers of its own a unit has that no step changes, such as the peepholes of an LSTM.
        message: the number of the state that the next step is told, of all units; or a function of all states, such as
            `torch.tanh` for a network whose units fire at the rate tanh(h).
        output: the number of the state that is the output of a step, or a function of all states.

    Raises:
        TypeError: the function does not return tensors, or an argument has another type than these.
        ValueError: the step mixes units, or contains what cannot be derived; the message says what to write instead.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        gates: int,
        states: int,
        parameters: int = 0,
        message: int | Callable[..., Tensor] = 0,
        output: int | Callable[..., Tensor] = 0,
    ) -> None:
        self.name = getattr(step, "__name__", type(step).__name__)
        self._function = step
        for argument, value, least in (("gates", gates, 1), ("states", states, 1), ("parameters", parameters, 0)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Cell: {argument} must be an int, got {value!r}")
            if value < least:
                raise ValueError(f"Cell: {argument} must be at least {least}, got {value}")
        self.gates = gates
        self.state_names, self.parameter_names = _names(step, states, parameters)
        self._read_out = {"message": message, "output": output}
        for argument, chosen in self._read_out.items():
            if not callable(chosen) and (isinstance(chosen, bool) or chosen not in range(states)):
                raise ValueError(
                    f"Cell: {argument} must be the number of a state, or a function of all states that returns one"
                    f" number for each unit, got {chosen!r}"
                )
        self._gate_names = tuple(f"gates_{number}" for number in range(gates))
        self._message_gate_names = tuple(f"message_{name}" for name in self._gate_names)
        self.gates_apart, self.passes = self._derive()

    @property
    def states(self) -> int:
        """How many states a unit has."""
        return len(self.state_names)

    @property
    def parameters(self) -> int:
        """How many numbers of its own a unit has."""
        return len(self.parameter_names)

    def step(
        self,
        gates: Sequence[Tensor],
        message_gates: Sequence[Tensor],
        states: Sequence[Tensor],
        parameters: Sequence[Tensor] = (),
    ) -> tuple[Tensor, ...]:
        """The states after a step, as the function gives them.

        Args:
            gates: what the input gives to each unit, (rows, units) for each gate.
            message_gates: what the message of the step before gives, likewise.
            states: before the step, (rows, units) each.
            parameters: of each unit, (rows, units) or (units) each.

        Raises:
            TypeError: the function returned something else than tensors.
            ValueError: it returned more or fewer of them than there are states, or tensors of another shape.
        """
        shape = states[0].shape
        results = self._function(
            tuple(gates), tuple(message_gates), *states, *(each.expand(shape) for each in parameters)
        )
        flat = (results,) if isinstance(results, Tensor) else results
        if not isinstance(flat, (tuple, list)) or not all(isinstance(each, Tensor) for each in flat):
            raise TypeError(f"{self.name} must return the new states, {self._states_in_words()}, got {_shown(results)}")
        if len(flat) != self.states:
            raise ValueError(
                f"{self.name} must return {self._states_in_words()}, got {len(flat)} tensor{'s' * (len(flat) != 1)}"
            )
        for name, state in zip(self.state_names, flat, strict=True):
            if state.dtype != states[0].dtype:
                raise TypeError(
                    f"{self.name} must return {name} in the dtype that it got, {states[0].dtype}, got {state.dtype}"
                )
            if state.shape not in (shape, ()):
                raise ValueError(
                    f"{self.name} must return {name} in the shape that it got, {tuple(shape)}, got {tuple(state.shape)}"
                )
        return tuple(state.expand(shape) for state in flat)

    def message(self, states: Sequence[Tensor]) -> Tensor:
        """The message that the next step is told, from the states before it."""
        return self._read("message", states)

    def output(self, states: Sequence[Tensor]) -> Tensor:
        """The output of a step, from the states after it."""
        return self._read("output", states)

    def source(self) -> str:
        """The C++ that is compiled for a unit: each pass as a function, one operation a line."""
        constants = {
            "int kGates": self.gates,
            "int kStates": self.states,
            "int kParameters": self.parameters,
            "bool kGatesApart": str(self.gates_apart).lower(),
        }
        passes = {
            title: (graph, f"({', '.join(graph.inputs)}) -> ({said})")
            for title, graph, said in zip(
                ("Forward", "Backward", "Message", "MessageBackward"), self.passes, self._results(), strict=True
            )
        }
        return print_cell(self.name, constants, passes)

    def __repr__(self) -> str:
        counts = f"gates={self.gates}, states={self.states}, parameters={self.parameters}"
        return f"Cell({self.name}, {counts}, gates {'apart' if self.gates_apart else 'added'})"

    def _results(self) -> tuple[str, str, str, str]:
        """The names of what each pass gives."""
        grads = [f"{name}_grad" for name in (*self._gate_names, *self._message_gate_names * self.gates_apart)]
        state_grads = [f"{name}_grad" for name in self.state_names]
        kept = self._message_gate_names if self.gates_apart else self._gate_names
        forward = [*kept, *self.state_names, "message", "output"]
        backward = [*grads, *state_grads, *(f"{name}_grad" for name in self.parameter_names), "message"]
        return ", ".join(forward), ", ".join(backward), "message", ", ".join(state_grads)

    def _states_in_words(self) -> str:
        return f"{self.states} tensor{'s' * (self.states != 1)} ({', '.join(self.state_names)})"

    def _read(self, which: str, states: Sequence[Tensor]) -> Tensor:
        chosen = self._read_out[which]
        if not callable(chosen):
            return states[chosen]
        result = chosen(*states)
        if not isinstance(result, Tensor) or result.shape != states[0].shape:
            found = tuple(result.shape) if isinstance(result, Tensor) else _shown(result)
            raise ValueError(
                f"{self.name}: {which} must return one number for each unit, a tensor of shape"
                f" {tuple(states[0].shape)} where states have {tuple(states[0].shape)}, got {found}"
            )
        return result

    # The passes as functions of tensors, one behind the other.

    def _forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        gates, message_gates, states, parameters = split(tensors, self.gates, self.gates, self.states, self.parameters)
        after = self.step(gates, message_gates, states, parameters)
        return *after, self.message(after), self.output(after)

    def _backward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        count = 2 * self.gates + self.states + self.parameters
        arguments, grads, sums = split(tensors, count, self.states + 2, self.parameters)
        vjp = torch.func.vjp(self._forward, *arguments)[1]
        gates, message_gates, states, parameters = split(
            vjp(tuple(grads)), self.gates, self.gates, self.states, self.parameters
        )
        sums = [total + grad for total, grad in zip(sums, parameters, strict=True)]
        before = arguments[2 * self.gates : 2 * self.gates + self.states]
        return *gates, *message_gates, *states, *sums, self.message(before)

    def _message_backward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        states, grads, (message_grad,) = split(tensors, self.states, self.states, 1)
        vjp = torch.func.vjp(lambda *each: self.message(each), *states)[1]
        return tuple(grad + more for grad, more in zip(grads, vjp(message_grad), strict=True))

    def _derive(self) -> tuple[bool, Passes]:
        """Whether the gates are needed apart, and the passes."""
        state_grads = [f"{name}_grad" for name in self.state_names]
        given = [*self._gate_names, *self._message_gate_names, *self.state_names, *self.parameter_names]
        back = [*given, *state_grads, "message_grad", "output_grad", *(f"{name}_grad" for name in self.parameter_names)]
        forward = trace(self.name, self._forward, given)
        # The others are made of what this one contains.
        of_forward = functools.partial(trace, self.name, of_any_size=True)
        backward = of_forward(self._backward, back)
        message = of_forward(lambda *states: (self.message(states),), self.state_names)
        message_backward = of_forward(self._message_backward, [*self.state_names, *state_grads, "message_grad"])
        together = self._with_sums(forward, backward)
        if together is not None:
            return False, Passes(*together, message, message_backward)
        return True, Passes(self._with_bias(forward), backward, message, message_backward)

    def _with_sums(self, forward: Graph, backward: Graph) -> tuple[Graph, Graph] | None:
        """The steps forward and back of the sums of gates; None if something else is made of the gates too."""
        count = self.gates
        builder = Builder(forward.inputs)
        inputs = [builder.input(number) for number in range(len(forward.inputs))]
        sums = {(gate, gate + count): builder.add("add", inputs[gate], inputs[gate + count]) for gate in range(count)}
        results = rebuilt(forward, builder, dict(list(enumerate(inputs))[2 * count :]), sums)
        if results is None:
            return None
        with_sums = builder.graph([*sums.values(), *results])

        builder = Builder([*backward.inputs[:count], *backward.inputs[2 * count :]])
        sums = {(gate, gate + count): builder.input(gate) for gate in range(count)}
        others = {number: builder.input(number - count) for number in range(2 * count, len(backward.inputs))}
        results = rebuilt(backward, builder, others, sums)
        if results is None:
            return None
        # A sum gives the same gradient to both.
        return with_sums, builder.graph([*results[:count], *results[2 * count :]])

    def _with_bias(self, forward: Graph) -> Graph:
        """The step forward of message gates whose bias is still to be added."""
        count = self.gates
        biases = [f"message_bias_{gate}" for gate in range(count)]
        builder = Builder([*forward.inputs[: 2 * count], *biases, *forward.inputs[2 * count :]])
        inputs = [builder.input(number) for number in range(len(builder.inputs))]
        sums = [builder.add("add", inputs[gate + count], inputs[gate + 2 * count]) for gate in range(count)]
        given = dict(enumerate([*inputs[:count], *sums, *inputs[3 * count :]]))
        results = rebuilt(forward, builder, given, {})
        assert results is not None
        return builder.graph([*sums, *results])


def _names(step: Callable[..., Any], states: int, parameters: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a function's states and parameters, as it calls them where each has its own argument."""
    try:
        given = list(inspect.signature(step).parameters.values())
    except (TypeError, ValueError):
        given = []
    single = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [each.name for each in given[2:]]
    is_plain = all(each.kind in single for each in given) and len(names) == len(set(names))
    if given and is_plain and len(names) != states + parameters:
        raise ValueError(
            f"Cell: {getattr(step, '__name__', step)} must take gates, message_gates, {states} states and {parameters}"
            f" parameters, got a function of ({', '.join(each.name for each in given)})"
        )
    if not given or not is_plain:
        names = [*(f"state_{number}" for number in range(states)), *(f"own_{number}" for number in range(parameters))]
    return tuple(names[:states]), tuple(names[states:])


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}"
