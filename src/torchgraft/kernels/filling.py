"""Kernels that other languages hand out: functions that read the memory of tensors, and write results into tensors.

Compiled functions of tvm-ffi, CuTe DSL and TileLang return nothing; they take the results as further arguments. They
see the address, the sizes, the strides and the dtype of a tensor. What else PyTorch knows about a tensor, they drop
(tvm-ffi: that a gradient is needed) or refuse (DLPack: the same), so the tensors that they get have nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torchgraft._private.pytorch import share_memory
from torchgraft.declaration import Declaration
from torchgraft.declaration.results import flat_results
from torchgraft.declaration.schema import tensors_in


def current_device_of(arguments: Sequence[Any]) -> AbstractContextManager[Any]:
    """A scope in which the CUDA device of the tensors is current, as it is in PyTorch's own kernels."""
    devices = (tensor.device for tensor in tensors_in(arguments))
    index = next((device.index for device in devices if device.type == "cuda"), None)
    return nullcontext() if index in (None, torch.cuda.current_device()) else torch.cuda.device(index)


def filling(function: Callable[..., Any], declaration: Declaration) -> Callable[..., Any]:
    """Makes a kernel, which returns its results, of a function that fills them.

    Args:
        function: takes all arguments and then all results, by position.
        declaration: of the operator.

    Raises:
        ValueError: the declaration does not say what results are like, or their sizes depend on data.
    """
    is_known = declaration.knows_output or not declaration.lists
    if not is_known or declaration.sizes_from_data or any(declaration.lists):
        raise ValueError(
            f"{declaration.name}: fills=True needs to know the results before the kernel runs: declare output= or"
            " shapes=, and neither sizes_from_data nor a list as a result"
        )
    places = [place for place, each in enumerate(declaration.arguments) if each.mutated]

    @functools.wraps(function, assigned=("__module__", "__name__", "__qualname__", "__doc__"), updated=())
    def kernel(*arguments: Any) -> Any:
        results = declaration.output(*arguments) if declaration.lists else None
        new = flat_results(results) if declaration.lists else ()
        written = list(tensors_in([arguments[place] for place in places]))
        targets = [*new, *written]
        if not any(target.numel() for target in targets):
            return results
        plain = [_plain(each, () if place in places else written) for place, each in enumerate(arguments)]
        # A result that is not contiguous is filled by way of one that is.
        filled = [each if each.is_contiguous() else _contiguous(each) for each in new]
        function(*plain, *filled)
        for target, found in zip(targets, (*filled, *tensors_in([plain[place] for place in places])), strict=True):
            if target.data_ptr() != found.data_ptr():
                target.copy_(found)
        return results

    return kernel


def _plain(value: Any, written: Sequence[Tensor]) -> Any:
    """Returns an argument with tensors that are nothing but contiguous memory.

    Args:
        value: an argument.
        written: tensors that the kernel writes to; what shares memory with one is copied.
    """
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(each, written) for each in value)
    if not isinstance(value, Tensor):
        return value
    plain = value.detach().resolve_conj().resolve_neg().contiguous()
    return plain.clone() if any(share_memory(plain, each) for each in written) else plain


def _contiguous(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)
