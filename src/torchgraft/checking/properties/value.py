"""The value is that of the reference.

Proves: on each of the operator's samples and in each of its dtypes, the result is what the reference gives in float64,
up to one rounding to the dtype and the error of the sums in the definition. In float16 and bfloat16 that is so also
where arguments that may have another dtype (`mixed`) are float32 and hold the same numbers, which need no rounding.

Cannot prove: anything about inputs that are unlike all samples. A kernel that is wrong only above a size that no sample
reaches passes; `sizes` draws more samples.

Mend: compare the sample of the failure with one that passes: another size means a loop's last part, another dtype a
type that is too narrow. Sums of float16 and bfloat16 go into `accumulate_t<T>`; constants have the type of the sum. If
the reference is what is wrong, mend it, and never the tolerance.

Example: sums are kept in float16 and bfloat16.
"""

import torch

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property


def check(case: Case) -> None:
    """See the module."""
    case.each(check_value, case.table())


def check_value(call: Call) -> None:
    """The result of one call against the reference."""
    # The call goes first: a forced kernel may refuse it, which spares the reference.
    found = call.function(*call.arguments)
    expected = call.expected()
    call.expect_close(found, expected, of_pytorch=call.by_pytorch())
    operator = call.operator
    if operator.declaration.mixed and call.dtype.itemsize < torch.float32.itemsize:
        # The mixed arguments hold the same numbers, in float32.
        mixed = call.in_mixed_dtypes(call.arguments, lambda _, tensor: tensor.float())
        what = f"the result, of {' and '.join(operator.declaration.mixed)} in float32,"
        call.expect_close(call.function(*mixed), expected, what=what)


PROPERTY = Property(check, dtypes=None, sanitized=True, forces_alone=True)
