"""Calls that keep the results of the reference and of the original kernels, with which mutants are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import expect
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.kernels import measured_choice
from torchgraft.kernels.precision import cudnn_switches

# A kernel that can be measured, by the operator, the problem, and the kernel's name.
_Candidate = tuple[str, tuple[int, ...], str]


@dataclass(frozen=True)
class KnownCall(Call):
    """A call that makes its arguments, and asks the reference, once."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The same tensors at each look, but for new copies of those that a call writes to."""
        return self.with_copies_of_written(self._arguments) if self.declaration.mutates else self._arguments

    @cached_property
    def _arguments(self) -> tuple[Any, ...]:
        return self.make()

    @cached_property
    def _expected(self) -> Any:
        return super().expected(self.arguments)

    def expected(self, arguments: tuple[Any, ...] | None = None) -> Any:
        """The results by the reference; those for the call's own arguments are computed once."""
        return self._expected if arguments is None else super().expected(arguments)

    def expected_gradients(self, output_grads: Any, arguments: Sequence[Any] | None = None) -> tuple[Tensor, ...]:
        """The gradients by the reference; those for the call's own arguments are computed once."""
        if arguments is not None:
            return super().expected_gradients(output_grads, arguments)
        if not self._gradients:
            self._gradients.append(super().expected_gradients(output_grads))
        return self._gradients[0]

    def original(self, find: Callable[[KnownCall], Any]) -> Any:
        """Returns what `find` gave for the call the first time: for the original, which is asked before any mutant."""
        if find not in self._originals:
            self._originals[find] = find(self)
        return self._originals[find]

    @cached_property
    def _originals(self) -> dict[Callable[[KnownCall], Any], Any]:
        return {}

    @cached_property
    def _gradients(self) -> list[tuple[Tensor, ...]]:
        return []


def _strides_of(call: KnownCall) -> list[tuple[int, ...]]:
    return [result.stride() for result in tree_leaves(call.function(*call.arguments))]


def check_strides(call: KnownCall) -> None:
    """Expects the strides of the original's results."""
    expect(call.original(_strides_of) == _strides_of(call), "the results have other strides")


def _nodes_of(call: KnownCall) -> list[str]:
    return [type(result.grad_fn).__name__ for result in tree_leaves(call.function(*call.leaves()))]


def check_nodes(call: KnownCall) -> None:
    """Expects that autograd records the call by the same nodes as for the original."""
    # If a mutant refuses the quicker of two ways to record a call, the other way gives the same results.
    expect(call.original(_nodes_of) == _nodes_of(call), "gradients are recorded in another way")


def by_candidates(call: KnownCall) -> dict[_Candidate, list[Tensor]]:
    """Computes a call by each kernel that can be measured, PyTorch's own operator among them."""
    found = {}
    with cudnn_switches(benchmark=True), measured_choice.measuring(True):
        try:
            measured_choice.forget_choices()
            call.operator.call(*call.arguments)
            candidates = [
                replace(each, kernel=name) for each in measured_choice.choices() for name in each.microseconds
            ]
            for each in candidates:
                measured_choice.forget_choices()
                measured_choice.adopt([each])
                results = call.operator.call(*call.arguments)
                found[each.operator, each.problem, each.kernel] = tree_leaves(results)
        finally:
            measured_choice.forget_choices()
    return found


def check_candidates(call: KnownCall) -> None:
    """Expects the candidates of the original's measured choice, and their results.

    Raises:
        NotApplicable: the original measures nothing for this call.
    """
    original = call.original(by_candidates)
    if not original:
        raise NotApplicable("nothing is measured")
    found = by_candidates(call)
    expect(found.keys() == original.keys(), "other kernels can be measured")
    for each, results in original.items():
        *_, kernel = each
        strides = [[result.stride() for result in those] for those in (results, found[each])]
        expect(strides[0] == strides[1], f"by {kernel!r}, the results have other strides")
        call.expect_close(found[each], in_float64(results), what=f"by {kernel!r}, the result")
