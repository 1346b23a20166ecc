"""Compares results that are too large to be compared whole: a few parts of the batch stand for all of it."""

import itertools
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.tensors.compare import expect_close
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.operator import Operator
from torchgraft.sampling import Large, Samples

_PARTS = 128


def prepare(large: Large, arguments: tuple[Any, ...]) -> None:
    """Changes arguments so that a few parts determine the whole result: if it is a sum, all other parts become zero."""
    if large.combine == "sum":
        for before, after in itertools.pairwise(_parts(large, arguments)):
            for place in large.batched:
                arguments[place][before.stop : after.start].zero_()


def expect_parts_close(
    operator: Operator, samples: Samples, large: Large, arguments: tuple[Any, ...], found: Any, **options: Any
) -> None:
    """Compares the parts of a result with the reference in float64; see `compare.expect_close`.

    Args:
        operator: has the reference.
        samples: say how errors grow.
        large: how parts are cut and put together.
        arguments: of the call, prepared.
        found: its result.
        options: for `expect_close`.
    """
    dtype = next(value.dtype for value in arguments if isinstance(value, Tensor) and value.is_floating_point())
    sums = None

    def compare(one: Any, other: Any, made_of: tuple[Any, ...], what: str) -> None:
        expect_close(one, other, **{"dtype": dtype, "summed": samples.summed(*made_of), "what": what, **options})

    for part in _parts(large, arguments):
        cut = tuple(value[part] if place in large.batched else value for place, value in enumerate(arguments))
        expected = tree_leaves(operator.declaration.visible(operator.reference(*in_float64(cut))))
        if large.combine == "sum":
            sums = expected if sums is None else [a + b for a, b in zip(sums, expected, strict=True)]
            continue
        for one, other in zip(tree_leaves(found), expected, strict=True):
            compare(one[part], other, cut, f"the result from {part.start} of the first dimension on")
    if sums is not None:
        compare(tree_leaves(found), sums, arguments, "the result")


def _parts(large: Large, arguments: tuple[Any, ...]) -> list[slice]:
    """The beginning, the middle and the end of a batch; the reference would take minutes for all of it."""
    batch = int(arguments[large.batched[0]].shape[0])
    size = -(-batch // _PARTS)
    return [slice(first, first + size) for first in (0, batch // 2, batch - size)]
