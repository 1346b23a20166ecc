"""Calls in small sizes, and with small whole numbers, that are drawn by machine: one quick comparison each."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.derived_calls import (
    Check,
    Derived,
    ask,
    derived,
    described,
    is_taken_on_cpu,
    kinds_of,
    may_shrink,
    resizable,
)
from torchgraft.checking.helpers.other_sizes import SizePlace, with_sizes
from torchgraft.checking.helpers.settings import on_threads
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.dtypes import holds_numbers
from torchgraft.sampling import Sample

_SAMPLES = 4
# Sizes and numbers are as likely small as large.
_MOST, _FEW = 130, 8
# The share of calls in which a number changes and nothing else does.
_ALONE = 0.15
_ELEMENTS = 1 << 13
# The most calls of a property, and the seconds of its thread after which there are no more. A slow machine asks as many
# as are enough for most mistakes, as long as they take no more than these seconds.
_QUICK_CALLS, _CALLS = 500, 5000
_QUICK_SECONDS, _SECONDS = 0.15, 2.0
_ENOUGH, _ENOUGH_SECONDS = 350, 0.6
# So many roundings of the largest element nobody takes for a wrong place.
_ROUNDINGS = 16
# A sample of which so many calls were refused, and none taken, has sizes that do not change.
_TRIED = 30


def check_drawn_calls(case: Case, check: Check) -> bool:
    """Checks calls that are drawn by machine, as many as its time allows, and says whether there was one.

    Args:
        case: has the samples that are changed.
        check: of a call whose result is not nearly that of the reference in the same dtype.
    """
    if case.declaration.random:
        return False
    try:
        samples = kinds_of(case.table(small=True, empty=False), _SAMPLES)
    except NotApplicable:
        return False
    # Threads would take longer to begin than such a call takes.
    with on_threads(1):
        return _check_some(case, check, samples)


def _check_some(case: Case, check: Check, samples: Sequence[Sample]) -> bool:
    most = _QUICK_CALLS if case.quick else _CALLS
    drawing = [each for sample in samples if (each := _Drawing(case, check, case.call(sample))).goes_on]
    # The first call of each loads what it needs, which takes longer than all others.
    taken = sum(each.check_next() for each in drawing)
    seconds, began = _QUICK_SECONDS if case.quick else _SECONDS, time.thread_time()
    while drawing and taken < most:
        for each in drawing:
            if time.thread_time() - began > (seconds if taken >= _ENOUGH else max(seconds, _ENOUGH_SECONDS)):
                return taken > 0
            taken += each.check_next()
        drawing = [each for each in drawing if each.goes_on]
    return taken > 0


class _Drawing:
    """The calls that are drawn from one sample. What comes is the same whatever other samples there are."""

    def __init__(self, case: Case, check: Check, call: Call) -> None:
        self._case, self._check = case, check
        # Numbers that a sample leaves out change too.
        arguments = case.declaration.with_defaults(call.sample.arguments)
        self._call = replace(call, sample=replace(call.sample, arguments=arguments))
        self._random = Random(f"{case.seed} {call.sample.name}")
        self._sizes = resizable(self._call, 1)
        self._numbers = dict(_numbers_of(self._call, self._sizes))
        self._shrinks = may_shrink(call)
        self._tried = self._taken = 0

    @property
    def goes_on(self) -> bool:
        """Whether there is another call, as far as that is known."""
        return bool(self._sizes or self._numbers) and (self._taken > 0 or self._tried < _TRIED)

    def check_next(self) -> bool:
        """Checks the next call, and says whether the reference takes it."""
        self._tried += 1
        changed = self._draw()
        if not changed:
            return False
        other = self._called(changed)
        is_right = _is_right(other.call, self._check)
        self._taken += is_right is not None
        if is_right is False and is_taken_on_cpu(other.call):
            ask(self._case, [other], (self._check,), "")
        elif is_right is False and changed.keys() <= self._numbers.keys():
            # The tensors are those of a sample, so a result of another size than the reference's is wrong.
            ask(self._case, [other], (self._check,), "", refusals=(Exception,))
        return is_right is not None

    def _draw(self) -> dict[SizePlace, int]:
        random, most = self._random, _MOST
        if self._numbers and random.random() < _ALONE:
            place = random.choice(list(self._numbers))
            number = self._drawn(self._numbers[place], random.choice((_FEW, _MOST)), changes_all=True)
            return {} if number == self._numbers[place] else {place: number}
        changes_all = random.random() < 0.7
        by_size = {size: self._drawn(size, most, changes_all=changes_all) for size in sorted({*self._sizes.values()})}
        while (drawn := self._elements(by_size)) > _ELEMENTS and most > 1:
            most //= 2
            largest = max(by_size, key=by_size.__getitem__)
            by_size[largest] = min(by_size[largest], max(random.randint(1, most), 1 if self._shrinks else largest))
            if drawn == self._elements(by_size):
                break
        changed = {place: by_size[size] for place, size in self._sizes.items()}
        for place, number in self._numbers.items():
            follows = number in by_size and random.random() < 0.5
            changed[place] = by_size[number] if follows else self._drawn(number, _MOST, changes_all=changes_all)
        before = self._sizes | self._numbers
        return {place: size for place, size in changed.items() if size != before[place]}

    def _drawn(self, before: int, most: int, *, changes_all: bool) -> int:
        kind = 1.0 if changes_all else self._random.random()
        if kind < 0.4:
            return before
        drawn = self._random.randint(1, _FEW if kind < 0.7 else most)
        return drawn if self._shrinks else max(before, drawn)

    def _elements(self, by_size: dict[int, int]) -> int:
        return with_sizes(self._call, {place: by_size[size] for place, size in self._sizes.items()}).sample.elements

    def _called(self, changed: dict[SizePlace, int]) -> Derived:
        return derived(self._call, with_sizes(self._call, changed), described(self._call, changed))


def _numbers_of(call: Call, sizes: dict[SizePlace, int]) -> Iterator[tuple[SizePlace, int]]:
    """Yields the whole numbers among the arguments that are no sizes, those in lists one by one."""
    for argument, (declared, value) in enumerate(zip(call.declaration.arguments, call.sample.arguments, strict=True)):
        if declared.kind in ("int", "SymInt"):
            elements = enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]
            for number, each in elements:
                place = SizePlace(argument, None, number)
                if isinstance(each, int) and not isinstance(each, bool) and place not in sizes:
                    yield place, each


def _is_right(call: Call, check: Check) -> bool | None:
    """Whether a result is nearly that of the reference in the same dtype, or else passes a check.

    None means that the reference refuses the call. False asks for a closer look.
    """
    try:
        # A sample of distinct integers cannot have more elements than there are integers.
        arguments = call.arguments
        call.operator.explain(*arguments)
        own = tree_leaves(call.reference(*arguments))
    except Exception:
        return None
    try:
        found = tree_leaves(call.function(*(call.arguments if call.declaration.mutates else arguments)))
        if len(found) == len(own) and all(map(_is_near, found, own)):
            return True
        check(call)
    except Exception:
        return False
    return True


def _is_near(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether tensors are equal, or real numbers differ by a few roundings of the largest: not by a wrong place."""
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not (one.is_floating_point() and holds_numbers(one.dtype) and one.numel()):
        return torch.equal(one, other)
    largest, difference = other.abs().amax(), (one - other).abs().amax()
    return bool(difference <= _ROUNDINGS * torch.finfo(one.dtype).eps * largest)
