"""Every run gives the same bits, on any number of threads.

Proves: forward and backward of each sample give the same bits again and again, with other work in between, on one, two,
three and all threads. PyTorch's own operations may give other bits on another number of threads: each thread computes
the end of its share in another way than the rest of it. They then run on the same number of threads as before, and only
the operator's kernels on another. On some processors that is so of matrix products too. There, if the operator calls
them, only runs on the same number of threads are compared.

Cannot prove: that there is no race: a race need not show in these runs. The sanitizers look for races.
"""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.compare import Mismatch, expect_equal

_RUNS = 4


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_runs, case.table())


def _check_runs(call: Call) -> None:
    first = call.run()
    threads = torch.get_num_threads()
    counts = sorted({1, 2, 3, threads} - {threads}) if call.device.type == "cpu" else []
    for run in range(_RUNS):
        expect_equal(call.run(), first, what="a result or gradient", why=f" between run 1 and run {run + 2}")
    for count in counts:
        with _on_threads(count):
            found = call.run()
        try:
            expect_equal(found, first, what="a result or gradient", why=f" between {threads} threads and {count}")
        except Mismatch:
            if _kernels_depend_on_threads(call, threads, count) and not (
                _products_depend_on_threads(call.dtype) and _calls_products(call)
            ):
                raise


@contextmanager
def _on_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def _kernels_depend_on_threads(call: Call, threads: int, count: int) -> bool:
    """Whether an author's kernels give other bits on another number of threads, with the same for PyTorch's own."""
    results = []
    for each in (threads, count):
        with _on_threads(each), _PyTorchOnThreads(threads):
            results.append(call.run())
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
            with _on_threads(self._threads):
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
        with _on_threads(count):
            # Few columns are split differently from many, few rows from many.
            products.append([left[:rows] @ right[:, :columns] for rows in (13, 70) for columns in (19, 51, 750)])
    return not all(
        torch.equal(one, other) for others in products[1:] for one, other in zip(products[0], others, strict=True)
    )


def _calls_products(call: Call) -> bool:
    """Whether the operator, forward or backward, calls PyTorch's matrix products."""
    with torch.autograd.profiler.profile() as profile:
        call.run()
    return any(re.fullmatch(r"aten::(add|badd)?(mm|mv|bmm)", event.name) for event in profile.function_events)


PROPERTY = Property(check, sanitized=True)
