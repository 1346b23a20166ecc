"""Random results follow from the seed and have the distribution of the reference.

Proves: the same arguments give the same bits. Another value of each argument that the declaration calls random gives
other bits in each result, unless the reference also gives the same for both values; so does the value plus 2**32, on a
CPU also where the reference draws from PyTorch's generator, which takes 32 bits of a seed, and the operator does not.
In small samples, over many seeds, the mean of every element of each result and of all together, and of their squares,
are those of the reference, within six standard deviations. No two elements are fully correlated, unless those of the
reference are. The results of one seed are not those of the next seed, shifted by some elements. In a result of
thousands of elements nothing comes again some elements later, and each stretch has the means of the reference; the mean
square is, for seeds that a generator may not be made for, such as 0 and -1, what it is for others. Two results depend
on each other only as those of the reference do. Among as many numbers as a few seconds give, at most 2**26, none is
infinite or NaN if none of twice as many of the reference's is. All this is asked in one dtype; in others, means and
correlations are, if the numbers there are no rounded ones of float64.

Cannot prove: that the generator is random enough for a purpose.

Mend: each element draws from all bits of the seed and from its own position, and each result from a stream of its own;
the argument is listed in `random=`.

Example: takes the low 32 bits of its seed alone.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.derived_calls import growing_together, is_small, is_taken_on_cpu, resized
from torchgraft.checking.helpers.other_sizes import SizePlace
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_equal
from torchgraft.sampling import Sample

_SEEDS = 200
_DEVIATIONS = 6.0
# So few elements may be alike by chance.
_ELEMENTS = 8
# Elements with at least this correlation always change together.
_ALIKE = 1 - 1e-6
# A result of which nothing may come again has so many elements along one size, at most so many altogether, and adds up
# at most so many products; and of how many seeds and samples that is asked.
_WIDE, _MOST_ELEMENTS, _MOST_PRODUCTS = 9_001, 1 << 18, 1 << 26
_WIDE_SEEDS, _WIDE_SAMPLES = 16, 2
# Among so many numbers is one that a generator of 24 bits gives once in 2**24, such as 0; no more are drawn once this
# process has worked so many seconds. A call may take so many, and has at least so many elements and at most so many.
_NUMBERS, _QUICK_SECONDS, _SECONDS = 1 << 26, 1.5, 8.0
_CALL_SECONDS, _FEWEST, _MOST = 0.25, 100_000, 2_000_003
# The seconds of this thread after which no other small sample is asked over many seeds.
_FEW_SECONDS_IF_QUICK, _FEW_SECONDS = 0.5, 2.0
# The lowest of the bits of a seed that do not fit into 32.
_HIGH = 2**32
# Seeds of which a generator may make a state of zeros or ones. A mean square is no chance if it is so many deviations
# away from the mean of other seeds.
_SPECIAL_SEEDS, _OUTLYING = (0, -1, 1 << 31, 1 << 32, (1 << 63) - 1), 16.0
# A wide result is compared in stretches of so many elements, of which a kernel may have computed none, and in at most
# so many stretches. Their means are no chance if they are so many deviations apart.
_STRETCHES, _MOST_STRETCHES, _APART = (281, 2_250), 512, 10.0
# A correlation over seeds is no chance if it is more than so many deviations of its mean, and than this number.
_FAR, _LEAST_CORRELATION = 8.0, 0.1


def check(case: Case) -> None:
    """See the module."""
    if not case.declaration.random:
        raise NotApplicable("it declares no argument that chooses random values")
    samples = case.table(empty=False, small=True, count=4)
    # How numbers are drawn has little to do with the dtype of the results.
    (first, *_) = Property(check).dtypes_for(case.operator)
    if case.dtype != first:
        call = case.call(samples[-1])
        # Other dtypes are compared with float64, which is right if one of them is.
        call = replace(call, dtype=first) if case.dtype == torch.float64 else call
        if not call.has_own_random_numbers:
            raise NotApplicable("its numbers are those of float64, rounded, with which `value` compares")
        case.each(_check_distribution, samples[-1:])
        return
    case.each(_check_seeds, samples)
    case.each(_check_distribution, samples[-1:])
    _check_other_distributions(case, samples[-1])
    some = (sample for sample in case.samples.table if not sample.is_empty and case.only in (None, sample.name))
    telling = (sample for sample in some if _varies(case.call(sample)))
    seconds = _QUICK_SECONDS if case.quick else _SECONDS
    case.each(partial(_check_repeats, seconds), itertools.islice(telling, _WIDE_SAMPLES))


def _check_other_distributions(case: Case, asked: Sample) -> None:
    """Compares the distributions of small samples: what an order of two elements shows one of forty hardly does."""
    end = time.thread_time() + (_FEW_SECONDS_IF_QUICK if case.quick else _FEW_SECONDS)
    for sample in case.table(empty=False, small=True):
        if time.thread_time() > end:
            return
        if sample is not asked:
            case.each(_check_distribution, [sample])


def _results(call: Call) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors_of([call.function(*call.arguments)])]


def _by_reference(call: Call) -> list[Tensor]:
    results = call.declaration.visible(call.operator.reference(*call.arguments))
    return [tensor.detach() for tensor in tensors_of([results])]


def _with_another(call: Call, name: str, by: int) -> Call:
    return _with_value(call, name, lambda value: value + by)


def _with_value(call: Call, name: str, change: Callable[[int], int]) -> Call:
    place = next(place for place, argument in enumerate(call.declaration.arguments) if argument.name == name)
    return call.with_argument(place, change(call.declaration.with_defaults(call.sample.arguments)[place]))


def _check_seeds(call: Call) -> None:
    first = _results(call)
    expect_equal(_results(call), first, what="a result", why=" between two calls with the same seed")
    if sum(each.numel() for each in first) < _ELEMENTS:
        return
    for name in call.declaration.random:
        _expect_another(call, first, name, 1, f"another {name} gives the same bits: it is ignored")
        why = f"{name} + 2**32 gives the same bits as {name}: only its low 32 bits are used"
        _expect_another(call, first, name, _HIGH, why)


def _expect_another(call: Call, first: Sequence[Tensor], name: str, by: int, message: str) -> None:
    """Raises a Mismatch if another value of an argument leaves a result as it is, and the reference's is another."""
    another = _with_another(call, name, by)
    try:
        others = _results(another)
    except ValueError:
        return  # The operator refuses the value.
    unchanged = [number for number, pair in enumerate(zip(first, others, strict=True)) if torch.equal(*pair)]
    if not unchanged:
        return
    # Where all is dropped, as an example, no seed makes a difference.
    ones, twos = _by_reference(call), _by_reference(another)
    for number in unchanged:
        if not torch.equal(ones[number], twos[number]) or (
            by == _HIGH and _loses_bits(call, first, ones, name, number)
        ):
            raise Mismatch(f"{message}{_named(number, first)}")


def _loses_bits(call: Call, first: Sequence[Tensor], ones: Sequence[Tensor], name: str, number: int) -> bool:
    """Whether a result does not follow from the high bits of a seed, although a reference cannot tell.

    PyTorch's generator of the CPU takes the low 32 bits of a seed. Who draws from the same one has its numbers.
    """
    if call.device.type != "cpu" or torch.equal(first[number], ones[number]):
        return False
    return not torch.equal(_results(_with_another(call, name, 1))[number], first[number])


def _named(number: int, results: Sequence[Any]) -> str:
    return "" if len(results) == 1 else f" (result {number + 1})"


def _varies(call: Call) -> bool:
    """Whether another seed gives another result, and the operator takes more elements."""
    one, other = (_by_reference(_with_another(call, call.declaration.random[0], turn)) for turn in range(2))
    return any(growing_together(call)) and not all(map(torch.equal, one, other))


def _tables(call: Call, seeds: int) -> tuple[list[Tensor], list[Tensor]]:
    """The results of the operator and of the reference: a table a result, a row of it a seed."""
    seeded = [_with_another(call, call.declaration.random[0], turn) for turn in range(seeds)]
    ours, theirs = (
        [torch.stack(each) for each in zip(*([_flat(one) for one in by(call)] for call in seeded), strict=True)]
        for by in (_results, _by_reference)
    )
    return ours, theirs


def _check_repeats(seconds: float, call: Call) -> None:
    """Asks whether blocks of elements, as a kernel makes them, get the same random numbers.

    Args:
        seconds: that may be spent on the search for a number that is not finite.
        call: of a small sample.
    """
    for places in growing_together(call):
        wide = resized(call, dict.fromkeys(places, _WIDE)).call
        if is_small(wide, _MOST_ELEMENTS, _MOST_PRODUCTS) and is_taken_on_cpu(wide):
            ours, theirs = _tables(wide, _WIDE_SEEDS)
            for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                # What is multiplied by an argument has its sign.
                for change in (Tensor.clone, Tensor.abs):
                    _expect_no_repeat(change(one), change(other), _named(number, ours))
                _expect_stretches_alike(one, other, _named(number, ours))
            _expect_seeds_alike(wide, ours)
            _expect_finite(call, places, seconds)
            seconds = 0.0


def _expect_finite(call: Call, places: Sequence[SizePlace], seconds: float) -> None:
    """Draws many numbers: a logarithm of one that is 0 once in 2**24 is infinite."""
    end = time.process_time() + seconds
    began = time.process_time()
    _results(resized(call, dict.fromkeys(places, _WIDE)).call)
    size = min(_MOST, int(_WIDE * _CALL_SECONDS / max(time.process_time() - began, 1e-6)))
    many = resized(call, dict.fromkeys(places, size)).call
    if size < _FEWEST or not is_small(many, 2 * _MOST, _MOST_PRODUCTS) or not is_taken_on_cpu(many):
        return
    drawn = 0
    while drawn < _NUMBERS and time.process_time() < end:
        seeded = _with_another(many, call.declaration.random[0], drawn)
        results = _results(seeded)
        for number, result in enumerate(results):
            is_odd = ~result.isfinite()
            if is_odd.any():
                if _reference_may_be_infinite(many, drawn + result.numel()):
                    return
                raise Mismatch(
                    f"a random number is not finite, one among {drawn + result.numel():,}{_named(number, results)}:"
                    " what a logarithm is taken of, or what is divided by, may be 0 once in 2**24",
                    expected="finite numbers",
                    found=result[is_odd][0].item(),
                )
            drawn += max(1, result.numel())


def _reference_may_be_infinite(call: Call, drawn: int) -> bool:
    """Whether the reference gives a number that is not finite, among twice as many as were drawn."""
    seen, turn = 0, 0
    while seen < 2 * drawn:
        results = _by_reference(_with_another(call, call.declaration.random[0], turn))
        if not all(bool(each.isfinite().all()) for each in results):
            return True
        seen, turn = seen + max(1, sum(each.numel() for each in results)), turn + 1
    return False


def _expect_seeds_alike(call: Call, tables: Sequence[Tensor]) -> None:
    """Compares the mean square of each result for special seeds with those for others, a row of its table each."""
    [name, *_] = call.declaration.random
    for seed in _SPECIAL_SEEDS:
        special = _with_value(call, name, lambda value, seed=seed: seed)  # type: ignore[misc]
        try:
            ours, theirs = _results(special), _by_reference(special)
        except (ValueError, OverflowError, RuntimeError):
            continue  # One of both refuses the seed.
        for number, (table, result, expected) in enumerate(zip(tables, ours, theirs, strict=True)):
            others, found, by_reference = (_flat(each).square() for each in (table, result, expected))
            others, found, by_reference = others.view(len(table), -1).mean(1), found.mean(), by_reference.mean()
            allowed = _OUTLYING * others.std() + 1e-6 * others.mean().abs()
            # Where the reference is as far from other seeds, the definition says so.
            if (found - others.mean()).abs() > allowed and (found - by_reference).abs() > allowed:
                raise Mismatch(
                    f"{name}={seed} gives other random numbers than other values do{_named(number, ours)}: a generator"
                    " whose state is 0, say, gives zeros alone",
                    expected=f"a mean square of {others.mean().item():.3g}",
                    found=f"{found.item():.3g}",
                )


def _check_distribution(call: Call) -> None:
    ours, theirs = _tables(call, _SEEDS)
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        named = _named(number, ours)
        _expect_moments(one, other, named)
        _expect_no_shift(one, other, named)
    for (first, (one, other)), (second, (beside, by_reference)) in itertools.combinations(
        enumerate(zip(ours, theirs, strict=True)), 2
    ):
        if one.shape == beside.shape:
            _expect_dependence(one, beside, other, by_reference, f"results {first + 1} and {second + 1}")
    _expect_not_alike(torch.cat(ours, 1), torch.cat(theirs, 1))


def _flat(result: Tensor) -> Tensor:
    return (torch.view_as_real(result) if result.is_complex() else result).double().flatten()


def _expect_moments(ours: Tensor, theirs: Tensor, named: str) -> None:
    for power, what in ((1, "mean"), (2, "mean square")):
        one, other = ours**power, theirs**power
        # The deviation of the difference, if both have the reference's distribution; constants may differ by a
        # rounding.
        deviation = (other.var(0).mean().sqrt() / _SEEDS**0.5) * 2**0.5
        allowed = _DEVIATIONS * deviation + 1e-2 * other.abs().mean()
        worst = (one.mean(0) - other.mean(0)).abs().max()
        expect(
            bool(worst <= allowed),
            f"over {_SEEDS} seeds the {what} of an element differs from the reference's{named}",
            expected=f"at most {allowed.item():.3g} apart",
            found=f"{worst.item():.3g}",
        )
        # All elements together tell smaller differences. How they depend on each other shows in the means of seeds.
        ours_by_seed, theirs_by_seed = one.mean(1), other.mean(1)
        deviation = (torch.maximum(ours_by_seed.var(), theirs_by_seed.var()) * 2 / _SEEDS).sqrt()
        allowed = _DEVIATIONS * deviation + 1e-2 * other.abs().mean()
        difference = (ours_by_seed.mean() - theirs_by_seed.mean()).abs()
        expect(
            bool(difference <= allowed),
            f"over {_SEEDS} seeds the {what} of all elements differs from the reference's{named}",
            expected=f"at most {allowed.item():.3g} apart",
            found=f"{difference.item():.3g}",
        )


def _expect_stretches_alike(ours: Tensor, theirs: Tensor, named: str) -> None:
    """Compares the means of stretches of a wide result, a row of each table a seed: one may have no random numbers."""
    elements = ours.shape[1]
    for length, (power, what) in itertools.product(_STRETCHES, ((1, "mean"), (2, "mean square"))):
        stretches = min(-(-elements // length), _MOST_STRETCHES)
        found, expected = (
            torch.stack([each.mean(1) for each in (table**power).tensor_split(stretches, 1)], 1)
            for table in (ours, theirs)
        )
        deviation = torch.maximum(found.var(0).max(), expected.var(0).max()).mul(2 / len(found)).sqrt()
        allowed = _APART * deviation + 1e-2 * expected.abs().mean()
        differences = (found.mean(0) - expected.mean(0)).abs()
        is_far = differences > allowed
        if is_far.any():
            place = int(is_far.nonzero()[0])
            raise Mismatch(
                f"from about element {place * elements // stretches:,} of {elements:,} on the {what} is not the"
                f" reference's{named}: a block or a tile may have random numbers, and what is behind it none",
                expected=f"at most {allowed.item():.3g} apart",
                found=f"{differences[place].item():.3g}",
            )


def _expect_not_alike(ours: Tensor, theirs: Tensor) -> None:
    varying = (ours.var(0) > 0) & (theirs.var(0) > 0)
    if varying.sum() > 1:
        alike, by_definition = (torch.corrcoef(each[:, varying].t()).fill_diagonal_(0).abs() for each in (ours, theirs))
        # Elements that are dropped together, as an example, are alike by the definition.
        worst = alike.where(by_definition < _ALIKE, 0).max()
        expect(
            bool(worst < _ALIKE),
            "two elements of a result always change together",
            found=f"correlation {worst.item():.6f}",
        )


def _standardized(table: Tensor) -> Tensor:
    """Centers each column and divides it by its deviation; columns of constants become zeros."""
    centered = table - table.mean(0)
    # The mean of equal numbers may be another by a rounding.
    is_constant = (table == table[0]).all(0)
    return (centered / centered.square().mean(0).sqrt()).where(~is_constant, 0)


def _is_far(differences: Tensor) -> Tensor:
    """Whether means over seeds, one a column, are large, and too large for chance."""
    mean = differences.mean(0)
    return mean.abs() > torch.clamp(_FAR * differences.std(0) / len(differences) ** 0.5, min=_LEAST_CORRELATION)


def _expect_no_shift(ours: Tensor, theirs: Tensor, named: str) -> None:
    """Compares the result of each seed with that of the next, shifted by any number of elements."""
    count = ours.shape[1]
    if count < _ELEMENTS:
        return
    by_lag, by_definition = (_correlations_by_lag(each, 1) for each in (ours, theirs))
    wrong = _is_far(by_lag) & ~_is_far(by_definition)
    if wrong.any():
        # The transform begins with lag 0 and ends with -1.
        place = int(by_lag.mean(0).abs().where(wrong, 0).argmax())
        lag = place if place < count else place - by_lag.shape[1]
        how = (
            f", shifted by {abs(lag)}: mix the seed, and do not add it to a position"
            if lag
            else ": it is ignored in part"
        )
        raise Mismatch(
            f"the next seed gives the same random numbers{named}{how}",
            found=f"correlation {by_lag.mean(0)[place].item():.3g}",
        )


def _expect_no_repeat(ours: Tensor, theirs: Tensor, named: str) -> None:
    """Compares the result of each seed with itself, shifted by any number of elements."""
    by_lag, by_definition = (_correlations_by_lag(each, 0) for each in (ours, theirs))
    wrong = _is_far(by_lag) & ~_is_far(by_definition)
    wrong[0] = False
    if wrong.any():
        place = int(wrong.nonzero()[0])
        raise Mismatch(
            f"the same random numbers come again {place} elements later{named}: an element's numbers must follow from"
            " its place in the whole tensor",
            found=f"correlation {by_lag.mean(0)[place].item():.3g}",
        )


def _correlations_by_lag(table: Tensor, rows: int) -> Tensor:
    """Computes the correlation of each row with the one so many rows behind, by lag.

    It is 0 where too few elements overlap.
    """
    values = _standardized(table)
    count = values.shape[1]
    # A transform of twice the length keeps the ends apart.
    spectrum, varying = (torch.fft.rfft(each, 2 * count) for each in (values, (values != 0).any(0).double()))
    overlap = torch.fft.irfft(varying.conj() * varying, 2 * count).round()
    products = torch.fft.irfft(spectrum[: len(spectrum) - rows] * spectrum[rows:].conj(), 2 * count)
    return (products / overlap).where(overlap >= _ELEMENTS, 0)


def _expect_dependence(ours: Tensor, ours_beside: Tensor, theirs: Tensor, theirs_beside: Tensor, named: str) -> None:
    """Compares how two results depend on each other with how those of the reference do."""
    found, expected = (
        (_standardized(one) * _standardized(other)).mean(1, keepdim=True)
        for one, other in ((ours, ours_beside), (theirs, theirs_beside))
    )
    if _is_far(found - expected).any():
        raise Mismatch(
            f"{named} depend on each other otherwise than those of the reference",
            expected=f"correlation {expected.mean().item():.3g}",
            found=f"{found.mean().item():.3g}",
        )


PROPERTY = Property(check, dtypes=None, of_samples=False, asked_of=lambda operator: bool(operator.declaration.random))
