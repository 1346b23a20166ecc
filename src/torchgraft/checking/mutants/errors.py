"""The errors of a kernel for calls with a mistake, compared with those of the original."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.bounds import memory_bounded
from torchgraft.checking.helpers.mistakes import freed, mistakes
from torchgraft.checking.properties import bad_input
from torchgraft.checking.tensors.compare import expect
from torchgraft.operator import Operator

# Kernels that limit sizes have their limits among these: no memory holds a tensor of such a size.
_LIMITS = tuple(2**power for power in range(36, 63))


@dataclass
class Errors:
    """The errors that a kernel raises for calls with one mistake each; a mutant's must equal the original's."""

    case: Case

    @cached_property
    def _calls(self) -> list[tuple[Call, str, tuple[Any, ...]]]:
        found = []
        for sample in bad_input.smallest_samples(self.case):
            call = self.case.call(sample)
            wrong = [(each.what, each.arguments) for each in (*mistakes(call), *freed(call))]
            numbers = [place for place, value in enumerate(call.arguments) if type(value) is int]
            # Two numbers are changed at once too: the product of two sizes may be too large even if neither size is.
            for chosen in (*combinations(numbers, 1), *combinations(numbers, 2)):
                names = " and ".join(call.declaration.arguments[place].name for place in chosen)
                for limit in _LIMITS:
                    large = tuple(limit if place in chosen else value for place, value in enumerate(call.arguments))
                    wrong.append((f"{names} of {limit}", large))
            found += [(call, *each) for each in wrong]
        return found

    def _said(self) -> list[str]:
        with memory_bounded(self.case.device):
            return [_said_of(call.operator, arguments) for call, _, arguments in self._calls]

    @cached_property
    def _expected(self) -> list[str | None]:
        """The errors of the original, which is asked first; None for one whose text differs when it is asked again."""
        return [one if one == other else None for one, other in zip(self._said(), self._said(), strict=True)]

    def check(self) -> None:
        """Expects the errors of the original.

        Raises:
            Mismatch: an error has another text, or a call is accepted that the original refuses, or the reverse.
        """
        for (_, what, _), expected, said in zip(self._calls, self._expected, self._said(), strict=True):
            expect(expected in (None, said), f"the error for {what} differs", expected=expected, found=said)


def _said_of(operator: Operator, arguments: tuple[Any, ...]) -> str:
    """Returns the text of the error that a kernel raises; an empty one if it accepts the arguments."""
    try:
        operator.raw(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
