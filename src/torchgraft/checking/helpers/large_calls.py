"""Calls that are large enough for several threads to take part, made of small samples."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import SMALL_ELEMENTS, Case
from torchgraft.checking.helpers.derived_calls import Derived, growing_together, is_small, kinds_of, resized
from torchgraft.checking.helpers.other_sizes import SizePlace
from torchgraft.sampling import Sample

# To what a size grows so that several threads have a share, as long as all arguments, and all results, have so few
# elements, so few products are added up, and a call may be expected to keep this thread busy for so few seconds: what
# other programs take does not count.
_SIZES = (4_099, 20_011, 70_001, 300_001)
_ELEMENTS, _PRODUCTS = 1 << 22, 1 << 25
_CALL_SECONDS = 0.05
# A kernel that takes longer for the smallest of these sizes is interpreted, by one thread.
_MOST_SECONDS = 1.0
# In how many ways a sample grows.
_WAYS = 4


def large_calls(case: Case, samples: int, seconds: float) -> Iterator[tuple[Derived, float]]:
    """Yields the large calls that small samples of an operator grow to, with the seconds that each may be repeated.

    Args:
        case: of the operator.
        samples: how many grow, as different ones as there are.
        seconds: for all calls of a sample together.
    """
    for sample in kinds_of(_small_table(case), samples):
        call = case.call(sample)
        ways = list(growing_together(call))[:_WAYS]
        for places in ways:
            if (large := _enlarged(call, places)) is not None:
                yield large, seconds / len(ways)


def _small_table(case: Case) -> list[Sample]:
    """The small samples of the operator that have elements."""
    samples = [sample for sample in case.samples.table if not sample.is_empty and case.only in (None, sample.name)]
    return [sample for sample in samples if sample.elements <= SMALL_ELEMENTS]


def _enlarged(call: Call, places: tuple[SizePlace, ...]) -> Derived | None:
    """The largest call that is as quick as may be, as the smaller ones let expect; None if there is none."""
    found, expected = None, 0.0
    for size, following in zip(_SIZES, (*_SIZES[1:], 0), strict=True):
        larger = resized(call, dict.fromkeys(places, size))
        if expected > _CALL_SECONDS or not is_small(larger.call, _ELEMENTS, _PRODUCTS):
            break
        found = larger
        if following:
            try:
                arguments, began = found.call.arguments, time.thread_time()
                values_of(found.call, arguments)
            except Exception:
                # The kernel does not take such sizes.
                return None
            seconds = time.thread_time() - began
            if seconds > _MOST_SECONDS:
                return None
            expected = seconds * following / size
    return found


def values_of(call: Call, arguments: tuple[Any, ...]) -> list[Any]:
    """The results of a call that records no gradient, and writes to copies only."""
    with torch.no_grad():
        return tree_leaves(call.function(*call.with_copies_of_written(arguments)))
