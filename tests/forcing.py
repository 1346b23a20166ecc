"""Forces each kernel of an operator alone, for tests."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from torchgraft import Operator
from torchgraft.checking.kernels import listed_kernels
from torchgraft.checking.tensors.strides import in_awkward_strides
from torchgraft.kernels import python_kernels


def every_kernel(operator: Operator, device: str) -> list[AbstractContextManager[Any]]:
    """Scopes: in the first the library chooses a kernel, in each other one a kernel is forced on all it supports."""
    kind = torch.device(device).type
    forced = [python_kernels.forced(operator, kind, kernel) for kernel in listed_kernels(operator, device)]
    return [contextlib.nullcontext(), *forced]


def one_element_on(tensor: Tensor) -> Tensor:
    """An equal tensor in the same layout, which begins one element behind the start of its memory."""
    kind = "offset by one element" if tensor.is_contiguous() else "channels_last, offset by 1"
    return in_awkward_strides(tensor)[kind]
