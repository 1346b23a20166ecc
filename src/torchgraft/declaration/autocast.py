"""Autocast: casts the arguments of an operator by its rule."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from torchgraft._private import pytorch
from torchgraft.declaration.schema import Argument, tensors_in

AutocastRule = Literal["lower", "promote", "none"]

# The dispatch keys of autocast, by kind of device.
AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}

# The dtypes that autocast may cast. float64 is left alone; one-byte dtypes are codes, not numbers, so no other dtype
# can replace them.
_CASTABLE = frozenset((torch.float32, torch.float16, torch.bfloat16))

Cast = Callable[[Sequence[Any]], Sequence[Any]]


def is_enabled(device: str) -> bool:
    """Whether autocast is on for a kind of device. False for a kind without autocast, such as meta."""
    # PyTorch raises an error for such a kind.
    return (device in AUTOCAST_KEYS or torch.amp.is_autocast_available(device)) and torch.is_autocast_enabled(device)


def make_cast(rule: AutocastRule, arguments: Sequence[Argument], mixed: Sequence[str]) -> Cast:
    """Builds the function that casts an operator's arguments; it returns them unchanged if autocast is off.

    Args:
        rule: 'lower' or 'promote': see `torchgraft.Operator`.
        arguments: of the operator.
        mixed: names of arguments that may have another dtype than the first. They stay in float32 while the others are
            lowered.
    """
    lowers = rule == "lower"
    # The place of each argument that holds tensors, and whether it stays in float32 while others are lowered.
    places = tuple(
        (place, lowers and argument.name in mixed) for place, argument in enumerate(arguments) if argument.holds_tensors
    )

    def promoted(values: Sequence[Any]) -> torch.dtype | None:
        found = None
        # PyTorch promotes float16 and bfloat16 together to float32.
        for tensor in tensors_in(values):
            if tensor.dtype in _CASTABLE:
                found = tensor.dtype if found is None else torch.promote_types(found, tensor.dtype)
        return found

    # Each call of a training step runs this, so it takes as few steps of Python as possible.
    def cast(values: Sequence[Any]) -> Sequence[Any]:
        first = values[places[0][0]] if places else None
        if not isinstance(first, Tensor):
            first = next(tensors_in(values), None)
        if first is None or not is_enabled(first.device.type):
            return values
        dtype = torch.get_autocast_dtype(first.device.type) if lowers else promoted(values)
        found = None
        for place, stays in places:
            value = values[place]
            if isinstance(value, Tensor):
                own = value.dtype
                if own is dtype or own not in _CASTABLE or (stays and own is torch.float32):
                    continue
                replacement: Any = value.to(dtype)
            elif isinstance(value, (list, tuple)):
                replacement = [
                    each.to(dtype)
                    if isinstance(each, Tensor) and is_castable(each) and not (stays and each.dtype is torch.float32)
                    else each
                    for each in value
                ]
            else:
                continue
            if found is None:
                found = list(values)
            found[place] = replacement
        return values if found is None else found

    return cast


def no_autocast(arguments: Sequence[Any]) -> AbstractContextManager[Any]:
    """A scope in which autocast casts nothing, because these arguments are already cast, or must not be."""
    if not pytorch.any_autocast():
        return nullcontext()
    device = next((tensor.device.type for tensor in tensors_in(arguments)), "cpu")
    return torch.autocast(device, enabled=False)


def is_castable(tensor: Tensor) -> bool:
    """Whether autocast may cast a tensor."""
    return tensor.dtype in _CASTABLE
