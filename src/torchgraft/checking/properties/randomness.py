"""Random results follow from the seed and have the distribution of the reference.

Proves: the same arguments give the same bits. Another value of each argument that the declaration calls random gives
other bits, unless the reference also gives the same for both values. Over many seeds the mean of every element and of
its square are those of the reference, within six standard deviations, and no two elements of a result are fully
correlated.

Cannot prove: that the generator is random enough for a purpose.
"""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import replaced, tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_equal

_SEEDS = 200
_DEVIATIONS = 6.0
# So few elements may be alike by chance.
_ELEMENTS = 8


def check(case: Case) -> None:
    """See the module."""
    if not case.declaration.random:
        raise NotApplicable("it declares no argument that chooses random values")
    samples = case.table(empty=False, small=True, count=4)
    case.each(_check_seeds, samples)
    case.each(_check_distribution, samples[-1:])


def _results(call: Call) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors_of([call.function(*call.arguments)])]


def _by_reference(call: Call) -> list[Tensor]:
    results = call.declaration.visible(call.operator.reference(*call.arguments))
    return [tensor.detach() for tensor in tensors_of([results])]


def _are_equal(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


def _with_another(call: Call, name: str, by: int) -> Call:
    place = next(place for place, argument in enumerate(call.declaration.arguments) if argument.name == name)
    arguments = call.declaration.with_defaults(call.sample.arguments)
    changed = dataclasses.replace(call.sample, arguments=replaced(arguments, place, arguments[place] + by))
    return dataclasses.replace(call, sample=changed)


def _check_seeds(call: Call) -> None:
    first = _results(call)
    expect_equal(_results(call), first, what="a result", why=" between two calls with the same seed")
    if sum(each.numel() for each in first) < _ELEMENTS:
        return
    for name in call.declaration.random:
        another = _with_another(call, name, 1)
        # Where all is dropped, as an example, no seed makes a difference.
        if _are_equal(first, _results(another)) and not _are_equal(_by_reference(call), _by_reference(another)):
            raise Mismatch(f"another {name} gives the same bits: it is ignored")


def _check_distribution(call: Call) -> None:
    found, expected = [], []
    for turn in range(_SEEDS):
        seeded = _with_another(call, call.declaration.random[0], turn)
        found.append(torch.cat([each.double().flatten() for each in _results(seeded)]))
        expected.append(torch.cat([each.double().flatten() for each in _by_reference(seeded)]))
    ours, theirs = torch.stack(found), torch.stack(expected)
    for power, what in ((1, "mean"), (2, "mean square")):
        one, other = ours**power, theirs**power
        # The deviation of the difference, if both have the reference's distribution; constants may differ by a
        # rounding.
        deviation = (other.var(0).mean().sqrt() / _SEEDS**0.5) * 2**0.5
        allowed = _DEVIATIONS * deviation + 1e-2 * other.abs().mean()
        worst = (one.mean(0) - other.mean(0)).abs().max()
        expect(
            bool(worst <= allowed),
            f"over {_SEEDS} seeds the {what} of an element differs from the reference's",
            expected=f"at most {allowed.item():.3g} apart",
            found=f"{worst.item():.3g}",
        )
    varying = ours[:, ours.var(0) > 0]
    if varying.shape[1] > 1:
        alike = torch.corrcoef((varying - varying.mean(0)).t()).fill_diagonal_(0).abs().max()
        expect(
            bool(alike < 1 - 1e-6),
            "two elements of a result always change together",
            found=f"correlation {alike.item():.6f}",
        )


PROPERTY = Property(check, of_samples=False, asked_of=lambda operator: bool(operator.declaration.random))
