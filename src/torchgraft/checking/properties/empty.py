"""Empty tensors give the results of the reference: an empty result, or a sum of no elements.

Proves: on the samples with an empty tensor, the values are those of the reference, and so are the gradients if the
operator has any. In a few other samples each size becomes 0, as far as the reference takes that; equal sizes together,
or else one or two of them. There the result is that of the reference too, or the operator refuses the call.

Cannot prove: anything if no sample has an empty tensor, and the reference takes no other size 0.

Mend: return the allocated result before anything is read or launched: `if (output.numel() == 0) return output;`. A sum
over no elements is zero, and still has to be written.

Example: reads the first element of an empty tensor.
"""

from random import Random

from torchgraft.checking.case import Case
from torchgraft.checking.helpers.derived_calls import ask, emptied, kinds_of
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable

_RANDOM_SAMPLES = 300
_EMPTIED = 4


def check(case: Case) -> None:
    """See the module."""
    table = case.table()
    samples = [sample for sample in table if sample.is_empty]
    if case.samples.draw is not None and case.only is None:
        random = Random(case.seed)
        found = (case.samples.draw(random) for _ in range(_RANDOM_SAMPLES))
        samples += [sample for sample in found if sample.is_empty][:10]
    full = [sample for sample in table if not sample.is_empty]
    others = kinds_of(full, _EMPTIED // 2 if case.quick else _EMPTIED)
    derived = [each for other in others for each in emptied(case.call(other))]
    if not samples and not derived:
        raise NotApplicable("no sample has an empty tensor; add one where the operator takes it")
    case.each(check_value, samples)
    # Where nothing has a gradient, as among indices, the values are all there is to ask about.
    case.each(check_gradient, [sample for sample in samples if case.call(sample).leaf_names])
    if derived:
        ask(case, derived, (check_value, check_gradient), "")


PROPERTY = Property(check, of_samples=False, sanitized=True)
