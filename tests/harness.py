"""The tester's table: every operator of ours, its samples, the devices of this machine; how results are compared."""

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import torchgraft.operators
from torchgraft import Operator
from torchgraft.operator import FLOATING
from torchgraft.sampling import Sample, Samples

FOLDERS = sorted(module.name for module in pkgutil.iter_modules(torchgraft.operators.__path__) if module.ispkg)
SAMPLES: dict[str, Samples] = {
    name: samples
    for folder in FOLDERS
    for name, samples in importlib.import_module(f"torchgraft.operators.{folder}.samples").samples.items()
}
OPERATORS: dict[str, Operator] = {name: Operator.registered[f"torchgraft::{name}"] for name in SAMPLES}
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
DTYPES = list(FLOATING)

# Samples small enough for numerical gradients and for compiling several times.
SMALL_ELEMENTS = 900


def dtype_id(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def each_operator() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS.keys())


def each_device() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("device", DEVICES)


def each_dtype() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("dtype", DTYPES, ids=dtype_id)


def each_sample() -> pytest.MarkDecorator:
    pairs = [(OPERATORS[name], sample) for name, samples in SAMPLES.items() for sample in samples.table]
    ids = [f"{operator.name}: {sample.name}" for operator, sample in pairs]
    return pytest.mark.parametrize(("operator", "sample"), pairs, ids=ids)


def table_of(operator: Operator, *, small: bool = False, empty: bool = True) -> Iterator[Sample]:
    for sample in SAMPLES[operator.name].table:
        if small and sample.elements > SMALL_ELEMENTS:
            continue
        if not empty and any(math.prod(tensor.shape) == 0 for tensor in sample.tensors):
            continue
        yield sample


def spread(operator: Operator, count: int) -> list[Sample]:
    """A few small samples, spread over the table, for properties that take long."""
    small = list(table_of(operator, small=True, empty=False))
    return small[:: max(1, len(small) // count)][:count]


def in_float64(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.double() if isinstance(value, Tensor) else value for value in arguments)


def assert_close(found: Any, expected: Any, *, dtype: torch.dtype, summed: int, scale: float = 1.0) -> None:
    """Compares with a result in float64.

    Allowed are one rounding to `dtype`, and what summing `summed` products of about unit size costs in the dtype that
    sums are kept in: errors of a random walk, sqrt(summed) in units of its epsilon.
    """
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        if one is None and other is None:
            continue
        assert one.shape == other.shape
        if one.numel() == 0:
            continue
        largest = max(1.0, other.abs().max().item()) * scale
        torch.testing.assert_close(
            one.double(),
            other.double(),
            rtol=torch.finfo(dtype).eps,
            atol=8 * math.sqrt(max(summed, 1)) * torch.finfo(kept).eps * largest,
        )


def differentiable(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        value.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        if isinstance(value, Tensor)
        else value
        for value in arguments
    )


def tensors_of(arguments: tuple[Any, ...]) -> list[Tensor]:
    return [value for value in arguments if isinstance(value, Tensor)]


def of_tensors(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """`function` with only its tensor arguments left to pass."""
    places = [i for i, value in enumerate(arguments) if isinstance(value, Tensor)]

    def call(*tensors: Tensor) -> Any:
        full = list(arguments)
        for place, tensor in zip(places, tensors, strict=True):
            full[place] = tensor
        return function(*full)

    return call
