"""Names the cause of a failure if a comparison of the operator with itself proves it.

No reference takes part, except to see that two different arguments should give different results: an operator that is
only wrong is the same wrong in every one of these comparisons.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.helpers.guarded_call import served_call
from torchgraft.checking.helpers.settings import on_threads
from torchgraft.checking.kernel_code import functions_of, shared_state
from torchgraft.checking.result import (
    CHANGED_GLOBAL,
    DATA_RACE,
    OUT_OF_BOUNDS,
    STALE_CACHE,
    UNDECLARED_SIZE,
    UNWRITTEN_MEMORY,
)
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect_equal
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.guarded_memory import NAN_BYTE, NUMBER_BYTE, Arena

_Outcome = Sequence[Tensor | None]

# The calls of larger samples take too long to be repeated.
_MOST_ELEMENTS = 1 << 22
# A data race shows in some runs only.
_RUNS = 12
_THREADS = 4
# The sizes of results are compared for so many arguments.
_SEEDS = 4


@dataclass(frozen=True)
class Cause:
    """The cause of a failure.

    Attributes:
        kind: its name, one of `result.KINDS`.
        words: the sentence that says it, with which the message of a failure begins.
    """

    kind: str
    words: str


def find_cause(call: Call, seconds: float) -> Cause | None:
    """Finds the cause of a failure in comparisons of a call with itself; None if they show none.

    Args:
        call: shows the failure.
        seconds: once this thread has worked so long no other comparison is begun.
    """
    if call.sample.elements > _MOST_ELEMENTS:
        return None
    began = time.thread_time()
    for find in (
        _undeclared_size,
        _changed_setting,
        _foreign_memory,
        _data_race,
        _carried_state,
        _stale_cache,
        _shared_between_threads,
    ):
        if time.thread_time() - began > seconds:
            break
        try:
            found = find(call)
        # What raises here has failed before, and with a better message.
        except Exception:
            continue
        if found is not None:
            return found
    return None


def _undeclared_size(call: Call) -> Cause | None:
    """Compares the sizes of results for other values of the same sizes."""
    if call.declaration.sizes_from_data or not call.declaration.lists:
        return None
    sizes = []
    for seed in range(_SEEDS):
        results = tree_leaves(call.operator.raw(*call.make(seed=seed)))
        sizes.append([tuple(each.shape) for each in results])
    for other in sizes[1:]:
        for one, another in zip(sizes[0], other, strict=True):
            if one != another:
                return Cause(
                    UNDECLARED_SIZE,
                    f"an undeclared size that depends on data: arguments of the same sizes give a result of {one} for"
                    f" some values and of {another} for others; declare sizes_from_data=True, and"
                    " torchgraft.unknown_size() in `output`",
                )
    return None


@dataclass(frozen=True)
class _Setting:
    """A setting of the process, and another value that it may have."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    another: Any


def _flushes_subnormals() -> bool:
    return not bool((torch.tensor(1e-40) * torch.ones(())).item())


_SETTINGS = (
    _Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    _Setting("the number of threads", torch.get_num_threads, torch.set_num_threads, 3),
    _Setting("whether gradients are recorded", torch.is_grad_enabled, torch.set_grad_enabled, True),
    _Setting("whether subnormal numbers count as zero", _flushes_subnormals, torch.set_flush_denormal, False),
    _Setting(
        "the mode of deterministic algorithms",
        torch.get_deterministic_debug_mode,
        torch.set_deterministic_debug_mode,
        1,
    ),
)


def _changed_setting(call: Call) -> Cause | None:
    """Compares the settings of the process before and after a call."""
    # An earlier call may have given a setting its value already, so each has another one before.
    before = [(each, each.read()) for each in _SETTINGS]
    try:
        for each in _SETTINGS:
            each.write(each.another)
        call.run()
        for each in _SETTINGS:
            if (now := each.read()) != each.another:
                return Cause(
                    CHANGED_GLOBAL,
                    f"a changed global: the call changes {each.name} of the whole process, to {now}, and leaves it so",
                )
    finally:
        for each, value in before:
            each.write(value)
    return None


class _ClearedArena(Arena):
    """An arena in which new tensors hold zeros, so that only the memory around tensors differs from run to run."""

    def _reserve(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, *, asked: bool) -> int:
        start = super()._reserve(size, stride, dtype, asked=asked)
        extent = 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        self._memory[start : start + extent * dtype.itemsize].zero_()
        return start


def _foreign_memory(call: Call) -> Cause | None:
    """Compares calls in memory that held NaN before and in memory that held numbers."""

    def depends_on_memory(arena: Arena) -> bool:
        def outcome(fill: int) -> list[Tensor | None]:
            def work() -> list[Tensor | None]:
                results, gradients = served_call(call, arena)
                # The next run overwrites the arena.
                return [None if each is None else each.detach().clone() for each in (*results, *gradients)]

            return arena.run(work, fill)

        poisoned, numbers = outcome(NAN_BYTE), outcome(NUMBER_BYTE)
        return _differ(poisoned, numbers) and not _differ(outcome(NAN_BYTE), poisoned)

    if not depends_on_memory(Arena(call.device)):
        return None
    if depends_on_memory(_ClearedArena(call.device)):
        return Cause(
            OUT_OF_BOUNDS,
            "a read out of bounds: results differ with what lies in memory before and behind the tensors of the call",
        )
    return Cause(
        UNWRITTEN_MEMORY,
        "memory that is never written: results differ with what was in new memory before the call, NaN or numbers",
    )


def _in_same_memory(call: Call) -> Callable[[], _Outcome]:
    """Makes a call that can be repeated: in the same memory, of which a cache that goes by addresses keeps the same."""
    if call.declaration.mutates:
        return call.run
    leaves = call.leaves(required=False)
    return lambda: call.run(leaves)


def _data_race(call: Call) -> Cause | None:
    """Compares calls on one thread with calls on several; on a GPU, calls with each other."""
    if call.declaration.random:
        return None
    run = _in_same_memory(call)
    if call.device.type != "cpu":
        first = run()
        if any(_differ_in_value(call, run(), first) for _ in range(_RUNS)):
            return Cause(
                DATA_RACE,
                "a data race: repeated calls with the same arguments differ. Look for a missing barrier, such as"
                " __syncthreads(), and for writes of several threads to one place without an atomic operation",
            )
        return None
    with on_threads(1):
        alone = run()
        if _differ_in_value(call, run(), alone):
            return None
    with on_threads(_THREADS):
        if not any(_differ_in_value(call, run(), alone) for _ in range(_RUNS)):
            return None
    return Cause(
        DATA_RACE,
        f"a data race between threads: the call is another on {_THREADS} threads than on one. Look for a missing"
        " barrier, and for writes of several threads to one place",
    )


def _carried_state(call: Call) -> Cause | None:
    """Compares calls with the same arguments, on one thread."""
    if call.declaration.random:
        return None
    run = _in_same_memory(call)
    with on_threads(1):
        # The first call may prepare something for all others.
        run()
        first = run()
        if not _differ_in_value(call, run(), first):
            return None
    return Cause(
        CHANGED_GLOBAL,
        "a changed global: repeated calls with the same arguments differ, on one thread too. A call changes a global or"
        f" static variable that the next call reads, or draws random numbers{_hint(call)}",
    )


def _stale_cache(call: Call) -> Cause | None:
    """Compares a call in memory that held other values before, at an earlier call, with one in new memory."""
    if call.declaration.random or call.declaration.sizes_from_data:
        return None
    memory, values = call.leaves(required=False), call.make(seed=1)
    before = call.run(memory)
    fresh = call.run(call.leaves(values, required=False))
    if call.declaration.mutates:
        memory = call.leaves(required=False)
        before = call.run(memory)
    with torch.no_grad():
        for tensor, value in zip(tensors_of(memory), tensors_of(values), strict=True):
            tensor.copy_(value)
    again = call.run(memory)
    if _differ_in_value(call, again, fresh):
        what = "what it computed for" if not _differ(again, before) else "something of"
        return Cause(
            STALE_CACHE,
            f"a stale cache: for new values in the memory of an earlier call it returns {what} the old"
            f" values{_hint(call)}",
        )
    if call.declaration.mutates or _differ(fresh, before) or not any(each.numel() for each in tensors_of(memory)):
        return None
    exact = [tree_leaves(call.expected(arguments)) for arguments in (call.arguments, values)]
    # An operator that is constant may be right for the first values by chance only if the reference is constant too.
    results = before[: len(exact[0])]
    if _differ_in_value(call, results, exact[0]) or not _differ_in_value(call, results, exact[1]):
        return None
    return Cause(
        STALE_CACHE,
        "a stale cache: for other values of the same sizes it returns what it computed for those of an earlier"
        f" call{_hint(call)}",
    )


def _shared_between_threads(call: Call) -> Cause | None:
    """Compares calls that several threads of Python make at once with calls alone."""
    if call.declaration.random or call.device.type != "cpu":
        return None
    # The values must differ, or calls would overwrite what they share with the same.
    calls = [replace(call, seed=call.seed + number) for number in range(2 * _THREADS)]
    alone = [each.run() for each in calls]
    with ThreadPoolExecutor(len(calls)) as pool:
        together = pool.map(lambda each: [each.run() for _ in range(_RUNS)], calls)
        if not any(_differ_in_value(call, run, one) for runs, one in zip(together, alone, strict=True) for run in runs):
            return None
    return Cause(
        CHANGED_GLOBAL,
        "a changed global: calls that several threads make at once differ from the same calls made alone. They share a"
        f" global or static variable, such as a buffer{_hint(call)}",
    )


def _hint(call: Call) -> str:
    """Names the variables of a module in which the author's kernels in Python may keep something."""
    found = shared_state(functions_of(call.operator, call.device.type))
    return f". Its kernel in Python uses {', '.join(found)}" if found else ""


def _differ(found: _Outcome, others: _Outcome) -> bool:
    """Whether two calls differ in a bit."""
    try:
        expect_equal(list(found), list(others))
    except Mismatch:
        return True
    return False


def _differ_in_value(call: Call, found: _Outcome, others: _Outcome) -> bool:
    """Whether two calls differ by more than the order of sums explains."""
    try:
        for one, other in zip(found, others, strict=True):
            is_rounded = one is not None and (one.is_floating_point() or one.is_complex())
            if one is None or other is None or not is_rounded or one.element_size() == 1:
                expect_equal(one, other)
            else:
                summed = max(call.summed, call.sample.elements, one.numel())
                call.expect_close(one, in_float64([other])[0], summed=summed)
    except Mismatch:
        return True
    return False
