"""Packed sequences with borders in other places give the results of the reference.

Proves: in small samples, an argument of whole numbers that rise from 0 to a size of another tensor says where sequences
begin and end. It becomes one sequence; two, of which either is short or has no length; three and more, of which one
between two others, or two in a row, or the first ones have no length; and one for each position. Results and gradients
are those of the reference, so that nothing crosses a border, or the operator refuses the call. Where the reference
raises, as it may if another argument says how many sequences there are, nothing is asked.

Cannot prove: anything about sequences that an operator finds in other ways, as by the index of each position.

Mend: start and stop at the borders that the argument gives, not at the size of the tensor; a sequence may have no
length.

Example: steps over one border at each position, and a packed sequence is empty.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.derived_calls import Derived, ask, derived, is_given, is_taken_on_cpu
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property
from torchgraft.sampling import Drawn

_SAMPLES = 4
# Enough for a border with two positions on both sides.
_FEWEST = 4
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
    end = int(before.values[-1])
    seen = [before.values]
    for inside, words in _borders(end):
        values = (0.0, *map(float, inside), float(end))
        changed = replace(before, shape=(len(values),), values=values)
        arguments = (*call.sample.arguments[:place], changed, *call.sample.arguments[place + 1 :])
        other = replace(call, sample=replace(call.sample, arguments=arguments))
        if values not in seen and is_taken_on_cpu(other):
            seen.append(values)
            name = call.declaration.arguments[place].name
            yield derived(call, other, f"{name} {_in_short([*map(int, values)])}{words and f' ({words})'}")


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


def _in_short(borders: list[int]) -> str:
    if len(borders) <= _SHOWN:
        return str(borders)
    return f"[{', '.join(map(str, borders[:3]))}, ..., {borders[-1]}], {len(borders):,} of them"


PROPERTY = Property(check)
