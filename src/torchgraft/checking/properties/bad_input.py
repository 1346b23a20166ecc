"""Invalid input raises a clear Python error, and never causes a crash or a meaningless result.

Proves: each argument in turn gets a wrong type, rank, size, dtype or device; numbers become one more, one less,
negative, zero, huge or larger than float32 holds; of whole numbers that rise, as offsets do, two change places; and the
call gets too few or too many arguments. If the reference raises an error, the operator raises a ValueError or TypeError
that names the operator; called through `torch.ops`, it raises at least an error. If the reference returns a result, the
operator returns the same result or raises such an error. Kernels of the operator also refuse a tensor whose storage was
freed, in whole or in part. No such call ends the process. After each one that was refused, a call that is right gives
the same results as before, also where a sample has several elements and the last is wrong.

Cannot prove: anything about two wrong arguments at once, or about results for huge numbers if the reference needs more
memory or time than this check allows, or makes more than a million elements.

Mend: begin the host function with checks: `check_alike` for dtype, device and memory, `check_dim`, and
`TORCHGRAFT_CHECK` for sizes and numbers. `shapes` and `explain` in the declaration only word errors of the Operator:
`torch.ops` calls the kernel without them. If the reference accepts the call, as one that broadcasts, compute it or
refuse it.

Example: does not ask whether its arguments have the same sizes.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.adopting.adopted import Adopted
from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.after_refusals import expect_as_before
from torchgraft.checking.helpers.bounds import (
    REFERENCE_SECONDS,
    TooLong,
    ends_in_time,
    memory_bounded,
    time_bounded,
)
from torchgraft.checking.helpers.mistakes import Wrong, freed, mistakes, on_meta
from torchgraft.checking.kernels import claims_kernel
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_same
from torchgraft.checking.tensors.dtypes import in_float64, is_whole
from torchgraft.declaration.schema import by_name
from torchgraft.operator import Operator
from torchgraft.sampling import Sample

# PyTorch's words for sizes whose product has more than 64 bits.
_BEYOND_MEMORY = (
    "Storage size calculation overflowed",
    "integer multiplication overflow",
    "cannot be represented as a SymInt",
)

# Those for tensors without values, as of `item`, `numpy` and a boolean mask.
_WITHOUT_VALUES = ("on meta tensors", "with Meta tensors", "meta device type tensor", "meta tensor; no data")


def check(case: Case) -> None:
    """See the module."""
    counting: set[str] = set()
    with memory_bounded(case.device):
        case.each(lambda call: _check_call(case, call, counting), smallest_samples(case))
        case.each(lambda call: _check_after_refusals(case, call, counting), _telling_samples(case))


def smallest_samples(case: Case) -> list[Sample]:
    """The smallest sample, and one with as many tensors as may be."""
    small = case.table(empty=False, small=True)
    samples = {sample.name: sample for sample in (small[0], max(small, key=lambda sample: len(sample.tensors)))}
    return list(samples.values())


def _check_call(case: Case, call: Call, counting: set[str]) -> None:
    """Asks each mistake of a call; `counting` collects the arguments up to whose numbers the reference counts."""
    # What the reference imports at first must not be stopped on the way.
    with suppress(Exception):
        call.reference(*on_meta(call.arguments))
    for wrong in mistakes(call, counting):
        # On a GPU a kernel may stop the process for what the reference refuses.
        if wrong.is_huge and call.device.type == "cpu" and _is_refused_clearly(case, call, wrong):
            continue
        case.progress(f"the reference, {wrong.what}, of sample {call.sample.name!r}")
        verdict = _Verdict(unknown=True) if wrong.counted in counting else _ask_reference(call, wrong)
        if verdict.takes_long and wrong.counted:
            counting.add(wrong.counted)
        if not verdict.by_values:
            _check_mistake(case, call, wrong, verdict)
    # PyTorch's own kernels read what is gone.
    if claims_kernel(case.operator, case.device, case.dtype):
        for wrong in freed(call):
            # The reference is not asked: it may be of those that read what is gone.
            _check_mistake(case, call, wrong, _Verdict())


def _telling_samples(case: Case) -> list[Sample]:
    """The smallest sample, and a larger one, of which a kernel has read a part before it finds a mistake at the end."""
    small = case.table(empty=False, small=True)
    return list({sample.name: sample for sample in (small[0], small[-1])}.values())


def _check_after_refusals(case: Case, call: Call, counting: set[str]) -> None:
    """Repeats a good call after each refused one: scratch that is kept may stay as the refused one has left it."""
    expected, summed = call.expected(), call.summed * call.sample.elements
    try:
        call.expect_close(call.function(*call.arguments), expected, summed=summed)
    except Mismatch:
        # `value` says so.
        return
    for wrong in mistakes(call, counting):
        # Huge numbers take long, and a GPU may not be asked what the reference refuses for its values.
        if wrong.is_huge or len(wrong.arguments) != len(call.declaration.arguments):
            continue
        if call.device.type == "cuda" and any(is_whole(each.dtype) for each in tensors_of(wrong.arguments)):
            continue
        case.progress(f"{wrong.what}, and then a call that is right, of sample {call.sample.name!r}")
        with time_bounded():
            try:
                call.operator.call(*_unshared(call.operator, wrong.arguments))
            except Exception:
                expect_as_before(call, expected, wrong.what, summed)


# The verdict


@dataclass(frozen=True)
class _Verdict:
    """The reference's answer to arguments: an expected result, an error, or neither if nobody can know.

    `by_values`: an operation of the reference raises, which may be for what integers on a GPU hold. The host does not
    see these, and a kernel may stop the process for them, as PyTorch's do. `takes_long`: the reference was stopped.
    """

    expected: Any = None
    raised: str = ""
    unknown: bool = False
    by_values: bool = False
    takes_long: bool = False


def _targets(operator: Operator) -> list[tuple[str, Callable[..., Any]]]:
    """Returns the names by which an operator is called, and what they call; the Operator itself is the first."""
    public = f"torch.ops.{operator.namespace}.{operator.name}", operator.names.call_public
    if isinstance(operator, Adopted):
        # It has one name, and may raise an error of any type.
        return [public]
    raw = f"torch.ops.{operator.namespace}._{operator.name}", operator.raw
    return [("the operator", by_name(operator, operator.declaration.arguments)), public, raw]


def _is_refused_clearly(case: Case, call: Call, wrong: Wrong) -> bool:
    """Whether each name refuses a call, the Operator with a clear error: then the reference need not be asked."""
    operator = call.operator
    for name, target in _targets(operator):
        case.progress(f"{wrong.what}, given to {name}, of sample {call.sample.name!r}")
        with time_bounded():
            try:
                target(*_unshared(operator, wrong.arguments))
            except Exception as error:
                try:
                    if name == "the operator":
                        _expect_clear(operator.name, wrong, error)
                except Mismatch:
                    return False
                continue
        return False
    return True


def _check_mistake(case: Case, call: Call, wrong: Wrong, verdict: _Verdict) -> None:
    operator = call.operator
    targets = _targets(operator)
    is_adopted = isinstance(operator, Adopted)
    whole = None if is_adopted else targets[0][1]
    for name, target in targets:
        case.progress(f"{wrong.what}, given to {name}, of sample {call.sample.name!r}")
        with time_bounded():
            try:
                found = target(*_unshared(operator, wrong.arguments))
            except Exception as error:
                if target is whole and not verdict.unknown:
                    _expect_clear(operator.name, wrong, error)
                continue
        if is_adopted and (all(each.is_meta for each in tensors_of([found])) or (wrong.of_dtype and verdict.raised)):
            # It promises no values, and a reference that looks at values raises for want of them. Nor does it promise
            # to refuse a dtype that the reference does not take.
            continue
        if wrong.by_any_name or (wrong.always and target is whole):
            raise Mismatch(f"{wrong.what}: {name} returns a result and raises no error")
        if verdict.raised:
            raise Mismatch(f"{wrong.what}: {name} returns a result, but the reference raises {verdict.raised}")
        if operator.declaration.mutates:
            continue
        visible = found if target is whole else operator.declaration.visible(found)
        _expect_right(call, wrong, verdict, visible, name)


def _unshared(operator: Operator, arguments: Sequence[Any]) -> Sequence[Any]:
    """Arguments with copies of those that are written to, so that the next call finds them as they were."""
    if not operator.declaration.mutates or len(arguments) != len(operator.declaration.arguments):
        return arguments
    pairs = zip(operator.declaration.arguments, arguments, strict=True)
    return [each_tensor(_copied, [value])[0] if argument.mutated else value for argument, value in pairs]


def _copied(tensor: Tensor) -> Tensor:
    """A copy; what has lost its memory as it is, as it could not be copied, and no call may write to it."""
    elements = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + elements) * tensor.element_size() if tensor.numel() else 0
    return tensor if tensor.is_meta or tensor.untyped_storage().nbytes() < needed else tensor.clone()


def _ask_reference(call: Call, wrong: Wrong) -> _Verdict:
    tensors = tensors_of(wrong.arguments)
    arguments = wrong.arguments
    devices = {tensor.device.type for tensor in tensors}
    if "meta" in devices and len(devices) > 1:
        # PyTorch's own kernels read the memory that one of them does not have.
        return _Verdict()
    on_gpu = devices == {"cuda"}
    if on_gpu:
        # The definition is that of every device, and of huge numbers PyTorch's convolution on a GPU dies itself.
        arguments = each_tensor(Tensor.cpu, arguments)
    if wrong.is_huge and not ends_in_time(partial(_answer, call, arguments), REFERENCE_SECONDS):
        return _Verdict(unknown=True, takes_long=True)
    try:
        with time_bounded(TooLong):
            expected = _answer(call, arguments)
    except TooLong:
        return _Verdict(unknown=True, takes_long=True)
    except Exception as error:
        if _is_beyond_memory(error):
            # No result can be right, and PyTorch's own error, which a kernel passes on, is clear.
            return _Verdict(raised=f"{type(error).__name__}: {error}", unknown=True)
        if devices == {"meta"} and _is_for_want_of_values(error):
            # Nobody asked for its values, and an operator need not look at them to say the sizes of its result.
            return _Verdict(unknown=True)
        if not _is_about_memory(error):
            by_values = (
                on_gpu
                and any(is_whole(each.dtype) for each in tensors)
                and not isinstance(error, (ValueError, TypeError))
            )
            return _Verdict(raised=f"{type(error).__name__}: {error}", by_values=by_values)
    else:
        return _Verdict(expected)
    # Meta tensors have no memory, but their sizes can be checked.
    try:
        with time_bounded(TooLong, REFERENCE_SECONDS):
            return _Verdict(call.reference(*on_meta(wrong.arguments)), unknown=True)
    except Exception:
        return _Verdict(unknown=True)


def _answer(call: Call, arguments: Sequence[Any]) -> Any:
    """Returns what the reference gives in float64; raises what it raises in the dtypes of the arguments, or there."""
    try:
        expected = call.reference(*in_float64(arguments))
    except TooLong:
        raise
    except Exception as error:
        # If float64 has no room, no values are compared: that the reference takes these sizes and dtypes is enough, and
        # on meta that is known at once.
        if not (_is_about_memory(error) and _is_taken(call, on_meta(arguments))):
            call.reference(*arguments)
        raise
    call.reference(*arguments)
    return expected


def _is_taken(call: Call, arguments: Sequence[Any]) -> bool:
    try:
        call.reference(*arguments)
    except TooLong:
        raise
    except Exception:
        return False
    return True


def _is_beyond_memory(error: Exception) -> bool:
    """Whether a tensor is so large that not even its size in bytes can be computed."""
    return any(words in str(error) for words in _BEYOND_MEMORY)


def _is_about_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "memory" in text and ("alloc" in text or "enough" in text)
    )


def _is_for_want_of_values(error: Exception) -> bool:
    """Whether PyTorch raises an error for what a tensor on meta does not have: values, or an implementation."""
    return isinstance(error, NotImplementedError) or any(words in str(error) for words in _WITHOUT_VALUES)


def _expect_clear(operator_name: str, wrong: Wrong, error: Exception) -> None:
    said = f"{type(error).__name__}: {error}"
    expect(
        isinstance(error, (ValueError, TypeError)),
        f"{wrong.what}: the error is not a ValueError or TypeError that says what is wrong",
        expected=f"{operator_name}: ...",
        found=said,
    )
    expect(operator_name in str(error), f"{wrong.what}: the error does not name the operator", found=said)
    expect(wrong.names in str(error), f"{wrong.what}: the error does not name the argument", found=said)


def _expect_right(call: Call, wrong: Wrong, verdict: _Verdict, found: Any, name: str) -> None:
    if verdict.expected is None:
        return
    for one, other in zip(tree_leaves(found), tree_leaves(verdict.expected), strict=True):
        what = f"{wrong.what}: the result of {name}"
        expect_same(one.shape, other.shape, f"{what} has the wrong shape")
        if not one.is_meta and not other.is_meta:
            terms = call.sample.elements + one.numel()
            call.expect_close(one, other.to(one.device), summed=terms * call.summed, what=what)


PROPERTY = Property(check, of_samples=False, isolated=True, imports=COMPILER)
