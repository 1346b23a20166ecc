"""Calls in other sizes: what dynamic shapes must be ready for."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Call, replaced
from torchgraft.operator import Operator
from torchgraft.sampling import Drawn


class Place(NamedTuple):
    """Where a size is: an argument, and its dimension; None for an argument that is itself a size."""

    argument: int
    dim: int | None


def size_arguments(operator: Operator) -> list[int]:
    """Which arguments are numbers that the schema calls `SymInt`: sizes, which dynamic shapes leave open."""
    return [place for place, argument in enumerate(operator.arguments) if argument.real_type.kind() == "SymIntType"]


def sizes_of(call: Call, *, numbers: bool) -> dict[Place, int]:
    """All sizes in a call that PyTorch can leave open, which 0 and 1 are not.

    Args:
        call: any.
        numbers: whether those that are arguments of their own count.
    """
    sizes = {}
    open_numbers = size_arguments(call.operator) if numbers else ()
    for argument, value in enumerate(call.sample.arguments):
        if isinstance(value, Drawn):
            sizes.update({Place(argument, dim): size for dim, size in enumerate(value.shape)})
        elif argument in open_numbers:
            sizes[Place(argument, None)] = value
    return {place: size for place, size in sizes.items() if size > 1}


def in_other_sizes(call: Call, *, numbers: bool, apart: bool = False) -> list[Call]:
    """Calls in other sizes that the operator takes with the same other arguments; in the most different last.

    Which sizes belong together is not known, so equal ones change together, as PyTorch takes them to be one at first.
    What the definition takes counts, and not what the fake says alone: it is the fake that is asked about.

    Args:
        call: the one that is changed.
        numbers: whether sizes that are arguments of their own change too.
        apart: whether each size also changes by itself.
    """
    sizes = sizes_of(call, numbers=numbers)
    groups = [[place for place in sizes if sizes[place] == size] for size in sorted(set(sizes.values()))]
    if apart:
        groups = [[place] for place in sizes] + [group for group in groups if len(group) > 1]
    found = []
    all_doubled = call
    for group in groups:
        for factor, more in ((1, 1), (2, 0)):
            changed = {place: factor * sizes[place] + more for place in group}
            other = _changed(call, changed)
            if _is_taken(other):
                found.append(other)
        together = _changed(all_doubled, changed)
        if _is_taken(together):
            all_doubled = together
    return found if all_doubled is call else [*found, all_doubled]


def _changed(call: Call, sizes: dict[Place, int]) -> Call:
    arguments = list(call.sample.arguments)
    for (argument, dim), size in sizes.items():
        value = arguments[argument]
        arguments[argument] = size if dim is None else replace(value, shape=replaced(value.shape, dim, size))
    return replace(call, sample=replace(call.sample, arguments=tuple(arguments)))


def _is_taken(call: Call) -> bool:
    """Whether the operator takes the sizes of a call, by all that it declares."""
    operator, arguments = call.operator, call.arguments
    try:
        operator.explain(*arguments)
        results = operator.reference(*arguments)
        outputs = operator.output(*call.sample.make("meta", call.dtype, call.seed))
    except Exception:
        return False
    return _shapes(results) == _shapes(outputs)


def _shapes(results: object) -> Iterable[tuple[int, ...]]:
    return [tuple(result.shape) for result in tree_leaves(results)]
