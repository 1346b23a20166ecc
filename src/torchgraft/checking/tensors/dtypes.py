"""Tensors in other dtypes: in float64 for the reference, and in any dtype that a property asks for."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.tensors.arguments import each_tensor


def in_float64(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Converts all numbers among arguments, and all dtypes of numbers, to float64 or complex128.

    What has one byte or fewer is a code and stays so.
    """
    return tuple(map(_exact_dtype, each_tensor(_exact, arguments)))


def _exact_dtype(value: Any) -> Any:
    if isinstance(value, torch.dtype) and value.is_complex:
        return torch.complex128
    return torch.float64 if isinstance(value, torch.dtype) and holds_numbers(value) else value


def holds_numbers(dtype: torch.dtype) -> bool:
    """Whether a dtype is one of real or complex numbers: not of indices or flags, nor of codes of one byte."""
    return dtype.is_complex or (dtype.is_floating_point and dtype.itemsize > 1)


def is_whole(dtype: torch.dtype) -> bool:
    """Whether a dtype is one of whole numbers, as indices and offsets have it: flags are none."""
    return not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)


def _exact(tensor: Tensor) -> Tensor:
    if not is_number(tensor):
        return tensor
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def is_number(tensor: Tensor) -> bool:
    """Whether a tensor can have a gradient: it holds neither indices nor flags, nor codes of one byte."""
    return holds_numbers(tensor.dtype)


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts a tensor to another dtype; complex numbers lose their imaginary parts if the dtype has none."""
    return (tensor if dtype.is_complex or not tensor.is_complex() else tensor.real).to(dtype)
