"""Recurrence: the operator of a cell over a whole sequence, its gradients, and their kernels."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from torchgraft.arguments import flag, require_tensor
from torchgraft.building import BuildError, MissingToolError
from torchgraft.building.inline import compile_ahead, load_inline
from torchgraft.kernels.fallback import PerformanceWarning
from torchgraft.operator import FLOATING, Operator, gradient_by_reference
from torchgraft.packed_steps import over_packed
from torchgraft.recurrence.cell import Cell
from torchgraft.recurrence.definition import Definition, computed_dtype
from torchgraft.recurrence.kernels import Kernels
from torchgraft.recurrence.samples import gradient_samples, sequence_samples

# Of gradients that a caller may not want: of input, weight_ih, weight_hh and the biases.
_WANTED = ("of_input", "of_weight_ih", "of_weight_hh", "of_bias")
_UNITS = "; a step needs all units of the one before, which devices would exchange at each step"


class Recurrence:
    """A cell over a whole sequence: an operator whose definition is a loop in PyTorch, with kernels for CPU and CUDA.

    The kernels are compiled when the recurrence is declared, as those of `load_inline` are, and taken from the cache
    afterwards. Where nothing can be compiled, calls run the loop, and a PerformanceWarning says why. A package that
    brings them compiled names them as `kernels`.

    `operator` is the Operator, which returns the output, the final states, and what it kept for its gradient;
    `gradients` is the Operator of its gradients.

    Args:
        name: `namespace::name`.
        cell: what is done in each step.
        kernels: the devices, `"cpu"` or `"cuda"`, for which a library of the caller's package holds the kernels that
            `write_kernels` wrote, with the floating-point dtypes of each; nothing is compiled then.
        ranges: the least and the largest value that samples give to a state or a parameter, by its name, if it cannot
            be every number: `{"n": (0.5, 2.0)}` for a state that the cell divides by.

    Raises:
        BuildError: the kernels do not compile.
        ValueError: the name is no such name, or the cell has no state or parameter of a name in ranges.
    """

    def __init__(
        self,
        name: str,
        cell: Cell,
        *,
        kernels: Mapping[str, Sequence[torch.dtype]] | None = None,
        ranges: Mapping[str, tuple[float, float]] = MappingProxyType({}),
    ) -> None:
        known = (*cell.state_names, *cell.parameter_names)
        if unknown := [each for each in ranges if each not in known]:
            raise ValueError(
                f"{name}: ranges must name states or parameters of the cell, {', '.join(known)}, got {unknown[0]}"
            )
        self.name, self.cell = name, cell
        self._is_replaced = False
        declared = _Declared(name, cell)
        caller = sys._getframe(1).f_globals.get("__name__", "__main__")
        of_gradients, texts = declared.of_gradients(), Kernels(name, cell)
        problem = ""
        if kernels is None:
            compile_ahead({f"{name}_grads": texts.gradients, name: texts.sequence})
            self.gradients, _ = _compile(declared.gradients_schema, texts.gradients, of_gradients)
            of_sequence = declared.of_sequence(self.gradients)
            self.operator, problem = _compile(declared.schema, texts.sequence, of_sequence)
        else:
            self.gradients = Operator(declared.gradients_schema, kernels=kernels, **of_gradients)
            of_sequence = declared.of_sequence(self.gradients)
            self.operator = Operator(declared.schema, kernels=kernels, **of_sequence)
        self.gradients.module = self.operator.module = caller
        if problem:
            warnings.warn(
                f"{name} runs as a loop in Python, and not on a kernel, as none can be compiled here: {problem}",
                PerformanceWarning,
                stacklevel=2,
            )
        # An operator is found by its name: the one that was declared last runs for all.
        _ALIVE.add(self)
        for other in _ALIVE:
            other._is_replaced |= other.name == name and other.source() != self.source()
        # Found before those of the module in which the recurrence is declared.
        self.operator.samples = sequence_samples(cell, ranges)  # type: ignore[attr-defined]
        self.gradients.samples = gradient_samples(cell, ranges)  # type: ignore[attr-defined]

    def __call__(
        self,
        input: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias: Tensor | None = None,
        initial: Tensor | Sequence[Tensor] | None = None,
        *,
        message_bias: Tensor | None = None,
        parameters: Sequence[Tensor] = (),
        batch_sizes: Tensor | None = None,
        reverse: bool = False,
    ) -> tuple[Tensor, Any]:
        """Runs the cell over all steps.

        With G gates, H units, and S states of a unit:

        Args:
            input: (T, B, I), at least one step; with batch_sizes (the sum of them, I).
            weight_ih: (G * H, I); `input @ weight_ih.T + bias` are the gates.
            weight_hh: (G * H, H); `message @ weight_hh.T + message_bias` are the message gates.
            bias: (G * H), or None.
            initial: the states before the first step, (B, H) each: a tensor if S is 1, or else S of them. None: zeros.
            message_bias: (G * H), or None.
            parameters: (H) each, as many as the cell has.
            batch_sizes: how many sequences take part in each step: a tensor on the CPU, as in
                `torch.nn.utils.rnn.PackedSequence`.
            reverse: whether the sequence runs from its end to its beginning; results stay in the order of the input.

        Returns:
            (output, final): the output of each step, (T, B, H) or packed as input is, and the states after each
            sequence's last step, (B, H) each: a tensor if S is 1, otherwise a tuple.

        Raises:
            RuntimeError: the name was declared again since, with another cell.
            TypeError: an argument has another type or dtype than these.
            ValueError: sizes that do not fit together, or a sequence without steps.
        """
        if self._is_replaced:
            raise RuntimeError(
                f"{self.name} was declared again with another cell, whose kernels would run here: give each cell a name"
                " of its own"
            )
        for argument, value in (("input", input), ("weight_hh", weight_hh)):
            require_tensor(self.name, argument, value)
        reverse = flag(self.name, "reverse", reverse)
        self._require_several("parameters", parameters)
        if len(parameters) != self.cell.parameters:
            named = f" ({', '.join(self.cell.parameter_names)})" if self.cell.parameters else ""
            raise ValueError(f"{self.name}: parameters must be {self.cell.parameters}{named}, got {len(parameters)}")
        if message_bias is not None and not self.cell.gates_apart:
            # Both are added to the same sums.
            bias, message_bias = message_bias if bias is None else self._added(bias, message_bias), None
        biases = (bias, message_bias) if self.cell.gates_apart else (bias,)
        states = self._states(input, weight_hh, initial, batch_sizes)
        # What only a gradient needs takes several times the memory of the output.
        given = (input, weight_ih, weight_hh, *biases, *parameters, *states)
        keep = any(isinstance(each, Tensor) and each.requires_grad for each in given)
        # A traced program may be trained later, and `torch.jit.trace` traces it without gradients too, to compare.
        keep = keep and (torch.is_grad_enabled() or torch.jit.is_tracing())  # type: ignore[attr-defined]

        def run(piece: Tensor, *begin: Tensor) -> tuple[Tensor, ...]:
            results: tuple[Tensor, ...] = self.operator.call(
                piece, weight_ih, weight_hh, *biases, *parameters, *begin, reverse, keep
            )
            return results[: 1 + self.cell.states]

        if batch_sizes is None:
            output, *final = run(input, *states)
        else:
            names = [f"initial {each}" for each in self.cell.state_names]
            output, *final = over_packed(
                self.name, run, input, dict(zip(names, states, strict=True)), batch_sizes, reverse
            )
        return output, final[0] if self.cell.states == 1 else tuple(final)

    def source(self) -> str:
        """The C++ that is compiled for a unit; see `Cell.source`."""
        return self.cell.source()

    @staticmethod
    def write_kernels(name: str, cell: Cell, folder: Path) -> list[Path]:
        """Writes the kernels of a recurrence and its gradients as sources of a package, to be compiled with it.

        They depend on the cell, and are written again when it changes.

        Args:
            name: as of the Recurrence that is declared with `kernels`.
            cell: likewise.
            folder: where the files are put: `cpu.cpp` and `cuda.cu`, which include `cell.h`.

        Returns:
            The two files that a compiler is given.
        """
        made = [(folder / file, text) for file, text in Kernels(name, cell).sources.items()]
        for path, text in made:
            path.write_text(text)
        return [path for path, _ in made if path.suffix != ".h"]

    def __repr__(self) -> str:
        return f"Recurrence({self.name}, {self.cell})"

    def _require_several(self, argument: str, value: Any) -> None:
        if isinstance(value, Tensor) or not hasattr(value, "__iter__"):
            raise TypeError(f"{self.name}: {argument} must be a list or tuple of tensors, got {type(value).__name__}")

    def _added(self, bias: Tensor, message_bias: Tensor) -> Tensor:
        for argument, value in (("bias", bias), ("message_bias", message_bias)):
            require_tensor(self.name, argument, value)
        if (bias.shape, bias.dtype) != (message_bias.shape, message_bias.dtype):
            found, other = (f"{tuple(each.shape)} of {each.dtype}" for each in (bias, message_bias))
            raise ValueError(
                f"{self.name}: bias and message_bias must have the same shape and dtype, got {found} and {other}"
            )
        return bias + message_bias

    def _states(self, input: Tensor, weight_hh: Tensor, initial: Any, batch_sizes: Tensor | None) -> list[Tensor]:
        count = self.cell.states
        if initial is None:
            is_packed = isinstance(batch_sizes, Tensor) and batch_sizes.numel() > 0
            batch = int(batch_sizes[0]) if is_packed else input.shape[1] if input.dim() > 1 else 0  # type: ignore[index]
            return [input.new_zeros(batch, weight_hh.shape[-1] if weight_hh.dim() else 0) for _ in range(count)]
        if not isinstance(initial, Tensor):
            self._require_several("initial", initial)
        states = [initial] if isinstance(initial, Tensor) else list(initial)
        if len(states) != count:
            names = ", ".join(self.cell.state_names)
            raise ValueError(
                f"{self.name}: initial must be {count} state{'s' * (count != 1)} ({names}), got {len(states)}"
            )
        for name, state in zip(self.cell.state_names, states, strict=True):
            require_tensor(self.name, f"initial {name}", state)
        return states


def _compile(schema: str, texts: dict[str, str], declared: dict[str, Any]) -> tuple[Operator, str]:
    """The operator with its kernels; or without them, and why nothing can be compiled."""
    problem = ""
    try:
        operator = load_inline(schema, cpu=texts["cpu"], cuda=texts["cuda"], **declared)
    except BuildError as error:
        # Anything else is an error of the compiler, in a text that torchgraft wrote.
        if not isinstance(error, MissingToolError) and os.environ.get("TORCHGRAFT_JIT") != "0":
            raise
        operator, problem = load_inline(schema, kernels={"cpu": FLOATING, "cuda": FLOATING}, **declared), str(error)
    return operator, problem


class _Declared:
    """The declarations of a recurrence and of its gradients."""

    def __init__(self, name: str, cell: Cell) -> None:
        self.cell, self.definition = cell, Definition(cell)
        self._short = name
        _DEFINITIONS[name] = self.definition
        biases = ["Tensor? bias", *["Tensor? message_bias"] * cell.gates_apart]
        self._own = [f"Tensor parameter_{each}" for each in cell.parameter_names]
        initial = [f"Tensor initial_{each}" for each in cell.state_names]
        kept = ["Tensor gates", *["Tensor message_gates"] * cell.gates_apart, "Tensor states"]
        grads = ["Tensor? output_grad", *(f"Tensor? final_{each}_grad" for each in cell.state_names)]
        common = ["Tensor input", "Tensor weight_ih", "Tensor weight_hh"]
        self._biases, self._grads = len(biases), len(grads)
        self._given = len(common) + len(biases) + len(self._own) + len(initial)
        self._kept_names = tuple(each.partition(" ")[2] for each in kept)
        wanted = [f"bool {each}" for each in _WANTED]
        self.schema = _schema(
            name,
            [*common, *biases, *self._own, *initial, "bool reverse", "bool keep"],
            self._kept_count() + 1 + cell.states,
        )
        self.gradients_schema = _schema(
            f"{name}_grads", [*common, *self._own, *initial, *kept, *grads, "bool reverse", *wanted], self._given
        )

    def of_sequence(self, gradients: Operator) -> dict[str, Any]:
        """The arguments of `Operator` that declare the recurrence."""
        cell = self.cell
        gates, states, own = cell.gates, cell.states, cell.parameters
        weights = [f"{gates}*H I", f"{gates}*H H", *[f"{gates}*H"] * self._biases, *["H"] * own]
        # Of all steps, or of none.
        kept = [*[f"_ B {gates}*H"] * (1 + cell.gates_apart), f"{states} _ B H"]
        return {
            "reference": self.definition.sequence,
            "output": self._output,
            "shapes": _arrow(["T B I", *weights, *["B H"] * states], ["T B H", *["B H"] * states, *kept]),
            "gradient": _gradient_formula(self._short, gradients, self._biases),
            "visible_outputs": 1 + states,
            "autocast": "lower",
            "flops": _flops,
            "sharding": _arrow(
                ["_ B _", "_ _", "_ _", *["_"] * (self._biases + own), *["B _"] * states],
                ["_ B _", *["B _"] * states, *["_ B _"] * (1 + cell.gates_apart), "_ _ B _"],
            )
            + _UNITS,
            "explain": partial(_explain, self._short),
        }

    def of_gradients(self) -> dict[str, Any]:
        """The arguments of `Operator` that declare the gradients."""
        cell = self.cell
        gates, states, own = cell.gates, cell.states, cell.parameters
        kept = [*[f"T B {gates}*H"] * (1 + cell.gates_apart), f"{states} T B H"]
        given = ["T B I", f"{gates}*H I", f"{gates}*H H", *["H"] * own, *["B H"] * states]
        return {
            "reference": self.definition.gradients,
            "output": self._gradients_output,
            "shapes": _arrow([*given, *kept, "T B H", *["B H"] * states], ["..."] * self._given),
            "gradient": gradient_by_reference(
                _reference_of(self._short, of_gradients=True), len(given) + len(kept) + self._grads
            ),
            "flops": _gradients_flops,
            # Those of an input of two bytes are in float32.
            "mixed": self._kept_names,
            "sharding": _arrow(
                [
                    *("_ B _", "_ _", "_ _", *["_"] * own, *["B _"] * states),
                    *(*["_ B _"] * (1 + cell.gates_apart), "_ _ B _", "_ B _", *["B _"] * states),
                ],
                ["_ B _", "_ _", "_ _", *["_"] * (self._biases + own), *["B _"] * states],
            )
            + _UNITS,
            "explain": partial(_explain, f"{self._short}_grads"),
        }

    def _kept_count(self) -> int:
        return len(self._kept_names)

    def _output(self, input: Tensor, weight_ih: Tensor, weight_hh: Tensor, *others: Any) -> tuple[Tensor, ...]:
        cell, kept = self.cell, computed_dtype(input.dtype)
        steps, batch, _ = input.shape
        units, kept_steps = weight_hh.shape[1], steps if others[-1] else 0
        of_gates = [
            input.new_empty((kept_steps, batch, cell.gates * units), dtype=kept) for _ in range(1 + cell.gates_apart)
        ]
        return (
            input.new_empty((steps, batch, units)),
            *(input.new_empty((batch, units)) for _ in range(cell.states)),
            *of_gates,
            input.new_empty((cell.states, kept_steps, batch, units), dtype=kept),
        )

    def _gradients_output(
        self, input: Tensor, weight_ih: Tensor, weight_hh: Tensor, *others: Any
    ) -> tuple[Tensor, ...]:
        of_input, of_weight_ih, of_weight_hh, of_bias = others[-len(_WANTED) :]
        own, states = others[: self.cell.parameters], self.cell.states
        initial = others[len(own) : len(own) + states]
        return (
            input.new_empty(input.shape if of_input else (0,)),
            input.new_empty(weight_ih.shape if of_weight_ih else (0,)),
            input.new_empty(weight_hh.shape if of_weight_hh else (0,)),
            *(input.new_empty(weight_hh.shape[:1] if of_bias else (0,)) for _ in range(self._biases)),
            *(input.new_empty(each.shape) for each in (*own, *initial)),
        )


def _gradient_formula(name: str, gradients: Operator, biases: int) -> Callable[..., Any]:
    """The gradient formula of a recurrence."""
    call, sequence = gradients.call, _reference_of(name)

    def gradient(
        needs_grad: Sequence[bool],
        output_grads: Sequence[Tensor | None],
        saved: Sequence[Tensor],
        *arguments: Any,
    ) -> tuple[Tensor | None, ...]:
        kept: Sequence[Tensor] = saved
        *tensors, reverse, keep = arguments
        if torch.is_grad_enabled() or not keep:
            # A second derivative needs what was kept as a function of the arguments.
            dtype = computed_dtype(tensors[0].dtype)
            exact = [each.to(dtype) if isinstance(each, Tensor) else each for each in tensors]
            kept = sequence(*exact, reverse, True)[-len(saved) :]
        wanted = (*needs_grad[:3], any(needs_grad[3 : 3 + biases]))
        results = call(*tensors[:3], *tensors[3 + biases :], *kept, *output_grads, reverse, *wanted)
        return tuple(each if needed else None for each, needed in zip(results, needs_grad, strict=True))

    return gradient


# By the names of their recurrences. Compilers look into what a gradient formula refers to, and can do so with an object
# that a module holds, and not with one that a function holds.
_DEFINITIONS: dict[str, Definition] = {}
# The recurrences that are still in use. When one is declared again under its name, the earlier ones must know.
_ALIVE: WeakSet[Recurrence] = WeakSet()


def _reference_of(name: str, *, of_gradients: bool = False) -> Callable[..., tuple[Tensor, ...]]:
    def reference(*arguments: Any) -> tuple[Tensor, ...]:
        definition = _DEFINITIONS[name]
        return definition.gradients(*arguments) if of_gradients else definition.sequence(*arguments)

    return reference


def _schema(name: str, arguments: Sequence[str], results: int) -> str:
    return f"{name}({', '.join(arguments)}) -> ({', '.join(['Tensor'] * results)})"


def _arrow(arguments: Sequence[str], results: Sequence[str]) -> str:
    return f"{', '.join(arguments)} -> {', '.join(results)}"


def _explain(name: str, input: Tensor, weight_ih: Tensor, weight_hh: Tensor, *others: Any) -> None:
    if input.shape[0] == 0:
        raise ValueError(f"{name}: input must have at least one step, got {tuple(input.shape)}")
    if weight_hh.shape[1] == 0:
        raise ValueError(f"{name}: weight_hh must have at least one column, a unit each, got {tuple(weight_hh.shape)}")


def _flops(input: Sequence[int], weight_ih: Sequence[int], weight_hh: Sequence[int], *others: Any) -> int:
    return 2 * math.prod(input[:-1]) * (math.prod(weight_ih) + math.prod(weight_hh))


def _gradients_flops(input: Sequence[int], weight_ih: Sequence[int], weight_hh: Sequence[int], *others: Any) -> int:
    of_input, of_weight_ih, of_weight_hh, _ = others[-len(_WANTED) :]
    # The gradient of every message goes into that of the step before.
    of_features, of_units = of_input + of_weight_ih, 1 + of_weight_hh
    return 2 * math.prod(input[:-1]) * (of_features * math.prod(weight_ih) + of_units * math.prod(weight_hh))
