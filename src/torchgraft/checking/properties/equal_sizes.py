"""Sizes that are equal, exchanged, one, or different where samples have equal ones, give the results of the reference.

Proves: a few small samples are changed: all sizes become equal; each two sizes are exchanged, wherever they stand, so
that a matrix of 2 x 3 becomes one of 3 x 2; each size becomes one, everywhere or in one tensor alone, and all do; and
if several sizes of a sample are equal, each of them, and each two of them, become one more. Results and gradients are
those of the reference, or the operator refuses the call. Where the reference raises, or `output` promises other sizes
than the reference gives, nothing is asked.

Cannot prove: anything about sizes beyond those of the samples; `limits` asks about large ones.

Mend: look for a size or a stride that stands in the place of another: rows for columns, or a stride for a size. Add
samples in which all sizes differ.

Example: takes columns for rows where there are as many.
"""

from collections.abc import Iterator
from itertools import combinations

from torchgraft.checking.call import Call
from torchgraft.checking.case import SMALL_ELEMENTS, Case
from torchgraft.checking.helpers.derived_calls import (
    Derived,
    ask,
    is_taken_on_cpu,
    kinds_of,
    may_shrink,
    resizable,
    resized,
)
from torchgraft.checking.helpers.other_sizes import SizePlace
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property

_SAMPLES = 4
# The most calls that a reference is asked about for one sample, and that are made.
_TRIED, _ASKED = 60, 20

_Sizes = dict[SizePlace, int]


def check(case: Case) -> None:
    """See the module."""
    samples = kinds_of(case.table(small=True, empty=False), _SAMPLES)
    calls = (each for sample in samples for each in _rearranged(case.call(sample)))
    ask(case, calls, (check_value, check_gradient), "it takes no other sizes")


def _rearranged(call: Call) -> Iterator[Derived]:
    sizes, shrinks, asked = resizable(call), may_shrink(call), 0
    seen = [call.shapes]
    for number, changed in enumerate(_changes(sizes)):
        if number == _TRIED or asked == _ASKED:
            return
        if not shrinks and any(size < sizes[place] for place, size in changed.items()):
            continue
        derived = resized(call, changed)
        other = derived.call
        if other.shapes in seen or other.sample.elements > 4 * SMALL_ELEMENTS or not is_taken_on_cpu(other):
            continue
        seen.append(other.shapes)
        asked += 1
        yield derived


def _changes(sizes: _Sizes) -> Iterator[_Sizes]:
    """The sizes that change, and what they become; those that tell most come first."""
    groups = {size: [place for place in sizes if sizes[place] == size] for size in sorted(set(sizes.values()))}
    if not groups:
        return
    for size in (max(groups), min(groups)):
        yield dict.fromkeys(sizes, size)
    for one, other in combinations(groups, 2):
        yield dict.fromkeys(groups[one], other) | dict.fromkeys(groups[other], one)
    for size, places in groups.items():
        if len(places) > 1:
            for several in (*combinations(places, 1), *combinations(places, 2)):
                yield dict.fromkeys(several, size + 1)
    for places in groups.values():
        yield dict.fromkeys(places, 1)
    yield dict.fromkeys(sizes, 1)
    for place in sizes:
        yield {place: 1}


PROPERTY = Property(check)
