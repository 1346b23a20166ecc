"""NaN and infinity appear in the result where the reference has them.

Proves: on the samples for which the definition says what becomes of NaN and infinity, one NaN or one infinity of either
sign, anywhere in an argument, gives NaN, infinity and finite values in the same places as the reference.

Cannot prove: anything where PyTorch's own implementations differ, for example where a convolution kernel lies over
padding.

Mend: a comparison with NaN is false, so put the case that keeps NaN last: `value < 0 ? 0 : value`. `std::max` drops one
of its arguments; zero times infinity is NaN. `Samples(non_finite=...)` is only for calls whose definition says nothing
of NaN.

Example: gives zero where the definition says NaN.
"""

from random import Random

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import expect, expect_equal

_VALUES = (float("nan"), float("inf"), float("-inf"))
# Spread over the table: kernels that are forced support few of them.
_SAMPLES = 24


def check(case: Case) -> None:
    """See the module."""
    samples = [each for each in case.table(small=True, empty=False) if case.samples.non_finite(each)]
    if not samples:
        raise NotApplicable("for no sample its reference defines what becomes of NaN and infinity")
    count = min(_SAMPLES, len(samples))
    case.each(_check_each, [samples[turn * len(samples) // count] for turn in range(count)])


def _check_each(call: Call) -> None:
    random = Random(call.seed)
    for argument, tensor, with_other in call.tensors_in_turn():
        for value in _VALUES if tensor.is_floating_point() and tensor.element_size() > 1 else ():
            changed = tensor.clone()
            changed[tuple(random.randrange(size) for size in tensor.shape)] = value
            # A call may write to what it is given.
            found = tree_leaves(call.function(*with_other(changed.clone())))
            expected = tree_leaves(call.expected(with_other(changed)))
            name = f"{argument} with one {value}"
            for one, other in zip(found, expected, strict=True):
                expect(one.shape == other.shape, f"the result of {name} has the wrong shape")
                # NaN is equal to NaN here, and 1 stands for whatever is finite.
                expect_equal(
                    _kinds(one),
                    _kinds(other),
                    what=f"the pattern of NaN, infinite and finite values in the result of {name}",
                )


def _kinds(tensor: Tensor) -> Tensor:
    exact = tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()
    return torch.where(exact.isfinite(), 1.0, exact)


# Kernels for dtypes of two bytes multiply on tensor cores, where an infinity meets the zeros of a padded product.
PROPERTY = Property(check, dtypes=(torch.float32, torch.float16))
