"""The error of the result is no larger than a rival's.

Proves: the error is the distance of the result from the reference in float64, over all samples that the first rival
takes, in each dtype of 32 or 16 bits. It is at most 1.1 times the error of the rival in the same dtype, with tf32 off.
The report gives both errors. Samples that permit tf32 are left out, and so are samples for which the rival's result is
not finite. The rival computes the same function: on half of the samples at least its error is less than half of the
result. With or without a rival, if the error on small samples is more than four times that of rounding the exact
result once, the report gives the quotient; that is no failure.

Cannot prove: that no single element is worse: the error is a root mean square over all elements of all samples,
relative to that of the result. Integer results are left out; `value` compares them bit for bit.

Mend: a rival that computes something else proves nothing, and `graft bench` would time it: name what computes the same,
or make it a yardstick (`Samples(yardsticks=...)`). Otherwise keep sums and intermediate values in `accumulate_t<T>`,
add by `sum_of` or `sum_rows`, and round once, with `static_cast<T>`, when the result is written.

Example: cuts results off where it should round them.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.settings import pytorch_in_time
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import expect
from torchgraft.kernels.precision import equal_precision

_MOST_TIMES_RIVAL = 1.1
# A rival whose results are off by more than this share of them computes another function.
_ANOTHER_FUNCTION = 0.5
# From this many roundings on, the report gives the error as a multiple of the error of one rounding.
_NOTABLE = 4.0


def check(case: Case) -> None:
    """See the module."""
    rival = next(iter(case.samples.rivals), None)
    if case.declaration.random:
        raise NotApplicable("its results are random, and a rival draws other values")
    if rival is None:
        _note_roundings(case)
        raise NotApplicable("its samples name no rival")
    ours, theirs, without_kernel = [], [], 0

    def compare(call: Call) -> None:
        nonlocal without_kernel
        expected = call.expected()
        if not any(map(_is_rounded, tree_leaves(expected))):
            raise NotApplicable("its results are integers, which have no rounding errors")
        try:
            found = call.outcome_of(case.samples.rivals[rival], call.arguments)
        except (RuntimeError, TypeError) as error:
            # A rival need not take all that we take.
            without_kernel += isinstance(error, NotImplementedError)
            return
        shapes, others = ([tuple(each.shape) for each in tree_leaves(results)] for results in (expected, found))
        if shapes != others and case.declaration.sizes_from_data:
            return  # rounding decides about the size
        expect(shapes == others, f"{rival}'s results have other shapes", expected=shapes, found=others)
        if not all(each.isfinite().all() for each in map(_in_double, tree_leaves(found))):
            return  # a rival may overflow where we do not
        theirs.append(_relative_error(found, expected))
        ours.append(_relative_error(call.function(*call.arguments), expected))

    # Samples for tf32 are left out: they are less accurate by intent.
    samples = [sample for sample in case.table(empty=False) if not sample.tf32]
    with equal_precision(), pytorch_in_time(case.device, case.dtype):
        case.each(compare, samples)
    if without_kernel == len(samples):
        raise NotApplicable(f"{rival} has no kernel for this dtype here")
    if not ours and case.only is not None:
        raise NotApplicable(f"{rival} does not accept this sample")
    expect(bool(ours), f"{rival} accepts none of the samples, but a rival must take the arguments of the operator")
    # Errors of rounding and of quantization are smaller. A rival may go wrong on a sample, but not on most.
    away = statistics.median_low(theirs)
    expect(
        away < _ANOTHER_FUNCTION or statistics.median_low(ours) > away / 4,
        f"{rival} computes something else: on most samples its results are {away:.0%} away from those of the reference."
        " Name what computes the same, or make it a yardstick",
    )
    error, least = _root_mean_square(ours), _root_mean_square(theirs)
    case.facts["relative error"] = error
    case.facts[f"{rival}'s"] = least
    _note_roundings(case)
    expect(
        error <= _MOST_TIMES_RIVAL * least,
        f"the error is more than {_MOST_TIMES_RIVAL} times that of {rival}",
        expected=f"at most {_MOST_TIMES_RIVAL * least:.3g}",
        found=f"{error:.3g}",
    )


def _note_roundings(case: Case) -> None:
    """Notes the error in units of that of one rounding, if it is large: as after sums in the dtype itself."""
    errors, roundings = [], []

    def note(call: Call) -> None:
        expected = tree_leaves(call.expected())
        found = tree_leaves(call.function(*call.arguments))
        rounded = [exact.to(one.dtype) for one, exact in zip(found, expected, strict=True)]
        if all(_in_double(each).isfinite().all() for each in (*found, *rounded)):
            errors.append(_relative_error(found, expected))
            roundings.append(_relative_error(rounded, expected))

    with equal_precision():
        case.each(note, [sample for sample in case.table(empty=False, small=True, count=8) if not sample.tf32])
    if any(roundings) and (times := _root_mean_square(errors) / _root_mean_square(roundings)) > _NOTABLE:
        case.facts["errors of one rounding"] = times


def _relative_error(found: Any, expected: Any) -> float:
    """Computes the error of a result, relative to the size of what is expected."""
    # In float64, because PyTorch has no arithmetic for dtypes of one byte, such as float8.
    pairs = [pair for pair in zip(tree_leaves(found), tree_leaves(expected), strict=True) if _is_rounded(pair[1])]
    size = math.hypot(*(_in_double(exact).norm().item() for _, exact in pairs))
    error = math.hypot(*((_in_double(ours) - _in_double(exact)).norm().item() for ours, exact in pairs))
    return error / size if size else error


def _is_rounded(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _in_double(tensor: Tensor) -> Tensor:
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def _root_mean_square(values: Sequence[float]) -> float:
    return math.hypot(*values) / math.sqrt(len(values))


PROPERTY = Property(check, dtypes=(torch.float32, torch.float16, torch.bfloat16))
