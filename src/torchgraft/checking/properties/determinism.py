"""Every run gives the same bits, on any number of threads.

Proves: forward and backward of each sample give the same bits again and again, with other work in between, on one, two,
three and all threads. PyTorch's own operations may give other bits on another number of threads: each thread computes
the end of its share in another way than the rest of it. They then run on the same number of threads as before, and only
the operator's kernels on another. On some processors that is so of matrix products too. There, if the operator calls
them, only runs on the same number of threads are compared. A small sample also grows to hundreds of thousands of
elements, along each size, and runs forward several times on four threads.

Cannot prove: that there is no race: a race need not show in these runs. The sanitizers look for races.

Mend: add in an order that follows from the sizes alone: `sum_rows` and `sum_partials` instead of atomic additions to
floats, or one thread for each result.

Example: the order of a sum depends on which thread is done first.
"""

import functools
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.large_calls import large_calls, values_of
from torchgraft.checking.helpers.settings import on_threads
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.compare import Mismatch, expect_equal

_RUNS = 4
# On how many threads a large call runs, and how often at most; at least so often, as long as all runs take no more than
# so many times their seconds. These are seconds that this thread works: what other programs take does not count.
_THREADS, _LARGE_RUNS = 4, 40
_LEAST_RUNS, _PATIENCE = 5, 8
# How many samples grow, and the seconds that all runs of one may take.
_QUICK_SAMPLES, _SAMPLES = 2, 4
_QUICK_SECONDS, _SECONDS = 0.12, 1.0


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_runs, case.table())
    if case.device.type == "cpu":
        _check_shares(case)


def _check_shares(case: Case) -> None:
    """Runs calls that are large enough for several threads: samples are often too small for that."""
    samples, seconds = (_QUICK_SAMPLES, _QUICK_SECONDS) if case.quick else (_SAMPLES, _SECONDS)
    for large, share in large_calls(case, samples, seconds):
        case.each(partial(_check_large, large.words, share), [large.call.sample])


def _check_large(words: str, seconds: float, call: Call) -> None:
    with on_threads(_THREADS):
        try:
            arguments, began = call.arguments, time.thread_time()
            first = values_of(call, arguments)
        except Exception:
            return
        for number in range(_LARGE_RUNS):
            why = f" between run 1 and run {number + 2} on {_THREADS} threads"
            expect_equal(values_of(call, arguments), first, what=f"{words}: a result", why=why)
            allowed = seconds if number + 1 >= _LEAST_RUNS else _PATIENCE * seconds
            if time.thread_time() - began > allowed:
                break


def _check_runs(call: Call) -> None:
    first = call.run_own()
    threads = torch.get_num_threads()
    counts = sorted({1, 2, 3, threads} - {threads}) if call.device.type == "cpu" else []
    for run in range(_RUNS):
        expect_equal(call.run_own(), first, what="a result or gradient", why=f" between run 1 and run {run + 2}")
    for count in counts:
        with on_threads(count):
            found = call.run_own()
        try:
            expect_equal(found, first, what="a result or gradient", why=f" between {threads} threads and {count}")
        except Mismatch:
            if _kernels_depend_on_threads(call, threads, count) and not (
                _products_depend_on_threads(call.dtype) and _calls_products(call)
            ):
                raise


def _kernels_depend_on_threads(call: Call, threads: int, count: int) -> bool:
    """Whether an author's kernels give other bits on another number of threads, with the same for PyTorch's own."""
    results = []
    for each in (threads, count):
        with on_threads(each), _PyTorchOnThreads(threads):
            results.append(call.run_own())
    try:
        expect_equal(results[1], results[0])
    except Mismatch:
        return True
    return False


class _PyTorchOnThreads(TorchDispatchMode):
    """A scope in which PyTorch's own operations run on a number of threads, also those that kernels call."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self._threads = threads

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        named = named or {}
        if operation.namespace in ("aten", "prim", "prims"):
            with on_threads(self._threads):
                return operation(*arguments, **named)
        # The kernel itself, so that the scope sees what it calls and not once more the call of it.
        with self:
            return operation._op_dk(torch._C.DispatchKey.CPU, *arguments, **named)


@functools.cache
def _products_depend_on_threads(dtype: torch.dtype) -> bool:
    """Whether PyTorch's matrix products on this machine give other bits on another number of threads."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, generator=generator).to(dtype) for size in ((70, 250), (250, 750)))
    products = []
    for count in (1, 2, 3):
        with on_threads(count):
            # Few columns are split differently from many, few rows from many.
            products.append([left[:rows] @ right[:, :columns] for rows in (13, 70) for columns in (19, 51, 750)])
    return not all(
        torch.equal(one, other) for others in products[1:] for one, other in zip(products[0], others, strict=True)
    )


def _calls_products(call: Call) -> bool:
    """Whether the operator, forward or backward, calls PyTorch's matrix products."""
    with torch.autograd.profiler.profile() as profile:
        call.run_own()
    return any(re.fullmatch(r"aten::(add|badd)?(mm|mv|bmm)", event.name) for event in profile.function_events)


PROPERTY = Property(check, sanitized=True)
