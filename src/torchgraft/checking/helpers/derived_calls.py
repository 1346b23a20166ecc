"""Calls derived from samples, in sizes that no sample has: values and gradients, if the reference takes the sizes."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, cycle
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft import native
from torchgraft.checking.adopting.adopted import Adopted
from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.other_sizes import SizePlace, is_taken, sizes_of, with_sizes
from torchgraft.checking.helpers.settings import pytorch_in_time
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import is_number, is_whole
from torchgraft.sampling import Drawn, Sample

Check = Callable[[Call], None]

# What a kernel raises to say that it does not compute a call.
_REFUSALS = (ValueError, TypeError, NotImplementedError)


@dataclass(frozen=True)
class Derived:
    """A call that was derived from a sample.

    Attributes:
        words: what was changed, for a person.
        call: the call; its sample has the name of the one that it was derived from, by which it is found again.
        terms: how many terms a sum may have at most: those of the sample, times what elements have become more. Who
            sums has said how many there are, or else nobody knows whether they have become more.
    """

    words: str
    call: Call
    terms: int


def kinds_of(samples: Iterable[Sample], count: int) -> list[Sample]:
    """Chooses a sample of each kind: another number of dimensions, another layout, another flag or another text.

    Of a kind it is one with the fewest sizes that are one or equal to another, and then the smallest.
    """
    chosen: dict[str, Sample] = {}
    for sample in sorted(samples, key=lambda sample: (_likeness(sample), _ones(sample), sample.elements)):
        chosen.setdefault(str([_kind(each) for each in sample.arguments]), sample)
    return list(chosen.values())[:count]


def _likeness(sample: Sample) -> int:
    """How many sizes are one, or equal to another, or may belong to whole numbers that are given."""
    sizes = [size for each in sample.tensors for size in each.shape]
    return len(sizes) - len({*sizes} - {1} - _tied(sample))


def _ones(sample: Sample) -> int:
    """How many sizes are one, which can neither be exchanged nor shrink."""
    return sum(size == 1 for each in sample.tensors for size in each.shape)


def _tied(sample: Sample) -> set[float]:
    """The sizes that may belong to whole numbers that are given: one for each, up to the largest, or to their sum."""
    given = [each for each in sample.tensors if is_given(each)]
    return {size for each in given for size in (each.elements, max(each.values or ()), sum(each.values or ()))}


def _kind(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        return [_kind(each) for each in argument[:1]]
    if isinstance(argument, Drawn):
        return len(argument.shape), argument.channels_last, str(argument.dtype)
    # A number of its own for each sample, as a factor, makes no other kind.
    return argument if argument is None or isinstance(argument, (bool, str)) else type(argument).__name__


def resizable(call: Call, least: int = 2) -> dict[SizePlace, int]:
    """Finds the sizes of a call that may change: not those that may belong to whole numbers that are given.

    Offsets and lengths come with as many positions as they say. A number that chooses random values is no size.

    Args:
        call: any.
        least: the smallest size that counts.
    """
    tied, found = _tied(call.sample), sizes_of(call, numbers=True, least=least)
    return {
        place: size
        for place, size in found.items()
        if size not in tied and not is_given(_argument(call, place)) and not _is_seed(call, place)
    }


def _is_seed(call: Call, place: SizePlace) -> bool:
    return place.dim is None and call.declaration.arguments[place.argument].name in call.declaration.random


def may_shrink(call: Call) -> bool:
    """Whether sizes may become smaller: not where whole numbers may be places along them."""
    return not any(each.dtype is not None and is_whole(each.dtype) for each in call.sample.tensors)


def is_taken_on_cpu(call: Call) -> bool:
    """Whether the operator takes a call by all that it declares; a GPU is not asked, as a wrong index ends its use."""
    return is_taken(replace(call, device=torch.device("cpu")))


def derived(call: Call, other: Call, words: str) -> Derived:
    """Pairs a call that was derived from another one with what was changed."""
    growth = -(-other.sample.elements // max(call.sample.elements, 1))
    return Derived(f"with {words}", other, max(growth, 1) * call.summed)


def resized(call: Call, sizes: Mapping[SizePlace, int]) -> Derived:
    """Makes a call in other sizes, and says which."""
    return derived(call, with_sizes(call, sizes), described(call, sizes))


def growing_together(call: Call) -> Iterator[tuple[SizePlace, ...]]:
    """Yields places that can grow: all of one size, or else those one by one and two by two that the call takes."""
    return _changing_together(call, lambda size: size + 1)


def emptied(call: Call) -> Iterator[Derived]:
    """Yields calls with an empty tensor: all of one size are 0, or else those alone or in pairs that the call takes."""
    for places in _changing_together(call, lambda size: 0):
        other = resized(call, dict.fromkeys(places, 0))
        if other.call.sample.is_empty:
            yield other


def _changing_together(call: Call, changed: Callable[[int], int]) -> Iterator[tuple[SizePlace, ...]]:
    sizes = resizable(call, 1)
    for size in sorted(set(sizes.values())):
        group = tuple(place for place in sizes if sizes[place] == size)
        if is_taken_on_cpu(resized(call, dict.fromkeys(group, changed(size))).call):
            yield group
            continue
        for few in (*combinations(group, 1), *combinations(group, 2)):
            if len(few) < len(group) and is_taken_on_cpu(resized(call, dict.fromkeys(few, changed(size))).call):
                yield few


def all_equal(call: Call, grown: Derived) -> Iterator[Derived]:
    """Yields calls in which the drawn numbers of each tensor are equal, where that makes another call.

    They are the largest that may be drawn, which what counts them must hold as often; and then, of whole numbers, the
    largest of one tensor and the smallest of the next. Of integers of one or two bytes without limits these are the
    limits of their dtype. Real numbers, which are 1 then, are counted only if a result is of whole numbers.

    Args:
        call: the one that was made larger.
        grown: the larger one.
    """
    counts = counts_numbers(call)
    before = grown.call
    elements = before.sample.elements
    beyond = "16 bits count" if elements >= 2**16 else "8 bits count"
    if elements >= 2**17:
        beyond += ", or 31 hold of squared bytes"
    asked = [before.sample.arguments]
    for ends, which in (((-1,), ""), ((-1, 0), "the largest of one, the smallest of the next, ")):
        turns = cycle(ends)
        arguments = tuple(_alike(each, call.dtype, counts, turns) for each in before.sample.arguments)
        other = replace(before, sample=replace(before.sample, arguments=arguments))
        if arguments not in asked and is_taken_on_cpu(other):
            asked.append(arguments)
            words = f"{grown.words}, all numbers of a tensor equal ({which}more than {beyond})"
            # Equal terms, as of one row that is added again and again, err in one direction: as many squared terms.
            yield Derived(words, other, grown.terms**2)


def _alike(drawn: Any, dtype: torch.dtype, counts: bool, turns: Iterator[int]) -> Any:
    """Makes the numbers of an argument equal: whole ones to the smallest or the largest, as its turn is (0 or -1)."""
    if isinstance(drawn, (list, tuple)):
        return [_alike(each, dtype, counts, turns) for each in drawn]
    if not isinstance(drawn, Drawn) or drawn.distinct or drawn.values is not None:
        return drawn
    dtype = drawn.dtype or dtype
    if is_whole(dtype) or dtype == torch.bool:
        among: Sequence[int] = drawn.integers
        if dtype != torch.bool and dtype.itemsize <= 2 and drawn.low is drawn.high is None:
            # As many of the largest add up to more than 31 bits hold.
            among = (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
        return replace(drawn, values=(float(among[next(turns)]),)) if among else drawn
    low, high = (1.0 if limit is None else limit for limit in (drawn.low, drawn.high))
    return replace(drawn, values=(min(max(1.0, low), high),)) if counts else drawn


def counts_numbers(call: Call) -> bool:
    """Whether a result is of whole numbers or flags."""
    results = tree_leaves(call.expected())
    return any(each is not None and not (each.is_floating_point() or each.is_complex()) for each in results)


def warm_up(case: Case, call: Call, checks: Sequence[Callable[[Call], Any]]) -> None:
    """Checks a call once for nothing: a first call imports and compiles, which must not take the time of others."""

    def run(call: Call) -> None:
        for check in checks:
            # Other properties say what is wrong with the sample itself.
            with suppress(Exception):
                check(call)

    case.each(run, [call.sample])


def is_small(call: Call, elements: int, products: int) -> bool:
    """Whether a call has few elements, in its arguments and in its results, and adds up few products.

    Args:
        call: any.
        elements: the most of all arguments, and of all results.
        products: the most that are added up in all results together.
    """
    try:
        arguments = call.make("meta")
        results = call.declaration.output(*arguments) if call.declaration.lists else ()
        made = sum(each.numel() for each in tree_leaves(results) if isinstance(each, Tensor))
        added = made * call.samples.summed(*arguments)
    except Exception:
        # Sizes that depend on data are not known before.
        return call.declaration.sizes_from_data and call.sample.elements <= elements
    return max(made, call.sample.elements) <= elements and added <= products


def ask(
    case: Case,
    calls: Iterable[Derived],
    checks: Sequence[Check],
    otherwise: str,
    *,
    refusals: tuple[type[Exception], ...] = _REFUSALS,
) -> None:
    """Checks derived calls one by one.

    A call that the kernel refuses has its answer. Where the reference in the same dtype errs as much, nothing is asked,
    nor where it gives NaN for finite numbers: in a product of thousands of numbers their order decides about that.

    Args:
        case: any.
        calls: to be checked; the next one is made when the one before has been asked.
        checks: what a call is compared with; one that does not apply to a call is passed over.
        otherwise: why the property does not apply where there is no call.
        refusals: the errors that are an answer, beside all that name the operator.
    """
    one = None
    for one in calls:
        case.each(partial(_ask, one.words, one.terms, checks, refusals), [one.call.sample])
    if one is None:
        raise NotApplicable(otherwise)


def _ask(words: str, terms: int, checks: Sequence[Check], refusals: tuple[type[Exception], ...], call: Call) -> None:
    samples = call.samples
    call = replace(call, samples=replace(samples, summed=lambda *given: max(samples.summed(*given), terms)))
    for check in checks:
        try:
            check(call)
        except NotApplicable:  # noqa: PERF203  a call has two checks
            continue
        except Mismatch as error:
            if not (_overflows(call, error) or _reference_errs_too(call, check)):
                error.args = (f"{words}: {error}",)
                raise
        except Exception as error:
            named = isinstance(call.operator, Adopted) or call.operator.name in str(error)
            if native.is_refused(error) or not (named or isinstance(error, refusals)):
                raise
            return


def _overflows(call: Call, error: Mismatch) -> bool:
    """Whether the reference gives NaN for finite numbers where a result differs."""
    is_nan = isinstance(error.expected, float) and math.isnan(error.expected)
    return is_nan and all(bool(each.isfinite().all()) for each in tensors_of(call.arguments) if is_number(each))


class _OfReference(Call):
    """A call that the reference computes, in the dtype of the call."""

    def function(self, *arguments: Any) -> Any:
        with pytorch_in_time(self.device, self.dtype):
            return self.by_definition(*arguments)


def _reference_errs_too(call: Call, check: Check) -> bool:
    try:
        check(_OfReference(**vars(call)))
    except Exception:
        return True
    return False


def _argument(call: Call, place: SizePlace) -> Any:
    value = call.sample.arguments[place.argument]
    return value if place.element is None else value[place.element]


def is_given(argument: Any) -> bool:
    """Whether an argument is a tensor of whole numbers that are given, and not drawn."""
    is_tensor = isinstance(argument, Drawn) and argument.dtype is not None
    return is_tensor and bool(argument.values) and is_whole(argument.dtype)


def described(call: Call, sizes: Mapping[SizePlace, int]) -> str:
    """Puts sizes in words, as in `size 4,099 in dimension 1 of input and dimension 0 of weight, bins=3`."""
    by_size: dict[int, list[str]] = {}
    numbers = []
    for place, size in sizes.items():
        name = call.declaration.arguments[place.argument].name
        name = name if place.element is None else f"{name}[{place.element}]"
        if place.dim is None:
            numbers.append(f"{name}={size}")
            continue
        by_size.setdefault(size, []).append(f"dimension {place.dim} of {name}")
    return ", ".join([*(f"size {size:,} in {' and '.join(places)}" for size, places in by_size.items()), *numbers])
