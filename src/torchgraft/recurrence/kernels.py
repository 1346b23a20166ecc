"""The texts of a recurrence's kernels: the printed cell, and functions that call torchgraft's passes with it."""

from __future__ import annotations

from torchgraft.recurrence.cell import Cell

_HEADERS = {"cpu": "torchgraft/detail/recurrence_cpu.h", "cuda": "torchgraft/detail/recurrence.cuh"}
_RUNS = {"cpu": "recurrence::OnCpu()", "cuda": "recurrence::OnCuda(input)"}
_TEXT = """\
#include <{header}>

// A name of its own: without one, compilers of CUDA mix it up with those in torchgraft's headers.
namespace {name}_cell {{

{cell}
}}  // namespace {name}_cell

auto {name}_{device}({arguments}) {{
  return recurrence::as_tuple<{count}>({call});
}}
"""


class Kernels:
    """The texts of the kernels of a recurrence and of its gradients, by kind of device.

    Args:
        name: of the recurrence, `namespace::name`.
        cell: what is compiled into them.
    """

    def __init__(self, name: str, cell: Cell) -> None:
        self._name, self._cell = name.partition("::")[2], cell
        self._own = [f"parameter_{each}" for each in cell.parameter_names]
        self._initial = [f"initial_{each}" for each in cell.state_names]

    @property
    def sequence(self) -> dict[str, str]:
        """Those of the recurrence."""
        cell = self._cell
        biases = ["bias", *["message_bias"] * cell.gates_apart]
        arguments = [*self._common(biases), "bool reverse"]
        biases_given = "bias, message_bias" if cell.gates_apart else "bias, std::nullopt"
        count = 3 + cell.gates_apart + cell.states
        return {
            device: self._text(
                device,
                "",
                arguments,
                count,
                f"recurrence::forward<{self._name}_cell::Cell>({run}, {self._given()}, {biases_given})",
            )
            for device, run in _RUNS.items()
        }

    @property
    def gradients(self) -> dict[str, str]:
        """Those of the gradients."""
        cell = self._cell
        finals = [f"final_{each}_grad" for each in cell.state_names]
        message_gates = ["Tensor message_gates"] * cell.gates_apart
        wanted = ["of_input", "of_weight_ih", "of_weight_hh", "of_bias"]
        arguments = [
            *self._common([]),
            *("Tensor gates", *message_gates, "Tensor states"),
            *(f"std::optional<Tensor> {each}" for each in ("output_grad", *finals)),
            *(f"bool {each}" for each in ("reverse", *wanted)),
        ]
        kept = f"gates, {'message_gates' if cell.gates_apart else 'std::nullopt'}, states"
        given = f"{{{kept}, output_grad, {{{', '.join(finals)}}}, {', '.join(wanted)}}}"
        count = 4 + cell.gates_apart + cell.parameters + cell.states
        return {
            device: self._text(
                device,
                "_grads",
                arguments,
                count,
                f"recurrence::backward<{self._name}_grads_cell::Cell>({run}, {self._given()}, {given})",
            )
            for device, run in _RUNS.items()
        }

    def _common(self, biases: list[str]) -> list[str]:
        tensors = ["Tensor input", "Tensor weight_ih", "Tensor weight_hh"]
        optional = [f"std::optional<Tensor> {each}" for each in biases]
        return [*tensors, *optional, *(f"Tensor {each}" for each in (*self._own, *self._initial))]

    def _given(self) -> str:
        own, initial = ", ".join(self._own), ", ".join(self._initial)
        return f"{{input, weight_ih, weight_hh, {{{own}}}, {{{initial}}}, reverse}}"

    def _text(self, device: str, suffix: str, arguments: list[str], count: int, call: str) -> str:
        return _TEXT.format(
            header=_HEADERS[device],
            cell=self._cell.source(),
            name=self._name + suffix,
            device=device,
            arguments=", ".join(arguments),
            count=count,
            call=call,
        )
