"""A call leaves everything around it as it is, and depends on none of it.

Proves: forward and backward change no setting of the process: the number of threads, the default dtype and device,
whether gradients are recorded, PyTorch's switches for determinism, precision and cuDNN, the handling of subnormal
numbers and the rounding mode. This holds for the settings as they are and for others. An operator that declares no
random argument leaves random generators alone. Under another default dtype results and gradients are the same. No
argument, result or gradient is kept in memory after the last use by its caller.

Cannot prove: anything about a setting that is not named here.

Mend: change no setting of the process; pass seeds and dtypes as arguments; hold no tensor after the call.

Example: makes a constant in whatever dtype is the default.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.settings import generators_kept, settings_kept, settings_switched
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect_close, expect_equal, expect_same
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.gradients import leaves_of, with_gradients

_DEFAULT_DTYPES = (torch.float64, torch.float16)


def check(case: Case) -> None:
    """See the module."""
    samples = case.table(small=True, empty=False, count=6)
    case.each(_check_settings, samples)
    case.each(_check_default_dtype, samples)
    case.each(_check_nothing_kept, samples)


def _check_settings(call: Call) -> None:
    """A setting may have the value already that an operator gives it, so others are tried too."""
    _expect_kept(call)
    with settings_switched():
        _expect_kept(call)


def _expect_kept(call: Call) -> None:
    arguments = call.leaves(required=False)
    with settings_kept(), nullcontext() if call.declaration.random else generators_kept():
        results = tree_leaves(call.function(*arguments))
    differentiated = with_gradients(results)
    if differentiated:
        output_grads, when = call.output_grads(differentiated), " in backward"
        with settings_kept(when), nullcontext() if call.declaration.random else generators_kept(when):
            torch.autograd.grad(differentiated, leaves_of(arguments), output_grads, allow_unused=True)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _check_default_dtype(call: Call) -> None:
    plain = call.run()
    for dtype in _DEFAULT_DTYPES:
        arguments = call.leaves(required=False)
        with _default_dtype(dtype):
            found = call.run(arguments)
        try:
            _expect_alike(call, found, plain)
        except Mismatch as error:
            if _has_other_reason(call, arguments, plain) or _reference_depends_on(call, dtype):
                return
            raise error.explained(
                f"gives another result under torch.set_default_dtype({dtype}): it makes a tensor without naming a dtype"
            ) from None


def _has_other_reason(call: Call, arguments: tuple[Any, ...], plain: list[Tensor | None]) -> bool:
    """Whether results differ in this memory under the usual default dtype too: other properties ask about that."""
    again = call.run(call.leaves(required=False) if call.declaration.mutates else arguments)
    try:
        _expect_alike(call, again, plain)
    except Mismatch:
        return True
    return False


def _expect_alike(call: Call, found: list[Tensor | None], plain: list[Tensor | None]) -> None:
    for one, other in zip(found, plain, strict=True):
        if one is None or other is None or not (one.is_floating_point() or one.is_complex()):
            expect_equal(one, other)
            continue
        expect_same(one.dtype, other.dtype, "the dtype differs")
        summed = max(call.summed, call.sample.elements)
        expect_close(one, in_float64([other])[0], dtype=call.precision, summed=summed)


def _reference_depends_on(call: Call, dtype: torch.dtype) -> bool:
    """Whether the definition itself depends on the default dtype, as the quotient of two integers does."""
    if call.declaration.random:
        return False
    arguments = call.arguments
    plain = tree_leaves(call.reference(*arguments))
    arguments = call.arguments
    with _default_dtype(dtype):
        others = tree_leaves(call.reference(*arguments))
    return any(
        one.dtype != other.dtype or not torch.equal(one, other) for one, other in zip(plain, others, strict=True)
    )


def _check_nothing_kept(call: Call) -> None:
    for differentiate, when in ((False, "the call"), (True, "backward")):
        watched = _watch_call(call, differentiate=differentiate)
        kept = [name for name, is_freed in watched if not is_freed()]
        if kept:
            # What only points at itself is freed by Python when it looks for that.
            gc.collect()
        for name, is_freed in watched:
            if not is_freed():
                raise Mismatch(f"keeps {name} alive after {when}, when nobody else uses it any more")


def _watch_call(call: Call, *, differentiate: bool) -> list[tuple[str, Callable[[], bool]]]:
    """Makes a call and lets go of all its tensors; returns what tells whether the memory of each is free."""
    arguments = call.leaves(required=False)
    watched = [*zip(call.tensor_names, tensors_of(arguments), strict=True)]
    results = tree_leaves(call.function(*arguments))
    watched += [(f"result {number}", result) for number, result in enumerate(results, 1)]
    differentiated = with_gradients(results)
    if differentiate and differentiated:
        output_grads = call.output_grads(differentiated)
        leaves = leaves_of(arguments)
        gradients = torch.autograd.grad(differentiated, leaves, output_grads, allow_unused=True)
        watched += [("an incoming gradient", each) for each in output_grads]
        watched += [("a gradient", each) for each in gradients if each is not None]
    # It asks the memory, not the tensor in Python: a library in C++ keeps only that.
    return [(name, StorageWeakRef(tensor.untyped_storage()).expired) for name, tensor in watched]


PROPERTY = Property(check, of_calls=True)
