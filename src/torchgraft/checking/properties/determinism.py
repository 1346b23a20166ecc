"""Every run gives the same bits, on any number of threads.

Proves: forward and backward of each sample give the same bits again and again, with other work in between, on one, two,
three and all threads. On some processors PyTorch's matrix products give other bits on another number of threads. There,
if the operator calls them, only runs on the same number of threads are compared.

Cannot prove: that there is no race: a race need not show in these runs. The sanitizers look for races.
"""

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
            if not (_products_depend_on_threads(call.dtype) and _calls_products(call)):
                raise


@contextmanager
def _on_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


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
