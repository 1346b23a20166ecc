"""Sizes beyond the limits of kernels give the results of the reference.

Proves: in small samples of each kind each size grows by one and two, and to 9, 65, 1,024, 1,030, 4,096, 4,099 and
70,001: beyond a vector, a warp, a block of 1,024 threads, a tile of 4,096 and the 65,535 blocks of a grid, to multiples
of those, and by one element or a few, so that the last vector is not full. Equal sizes grow together if the reference
takes that, or else one or two of them. Of 1,030, 70,001 and 140,001, whole numbers and flags are all equal, which
counters of 8 or 16 bits, and sums of squared bytes in 32 bits, do not hold, and so are real numbers if a result is of
whole numbers; of two tensors of whole numbers, one is also the smallest; the result is compared. Without `low` and
`high`, integers of one or two bytes are the largest of their dtype. A number that is a size grows to 4,099 where
another size is 70,001: their products are no float32. Results and gradients are those of the reference, or the operator
refuses the call. What takes the reference or the kernel long is left out.

Cannot prove: anything about two other large sizes at once, or about calls that would take seconds here.

Mend: loop while threads, blocks or lanes are fewer than the work: a grid takes 65,535 blocks in y and z. Mask the last
vector and the last block; count in `int64_t`.

Example: leaves out what is over in the last vector of a row.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations

import torch

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.bounds import memory_bounded
from torchgraft.checking.helpers.derived_calls import (
    Derived,
    all_equal,
    ask,
    growing_together,
    is_small,
    is_taken_on_cpu,
    kinds_of,
    resizable,
    resized,
    warm_up,
)
from torchgraft.checking.helpers.other_sizes import SizePlace
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property

_SAMPLES = 4
_MOST = 140_001
_SIZES = (9, 65, 1_024, 1_030, 4_096, 4_099, 70_001, _MOST)
# The sizes of which counters of 8 and of 16 bits are too small, and sums of squared bytes that have 32.
_COUNTED = (1_030, 70_001, _MOST)
# A number that is a size, and another size beside it.
_NUMBER, _BESIDE = 4_099, 70_001
# The most elements of all arguments of a call, and of all results; and the most products that are added up in it, as
# far as nothing else tells its time. A result that many elements go into need not add up as many by itself.
_ELEMENTS, _PRODUCTS, _PRODUCTS_IF_QUICK = 1 << 21, 1 << 26, 1 << 36
# So many sizes that were measured tell how the time grows.
_MEASURED = 3
# The seconds that one call may take, as the calls before it let expect; and all calls together. They are those of this
# process alone, so that a busy machine asks no less.
_CALL_SECONDS, _QUICK_SECONDS, _SECONDS = 0.5, 1.5, 10.0
# The seconds that a larger number beside a larger size may take: there are few such calls, and one is asked always.
_CROSSED_SECONDS = 1.5

_CHECKS = (check_value, check_gradient)


@dataclass
class _Growing:
    """Places whose sizes grow together, and how long each size has taken."""

    call: Call
    places: tuple[SizePlace, ...]
    seconds: dict[int, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return max(resizable(self.call, 1)[place] for place in self.places)

    def at(self, size: int) -> Derived | None:
        """The call with this size, if it is quick enough and the operator takes it."""
        grown = resized(self.call, dict.fromkeys(self.places, size))
        if (
            size <= self.size
            or size in self.seconds
            or not is_small(grown.call, _ELEMENTS, self._most_products)
            or self.expected_seconds(size) > _CALL_SECONDS
        ):
            return None
        # What the definition computes on the way may be far larger than its results.
        with memory_bounded(torch.device("cpu")):
            return grown if is_taken_on_cpu(grown.call) else None

    @property
    def _most_products(self) -> int:
        return _PRODUCTS if len(self.seconds) < _MEASURED else _PRODUCTS_IF_QUICK

    def expected_seconds(self, size: int) -> float:
        """The time of the last call, times what it and one of less than half its size let expect.

        A part of it is the same for all sizes, so that more is expected than a small growth tells.
        """
        if not self.seconds:
            return 0.0
        last, more = max(self.seconds.items())
        smaller = [each for each in self.seconds.items() if 2 * each[0] < last]
        before, less = max(smaller, default=(last, more))
        power = math.log(more / less) / math.log(last / before) if smaller else 1.0
        return more * (size / last) ** min(max(power, 0.5), 2.0)


def check(case: Case) -> None:
    """See the module."""
    samples = [sample for sample in case.table(small=True, empty=False) if any(each.shape for each in sample.tensors)]
    kinds = kinds_of(samples, _SAMPLES // 2 if case.quick else _SAMPLES)
    calls = list(map(case.call, kinds))
    for call in calls[:1]:
        warm_up(case, call, _CHECKS)
    ask(case, _grown(case, calls), _CHECKS, "it takes no larger sizes")


def _grown(case: Case, calls: list[Call]) -> Iterator[Derived]:
    growing = [_Growing(call, places) for call in calls for places in growing_together(call)]
    end = time.process_time() + (_QUICK_SECONDS if case.quick else _SECONDS)
    # The first call of a kind compiles and loads what it needs, so the second is the first that is measured.
    for step in (1, 2, *_SIZES):
        for each in growing:
            size = each.size + step if step <= 2 else step
            began = time.process_time()
            if began < end and (grown := each.at(size)) is not None:
                # As many drawn terms err by more than anybody can say.
                if size != _MOST:
                    yield grown
                if step > 1:
                    each.seconds[size] = time.process_time() - began
                if size in _COUNTED:
                    for counted in all_equal(each.call, grown):
                        ask(case, [counted], (check_value,), "")
    # However long the others took, one is asked.
    end = max(end, time.process_time() + _CALL_SECONDS)
    for each, other in permutations(growing, 2):
        if time.process_time() < end and (crossed := _crossed(each, other)) is not None:
            yield crossed


def _crossed(number: _Growing, size: _Growing) -> Derived | None:
    """The call with a larger number beside a larger size, if each alone is quick; None if these are others."""
    (place, *more), call = number.places, number.call
    if more or place.dim is not None or call is not size.call or size.places[0].dim is None:
        return None
    if not (number.seconds and size.seconds):
        return None
    if number.expected_seconds(_NUMBER) + size.expected_seconds(_BESIDE) > _CROSSED_SECONDS:
        return None
    grown = resized(call, {**dict.fromkeys(size.places, _BESIDE), place: _NUMBER})
    return grown if is_small(grown.call, _ELEMENTS, _PRODUCTS) and is_taken_on_cpu(grown.call) else None


# A sum that is kept in a dtype of two bytes shows in long rows.
PROPERTY = Property(check, dtypes=(torch.float32, torch.float16), sanitized=True)
