"""Autocast: casts the arguments of an operator by its rule."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from torchgraft._private import pytorch
from torchgraft.declaration.schema import Argument, tensors_in

AutocastRule = Literal["lower", "promote", "none"]

# The dispatch keys under which PyTorch asks an operator about autocast, by kind of device.
AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


# The dtypes that autocast may cast. float64 is left alone; one-byte dtypes are codes, not numbers, so no other dtype
# can replace them.
_CASTABLE = frozenset((torch.float32, torch.float16, torch.bfloat16))

Cast = Callable[[Sequence[Any]], Sequence[Any]]


def make_cast(rule: AutocastRule, arguments: Sequence[Argument], mixed: Sequence[str]) -> Cast:
    """Builds the function that casts an operator's arguments; it returns them unchanged if autocast is off.

    Args:
        rule: 'lower' or 'promote': see `torchgraft.Operator`.
        arguments: of the operator.
        mixed: those that may have another dtype than the first; they stay in float32 while the others are lowered.
    """
    places = [place for place, argument in enumerate(arguments) if argument.holds_tensors]
    may_stay = [argument.name in mixed for argument in arguments]

    def dtype_for(values: Sequence[Any], device: str) -> torch.dtype | None:
        if rule == "lower":
            return torch.get_autocast_dtype(device)
        found = None
        # float16 and bfloat16 meet in float32, as everywhere in PyTorch.
        for tensor in tensors_in(values):
            if tensor.dtype in _CASTABLE:
                found = tensor.dtype if found is None else torch.promote_types(found, tensor.dtype)
        return found

    def cast(values: Sequence[Any]) -> Sequence[Any]:
        device = next((tensor.device.type for tensor in tensors_in(values)), None)
        # PyTorch raises an error where a kind of device has no autocast, such as that of tensors without memory.
        if device is None or not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return values
        dtype = dtype_for(values, device)

        def cast_one(value: Any, stays: bool) -> Any:
            if not isinstance(value, Tensor) or value.dtype is dtype or value.dtype not in _CASTABLE:
                return value
            return value if stays and value.dtype is torch.float32 else value.to(dtype)

        found = list(values)
        for place in places:
            value, stays = found[place], rule == "lower" and may_stay[place]
            several = isinstance(value, (list, tuple))
            found[place] = [cast_one(each, stays) for each in value] if several else cast_one(value, stays)
        return found

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
