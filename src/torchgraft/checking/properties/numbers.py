"""Every number among the arguments counts, exactly, also right after a call with another one.

Proves: on a few samples, in float64 if the operator has it, the result is that of the reference if one number is
changed: a float becomes one that float32 does not hold, 0, 1, negative and larger by 2.5, or is swapped with another;
an integer, alone or in a list, becomes one more, one less, negative, 0 and the last size of the first tensor; a bool is
flipped; and an optional argument is left out, or becomes 0. Of integers, bools and optional arguments two are changed
at once too. Each such call comes right after a call with the same sizes and the first number, and that one is repeated
afterwards. No result shares memory with an argument. In float16, floats become larger and smaller than float16 holds.
An operator may refuse a number; it must if the reference does, unless a float is 0, 1, negative or larger, and the call
with the first number has its results after that too. An optional argument that a sample leaves out is given as in
another sample, alone and with each bool flipped. Where gradients may depend on a changed number, they are those of the
reference.

Cannot prove: anything about three changed numbers at once, or about a float and another number, except for swapped
floats. `bad_input` asks for numbers that are invalid or huge.

Mend: read each argument of the schema at each call, a `float` as `double`; round it only to `accumulate_t<T>`, and
cache nothing by sizes alone.

Example: keeps a number from the first call with the same sizes.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.adopting.adopted import Adopted
from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.after_refusals import expect_as_before
from torchgraft.checking.helpers.derived_calls import Derived, ask, derived
from torchgraft.checking.helpers.optional_arguments import with_optionals
from torchgraft.checking.helpers.regimes import each_telling
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.inputs_and_outputs import expect_apart
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property
from torchgraft.checking.result import STALE_CACHE, NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor, replaced, tensors_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import holds_numbers, in_float64, is_number
from torchgraft.checking.tensors.own_error import OwnError, nearby_arguments
from torchgraft.declaration.memory import NotOwnMemoryError
from torchgraft.declaration.schema import Argument

_QUICK, _FULL = 3, 12
_WHOLE, _REAL = ("int", "SymInt"), ("float", "Scalar")
# A share of a number that float32 rounds away.
_LITTLE = 1e-9 / 3
# Numbers at which a formula may divide by zero, as by 1 - p.
_SPECIAL = (0.0, 1.0)
# A number that is beyond most limits, and not far.
_LARGER = 2.5
# So many roundings are no error then, where all that is left is zero.
_ROUNDINGS = 16
# The share by which a gradient may be off then.
_ROUGHLY = 1e-3
# So many calls have an optional argument that their sample leaves out.
_GIVEN_IF_QUICK, _GIVEN = 6, 40
# So many pairs of numbers are changed together in a sample.
_PAIRS_IF_QUICK, _PAIRS = 10, 66
# So many samples are drawn in search of sizes that no call had before, from seeds that nothing else takes.
_DRAWN, _FIRST_SEED = 20, 1 << 20


@dataclass(frozen=True)
class _Changed:
    """Arguments of a call with another number.

    Attributes:
        names: of the arguments that are changed.
        what: they are, for a person.
        arguments: of the call.
        rounds: whether the number is one that float32 does not hold.
        swapped: whether two numbers have changed places.
        special: whether the number is one that a definition may divide by, or treat by itself.
        is_whole: whether the number is an integer or a flag.
        is_left_out: whether the argument is left out.
    """

    names: str
    what: str
    arguments: tuple[Any, ...]
    rounds: bool = False
    swapped: bool = False
    special: bool = False
    is_whole: bool = False
    is_left_out: bool = False


def check(case: Case) -> None:
    """See the module."""
    if not any(_can_change(argument) for argument in case.declaration.arguments):
        raise NotApplicable("it has no number, flag or optional argument")
    each_telling(case, partial(_check_call, case), quick=_QUICK, full=_FULL)
    for given in islice(with_optionals(case), _GIVEN_IF_QUICK if case.quick else _GIVEN):
        ask(case, [given], (check_value, check_gradient), "")


def _can_change(argument: Argument) -> bool:
    return argument.optional or argument.kind in (*_WHOLE, *_REAL, "bool")


def _check_call(case: Case, call: Call) -> None:
    first = call.function(*call.arguments)
    expected = call.expected()
    call.expect_close(first, expected)
    counted: set[str] = set()
    taken: dict[str, _Changed] = {}
    for changed in _changes(call):
        case.progress(f"{changed.what} of sample {call.sample.name!r}")
        found = _check_change(case, call, changed, first, counts=changed.names in counted)
        if found is None:
            expect_as_before(call, expected, changed.what)
            continue
        # The gradient is asked once where a number changes the result, and each time where it may change that alone, or
        # where the number is one of another kind, as a negative slope is.
        changes_result = not _are_equal(found, first)
        if call.leaf_names and not (changes_result and changed.names in counted and not changed.special):
            check = _check_gradient_roughly if changed.special else check_gradient
            ask(case, [_as_derived(call, changed)], (check,), "")
        # Of an argument, the first that changes the result, or else the first.
        is_first = changed.names not in taken or (changes_result and changed.names not in counted)
        if is_first and (changed.is_whole or changed.is_left_out):
            taken[changed.names] = changed
        if changes_result:
            counted.add(changed.names)
    _check_pairs(case, call, list(taken.values()), first)
    call.expect_close(call.function(*call.arguments), expected, what="the result, after calls with other numbers,")
    if torch.float16 in (case.declaration.dtypes or ()):
        _check_in_float16(case, replace(call, dtype=torch.float16))


def _check_gradient_roughly(call: Call) -> None:
    """Compares the first digits: a number that makes no sense may have brought a formula close to where it ends."""
    try:
        check_gradient(call)
    except Mismatch as wrong:
        one, other = wrong.found, wrong.expected
        if not (isinstance(one, float) and isinstance(other, float) and math.isclose(one, other, rel_tol=_ROUGHLY)):
            raise


def _check_pairs(case: Case, call: Call, taken: Sequence[_Changed], first: Any) -> None:
    """Asks for two changes at once, each of which is right alone."""
    for one, other in islice(combinations(taken, 2), _PAIRS_IF_QUICK if case.quick else _PAIRS):
        both = _together(call, one, other)
        case.progress(f"{both.what} of sample {call.sample.name!r}")
        found = _check_change(case, call, both, first, counts=True)
        if found is not None and call.leaf_names:
            ask(case, [_as_derived(call, both)], (check_gradient,), "")


def _together(call: Call, one: _Changed, other: _Changed) -> _Changed:
    """Both of two changes of a call."""
    pairs = zip(call.arguments, one.arguments, other.arguments, strict=True)
    arguments = tuple(two if _is_alike(changed, before) else changed for before, changed, two in pairs)
    names = f"{one.names} and {other.names}"
    what = f"{one.what} and {other.what} (right one by one)"
    return _Changed(names, what, arguments, is_whole=one.is_whole or other.is_whole)


def _check_in_float16(case: Case, call: Call) -> None:
    """Asks for numbers that float16 does not hold, beside tensors with which products are of an ordinary size."""
    first = call.function(*call.arguments)
    for place, (argument, value) in enumerate(zip(call.declaration.arguments, call.arguments, strict=True)):
        if argument.kind not in _REAL or type(value) not in (int, float):
            continue
        for number, factor in ((1e5, 1e-4), (1e-8, 1e4)):
            scaled = each_tensor(partial(_scaled, factor), call.arguments)
            what = f"{argument.name}={number} in float16, with tensors times {factor:g},"
            changed = _Changed(argument.name, what, replaced(scaled, place, number), rounds=True)
            case.progress(f"{changed.what} of sample {call.sample.name!r}")
            try:
                _check_change(case, call, changed, first, counts=True)
            except RuntimeError:
                # PyTorch's own operators refuse numbers that a tensor's dtype does not hold with such an error.
                if not isinstance(call.operator, Adopted):
                    raise


def _scaled(factor: float, tensor: Tensor) -> Tensor:
    return tensor * factor if tensor.is_floating_point() else tensor


def _as_derived(call: Call, changed: _Changed) -> Derived:
    """The call of a sample that has the changed numbers."""
    drawn = [*call.sample.arguments, *changed.arguments[len(call.sample.arguments) :]]
    pairs = zip(drawn, changed.arguments, call.arguments, strict=True)
    arguments = tuple(one if _is_alike(new, old) else new for one, new, old in pairs)
    return derived(call, replace(call, sample=replace(call.sample, arguments=arguments)), changed.what)


def _check_change(case: Case, call: Call, changed: _Changed, first: Any, *, counts: bool) -> Any:
    """Compares the result of a changed call and returns it; None if the operator refuses the number.

    Args:
        case: has other samples.
        call: as it was.
        changed: the call with another number.
        first: the result of the call as it was.
        counts: whether another change of the same number has changed the result.

    Raises:
        Mismatch: the result is wrong.
    """
    exact = in_float64(changed.arguments)
    raised = ""
    try:
        own = call.reference(*each_tensor(Tensor.clone, changed.arguments))
        wanted = call.reference(*exact)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    # The number before, with the same sizes.
    call.function(*call.arguments)
    given = each_tensor(Tensor.clone, changed.arguments)
    try:
        found = call.function(*given)
    except NotOwnMemoryError as error:
        raise Mismatch(f"with {changed.what}, {error}") from error
    except (ValueError, TypeError):
        return None
    except Exception:
        if raised:
            # `bad_input` says which errors are clear.
            return None
        raise
    if raised and changed.special:
        # Python refuses to divide by 0 where a kernel gives infinity.
        return None
    if raised:
        raise Mismatch(f"takes {changed.what}, which the reference refuses: {' '.join(raised.split())[:200]}")
    results = tree_leaves(found)[len(tensors_of(call.written(given))) if call.declaration.mutates else 0 :]
    made, taken = ([each for each in tensors_of(some) if each.numel()] for some in (results, given))
    expect_apart(made, taken, f"with {changed.what}, ")
    known = OwnError(
        exact=wanted,
        own=own,
        nearby=lambda: (call.reference(*each) for each in nearby_arguments(exact, call.dtype, keep_ties=False)),
        dtype=call.precision,
        summed=call.summed,
        roundings=2 if call.precision == call.dtype else 2 + math.isqrt(call.summed),
        nan_counts=changed.is_whole and call.samples.non_finite(call.sample),
        negligible=_rounding_of(call, changed.arguments) if changed.special else 0.0,
    )
    what = f"the result of {changed.what}"
    worse = known.worst(found, what)
    if worse is None:
        return found
    same, kind = _are_equal(found, first), ""
    if changed.rounds and (rounded := _rounded_to(call, changed, found)):
        cause = f"rounds {changed.names} to {rounded}: {what} is that of the number in {rounded}"
    elif same and counts:
        cause = f"takes {changed.what} for the number before: the results are the same"
    elif same:
        cause, kind = _why_same(case, call, changed)
    elif changed.swapped:
        cause = f"{what} is wrong{_of_swapped(call, changed, found)}"
    elif ignored := _ignored(call, changed, found):
        cause = (
            f"ignores {ignored[0]} with {changed.what}: the result is that of {ignored[0]}={ignored[1]!r}, its default"
        )
    else:
        cause = f"{what} is wrong"
    where = f"{worse.count} of {worse.total} elements, the first at {list(worse.index)}"
    raise Mismatch(f"{cause}; {where}", index=worse.index, expected=worse.expected, found=worse.found, kind=kind)


def _rounding_of(call: Call, arguments: tuple[Any, ...]) -> float:
    """Some roundings of the largest element: without the number that keeps them apart, terms may cancel to zero."""
    sizes = [float(each.abs().max()) for each in tensors_of(arguments) if is_number(each) and each.numel()]
    eps = torch.finfo(call.precision).eps if holds_numbers(call.precision) else 0.0
    return _ROUNDINGS * eps * max(sizes, default=0.0)


def _are_equal(found: Any, other: Any) -> bool:
    pairs = zip(tree_leaves(found), tree_leaves(other), strict=False)
    return all(one is None or (one.shape == two.shape and torch.equal(one, two)) for one, two in pairs)


def _of_swapped(call: Call, changed: _Changed, found: Any) -> str:
    """The cause, where the result is that of other numbers: of both in the order before, or of one for both."""
    before = call.arguments
    one, other = (place for place, value in enumerate(changed.arguments) if not _is_alike(value, before[place]))
    if _is_close_to_reference(call, before, found):
        return ": the two are taken for each other"
    for kept, lost in ((one, other), (other, one)):
        value = changed.arguments[kept]
        if _is_close_to_reference(call, replaced(changed.arguments, lost, value), found):
            return f": {call.declaration.arguments[kept].name} is used for both"
    return ""


def _rounded_to(call: Call, changed: _Changed, found: Any) -> str:
    """The name of a dtype for whose numbers the reference gives the result that was found; empty if there is none."""
    for dtype in dict.fromkeys((torch.float32, call.dtype)):
        rounded = tuple(
            torch.tensor(value, dtype=dtype).item() if isinstance(value, float) else value
            for value in changed.arguments
        )
        try:
            call.expect_close(found, call.expected(rounded))
        except Exception:
            continue
        return str(dtype).removeprefix("torch.")
    return ""


def _ignored(call: Call, changed: _Changed, found: Any) -> tuple[str, Any] | None:
    """Another number for whose default the reference gives the result that was found; None if there is none."""
    defaults = call.declaration.with_defaults(())
    for place, (argument, default) in enumerate(zip(call.declaration.arguments, defaults, strict=False)):
        value = changed.arguments[place]
        if isinstance(value, Tensor) or type(default) not in (int, float, bool, str) or value == default:
            continue
        if argument.name != changed.names and _is_close_to_reference(
            call, replaced(changed.arguments, place, default), found
        ):
            return argument.name, default
    return None


def _is_close_to_reference(call: Call, arguments: tuple[Any, ...], found: Any) -> bool:
    """Whether a result is that of the reference for some arguments, and the reference takes them."""
    try:
        call.expect_close(found, call.expected(arguments))
    except Exception:
        return False
    return True


def _why_same(case: Case, call: Call, changed: _Changed) -> tuple[str, str]:
    """Tells an argument that is ignored from one of which something is kept from an earlier call; and that kind."""
    since = f"the result of {changed.what} is the one of the call before"
    if changed.what.endswith(" left out"):
        return f"ignores that {changed.names} is left out, or keeps it from an earlier call: {since}", ""
    counts = _counts_elsewhere(case, call, changed)
    if counts or _counts_in_table(case, call, changed):
        kept = "a stale cache: something is kept from an earlier call"
        return f"{kept}: {since}, which had another {changed.names}", STALE_CACHE
    if counts is None:
        return f"ignores {changed.names}, or keeps something from an earlier call: {since}", ""
    return f"ignores {changed.names}: {since}", ""


def _counts_elsewhere(case: Case, call: Call, changed: _Changed) -> bool | None:
    """Whether the changed number counts with sizes that no call had before; None if there are no such sizes."""
    draw, places = case.samples.draw, _changed_places(call, changed)
    for seed in range(_DRAWN if draw is not None else 0):
        assert draw is not None
        other = case.call(draw(Random(_FIRST_SEED + seed)))
        if other.sample.is_empty or other.shapes in [case.call(each).shapes for each in case.samples.table]:
            continue
        before = other.arguments
        after = [changed.arguments[place] if place in places else value for place, value in enumerate(before)]
        try:
            expected = other.expected(tuple(after))
            if not _are_equal(expected, other.expected(before)):
                return _is_close(other, other.function(*after), expected)
        except Exception:
            continue
    return None


def _counts_in_table(case: Case, call: Call, changed: _Changed) -> bool:
    """Whether a sample has another number than this one, and the operator computes with it, as the reference does."""
    places, original = _changed_places(call, changed), call.arguments
    for sample in case.table(empty=False, small=True):
        other = case.call(sample)
        own = other.arguments
        swapped = [original[place] if place in places else value for place, value in enumerate(own)]
        try:
            expected = other.expected(own)
            if not _are_equal(expected, other.expected(tuple(swapped))) and _is_close(
                other, other.function(*own), expected
            ):
                return True
        except Exception:
            continue
    return False


def _changed_places(call: Call, changed: _Changed) -> list[int]:
    """The places of the arguments that were changed."""
    return [
        place
        for place, (value, before) in enumerate(zip(changed.arguments, call.arguments, strict=True))
        if not _is_alike(value, before)
    ]


def _is_alike(one: Any, other: Any) -> bool:
    return all(map(_is_same, tree_leaves(one), tree_leaves(other))) and type(one) is type(other)


def _is_same(one: Any, other: Any) -> bool:
    return isinstance(one, Tensor) or bool(one == other)


def _is_close(call: Call, found: Any, expected: Any) -> bool:
    try:
        call.expect_close(found, expected)
    except Mismatch:
        return False
    return True


def _changes(call: Call) -> Iterator[_Changed]:
    arguments, described = call.arguments, call.declaration.arguments
    reals = []
    # Others tell more of what is wrong.
    last: list[_Changed] = []
    # By as many elements as there are, many an operator changes nothing.
    size = next((each.shape[-1] for each in tensors_of(arguments) if each.dim()), 0)
    for place, (argument, value) in enumerate(zip(described, arguments, strict=True)):
        if value is None:
            continue
        if argument.optional:
            yield _Changed(
                argument.name, f"{argument.name} left out", replaced(arguments, place, None), is_left_out=True
            )
        # With zero among them, which is no missing number, though it is as false as None.
        for other in _others(argument, value, size):
            is_real = argument.kind in _REAL
            is_far = is_real and any(map(_is_far, tree_leaves(value), tree_leaves(other)))
            is_special = is_far or (is_real and any(each in _SPECIAL for each in tree_leaves(other)))
            is_whole = argument.kind in (*_WHOLE, "bool")
            what, changed = f"{argument.name}={other!r}", replaced(arguments, place, other)
            one = _Changed(argument.name, what, changed, rounds=is_real, special=is_special, is_whole=is_whole)
            if is_far:
                last.append(one)
            else:
                yield one
        if argument.kind in _REAL and isinstance(value, float):
            reals.append(place)
    for number, first in enumerate(reals):
        for second in reals[number + 1 :]:
            if arguments[first] != arguments[second]:
                swapped = replaced(replaced(arguments, first, arguments[second]), second, arguments[first])
                names = f"{described[first].name} and {described[second].name}"
                yield _Changed(names, f"{names} swapped", swapped, swapped=True)
    yield from last


def _others(argument: Argument, value: Any, size: int) -> Iterator[Any]:
    """Yields other values of a number, or of one number of a list.

    Args:
        argument: that has the value.
        value: a number, or a list of some.
        size: of a tensor, which a whole number may be too.
    """
    if argument.is_list:
        if argument.kind in (*_WHOLE, "float", "bool") and isinstance(value, (list, tuple)):
            alone = argument._replace(is_list=False)
            for place, each in enumerate(value):
                for other in _others(alone, each, size):
                    yield list(replaced(value, place, other))
    elif isinstance(value, bool):
        yield not value
    elif argument.kind in _WHOLE and isinstance(value, int):
        others = dict.fromkeys((value + 1, value - 1, -value if value else -2, 0, size))
        yield from (each for each in others if each != value)
    elif argument.kind in _REAL and isinstance(value, (int, float)):
        reals = (0.1, value + _LITTLE * (abs(value) or 1), *_SPECIAL, -value, value + _LARGER)
        yield from (each for each in dict.fromkeys(reals) if each != value)


def _is_far(before: Any, after: Any) -> bool:
    """Whether a real number has become negative or larger, for which a definition may have no meaning."""
    return after != before and (after < 0 or after >= before + _LARGER)


PROPERTY = Property(check, dtypes=(torch.float64,))
