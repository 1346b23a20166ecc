"""The value is that of the reference on random sizes.

Proves: on randomly drawn samples the result is what the reference gives in float64. If a sample fails, the check
shrinks it to a smaller one. In one dtype, a few small samples are also changed by machine, some hundred times if calls
are quick: sizes, and whole numbers among the arguments, become any from 1 to 130, also these numbers alone. Equal sizes
change together. Where an argument may hold indices, sizes and numbers only grow. The result is that of the reference,
or the operator refuses the call.

Cannot prove: anything about sizes that the operator's `draw` does not reach; large sizes belong in the table of
samples.

Mend: take sizes and strides from the tensor, not from the samples; compute places in `int64_t`; handle what is over
after the last whole vector or block. Then add the size that failed to the table of samples.

Example: wrong at a size that no sample in the table has.
"""

import torch

from torchgraft.checking.case import Case
from torchgraft.checking.helpers.drawn_calls import check_drawn_calls
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable


def check(case: Case) -> None:
    """See the module."""
    # The places that a kernel finds have little to do with the dtype of what is there.
    (first, *_) = Property(check, dtypes=(torch.float32,)).dtypes_for(case.operator)
    has_drawn = case.dtype == first and check_drawn_calls(case, check_value)
    try:
        case.random_samples(check_value, examples=200)
    except NotApplicable:
        if not has_drawn:
            raise


PROPERTY = Property(check, of_samples=False, dtypes=None, sanitized=True, forces_alone=True)
