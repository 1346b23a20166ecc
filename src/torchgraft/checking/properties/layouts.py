"""The layout of an input in memory does not change the value.

Proves: each argument in turn is transposed, sliced, expanded, channels_last, offset and misaligned, and gives the
results of the reference for the same values. The operator does not read the memory between the elements of a slice,
which holds NaN.

Cannot prove: that a layout has a kernel of its own, or is fast.
"""

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.strides import in_awkward_strides


def check(case: Case) -> None:
    """See the module."""
    # Which kernel serves depends on sizes and on alignment together.
    case.each(_check_strides, case.table(small=True, empty=False, count=8 if case.quick else None))
    case.each(_check_expanded, case.table(small=True, empty=False, count=8))


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
            changed = with_other(tensor[(slice(0, 1),) * tensor.dim()].expand(tensor.shape))
            expected, own = call.expected(changed), call.by_pytorch(changed)
            try:
                found = call.function(*changed)
            except Exception as error:
                raise Mismatch(f"{name} expanded from one element is refused: {error}") from error
            call.expect_close(found, expected, coherent=True, of_pytorch=own, what=f"the result of {name} expanded")


PROPERTY = Property(check, sanitized=True)
