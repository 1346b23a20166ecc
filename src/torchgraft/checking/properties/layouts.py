"""The layout of an input in memory does not change the value.

Proves: each argument in turn is transposed, sliced, expanded, channels_last, offset and misaligned, and gives the
results of the reference for the same values. The operator does not read the memory between the elements of a slice,
which holds NaN. A boolean is true whatever its byte is, if it is not 0 (`view(torch.bool)` makes such ones), and
booleans among the results are the bytes 0 and 1.

Cannot prove: that a layout has a kernel of its own, or is fast.

Mend: a pointer carries no strides: take it from `to_contiguous(input, "input")`, or from `to_dense` if each element is
handled alone. Two tensors that are read together need the same layout. In Triton, pass strides, or copy first.

Example: reads a strided input as if it were contiguous.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_equal
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.strides import in_awkward_strides


def check(case: Case) -> None:
    """See the module."""
    # Which kernel serves depends on sizes and on alignment together.
    case.each(_check_strides, case.table(small=True, empty=False, count=8 if case.quick else None))
    case.each(_check_expanded, case.table(small=True, empty=False, count=8))
    case.each(_check_booleans, case.table(small=True, empty=False, count=8))


def _check_strides(call: Call) -> None:
    expected = call.expected()
    for name, tensor, with_other in call.tensors_in_turn():
        for kind, strided in in_awkward_strides(tensor).items():
            own = call.by_pytorch(with_other(strided))
            found = call.function(*with_other(strided))
            call.expect_close(found, expected, of_pytorch=own, what=f"the result of {name} {kind}")


def _check_expanded(call: Call) -> None:
    for (name, tensor, with_other), described in zip(call.tensors_in_turn(), call.sample.tensors, strict=True):
        written = call.declaration.argument(name).mutated
        # An expanded tensor cannot be written to, as its elements share memory, and its values are not distinct.
        if tensor.dim() > 0 and not written and not described.distinct:
            expanded = tensor[(slice(0, 1),) * tensor.dim()].expand(tensor.shape)
            changed, copied = with_other(expanded), with_other(expanded.clone())
            if _is_refused(call.reference, copied):
                # Nobody defines what such values give, as offsets that do not rise.
                continue
            expected, own = call.expected(changed), call.by_pytorch(changed)
            try:
                found = call.function(*changed)
            except Exception as error:
                if _is_refused(call.function, copied):
                    # It is the values that are refused, as offsets that do not rise.
                    continue
                raise Mismatch(f"{name} expanded from one element is refused: {error}") from error
            call.expect_close(found, expected, coherent=True, of_pytorch=own, what=f"the result of {name} expanded")


def _is_refused(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    try:
        function(*arguments)
    except Exception:
        return True
    return False


# PyTorch's own kernels take each of them for true.
_TRUE_BYTES = (2, 255)


def _check_booleans(call: Call) -> None:
    arguments = call.arguments
    plain: list[Tensor] | None = None
    for name, tensor, with_other in call.tensors_in_turn() if _has_booleans(arguments) else ():
        if tensor.dtype != torch.bool or not tensor.any():
            continue
        plain = _results(call, call.arguments) if plain is None else plain
        for byte in _TRUE_BYTES:
            found = _results(call, with_other((tensor.to(torch.uint8) * byte).view(torch.bool)))
            try:
                expect_equal(found, plain)
            except Mismatch as error:
                if _are_close(call, found, plain):
                    continue
                message = f"takes a boolean of {name} for something else than true if its byte is {byte} and not 1"
                raise error.explained(message) from None
    for result in _results(call, arguments):
        if result.dtype == torch.bool:
            largest = int(result.contiguous().view(torch.uint8).max())
            expect(largest <= 1, f"a boolean of the result is the byte {largest}, and not 0 or 1")


def _has_booleans(arguments: Sequence[Any]) -> bool:
    return any(tensor.dtype == torch.bool for tensor in tensors_of(arguments))


def _results(call: Call, arguments: Sequence[Any]) -> list[Tensor]:
    return [each for each in tree_leaves(call.function(*arguments)) if each.numel()]


def _are_close(call: Call, found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether results are the same, except for the order of sums."""
    try:
        call.expect_close(found, in_float64(expected))
    except Mismatch:
        return False
    return True


PROPERTY = Property(check, sanitized=True)
