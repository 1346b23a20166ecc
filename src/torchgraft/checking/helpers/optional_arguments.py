"""Calls that have an optional argument which their sample leaves out."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.derived_calls import Derived, derived, is_given, is_taken_on_cpu
from torchgraft.sampling import Drawn, Sample

# From so many samples that give an argument one is taken.
_GIVING = 3


def with_optionals(case: Case) -> Iterator[Derived]:
    """Yields samples that leave out an optional argument, with what another sample gives, in their own sizes.

    Samples whose whole numbers are given come first: one may stand for itself, as a label that is ignored does.
    """
    samples = sorted(case.table(small=True, empty=False), key=lambda each: not any(map(is_given, each.tensors)))
    for place, argument in enumerate(case.declaration.arguments):
        giving = [each for each in samples if argument.optional and _argument(each, place) is not None]
        for sample in samples if giving else ():
            if _argument(sample, place) is None:
                calls = (_with_argument(case.call(sample), each, place) for each in giving[:_GIVING])
                for one in islice((each for each in calls if is_taken_on_cpu(each.call)), 1):
                    yield one
                    yield from _flipped(one)


def _argument(sample: Sample, place: int) -> Any:
    return sample.arguments[place] if place < len(sample.arguments) else None


def _with_argument(call: Call, giving: Sample, place: int) -> Derived:
    """A call with an argument of another sample, in whose place it has none."""
    given, name = giving.arguments[place], call.declaration.arguments[place].name
    if isinstance(given, Drawn):
        given = replace(given, shape=tuple(_own_size(call.sample, giving, size) for size in given.shape))
    return derived(call, call.with_argument(place, given), f"{name} given, as in sample {giving.name!r}")


def _flipped(one: Derived) -> Iterator[Derived]:
    """Yields a call with each of its flags flipped, where it is taken so."""
    for place, value in enumerate(one.call.arguments):
        if isinstance(value, bool):
            name = one.call.declaration.arguments[place].name
            other = replace(
                one, words=f"{one.words}, {name}={not value}", call=one.call.with_argument(place, not value)
            )
            if is_taken_on_cpu(other.call):
                yield other


def _own_size(sample: Sample, other: Sample, size: int) -> int:
    """The size that a sample has where the other one first has this size; that size if there is none."""
    for own, others in zip(sample.arguments, other.arguments, strict=False):
        if isinstance(own, Drawn) and isinstance(others, Drawn) and len(own.shape) == len(others.shape):
            for one, another in zip(own.shape, others.shape, strict=True):
                if another == size:
                    return one
    return size
