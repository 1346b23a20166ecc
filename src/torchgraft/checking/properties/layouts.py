"""The layout of an input in memory does not change the value.

Proves: transposed, sliced, expanded, channels_last, offset and misaligned inputs, each argument in turn, give what the
reference gives for the same values; and nothing between the elements of a slice is read, as that is NaN.

Cannot prove: that a layout has a kernel of its own, or is fast.
"""

from torch import Tensor

from torchgraft.checking.case import Call, Case
from torchgraft.checking.comparing import Mismatch
from torchgraft.checking.property import Property
from torchgraft.checking.strides import in_awkward_strides


def check(case: Case) -> None:
    """See the module."""
    # Which kernel serves depends on sizes and on alignment together.
    case.each(_check_strides, case.table(small=True, empty=False, count=8 if case.quick else None))
    case.each(_check_expanded, case.table(small=True, empty=False, count=8))


def _check_strides(call: Call) -> None:
    arguments = call.arguments
    expected = call.expected()
    for place, argument in enumerate(arguments):
        if isinstance(argument, Tensor):
            for kind, strided in in_awkward_strides(argument).items():
                changed = (*arguments[:place], strided, *arguments[place + 1 :])
                name = call.operator.arguments[place].name
                call.expect_close(call.operator(*changed), expected, what=f"the result of {name} {kind}")


def _check_expanded(call: Call) -> None:
    arguments = call.arguments
    for place, argument in enumerate(arguments):
        if isinstance(argument, Tensor) and argument.dim() > 0:
            one = argument[(slice(0, 1),) * argument.dim()].expand(argument.shape)
            changed = (*arguments[:place], one, *arguments[place + 1 :])
            name = call.operator.arguments[place].name
            what = f"the result of {name} expanded"
            try:
                found = call.operator(*changed)
            except Exception as error:
                raise Mismatch(f"{name} expanded from one element is refused: {error}") from error
            call.expect_close(found, call.expected(changed), coherent=True, what=what)


PROPERTY = Property(check, sanitized=True)
