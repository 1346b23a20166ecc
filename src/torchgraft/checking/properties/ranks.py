"""Tensors of more or fewer dimensions give the results of the reference, where it takes them.

Proves: on a few small samples, with one and two dimensions more in front, one fewer, and none at all, results and
gradients are those of the reference, or the operator refuses the call. Which tensors change together follows from
`...` in the declared `shapes`, or else from the samples: those that always have as many dimensions as the first tensor.
Where the reference raises, or `output` promises other sizes than the reference gives, nothing is asked.

Cannot prove: anything about operators whose tensors must change in other ways to have other numbers of dimensions.

Mend: take all leading dimensions together, as `rows_of(tensor, "input")` does, or refuse other numbers of dimensions
with `check_dim`.

Example: takes the first matrix of three dimensions for all.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.derived_calls import Derived, ask, derived, is_taken_on_cpu, kinds_of
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property
from torchgraft.sampling import Drawn

_SAMPLES = 4
# The dimensions that may be more or fewer: by argument, how many others stand before them and behind them.
_Rests = Mapping[int, tuple[int, int]]
_Sizes = tuple[int, ...]

_CHANGES: tuple[tuple[str, Callable[[_Sizes], _Sizes]], ...] = (
    ("one more dimension", lambda rest: (2, *rest)),
    ("two more dimensions", lambda rest: (2, 3, *rest)),
    ("one dimension fewer", lambda rest: rest[1:]),
    ("as few dimensions as can be", lambda rest: ()),
)


def check(case: Case) -> None:
    """See the module."""
    samples = kinds_of(case.table(small=True, empty=False), _SAMPLES // 2 if case.quick else _SAMPLES)
    ways = _ways(case)
    calls = (each for sample in samples for each in _in_other_ranks(case.call(sample), ways))
    # Who declares no `...` has not promised other ranks, so any error is an answer; `bad_input` asks for its words.
    refusals = {} if case.declaration.shapes is not None else {"refusals": (Exception,)}
    ask(case, calls, (check_value, check_gradient), "it takes no other number of dimensions", **refusals)


def _in_other_ranks(call: Call, ways: list[_Rests]) -> Iterator[Derived]:
    before = call.sample.arguments
    seen = [call.shapes]
    for words, change in _CHANGES:
        for rests in ways:
            changed = tuple(_changed(value, rests.get(place), change) for place, value in enumerate(before))
            other = replace(call, sample=replace(call.sample, arguments=changed))
            if other.shapes not in seen and is_taken_on_cpu(other):
                seen.append(other.shapes)
                yield derived(call, other, words)
                break


def _changed(value: Any, beside: tuple[int, int] | None, change: Callable[[_Sizes], _Sizes]) -> Any:
    if beside is None:
        return value
    if isinstance(value, (list, tuple)):
        return [_changed(each, beside, change) for each in value]
    if not isinstance(value, Drawn):
        return value
    first, end = beside[0], len(value.shape) - beside[1]
    shape = (*value.shape[:first], *change(value.shape[first:end]), *value.shape[end:])
    return replace(value, shape=shape, channels_last=False)


def _ways(case: Case) -> list[_Rests]:
    """The sets of arguments whose dimensions may change together; the first that the reference takes is asked."""
    if case.declaration.shapes is not None:
        rests = case.declaration.shapes.rests
        return [rests] if rests else []
    samples = [sample.arguments for sample in case.samples.named]
    first = next((place for place, value in enumerate(samples[0]) if _shapes_of(value)), 0)
    places = range(len(samples[0]))
    # Tensors that always have as many dimensions as the first one, then those that always have its sizes.
    ways = [
        {place for place in places if all(_agree(each, first, place, len) for each in samples)},
        {place for place in places if all(_agree(each, first, place, lambda shape: shape) for each in samples)},
        {first},
    ]
    return [dict.fromkeys(sorted(way), (0, 0)) for number, way in enumerate(ways) if way not in ways[:number]]


def _agree(arguments: tuple[Any, ...], first: int, place: int, of: Callable[[_Sizes], Any]) -> bool:
    """Whether tensors in two places are alike; what a sample leaves out is like any."""
    ones, others = (_shapes_of(arguments[each]) if each < len(arguments) else () for each in (first, place))
    pairs = zip(ones, others, strict=True) if len(ones) == len(others) else product(ones, others)
    return place == first or all(of(one) == of(other) for one, other in pairs)


def _shapes_of(value: Any) -> list[_Sizes]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [each.shape for each in values if isinstance(each, Drawn)]


PROPERTY = Property(check)
