"""PyTorch's own opcheck finds nothing wrong with the operator.

Proves: opcheck runs on a few small samples, under the public name with arguments that need gradients, and under the raw
name. The schema says which arguments are written and which share memory with results, autograd is registered as PyTorch
requires, fake results have the layout of real ones, and tracing with symbolic sizes, forward and backward, gives the
same as a call.

Cannot prove: that any result is right: opcheck compares the operator only with itself.

Mend: read the name of the test. test_schema: a written or returned argument is missing in the schema. test_faketensor:
`output` and the kernel differ. test_autograd_registration: declare through Operator alone.

Example: a kernel returns its argument, and the schema does not say so.
"""

import torch

from torchgraft.checking.adopting.adopted import Adopted
from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.compiling import fresh_compiler, in_short
from torchgraft.checking.property import COMPILER, Property
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.operator import Operator

# The meaning of a failure of each of its tests.
_MEANINGS = {
    "test_schema": "its schema is wrong about which arguments it writes to, or which results share memory",
    "test_autograd_registration": "its gradient is not registered in a way that PyTorch knows",
    "test_faketensor": "its fake results differ from those of a real call",
    "test_aot_dispatch_dynamic": "traced with symbolic sizes, its forward or backward differs from a plain call",
    "test_aot_dispatch_static": "traced, its forward or backward differs from a plain call",
}


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_both_names, case.table(small=True, empty=False, count=3))


def _check_both_names(call: Call) -> None:
    # Arguments that are written to must not need a gradient, and then, without the Operator, no other can have one.
    asked = [(call.operator.public, call.arguments if call.declaration.mutates else call.leaves(required=False))]
    if not isinstance(call.operator, Adopted):
        asked.append((call.operator.raw, call.arguments))
    for operator, arguments in asked:
        with fresh_compiler():
            named = _named(call.operator) if operator is call.operator.public else ()
            positional, by_name = (
                arguments[: len(arguments) - len(named)],
                dict(zip(named, arguments[-len(named) :], strict=False)),
            )
            outcomes = torch.library.opcheck(operator, positional, by_name, raise_exception=False)
        for test, outcome in outcomes.items():
            if isinstance(outcome, Exception):
                meaning = _MEANINGS.get(test, "it fails")
                raise Mismatch(f"{operator.name()}: {meaning} ({test}): {in_short(outcome)}") from outcome


def _named(operator: Operator) -> list[str]:
    """The arguments that must be named; they stand last."""
    return [argument.name for argument in operator.declaration.arguments if argument.keyword_only]


PROPERTY = Property(check, dtypes=(torch.float64,), imports=COMPILER)
