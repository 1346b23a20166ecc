"""`torchgraft.shadow`: compares some calls of operators with their references while a model runs."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves

from torchgraft.capturing.folder import copied, describe, file_of, sample_in_memory, write_call
from torchgraft.capturing.taken import TakenCall, take
from torchgraft.capturing.watching import WatchedCall, alone, watching
from torchgraft.capturing.writing import Operators, find_operators, is_recording_graph
from torchgraft.checking.call import Call
from torchgraft.checking.subject import target_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_float64, is_number
from torchgraft.checking.tensors.gradients import grad_or_zeros, leaves_of, with_gradients
from torchgraft.declaration.schema import tensors_in
from torchgraft.finding.samples import samples_of
from torchgraft.operator import Operator
from torchgraft.operator.call import replace_in_call
from torchgraft.sampling import Samples

__all__ = ["DifferenceError", "Shadow", "shadow"]

_log = logging.getLogger("torchgraft.shadow")

# What real inputs add to the error that samples of small numbers have.
_SCALE = 4.0
# A result is not laid to the kernel that is at most so many times as wrong as the reference in the same dtype.
_AS_WRONG = 4.0


class DifferenceError(RuntimeError):
    """A result or gradient of an operator is not that of its reference: what `on_difference='raise'` raises."""


class Shadow:
    """The comparisons of one process: what `torchgraft.shadow` gives.

    Attributes:
        seen: how many calls reached a kernel.
        compared: how many of them were compared, and how many gradients.
        different: how many comparisons found a difference.
        skipped: how many were chosen and not compared to the end: they are too large, are recorded as a CUDA graph, or
            the reference failed.
        seconds: the time that comparisons took; on a GPU the time until they were launched and their end was known.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        every: int,
        gradients: bool,
        largest: int,
        most: int,
        on_difference: Literal["log", "raise"],
    ) -> None:
        self.seen = self.compared = self.different = self.skipped = 0
        self.seconds = 0.0
        self._folder, self._every, self._gradients, self._largest = folder, every, gradients, largest
        self._most, self._on_difference = most, on_difference
        self._lock = threading.Lock()
        self._calls: dict[Operator, int] = {}
        self._failed: set[Operator] = set()
        # The call of this thread whose results are about to get hooks.
        self._local = threading.local()

    def __repr__(self) -> str:
        return f"Shadow({self.seen} calls seen, {self.compared} compared, {self.different} different)"

    def _watch(self, watched: WatchedCall) -> Callable[[Any], None] | None:
        """Chooses whether a call is compared."""
        if watched.by_reference:
            return None
        operator = watched.operator
        with self._lock:
            number = self._calls[operator] = self._calls.get(operator, 0) + 1
            self.seen += 1
        if (number - 1) % self._every:
            return None
        if is_recording_graph(watched.arguments):
            self._skip()
            return None
        devices = [each.device for each in tensors_in(watched.arguments)]
        kept = self._guarded(operator, devices, lambda: self._keep(watched))
        if kept is None:
            return None
        call, taken = kept
        if self._gradients:
            self._local.chosen = number, call, taken
        return lambda results: self._compare_results(number, call, taken, watched.arguments, results)

    def _keep(self, watched: WatchedCall) -> tuple[Call, TakenCall] | None:
        """Keeps a copy of the arguments of a call; None if it cannot be compared."""
        taken = take(watched.operator.declaration, watched.arguments)
        if sum(each.bytes for each in taken.pieces) > self._largest:
            self._skip()
            return None
        taken = copied(taken)
        device = next((each.device for each in tensors_in(watched.arguments) if each.device.type != "cpu"), "cpu")
        sample = sample_in_memory("a call of a running model", taken)
        call = Call(watched.operator, _samples_of(watched.operator), sample, torch.device(device), taken.dtype, 0)
        return call, taken

    def _skip(self) -> None:
        with self._lock:
            self.skipped += 1

    def _compare_results(
        self, number: int, call: Call, taken: TakenCall, arguments: Sequence[Any], results: Any
    ) -> None:
        def compare() -> None:
            found = call.outcome_of(lambda *_: call.declaration.visible(results), arguments)
            expected = call.expected()
            try:
                call.expect_close(found, expected, scale=_SCALE)
            except Mismatch as mismatch:
                if not _is_as_wrong(found, call.reference(*call.arguments), expected):
                    self._report(number, call, taken, mismatch)

        self._ask(call, compare, recording=False)

    def _hook(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the function that records gradients: it gives results of a chosen call hooks."""

        def hooked(*arguments: Any) -> Any:
            self._local.chosen = None
            results = eager(*arguments)
            if (chosen := self._local.chosen) is not None:
                number, call, taken = chosen
                tensors = [each for each in tree_leaves(results) if each.requires_grad and is_number(each)]
                if tensors:
                    register_multi_grad_hook(tensors, lambda grads: self._compare_gradients(number, call, taken, grads))
            return results

        return hooked

    def _compare_gradients(self, number: int, call: Call, taken: TakenCall, grads: Sequence[Tensor | None]) -> None:
        def compare() -> None:
            leaves = call.leaves()
            results = with_gradients(tree_leaves(call.function(*leaves)))
            if len(results) != len(grads):
                raise ValueError(f"{len(grads)} results had a gradient, and {len(results)} have one now")
            pairs = zip(grads, results, strict=True)
            output_grads = [torch.zeros_like(each) if grad is None else grad.detach() for grad, each in pairs]
            found = grad_or_zeros(results, leaves_of(leaves), output_grads)
            expected = call.expected_gradients(output_grads)
            summed = max(call.summed, call.sample.elements)
            try:
                for name, one, other in zip(call.leaf_names, found, expected, strict=True):
                    what = f"the gradient of {name}"
                    call.expect_close(one, other, scale=_SCALE, summed=summed, what=what)
            except Mismatch as mismatch:
                if not _is_as_wrong(found, _reference_gradients(call, output_grads), expected):
                    self._report(number, call, taken, mismatch)

        self._ask(call, compare, recording=True)

    def _ask(self, call: Call, compare: Callable[[], None], *, recording: bool) -> None:
        def count() -> None:
            with self._lock:
                self.compared += 1
            compare()

        self._guarded(call.operator, [call.device], count, recording=recording)

    def _guarded(
        self,
        operator: Operator,
        devices: Sequence[torch.device],
        work: Callable[[], Any],
        *,
        recording: bool = False,
    ) -> Any:
        """Does work that leaves the state of random numbers as it is, and whose errors are not the model's."""
        started = time.perf_counter()
        numbers = sorted({device.index or 0 for device in devices if device.type == "cuda"})
        try:
            with alone(recording=recording), torch.random.fork_rng(devices=numbers):
                return work()
        except DifferenceError:
            raise
        except Exception as error:
            self._skip()
            with self._lock:
                is_first = operator not in self._failed
                self._failed.add(operator)
            if is_first:
                _log.warning("calls of %s are not compared: %s: %s", operator.short_name, type(error).__name__, error)
            return None
        finally:
            with self._lock:
                self.seconds += time.perf_counter() - started

    def _report(self, number: int, call: Call, taken: TakenCall, mismatch: Mismatch) -> None:
        """Logs a difference, with the file and the command that show it again."""
        operator = call.operator
        with self._lock:
            self.different += 1
            is_told = self.different <= self._most
        if not is_told and self._on_difference == "log":
            return
        again = "give folder= to keep the arguments of such calls"
        if self._folder is not None and is_told:
            path = file_of(self._folder, operator, taken.key, alone=True)
            try:
                write_call(path, operator, taken, values=True, largest=self._largest)
                words = ["graft", "check", target_of(operator), "--replay", str(self._folder)]
                again = f"its arguments are in {path}; {shlex.join(words)} asks them again"
            except OSError as error:
                again = f"its arguments could not be written: {error}"
        message = (
            f"{operator.short_name}: call {number} differs from its reference: {mismatch}; expected"
            f" {mismatch.expected}, found {mismatch.found}; arguments: {describe(taken.arguments)}; {again}"
        )
        if self._on_difference == "raise":
            raise DifferenceError(message)
        _log.warning(message)


def _samples_of(operator: Operator) -> Samples:
    try:
        return samples_of(operator)
    except LookupError:
        return Samples(())


def _reference_gradients(call: Call, output_grads: Sequence[Tensor]) -> Sequence[Tensor]:
    """The gradients that the reference has in the dtype of the call."""
    leaves = call.leaves()
    results = call.differentiable_results(tree_leaves(call.reference(*leaves)))
    return grad_or_zeros(with_gradients(results), leaves_of(leaves), output_grads)


def _is_as_wrong(found: Any, own: Any, expected: Any) -> bool:
    """Whether results are about as far from those in float64 as the reference in the same dtype is.

    Args:
        found: the results.
        own: those of the reference in the same dtype.
        expected: those of the reference in float64.
    """
    each = list(zip(tree_leaves(found), tree_leaves(own), tree_leaves(expected), strict=True))
    for one, other, exact in each:
        if one.shape != other.shape or one.shape != exact.shape:
            return False
        if not is_number(one):
            if not torch.equal(one, other):
                return False
            continue
        one, other, exact = in_float64((one.detach(), other.detach(), exact.detach()))
        sure = other.isfinite() & exact.isfinite()
        if not one[sure].isfinite().all():
            return False
        errors = [(value[sure] - exact[sure]).abs() for value in (one, other)]
        if sure.any() and errors[0].max() > _AS_WRONG * errors[1].max():
            return False
    return True


@contextmanager
def shadow(
    operators: Operators,
    *,
    every: int,
    folder: str | Path | None = None,
    gradients: bool = False,
    on_difference: Literal["log", "raise"] = "log",
    largest: int = 1 << 30,
    most: int = 10,
) -> Iterator[Shadow]:
    """Compares one in so many calls of operators with their references in float64, while the scope lasts.

    The results of the model and the state of random numbers stay what they are. A difference is logged as a warning of
    the logger 'torchgraft.shadow', and its call is written as `torchgraft.capture` does. A result that is no more wrong
    than that of the reference in the same dtype is no difference. Calls are seen where `torchgraft.capture` sees them.

    A compared call takes as long as its reference in float64 and copies of its arguments do, and as much memory; a call
    that is not compared takes some five microseconds more.

    Args:
        operators: as for `torchgraft.capture`.
        every: the first call of each operator is compared, and then one in so many.
        folder: to which calls with a difference are written; None: they are not.
        gradients: whether the gradients of compared calls are compared too, if there is a backward pass, by one more
            forward and backward pass of the operator. Calls in eager code alone, and of operators that write to no
            argument. Copies of the arguments are kept until the backward pass.
        on_difference: 'log'; or 'raise', which raises a DifferenceError.
        largest: calls with more bytes of arguments are not compared.
        most: differences beyond so many are counted only.

    Returns:
        A scope that gives a Shadow, with how many calls were `seen`, `compared`, `different` and `skipped`, and the
        `seconds` that it took.

    Raises:
        TypeError: an operator is none.
        ValueError: nothing declares an operator; its results are random, or its reference computes them, so that there
            is nothing to compare; or a number is too small.
        OSError: the folder cannot be made.
        DifferenceError: inside, with `on_difference='raise'`.
    """
    found = find_operators(operators)
    for operator in found:
        if operator.declaration.random:
            raise ValueError(f"operators must have results that a reference tells, and {operator.name}'s are random")
        if operator.declaration.is_of_pytorch:
            raise ValueError(f"operators must have kernels, and {operator.name} is computed by its reference")
    for name, number, least in (("every", every, 1), ("largest", largest, 0), ("most", most, 0)):
        if number < least:
            raise ValueError(f"{name} must be {least} or more, got {number}")
    if on_difference not in ("log", "raise"):
        raise ValueError(f"on_difference must be 'log' or 'raise', got {on_difference!r}")
    place = None if folder is None else Path(folder).absolute()
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    shadowed = Shadow(place, every=every, gradients=gradients, largest=largest, most=most, on_difference=on_difference)
    with ExitStack() as scopes:
        for operator in found:
            scopes.enter_context(watching(operator, shadowed._watch))
            if gradients:
                scopes.callback(replace_in_call(operator.call, "eager", shadowed._hook))
        yield shadowed
