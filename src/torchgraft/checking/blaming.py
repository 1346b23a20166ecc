"""Finds the part of an operator that is at fault if a property does not hold.

Parts of an operator are replaced, one after the other, by what its reference gives, and the same check runs again: the
part whose replacement makes it pass is at fault. At first only the wrong results of a kernel are replaced: if the check
then passes, it failed because of them, and of nothing else that the kernel does.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from torchgraft._private import pytorch
from torchgraft.checking.call import Call
from torchgraft.checking.causes import Cause, find_cause
from torchgraft.checking.helpers.promised_layout import layout_difference
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect_close
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.kernels.names import Names
from torchgraft.layout import CHANNELS_LAST
from torchgraft.operator.gradients import differentiate_reference

_Kernel = Callable[..., Any]
# Once this thread has worked for so many seconds no other part is tried, and no other cause: what other programs take
# does not count.
_SECONDS = 10.0
# The cause of a failure that does not come again.
CHANCE = "chance"
_SECONDS_TO_NAME = 5.0
_OF_FORMULA = "the gradient formula"
_OF_SAMPLE = (
    "the sample: with the reference in place of the kernel and of the gradient formula the check fails too, as the"
    " reference itself, computed in float32, loses more digits here than is allowed"
)
# So many arguments around those of a call are asked whether the reference loses digits.
_NEIGHBOURS = 8


@dataclass(frozen=True)
class Blame:
    """The part that is at fault.

    Attributes:
        part: the part of the declaration, and how that is known; empty where it is not.
        cause: failures of an operator that have the same one are one report; empty where this one stands alone.
        named: the cause itself, where a comparison of the operator with itself proves it.
    """

    part: str = ""
    cause: str = ""
    named: Cause | None = None


def find_blame(call: Call, ask: Callable[[], None], *, is_named: bool = False) -> Blame:
    """Finds the part that is at fault for a failure.

    Args:
        call: shows the failure.
        ask: asks again; raises where it still fails.
        is_named: whether the failure names its cause already.
    """
    operator, began = call.operator, time.thread_time()
    try:
        call.reference(*in_float64(call.arguments))
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        return Blame(f"the reference: it raises {what} in float64", f"reference: {what}")
    holds_again = _holds(ask)
    named = None if is_named else find_cause(call, _SECONDS_TO_NAME)
    if holds_again:
        part = "what changes from call to call: repeated, the check passes"
        if named is None:
            return Blame(f"{part}. Look for memory that is never written, and for data races", CHANCE)
        return Blame(part, named.kind, named)
    # Arguments that are written to and random results cannot be computed once more beside the call.
    if operator.declaration.mutates or operator.declaration.random or operator.declaration.sizes_from_data:
        return Blame("", named.kind if named else "", named)
    for find in (_blame_layout, _blame_values, _blame_strides, _blame_kernel, _blame_formula, _blame_sample):
        if time.thread_time() - began > _SECONDS:
            break
        if (found := find(call, ask)) is not None:
            return _with_cause(found, named, call)
    return Blame("", named.kind if named else "", named)


def _with_cause(found: Blame, named: Cause | None, call: Call) -> Blame:
    """Adds a cause to a part that is at fault, unless it is the cause of something else that is wrong."""
    if named is None:
        return found
    if found.part.startswith(_OF_FORMULA):
        with _replaced_formula(call):
            still_named = find_cause(call, _SECONDS_TO_NAME)
        if still_named is not None and still_named.kind == named.kind:
            return found
    return Blame(found.part, named.kind, named)


def _blame_layout(call: Call, ask: Callable[[], None]) -> Blame | None:
    """Blames the layout if `output` promises other sizes, strides or dtypes than there are, and that is all."""
    difference = layout_difference(call)
    if not difference:
        return None
    replacement = _replaced_kernel(call, lambda kernel, arguments: _laid_out(call, arguments, kernel(*arguments)))
    return Blame(difference, "layout") if _holds(ask, replacement) else None


def _blame_values(call: Call, ask: Callable[[], None]) -> Blame | None:
    """Blames the kernel if its results are wrong, or it raises, for arguments that are laid out plainly."""
    seen: list[str] = []

    def mended(kernel: _Kernel, arguments: Sequence[Any]) -> Any:
        plain = each_tensor(_plain, arguments)
        right = _laid_out(call, arguments, call.operator.reference(*in_float64(plain)))
        try:
            _expect_right(call, plain, kernel(*plain))
        except Exception as error:
            seen.append("its values are wrong" if isinstance(error, Mismatch) else f"it raises {type(error).__name__}")
            return right
        return kernel(*arguments)

    if not _holds(ask, _replaced_kernel(call, mended)) or not seen:
        return None
    difference = layout_difference(call)
    what = difference if difference.startswith("the kernel:") else f"the kernel: {seen[0]}"
    return Blame(f"{what}; with those of the reference the check passes", "value")


def _expect_right(call: Call, arguments: Sequence[Any], found: Any) -> None:
    tensor = next(each for each in tree_leaves(list(arguments)) if isinstance(each, Tensor))
    exact = call.operator.reference(*in_float64(arguments))
    summed = call.samples.summed(*each_tensor(lambda each: each.to("meta"), arguments))
    expect_close(found, exact, dtype=tensor.dtype if tensor.is_floating_point() else call.dtype, summed=summed)


def _blame_strides(call: Call, ask: Callable[[], None]) -> Blame | None:
    """Blames the kernel if it is right for copies of the same arguments in a plain layout alone."""
    seen: list[bool] = []

    def by_plain_arguments(kernel: _Kernel, arguments: Sequence[Any]) -> Any:
        copies = each_tensor(_plain, arguments)
        pairs = zip(tensors_of(arguments), tensors_of(copies), strict=True)
        seen.extend((one.stride(), one.storage_offset()) != (copy.stride(), 0) for one, copy in pairs)
        return _laid_out(call, arguments, kernel(*copies))

    if not _holds(ask, _replaced_kernel(call, by_plain_arguments)):
        return None
    if not any(seen):
        return Blame("the kernel: with copies of its arguments the check passes", "memory")
    return Blame("the kernel: it is right only if its arguments are contiguous", "strides")


def _blame_kernel(call: Call, ask: Callable[[], None]) -> Blame | None:
    def by_reference(kernel: _Kernel, arguments: Sequence[Any]) -> Any:
        return _laid_out(call, arguments, call.operator.reference(*in_float64(arguments)))

    if not _holds(ask, _replaced_kernel(call, by_reference)):
        return None
    return Blame("the kernel: with the reference in its place the check passes")


def _blame_formula(call: Call, ask: Callable[[], None]) -> Blame | None:
    from torchgraft.checking.properties.gradient import check_gradient
    from torchgraft.checking.properties.second_gradient import check_second_gradient

    if call.declaration.gradient is None or not _holds(ask, _replaced_formula(call)):
        return None
    is_right_once = _holds(partial(check_gradient, call))
    part = f"{_OF_FORMULA}: with the gradient of the reference the check passes"
    if is_right_once and not _holds(partial(check_second_gradient, call)):
        part += (
            ". What the formula returns is right, and its own derivative is not: make it of operations that autograd"
            " records, without detach(), .data or numbers taken out of tensors"
        )
    return Blame(part, "" if is_right_once else "gradient")


def _blame_sample(call: Call, ask: Callable[[], None]) -> Blame | None:
    """Blames the sample if numbers differ without a kernel and a formula too, and it is ill-conditioned."""
    is_of_numbers = False

    def ask_by_reference() -> None:
        nonlocal is_of_numbers
        try:
            ask()
        except Exception as error:
            failure = error.__cause__ if error.__cause__ is not None else error
            is_of_numbers = isinstance(failure, Mismatch) and failure.index is not None
            raise

    def by_reference(kernel: _Kernel, arguments: Sequence[Any]) -> Any:
        return _laid_out(call, arguments, call.operator.reference(*in_float64(arguments)))

    formula = nullcontext() if call.declaration.gradient is None else _replaced_formula(call)
    with formula:
        if _holds(ask_by_reference, _replaced_kernel(call, by_reference)) or not is_of_numbers:
            return None
    return Blame(_OF_SAMPLE, "sample") if _loses_digits(call) else None


def _loses_digits(call: Call) -> bool:
    """Whether the reference in float32, or its gradients, differ from float64 by more than is allowed in float32.

    Nothing that the operator computes takes part. Arguments in the neighbourhood of the call's are asked too, as errors
    of rounding come and go with the last digit.
    """
    generator = call.generator()

    def nudged(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        signs = torch.randint(-1, 2, tensor.shape, generator=generator).to(tensor.device)
        return (tensor.double() * (1 + signs * torch.finfo(torch.float32).eps)).float()

    def lost(arguments: tuple[Any, ...]) -> bool:
        results = tree_leaves(call.reference(*arguments))
        differentiated = call.differentiable_results(results)
        summed = max(call.summed, 1, *(each.numel() for each in results))
        try:
            call.expect_close(results, tree_leaves(call.expected(arguments)), summed=summed, dtype=torch.float32)
            if call.leaf_names:
                output_grads = call.output_grads(differentiated)
                found = call.reference_gradients(output_grads, arguments)
                expected = call.expected_gradients(output_grads, arguments)
                call.expect_close(found, expected, summed=summed, dtype=torch.float32)
        except Mismatch:
            return True
        return False

    return any(lost(each_tensor(nudged, call.arguments)) for _ in range(_NEIGHBOURS))


@contextmanager
def _replaced_formula(call: Call) -> Iterator[None]:
    """A scope in which the gradient of the reference stands in the place of the operator's formula."""
    operator = call.operator
    formula = differentiate_reference(
        operator.reference, operator.declaration.arrangement, operator.declaration.visible
    )
    before = operator.autograd.replace_formula(formula)
    try:
        with _recorded_by_python(operator.names):
            yield
    finally:
        operator.autograd.replace_formula(before)


def _holds(ask: Callable[[], None], replacement: AbstractContextManager[Any] | None = None) -> bool:
    try:
        with replacement or nullcontext():
            ask()
    except Exception:
        return False
    finally:
        # Compiled code would keep the part that was replaced.
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
    return True


@contextmanager
def _replaced_kernel(call: Call, function: Callable[[_Kernel, Sequence[Any]], Any]) -> Iterator[None]:
    """A scope in which a function answers in place of the kernel; if it raises, the kernel answers."""
    operator, key = call.operator, pytorch.DEVICE_KEYS[call.device.type]
    kernel = pytorch.boxed_kernel_of(operator.raw, key)
    if kernel is None:
        raise LookupError(f"{operator.qualified_name} has no kernel for {call.device.type}")

    def answer(*arguments: Any) -> Any:
        # Under a TorchDispatchMode PyTorch would call this function again in place of a kernel in Python.
        with _disable_current_modes():
            try:
                with torch.no_grad():
                    return function(kernel, arguments)
            except Exception:
                return kernel(*arguments)

    with pytorch.scoped_library(operator.namespace, "FRAGMENT") as library:
        pytorch.override(library, operator.raw, answer, key)
        pytorch.override(library, operator.public, operator.declaration.filled(answer), key)
        with _recorded_by_python(operator.names):
            yield


@contextmanager
def _recorded_by_python(names: Names) -> Iterator[None]:
    """A scope in which autograd is recorded in Python, with the kernel and the formula that the operator knows."""
    recorders = dict(names.recorders)
    names.recorders.clear()
    try:
        yield
    finally:
        names.recorders.update(recorders)


def _laid_out(call: Call, arguments: Sequence[Any], results: Any) -> Any:
    """Copies results to memory of the layout and the dtype that `output` gives."""
    return tree_map(
        lambda made, result: made if result is None else made.copy_(result),
        call.declaration.output(*arguments),
        results,
    )


def _plain(tensor: Tensor) -> Tensor:
    """Copies a tensor to memory of its own, contiguous or channels_last."""
    layout = CHANNELS_LAST.get(tensor.dim(), torch.contiguous_format)
    if tensor.is_contiguous(memory_format=layout):
        return tensor.clone(memory_format=layout)
    return tensor.clone(memory_format=torch.contiguous_format)
