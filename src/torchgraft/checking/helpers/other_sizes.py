"""Makes calls in other sizes than a sample's, which code that was compiled for dynamic shapes must compute too."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.helpers.settings import pytorch_in_time
from torchgraft.checking.tensors.arguments import replaced
from torchgraft.operator import Operator
from torchgraft.sampling import Drawn


class SizePlace(NamedTuple):
    """The place of a size: an argument, its dimension (None if it is itself a number), and its number in a list."""

    argument: int
    dim: int | None
    element: int | None = None


def size_arguments(operator: Operator) -> list[int]:
    """Finds the arguments that the schema calls `SymInt`: sizes, which dynamic shapes leave open."""
    return [place for place, argument in enumerate(operator.declaration.arguments) if argument.kind == "SymInt"]


def sizes_of(call: Call, *, numbers: bool, least: int = 2) -> dict[SizePlace, int]:
    """Finds all sizes in a call that PyTorch can leave open, which 0 and 1 are not.

    Args:
        call: any.
        numbers: whether those that are arguments of their own count.
        least: the smallest size that counts.
    """
    sizes = {}
    open_numbers = size_arguments(call.operator) if numbers else ()
    for argument, value in enumerate(call.sample.arguments):
        elements = list(enumerate(value)) if isinstance(value, (list, tuple)) else [(None, value)]
        for number, element in elements:
            if isinstance(element, Drawn):
                sizes.update({SizePlace(argument, dim, number): size for dim, size in enumerate(element.shape)})
        if isinstance(value, (Drawn, list, tuple)):
            continue
        if argument in open_numbers:
            sizes[SizePlace(argument, None)] = value
    return {place: size for place, size in sizes.items() if size >= least}


def in_other_sizes(call: Call, *, numbers: bool, apart: bool = False) -> list[Call]:
    """Makes calls in other sizes that the operator accepts with all other arguments as they are.

    The call that differs most is the last. Equal sizes change together: nothing says which sizes belong together, and
    PyTorch first assumes that equal ones do. The fake function alone does not decide what the operator accepts, because
    that function is what is being checked.

    Args:
        call: the one that is changed.
        numbers: whether sizes that are arguments of their own change too.
        apart: whether each size also changes by itself.
    """
    if call.declaration.sizes_from_data:
        return []
    sizes = sizes_of(call, numbers=numbers)
    groups = [[place for place in sizes if sizes[place] == size] for size in sorted(set(sizes.values()))]
    if apart:
        groups = [[place] for place in sizes] + [group for group in groups if len(group) > 1]
    found = []
    all_doubled = call
    for group in groups:
        for factor, more in ((1, 1), (2, 0)):
            changed = {place: factor * sizes[place] + more for place in group}
            other = with_sizes(call, changed)
            if is_taken(other) and not _is_refused_for_its_values(other):
                found.append(other)
        together = with_sizes(all_doubled, changed)
        if is_taken(together) and not _is_refused_for_its_values(together):
            all_doubled = together
    return found if all_doubled is call else [*found, all_doubled]


def with_sizes(call: Call, sizes: Mapping[SizePlace, int]) -> Call:
    """Makes the call with other sizes in some places."""
    arguments = list(call.sample.arguments)
    for (argument, dim, number), size in sizes.items():
        value = arguments[argument]
        before = value if number is None else value[number]
        after = size if dim is None else replace(before, shape=replaced(before.shape, dim, size))
        arguments[argument] = after if number is None else list(replaced(value, number, after))
    return replace(call, sample=replace(call.sample, arguments=tuple(arguments)))


def is_taken(call: Call) -> bool:
    """Whether the operator accepts a call: `explain` and the reference raise nothing, and `output` gives the sizes."""
    operator = call.operator
    try:
        # Making the arguments may fail: a sample of distinct integers has no more elements than there are integers.
        arguments = call.arguments
        operator.explain(*arguments)
        with pytorch_in_time(call.device, call.dtype):
            results = operator.reference(*arguments)
        if operator.declaration.sizes_from_data:
            return True
        outputs = operator.declaration.output(*call.make("meta")) if operator.declaration.lists else ()
    except Exception:
        return False
    # The new values of arguments that the operator writes to come before its results.
    return _shapes(results)[len(call.written(arguments)) :] == _shapes(outputs)


def _is_refused_for_its_values(call: Call) -> bool:
    """Whether the operator refuses whole numbers that do not fit the sizes, as offsets that end elsewhere."""
    if call.device.type != "cpu" or all(each.dtype is None for each in call.sample.tensors):
        return False
    try:
        call.function(*call.arguments)
    except Exception as error:
        return call.operator.name in str(error)
    return False


def _shapes(results: object) -> Sequence[tuple[int, ...]]:
    return [tuple(result.shape) for result in tree_leaves(results) if result is not None]
