"""Derives the sharding of an operator: cuts its tensors along each dimension, and calls the reference on the parts.

A sharding names dimensions that are cut together by one letter: "N C, C -> N C" (declaration/sharding.py). A letter is
right if the results of the reference for the parts, joined or added, equal its results for the whole.
"""

from __future__ import annotations

import itertools
import string
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchgraft._private import pytorch
from torchgraft.declaration import Declaration
from torchgraft.declaration.results import as_tuple
from torchgraft.declaration.sharding import PARTIAL, REPLICATED, Placement, Sharding, share
from torchgraft.sampling import Sample, Samples

# Limits on the samples that are cut, on the groups of dimensions that are tried for one letter, and on the elements of
# a sample. Together they keep the search to a few seconds.
_SAMPLES, _TRIALS, _ELEMENTS = 6, 4000, 20_000

# Every size is cut into each of these numbers of parts.
_PARTS = (2, 3)


class _Letter(NamedTuple):
    """Dimensions that are cut together.

    Attributes:
        arguments: for each tensor argument, the dimension, or the placement if none is cut.
        results: the same for each result.
        numbers: the places of the int arguments that are sizes of it.
    """

    arguments: tuple[Placement, ...]
    results: tuple[Placement, ...]
    numbers: tuple[int, ...] = ()


def derive_at_need(operator: Declaration, samples: Samples) -> Sharding:
    """Derives the sharding of an operator, and warns once with the text that would save the time."""
    with pytorch.without_modes(), torch.no_grad():
        sharding = derive(operator, samples)
    warnings.warn(
        f"{operator.name}: its sharding was derived from its reference: declare sharding={sharding.text!r}, which saves"
        " the time, and prove it with `graft check --property sharding`",
        UserWarning,
        stacklevel=2,
    )
    return sharding


def derive(operator: Declaration, samples: Samples) -> Sharding:
    """Finds the dimensions along which the tensors of an operator may be cut.

    Args:
        operator: with a reference.
        samples: its inputs; those that are small and not empty are used.

    Raises:
        ValueError: the sharding that was found does not hold for samples with other numbers of dimensions.
    """
    calls = [
        _values(operator, sample)
        for sample in sorted(samples.table, key=lambda sample: sample.elements)
        if not sample.is_empty and sample.elements <= _ELEMENTS
    ]
    places = [place for place, each in enumerate(operator.arguments) if each.holds_tensors]
    kinds: dict[tuple[int, ...], list[tuple[Any, ...]]] = {}
    for values in calls:
        ranks = tuple(-1 if values[place] is None else values[place].dim() for place in places)
        kinds.setdefault(ranks, []).append(values)
    ranks = max(kinds, key=lambda ranks: (-ranks.count(-1), sum(ranks)))
    chosen = _choose(places, kinds[ranks])
    letters = _find_letters(operator, places, chosen)
    given = zip(*(as_tuple(operator.reference(*values)) for values in chosen), strict=True)
    results = [max(result.dim() for result in each) for each in given]
    untried = [
        {
            dimension
            for dimension in range(max(rank, 0))
            if all(values[place].shape[dimension] == 1 for values in chosen)
        }
        for place, rank in zip(places, ranks, strict=True)
    ]
    text = _write(operator, places, ranks, results, letters, list(kinds), untried)
    sharding = Sharding(operator.name, text, operator.arguments, operator.results)
    for ranks, group in kinds.items():
        for values in group[-_SAMPLES:]:
            if not holds(operator, sharding, values):
                raise ValueError(
                    f"{operator.name}: {text!r} does not hold for tensors of {ranks} dimensions: declare its sharding"
                )
    return sharding


def holds(operator: Declaration, sharding: Sharding, values: Sequence[Any]) -> bool:
    """Whether the reference confirms each letter of a sharding for a call."""
    shapes = [None if values[place] is None else values[place].shape for place, _ in sharding.tensors]
    call = sharding.of(shapes, values)
    results = as_tuple(operator.reference(*values))
    for letter, parts in itertools.product(call.sizes, _PARTS):
        if not call.permits(letter, [parts]):
            continue
        cut = call.cut([letter], [result.dim() for result in results])
        numbers = tuple(place for place, _, each in sharding.numbers if each == letter)
        where = tuple(REPLICATED if each is None else each[0] for each in cut.arguments)
        found = _run(operator, [place for place, _ in sharding.tensors], values, where, numbers, parts)
        expected = tuple(each[0] for each in cut.results)
        if found is None or not all(
            result.numel() == 0 or _gives(result, each, one)
            for result, each, one in zip(results, zip(*found, strict=True), expected, strict=True)
        ):
            return False
    return True


def _choose(places: Sequence[int], calls: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Chooses the largest calls, which have the fewest sizes that are equal by chance.

    For each dimension that none of them can have cut, the largest call follows in which it can be.
    """
    chosen = list(calls[-_SAMPLES:])
    for place in places:
        rank = 0 if calls[0][place] is None else calls[0][place].dim()
        for dimension in range(rank):
            if all(values[place].shape[dimension] == 1 for values in chosen):
                chosen += [values for values in calls if values[place].shape[dimension] > 1][-1:]
    return chosen


def _values(operator: Declaration, sample: Sample) -> tuple[Any, ...]:
    return operator.with_defaults(sample.make("cpu", torch.float64))


def _find_letters(operator: Declaration, places: Sequence[int], calls: Sequence[tuple[Any, ...]]) -> list[_Letter]:
    """Finds every letter, those of the first argument first; none has a dimension of another."""
    found: list[_Letter] = []
    for number, place in enumerate(places):
        tensor = calls[0][place]
        for dimension in range(0 if tensor is None else tensor.dim()):
            if any(letter.arguments[number] == dimension for letter in found):
                continue
            trials = itertools.islice(_candidates(operator, places, calls, number, dimension, found), _TRIALS)
            letter = next((each for trial in trials if (each := _try(operator, places, calls, *trial))), None)
            found += [letter] if letter else []
    return found


def _candidates(
    operator: Declaration,
    places: Sequence[int],
    calls: Sequence[tuple[Any, ...]],
    number: int,
    dimension: int,
    found: Sequence[_Letter],
) -> Iterator[tuple[tuple[Placement, ...], tuple[int, ...]]]:
    """Yields groups of dimensions that may share a letter with one dimension, the larger groups first.

    In every call, the sizes in a group are multiples of the size of that dimension, or divide it. A group is given as a
    dimension of each argument that has tensors, and the places of arguments that are themselves such a size.
    """
    sizes = [values[places[number]].shape[dimension] for values in calls]
    options: list[list[Placement]] = []
    for other, place in enumerate(places):
        tensor = calls[0][place]
        if other == number:
            options.append([dimension])
            continue
        taken = {letter.arguments[other] for letter in found}
        fitting = [
            each
            for each in range(0 if tensor is None else tensor.dim())
            if each not in taken and _are_multiples([values[place].shape[each] for values in calls], sizes)
        ]
        options.append([*fitting, REPLICATED])
    whole = [
        place
        for place, each in enumerate(operator.arguments)
        if each.kind in ("int", "SymInt")
        and not each.is_list
        and all(type(values[place]) is int for values in calls)
        and _are_multiples([values[place] for values in calls], sizes)
    ]
    chosen = sorted(itertools.product(*options), key=lambda each: each.count(REPLICATED))
    for numbers in ((), *((each,) for each in whole)):
        for where in chosen:
            yield where, numbers
    # A tensor that is added to a sum of products, such as a bias, may be partial.
    for where in chosen:
        for other in range(len(places)):
            if where[other] == REPLICATED and calls[0][places[other]] is not None:
                yield (*where[:other], PARTIAL, *where[other + 1 :]), ()


def _are_multiples(sizes: Sequence[int], others: Sequence[int]) -> bool:
    pairs = list(zip(sizes, others, strict=True))
    return all(one > 0 and one % other == 0 for one, other in pairs) or all(
        one > 0 and other % one == 0 for one, other in pairs
    )


def _try(
    operator: Declaration,
    places: Sequence[int],
    calls: Sequence[tuple[Any, ...]],
    where: tuple[Placement, ...],
    numbers: tuple[int, ...],
) -> _Letter | None:
    """Returns the letter if cutting so gives parts of every result, for each call and each number of parts."""
    possible: list[list[Placement] | None] = [None] * len(operator.results)
    for values, parts in itertools.product(calls, _PARTS):
        sizes = [values[place].shape[each] for place, each in zip(places, where, strict=True) if isinstance(each, int)]
        sizes += [values[place] for place in numbers]
        least = min(sizes)
        even = all(size == least for size in sizes)
        if (least % parts if not even else 0) or any(share(least, parts, at) == 0 for at in range(parts)):
            continue
        found = _run(operator, places, values, where, numbers, parts)
        if found is None:
            return None
        results = as_tuple(operator.reference(*values))
        for number, (result, each) in enumerate(zip(results, zip(*found, strict=True), strict=True)):
            if result.numel() == 0:
                # A gradient that is not needed has no elements, so any placement is right.
                continue
            before, ways = possible[number], _ways(result, each)
            possible[number] = ways if before is None else [way for way in before if way in ways]
            if not possible[number]:
                return None
    if all(each is None for each in possible):
        return None
    return _Letter(where, tuple(each[0] if each else PARTIAL for each in possible), numbers)


def _run(
    operator: Declaration,
    places: Sequence[int],
    values: Sequence[Any],
    where: Sequence[Placement],
    numbers: Sequence[int],
    parts: int,
) -> list[tuple[Tensor, ...]] | None:
    """Calls the reference on each device's part; returns None if it raises."""
    cut = {place: cut_tensor(values[place], each, parts) for place, each in zip(places, where, strict=True)}
    found = []
    for device in range(parts):
        local = [cut[place][device] if place in cut else value for place, value in enumerate(values)]
        for place in numbers:
            local[place] = share(values[place], parts, device)
        try:
            found.append(as_tuple(operator.reference(*local)))
        except Exception:
            return None
    return found


def cut_tensor(tensor: Tensor | None, where: Placement, parts: int) -> list[Tensor | None]:
    """Cuts a tensor into the parts that the devices hold."""
    if tensor is None or where == REPLICATED:
        return [tensor] * parts
    if isinstance(where, int):
        size = tensor.shape[where]
        return list(tensor.split([share(size, parts, at) for at in range(parts)], where))
    generator = torch.Generator().manual_seed(parts)
    others = [
        torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype) for _ in range(parts - 1)
    ]
    return [*others, tensor - sum(others)]


def _ways(whole: Tensor, parts: Sequence[Tensor]) -> list[Placement]:
    """Finds how parts make the whole: joined along a dimension, or added."""
    return [way for way in (*range(whole.dim()), PARTIAL) if _gives(whole, parts, way)]


def _gives(whole: Tensor, parts: Sequence[Tensor], way: Placement) -> bool:
    if isinstance(way, int):
        others = [(*each.shape[:way], *each.shape[way + 1 :]) for each in (*parts, whole) if each.dim() > way]
        if (
            len(others) <= len(parts)
            or len(set(others)) > 1
            or sum(each.shape[way] for each in parts) != whole.shape[way]
        ):
            return False
        joined = torch.cat(list(parts), way)
    else:
        if any(each.shape != whole.shape for each in parts):
            return False
        joined = torch.stack(list(parts)).sum(0) if way == PARTIAL else parts[0]
    if not (whole.is_floating_point() or whole.is_complex()):
        return bool(torch.equal(joined, whole))
    return bool(torch.allclose(joined, whole, rtol=1e-9, atol=1e-9, equal_nan=True))


def _write(
    operator: Declaration,
    places: Sequence[int],
    ranks: Sequence[int],
    results: Sequence[int],
    letters: Sequence[_Letter],
    kinds: Sequence[tuple[int, ...]],
    untried: Sequence[set[int]],
) -> str:
    """Writes letters as text, with `...` for leading dimensions that other samples lack."""
    names = dict(zip(letters, string.ascii_lowercase, strict=False))

    def words(rank: int, number: int, of: str) -> list[str]:
        at = {getattr(letter, of)[number]: name for letter, name in names.items()}
        return [at.get(dimension, "_") for dimension in range(rank)]

    terms = [words(max(rank, 0), number, "arguments") for number, rank in enumerate(ranks)]
    given = [words(rank, number, "results") for number, rank in enumerate(results)]
    more = [
        rank - min((kind[number] for kind in kinds if kind[number] >= 0), default=rank)
        for number, rank in enumerate(ranks)
    ]
    varied = more.index(max(more))
    run = terms[varied][: more[varied]]
    # A dimension of one element in all samples cannot be cut, and goes with its neighbours.
    if run and all(word != "_" or dimension in untried[varied] for dimension, word in enumerate(run)):
        terms, given = ([_with_rest(each, run) for each in some] for some in (terms, given))
    added = [
        "+" if any(letter.arguments[number] == PARTIAL for letter in letters) else "" for number in range(len(ranks))
    ]
    before = [
        f"{sign}{' '.join(each) or '()'}" if rank >= 0 else "*"
        for sign, each, rank in zip(added, terms, ranks, strict=True)
    ]
    for letter, name in names.items():
        before += [f"{operator.arguments[place].name}={name}" for place in letter.numbers]
    return f"{', '.join(before)} -> {', '.join(' '.join(each) or '()' for each in given)}"


def _with_rest(words: list[str], run: list[str]) -> list[str]:
    """Words with `...` in the place of those of a run."""
    return ["...", *words[len(run) :]] if words[: len(run)] == run else words
