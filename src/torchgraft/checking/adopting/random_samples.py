"""Random samples that fit a schema, for an operator that nobody has written samples for.

A schema does not say which sizes fit together. Calls are made at random, and those that make no sense are dropped; half
of the later calls are earlier ones with one argument changed, so that sizes that fit are found more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, product
from random import Random
from typing import Any

import torch

from torchgraft.checking.tensors.arguments import replaced
from torchgraft.declaration.schema import REQUIRED, Argument, tensors_in
from torchgraft.operator import FLOATING
from torchgraft.sampling import Drawn, Sample, Samples

# The most and the least calls of the table: with fewer, a check would prove too little.
_MOST, _LEAST = 24, 8
_MOST_EMPTY = 3
_TRIES, _TRIES_FOR_THE_FIRST = 3000, 300
# Tries for one random sample of a property; if none of them makes sense, it gets one of the table.
_TRIES_A_CALL = 20
# Most sizes are small, and some are larger than a vector or a warp.
_SIZES = (1, 2, 2, 3, 3, 4, 5)
_LARGER_SIZES = (0, 17, 33, 65)
_NUMBERS = (0, 1, 2, 3, -1)
_FLOATS = (1.0, 0.5, 2.0, 1e-5)
_KINDS = ("Tensor", "int", "SymInt", "float", "bool", "Scalar", "ScalarType")
# The dtypes of indices, which are never negative.
INDICES = (torch.int64, torch.int32)
# The dtypes that are tried first for tensors that hold no numbers, and those that are tried later.
_COMMON, _RARE = (torch.int64, torch.bool), (torch.int8, torch.uint8, torch.int32, torch.int16)

_Typed = tuple[Argument, torch.dtype | None]
_RandomSample = Callable[[Sequence[Sample], Random, str], Sample]


def random_samples(arguments: Sequence[Argument], makes_sense: Callable[[Sample], bool]) -> tuple[Samples, int]:
    """Finds samples that a schema allows and that make sense; returns them and the number of calls that were tried.

    Args:
        arguments: of the schema.
        makes_sense: whether a call is one that the operator should take.

    Raises:
        LookupError: too few make sense, or there are no random values for an argument.
    """
    _expect_drawable(arguments)
    total = most = 0
    for dtypes in _dtypes_to_try(sum(argument.holds_tensors for argument in arguments)):
        make = partial(_random_sample, _with_dtypes(arguments, dtypes))
        table, tried = _fill_table(make, makes_sense)
        total, most = total + tried, max(most, len(table))
        if sum(not each.is_empty for each in table) >= _LEAST:
            return Samples(table, partial(_another_sample, make, table, makes_sense), summed=_count_elements), total
    raise LookupError(
        f"the reference and the operator accept only {most} of {total} random calls that fit the schema, too few to "
        "check. Write samples, and name their module with --samples: `samples = torchgraft.sampling.Samples([Sample("
        '"a matrix", (Drawn((3, 5), dtype=torch.int8, low=-128, high=128),))])`, with `dtype`, `low` and `high` where '
        "a tensor does not hold numbers"
    )


def _dtypes_to_try(count: int) -> Iterator[tuple[torch.dtype | None, ...]]:
    """Yields dtypes for so many tensors, None for that of the call: numbers first, then indices and masks.

    Then codes, such as int8, and complex numbers: in one tensor, in all, in two. All calls have the same ones: whether
    a result has a gradient depends on them.
    """

    def with_others(places: Sequence[int], dtypes: Sequence[torch.dtype]) -> tuple[torch.dtype | None, ...]:
        chosen = dict(zip(places, dtypes, strict=True))
        return tuple(chosen.get(place) for place in range(count))

    def in_places(others: int) -> list[tuple[int, ...]]:
        return list(combinations(reversed(range(count)), others))

    common = [
        with_others(places, dtypes)
        for others in range(min(count, 2) + 1)
        for places in in_places(others)
        for dtypes in product(_COMMON, repeat=others)
    ]
    alike = [(dtype,) * count for dtype in (*_RARE, torch.complex128, *_COMMON)]
    one, two = (
        [with_others(places, (dtype,) * others) for places in in_places(others) for dtype in _RARE] for others in (1, 2)
    )
    return iter(dict.fromkeys([*common, *one, *alike, *two]))


def _with_dtypes(arguments: Sequence[Argument], dtypes: Sequence[torch.dtype | None]) -> list[_Typed]:
    """Pairs each argument with the dtype of its tensors."""
    of_tensors = iter(dtypes)
    return [(argument, next(of_tensors) if argument.holds_tensors else None) for argument in arguments]


def _fill_table(make: _RandomSample, makes_sense: Callable[[Sample], bool]) -> tuple[list[Sample], int]:
    """Finds different calls that make sense; returns them and the number of calls that were tried."""
    random = Random(0)
    table: list[Sample] = []
    seen: set[str] = set()
    tried = 0
    while len(table) < _MOST and tried < (_TRIES if table else _TRIES_FOR_THE_FIRST):
        tried += 1
        sample = make(table, random, f"drawn {len(table) + 1}")
        is_an_empty_one_more = sample.is_empty and sum(each.is_empty for each in table) >= _MOST_EMPTY
        if repr(sample.arguments) in seen or is_an_empty_one_more:
            continue
        seen.add(repr(sample.arguments))
        if makes_sense(sample):
            table.append(sample)
    return table, tried


def is_drawable(argument: Argument) -> bool:
    """Whether there are random values for an argument; any other one has its default, or is None."""
    return argument.kind in _KINDS


def _expect_drawable(arguments: Sequence[Argument]) -> None:
    for argument in arguments:
        if not is_drawable(argument) and not argument.optional and argument.default is REQUIRED:
            raise LookupError(
                f"there are no random values of type {argument.kind} for {argument.name}: write samples, and name "
                "their module with --samples"
            )


def _count_elements(*arguments: Any) -> int:
    """Counts the products that an element of a result may be a sum of: nothing says, so as many as elements."""
    return sum(tensor.numel() for tensor in tensors_in(arguments))


def _another_sample(
    make: _RandomSample, table: Sequence[Sample], makes_sense: Callable[[Sample], bool], random: Random
) -> Sample:
    """Returns any sample, for a property that wants random ones."""
    # One seed: a search for a smaller example could not follow all the numbers that are used here.
    source = Random(random.getrandbits(32))
    for _ in range(_TRIES_A_CALL):
        sample = make(table, source, "any")
        if makes_sense(sample):
            return sample
    return source.choice(table)


def _random_sample(typed: Sequence[_Typed], table: Sequence[Sample], random: Random, name: str) -> Sample:
    shape = _random_shape(random)
    if table and random.random() < 0.5:
        values = random.choice(table).arguments
        place = random.randrange(len(values))
        # A changed value fits best if it has the sizes of another tensor of the call.
        there = [each.shape for each in Sample("", values).tensors]
        return Sample(
            name, replaced(values, place, _random_value(typed[place], random.choice([*there, shape]), random))
        )
    made: list[Any] = []
    for each in typed:
        is_first = not any(isinstance(value, Drawn) for value in made)
        made.append(_random_value(each, shape, random, is_first=is_first))
    return Sample(name, tuple(made))


def _random_shape(random: Random) -> tuple[int, ...]:
    sizes = [random.choice(_SIZES) for _ in range(random.randint(0, 4))]
    if sizes and random.random() < 0.2:
        sizes[random.randrange(len(sizes))] = random.choice(_LARGER_SIZES)
    return tuple(sizes)


def _random_value(typed: _Typed, shape: tuple[int, ...], random: Random, *, is_first: bool = False) -> Any:
    argument, dtype = typed
    if argument.default is not REQUIRED and random.random() < 0.4:
        return argument.default
    if argument.optional and random.random() < 0.3:
        return None

    def random_element() -> Any:
        if argument.kind == "Tensor":
            return _random_tensor(shape if is_first else _related(shape, random), dtype, random)
        if argument.kind in ("int", "SymInt"):
            return random.choice((*_NUMBERS, *range(len(shape)), *shape))
        if argument.kind in ("float", "Scalar"):
            return random.choice(_FLOATS)
        if argument.kind == "bool":
            return random.random() < 0.5
        if argument.kind == "ScalarType":
            return random.choice(FLOATING)
        return None if argument.default is REQUIRED else argument.default

    if not argument.is_list:
        return random_element()
    if argument.kind in ("int", "SymInt") and argument.length is None and random.random() < 0.5:
        # The list may be the last sizes of a tensor, such as those over which a layer normalizes.
        return list(shape[random.randrange(len(shape)) :]) if shape else []
    return [random_element() for _ in range(argument.length or random.randint(1, 3))]


def _related(shape: tuple[int, ...], random: Random) -> tuple[int, ...]:
    """Chooses sizes that a tensor beside one of a shape may have."""
    start = random.randint(0, len(shape))
    return random.choice(
        (
            shape,
            shape,
            shape[start:],
            shape[:start],
            tuple(1 if random.random() < 0.5 else size for size in shape),
            (random.choice((*shape, *_SIZES)),),
            _random_shape(random),
        )
    )


def _random_tensor(shape: tuple[int, ...], dtype: torch.dtype | None, random: Random) -> Drawn:
    if dtype is None:
        return Drawn(shape, channels_last=len(shape) == 4 and random.random() < 0.3)
    high = 2 if dtype == torch.bool else random.choice((*filter(None, shape), *_SIZES))
    # Signed dtypes that are no indices have as many negative numbers as positive ones.
    return Drawn(shape, dtype=dtype, low=-high if dtype in (torch.int8, torch.int16) else 0, high=high)
