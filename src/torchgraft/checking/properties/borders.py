"""Packed sequences with borders in other places give the results of the reference.

Proves: in small samples, an argument of whole numbers that rise from 0 to a size of another tensor says where sequences
begin and end. It becomes one sequence; two, of which either is short or has no length; three and more, of which one
between two others, or two in a row, or the first ones have no length; and one for each position, also of 1,100
positions. Sizes that were the number of sequences, or of positions, become the new one if the reference takes it only
so. Results and gradients are those of the reference, so that nothing crosses a border, or the operator refuses the
call. Where the reference raises, as it may if a number says how many sequences there are, nothing is asked.

Cannot prove: anything about sequences that an operator finds in other ways, as by the index of each position.

Mend: start and stop at the borders that the argument gives, not at the size of the tensor; a sequence may have no
length.

Example: steps over one border at each position, and a packed sequence is empty.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.bounds import memory_bounded
from torchgraft.checking.helpers.derived_calls import Derived, ask, derived, is_given, is_small, is_taken_on_cpu
from torchgraft.checking.helpers.other_sizes import sizes_of, with_sizes
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import replaced
from torchgraft.sampling import Drawn

_SAMPLES = 4
# Enough for a border with two positions on both sides.
_FEWEST = 4
# More than a kernel finds in ten steps of a search, or holds in the threads of a block.
_MANY = 1_100
# The most elements of all arguments, and of all results, and the most products that are added up.
_ELEMENTS, _PRODUCTS = 1 << 18, 1 << 24
# Of more borders a failure shows the first and the last.
_SHOWN = 10


def check(case: Case) -> None:
    """See the module."""
    calls = [case.call(sample) for sample in case.table(small=True, empty=False)]
    packed = [(call, place) for call in calls for place in _places_of_borders(call)]
    # The longest ones have room for several borders.
    packed = sorted(packed, key=lambda each: -each[0].sample.elements)[: _SAMPLES // 2 if case.quick else _SAMPLES]
    others = (each for call, place in packed for each in _with_other_borders(call, place))
    ask(case, others, (check_value, check_gradient), "no argument says where sequences begin and end")
    many = (each for call, place in packed[: 1 if case.quick else None] for each in _with_many(call, place))
    with suppress(NotApplicable):
        ask(case, many, (check_value,), "it takes no more sequences")


def _places_of_borders(call: Call) -> Iterator[int]:
    arguments = call.sample.arguments
    sizes = {size for each in call.sample.tensors if not is_given(each) for size in each.shape}
    for place, value in enumerate(arguments):
        if isinstance(value, Drawn) and is_given(value) and len(value.shape) == 1:
            numbers = list(value.values or ())[: value.elements]
            is_whole = len(numbers) == value.elements > 1 and numbers == sorted(numbers) and numbers[0] == 0
            if is_whole and numbers[-1] in sizes and numbers[-1] >= _FEWEST:
                yield place


def _with_other_borders(call: Call, place: int) -> Iterator[Derived]:
    before = call.sample.arguments[place]
    end, seen = int(before.values[-1]), [before.values]
    for inside, words in _borders(end):
        values = (0, *inside, end)
        if values not in seen and (other := _with_borders(call, place, values)) is not None:
            seen.append(values)
            name = call.declaration.arguments[place].name
            yield derived(call, other, f"{name} {_in_short(values)}{words and f' ({words})'}")


def _with_many(call: Call, place: int) -> Iterator[Derived]:
    """Yields the call with so many positions, each of which is a sequence."""
    values = tuple(range(_MANY + 1))
    # What the definition computes on the way may be far larger than its results.
    with memory_bounded(torch.device("cpu")):
        other = _with_borders(call, place, values)
    if other is not None:
        yield derived(call, other, f"{call.declaration.arguments[place].name} {_in_short(values)}")


def _with_borders(call: Call, place: int, values: tuple[int, ...]) -> Call | None:
    """The call with other borders, in sizes that the reference takes; None if it takes none."""
    before = call.sample.arguments[place]
    end, sequences = int(before.values[-1]), len(before.values) - 1
    arguments = replaced(
        call.sample.arguments, place, replace(before, shape=(len(values),), values=tuple(map(float, values)))
    )
    changed = replace(call, sample=replace(call.sample, arguments=arguments))
    sizes = sizes_of(call, numbers=True, least=1)
    positions = {each: values[-1] for each, size in sizes.items() if size == end and each.argument != place}
    counts = {each: len(values) - 1 for each, size in sizes.items() if size == sequences and each.argument != place}
    for more in ({}, counts):
        other = with_sizes(changed, {**positions, **more})
        if is_small(other, _ELEMENTS, _PRODUCTS) and is_taken_on_cpu(other):
            return other
    return None


def _borders(end: int) -> Iterator[tuple[Sequence[int], str]]:
    """The borders between 0 and the end, and what is special about them, for a person."""
    for inside in ((), (2,), (0,), (end,), (1,), (end - 1,), (1, 3)):
        yield inside, ""
    # What begins behind an empty sequence is where a kernel goes wrong that steps over one border at a time.
    yield (1, 1, 3), "an empty sequence between others"
    yield (2, 2, 3), "an empty sequence between others"
    yield (1, 1, 1, 3), "two empty sequences in a row, between others"
    yield (1, 1, 2, 2, 3), "two empty sequences, each between others"
    yield (0, 0, 1, 3), "two empty sequences before the others"
    yield (1, end, end), "two empty sequences behind the others"
    yield (3, 3), "an empty sequence between others"
    yield range(1, end), ""


def _in_short(borders: Sequence[int]) -> str:
    if len(borders) <= _SHOWN:
        return str(list(borders))
    return f"[{', '.join(map(str, borders[:3]))}, ..., {borders[-1]}], {len(borders):,} of them"


PROPERTY = Property(check)
