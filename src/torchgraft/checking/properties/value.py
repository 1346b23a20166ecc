"""The value is that of the reference.

Proves: on each of the operator's samples and in each of its dtypes, the result is what the reference gives in float64,
up to one rounding to the dtype and the error of the sums in the definition.

Cannot prove: anything about inputs that are unlike all samples. A kernel that is wrong only above a size that no sample
reaches passes; `sizes` draws more samples.
"""

from torchgraft.checking.case import Call, Case
from torchgraft.checking.property import Property


def check(case: Case) -> None:
    """See the module."""
    case.each(check_value, case.table())


def check_value(call: Call) -> None:
    """The result of one call against the reference."""
    arguments = call.arguments
    call.expect_close(call.function(*arguments), call.expected())


PROPERTY = Property(check, dtypes=None, sanitized=True)
