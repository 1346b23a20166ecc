"""What autocast does to the arguments of an operator."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

AutocastRule = Literal["lower", "promote", "none"]

# The dispatch keys under which PyTorch asks an operator about autocast, by kind of device.
AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def cast(rule: AutocastRule, arguments: Sequence[Any]) -> Sequence[Any]:
    """Arguments as autocast wants them; unchanged where it is off for their device. float64 is left alone."""
    device = next((value.device.type for value in arguments if isinstance(value, Tensor)), None)
    if rule == "none" or device is None or not torch.is_autocast_enabled(device):
        return arguments
    castable = [
        isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64 for value in arguments
    ]
    dtypes = {value.dtype for value, is_castable in zip(arguments, castable, strict=True) if is_castable}
    if rule == "lower":
        dtype = torch.get_autocast_dtype(device)
    else:
        # float16 and bfloat16 meet in float32, as everywhere in PyTorch.
        dtype = None
        for other in dtypes:
            dtype = other if dtype is None else torch.promote_types(dtype, other)
    if dtypes <= {dtype}:
        return arguments
    return tuple(
        value.to(dtype) if is_castable else value for value, is_castable in zip(arguments, castable, strict=True)
    )
