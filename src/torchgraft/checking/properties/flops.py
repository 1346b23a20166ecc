"""PyTorch's FlopCounterMode counts as many operations as the operator declares.

Proves: on a few samples the count is the result of the operator's formula, through the Operator and by its public name.

Cannot prove: that the formula is right: only its author knows what the kernel computes.

Mend: the formula is called with the arguments of the schema, a shape in place of each tensor, and returns a whole
number.

Example: the formula reads input.shape, where `input` is the shape itself.
"""

from torch.utils.flop_counter import FlopCounterMode

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor
from torchgraft.checking.tensors.compare import expect_same


def check(case: Case) -> None:
    """See the module."""
    if case.declaration.flops is None:
        raise NotApplicable("it declares no number of operations")
    case.each(_check_count, case.table(count=16))


def _check_count(call: Call) -> None:
    operator, arguments = call.operator, call.arguments
    assert operator.declaration.flops is not None
    declared = operator.declaration.flops(*each_tensor(lambda tensor: tensor.shape, arguments))
    for function, name in ((operator.call, "the Operator"), (operator.names.call_public, operator.public.name())):
        with FlopCounterMode(display=False) as counter:
            function(*arguments)
        what = f"FlopCounterMode counts another number of operations through {name} than is declared"
        expect_same(counter.get_total_flops(), declared, what)


PROPERTY = Property(check, of_kernels=False)
