"""What autocast does to the arguments of an operator."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor

from torchgraft import _torch_private
from torchgraft.schema import tensors_in

AutocastRule = Literal["lower", "promote", "none"]

# The dispatch keys under which PyTorch asks an operator about autocast, by kind of device.
AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def cast(rule: AutocastRule, arguments: Sequence[Any]) -> Sequence[Any]:
    """Arguments as autocast wants them; unchanged where it is off for their device. float64 is left alone."""
    device = next((tensor.device.type for tensor in tensors_in(arguments)), None)
    if rule == "none" or device is None or not torch.is_autocast_enabled(device):
        return arguments
    dtypes = {tensor.dtype for tensor in tensors_in(arguments) if is_castable(tensor)}
    if rule == "lower":
        dtype = torch.get_autocast_dtype(device)
    else:
        # float16 and bfloat16 meet in float32, as everywhere in PyTorch.
        dtype = None
        for other in dtypes:
            dtype = other if dtype is None else torch.promote_types(dtype, other)
    if dtypes <= {dtype}:
        return arguments

    def cast_one(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, Tensor) and is_castable(value) else value

    return tuple(_each(cast_one, value) for value in arguments)


def no_autocast(arguments: Sequence[Any]) -> AbstractContextManager[Any]:
    """A scope in which autocast casts nothing: it has done its work on these arguments, or is not to."""
    if not _torch_private.any_autocast():
        return nullcontext()
    device = next((tensor.device.type for tensor in tensors_in(arguments)), "cpu")
    return torch.autocast(device, enabled=False)


def is_castable(tensor: Tensor) -> bool:
    """Whether autocast may cast a tensor; of float64 it takes none."""
    # What has one byte or fewer is a code, and no number that another dtype could hold in its place.
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.element_size() > 1


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    return [function(element) for element in value] if isinstance(value, (list, tuple)) else function(value)
