"""PyTorch's FlopCounterMode counts as many operations as the operator declares.

Proves: on a few samples it counts what the operator's formula says, called through the Operator and by its public name.

Cannot prove: that the formula is right. Nobody else knows what a kernel computes.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from torchgraft.checking.case import Call, Case
from torchgraft.checking.comparing import expect
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable


def check(case: Case) -> None:
    """See the module."""
    if case.operator.flops is None:
        raise NotApplicable("it declares no number of operations")
    case.each(_check_count, case.table(count=16))


def _check_count(call: Call) -> None:
    operator, arguments = call.operator, call.arguments
    assert operator.flops is not None
    declared = operator.flops(*(value.shape if isinstance(value, Tensor) else value for value in arguments))
    for function, name in ((operator, "the Operator"), (operator.public, operator.public.name())):
        with FlopCounterMode(display=False) as counter:
            function(*arguments)
        found = counter.get_total_flops()
        expect(
            found == declared,
            f"FlopCounterMode counts another number of operations through {name} than is declared",
            expected=declared,
            found=found,
        )


PROPERTY = Property(check, of_kernels=False)
