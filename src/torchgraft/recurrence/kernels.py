"""The texts of a recurrence's kernels: the printed cell, and functions that call torchgraft's passes with it."""

from __future__ import annotations

from torchgraft.recurrence.cell import Cell

_HEADERS = {"cpu": "torchgraft/detail/recurrence_cpu.h", "cuda": "torchgraft/detail/recurrence.cuh"}
_RUNS = {"cpu": "recurrence::OnCpu()", "cuda": "recurrence::OnCuda(input)"}
_FILES = {"cpu": "cpu.cpp", "cuda": "cuda.cu"}
_CELL = """\
// A name of its own: without one, compilers of CUDA mix it up with those in torchgraft's headers.
namespace {name}_cell {{

{cell}
}}  // namespace {name}_cell
"""
_FUNCTION = """\
auto {name}_{device}({arguments}) {{
  return recurrence::as_tuple<{count}>({call});
}}
"""
_CELL_HEADER = """\
// clang-format off
// The cell of {namespace}::{name}, written by torchgraft from {step}.
#pragma once

{cell}
"""
_SOURCE = """\
// clang-format off
// The recurrence {namespace}::{name} and its gradients, {key}: written by torchgraft from {step}.
#include <{header}>

#include <torchgraft/registration.h>

namespace {namespace} {{

using namespace torchgraft;

namespace {{

#include "cell.h"

{functions}
}}  // namespace

TORCHGRAFT_KERNEL({namespace}, {key}, {name}, {name}_{device})
TORCHGRAFT_KERNEL({namespace}, {key}, {name}_grads, {name}_grads_{device})

}}  // namespace {namespace}
"""


class Kernels:
    """The texts of the kernels of a recurrence and of its gradients, by kind of device.

    Args:
        name: of the recurrence, `namespace::name`.
        cell: what is compiled into them.
    """

    def __init__(self, name: str, cell: Cell) -> None:
        self._namespace, _, self._name = name.partition("::")
        self._cell = cell
        self._own = [f"parameter_{each}" for each in cell.parameter_names]
        self._initial = [f"initial_{each}" for each in cell.state_names]

    @property
    def sequence(self) -> dict[str, str]:
        """Those of the recurrence, for `load_inline`."""
        return {device: self._alone(device, self._sequence(device)) for device in _RUNS}

    @property
    def gradients(self) -> dict[str, str]:
        """Those of the gradients, likewise."""
        return {device: self._alone(device, self._gradients(device)) for device in _RUNS}

    @property
    def sources(self) -> dict[str, str]:
        """The sources of a package's library that holds both, by the names of their files."""
        words = {"namespace": self._namespace, "name": self._name, "step": self._cell.name}
        made = {"cell.h": _CELL_HEADER.format(cell=self._printed(), **words)}
        for device, header in _HEADERS.items():
            functions = "\n".join([self._sequence(device), self._gradients(device)])
            made[_FILES[device]] = _SOURCE.format(
                header=header, key=device.upper(), device=device, functions=functions, **words
            )
        return made

    def _sequence(self, device: str) -> str:
        cell = self._cell
        biases = ["bias", *["message_bias"] * cell.gates_apart]
        given = f"{self._given()}, bias, {'message_bias' if cell.gates_apart else 'std::nullopt'}"
        return _FUNCTION.format(
            name=self._name,
            device=device,
            arguments=", ".join([*self._common(biases), "bool reverse", "bool keep"]),
            count=3 + cell.gates_apart + cell.states,
            call=f"recurrence::forward<{self._name}_cell::Cell>({_RUNS[device]}, {given}, keep)",
        )

    def _gradients(self, device: str) -> str:
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
        return _FUNCTION.format(
            name=f"{self._name}_grads",
            device=device,
            arguments=", ".join(arguments),
            count=4 + cell.gates_apart + cell.parameters + cell.states,
            call=f"recurrence::backward<{self._name}_cell::Cell>({_RUNS[device]}, {self._given()}, {given})",
        )

    def _common(self, biases: list[str]) -> list[str]:
        tensors = ["Tensor input", "Tensor weight_ih", "Tensor weight_hh"]
        optional = [f"std::optional<Tensor> {each}" for each in biases]
        return [*tensors, *optional, *(f"Tensor {each}" for each in (*self._own, *self._initial))]

    def _given(self) -> str:
        own, initial = ", ".join(self._own), ", ".join(self._initial)
        return f"{{input, weight_ih, weight_hh, {{{own}}}, {{{initial}}}, reverse}}"

    def _printed(self) -> str:
        return _CELL.format(name=self._name, cell=self._cell.source())

    def _alone(self, device: str, function: str) -> str:
        return "\n".join([f"#include <{_HEADERS[device]}>\n", self._printed(), function])
