"""A regime of values: arguments that are equal to a number of the call, where a limit belongs to one side."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.helpers.regimes import Regime, Unit, units
from torchgraft.checking.tensors.dtypes import holds_numbers, is_number

# Values around a number that is given, in order of how often they are the limit of something; and such numbers.
_MULTIPLES = (1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1.5, -1.5, 2.5, -2.5)
_LEAST_NUMBER, _LARGEST_NUMBER = 1e-3, 1e4


def at_numbers(call: Call) -> Iterator[tuple[Call, Unit, Regime]]:
    """Yields calls in which one argument is equal to a real number that is given, and to multiples of its half.

    There a limit belongs to one side, and a half is rounded in one direction. The number is one that the dtype holds,
    so that nobody rounds it.
    """
    if not holds_numbers(call.dtype):
        return
    for place, (argument, value) in enumerate(zip(call.declaration.arguments, call.arguments, strict=True)):
        if argument.kind not in ("float", "Scalar") or type(value) is not float:
            continue
        if not _LEAST_NUMBER <= abs(value) <= _LARGEST_NUMBER:
            continue
        number = torch.tensor(value, dtype=call.dtype).item()
        rounded = call if number == value else call.with_argument(place, number)
        for signs in ("", "positive "):
            exact = [each * number for each in _MULTIPLES if not signs or each > 0]
            exact = [each for each in exact if torch.tensor(each, dtype=call.dtype).item() == each]
            regime = Regime("number", f"at {argument.name}={number:g} and {signs}multiples", partial(_among, exact))
            for unit in units(rounded, lambda tensor: is_number(tensor) and not tensor.is_complex()):
                if len(unit.places) == 1:
                    yield rounded, unit, regime


def _among(numbers: list[float], values: Tensor) -> Tensor:
    """Numbers in turn, in the place of values."""
    turns = torch.arange(values.numel(), device=values.device) % len(numbers)
    return torch.tensor(numbers, dtype=values.dtype, device=values.device)[turns].view(values.shape)
