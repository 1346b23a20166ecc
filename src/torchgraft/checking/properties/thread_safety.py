"""Many Python threads may call the operator at once.

Proves: eight threads call forward and backward side by side, each with its own values. Each gets the same bits as the
same call made alone, while Python changes from one thread to the next as often as it can. A small sample also grows to
tens of thousands of elements and more, along each size, and three threads call it forward: such calls take long enough
to meet.

Cannot prove: that there is no race: a race need not show in these calls.

Mend: use no static or global buffers: allocate at each call, or make it thread_local.

Example: all threads share a static buffer.
"""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.large_calls import large_calls, values_of
from torchgraft.checking.helpers.settings import on_threads
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.compare import expect_equal
from torchgraft.kernels import python_kernels

_THREADS = 8
_CALLS = 6
# Seconds after which Python may change to another thread: calls of microseconds would else follow each other.
_SWITCH_SECONDS = 1e-5
# How many threads make a large call at once, how often each of them at least and at most; how many samples grow, and
# the seconds of all large calls of one.
_LARGE_THREADS, _LEAST_CALLS, _MOST_CALLS = 3, 4, 40
_SAMPLES = 3
_QUICK_SECONDS, _SECONDS = 0.3, 1.0
_WHY = " from that of the same call made alone (calls made at once share a variable, such as a static buffer)"


def check(case: Case) -> None:
    """See the module."""
    # The largest too: only a call that takes a while meets another.
    samples = [*case.table(small=True, empty=False, count=4), case.table(empty=False)[-1]]
    with _switching_often():
        case.each(_check_side_by_side, samples)
        # Triton's interpreter lets one thread at a time launch a kernel.
        if case.device.type == "cpu" and not python_kernels.is_run_by_interpreter(case.declaration):
            _check_large(case)


@contextmanager
def _switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _check_large(case: Case) -> None:
    """Makes calls that take long enough for threads to be inside of them at the same time."""
    for large, share in large_calls(case, _SAMPLES, _QUICK_SECONDS if case.quick else _SECONDS):
        case.each(partial(_check_large_call, large.words, share), [large.call.sample])


def _check_large_call(words: str, seconds: float, call: Call) -> None:
    calls = [replace(call, seed=call.seed + number) for number in range(_LARGE_THREADS)]
    # Each call runs on one thread of PyTorch, alone and beside others: PyTorch's products depend on their number.
    with on_threads(1):
        try:
            arguments = [each.arguments for each in calls]
            expected = [values_of(each, given) for each, given in zip(calls, arguments, strict=True)]
        except Exception:
            return

    together = Barrier(_LARGE_THREADS)

    def work(place: int) -> list[list[Any]]:
        torch.set_num_threads(1)
        found: list[list[Any]] = []
        together.wait()
        until = time.perf_counter() + seconds
        while len(found) < _LEAST_CALLS or (len(found) < _MOST_CALLS and time.perf_counter() < until):
            found.append(values_of(calls[place], arguments[place]))
        return found

    with ThreadPoolExecutor(_LARGE_THREADS) as pool:
        for alone, results in zip(expected, pool.map(work, range(_LARGE_THREADS)), strict=True):
            for each in results:
                what = f"{words}: a result of a thread"
                expect_equal(each, alone, what=what, why=_WHY)


def _check_side_by_side(call: Call) -> None:
    calls = [replace(call, seed=call.seed + number) for number in range(_THREADS)]
    expected = [each.run_own() for each in calls]
    threads = torch.get_num_threads()

    def work(call: Call) -> list[list[Tensor | None]]:
        # Each thread has a setting of its own.
        torch.set_num_threads(threads)
        on_gpu = call.device.type == "cuda"
        with torch.cuda.stream(torch.cuda.Stream(call.device)) if on_gpu else nullcontext():
            found = [call.run_own() for _ in range(_CALLS)]
            if on_gpu:
                torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(_THREADS) as pool:
        for alone, found in zip(expected, pool.map(work, calls), strict=True):
            for each in found:
                what = "a result or gradient of a thread"
                expect_equal(each, alone, what=what, why=_WHY)


PROPERTY = Property(check)
