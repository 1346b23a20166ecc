"""The value is that of the reference on random sizes.

Proves: on randomly drawn samples the result is what the reference gives in float64. If a sample fails, the check
shrinks it to a smaller one.

Cannot prove: anything about sizes that the operator's `draw` does not reach; large sizes belong in the table of
samples.
"""

from torchgraft.checking.case import Case
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property


def check(case: Case) -> None:
    """See the module."""
    case.random_samples(check_value, examples=200)


PROPERTY = Property(check, of_samples=False, dtypes=None, sanitized=True, forces_alone=True)
