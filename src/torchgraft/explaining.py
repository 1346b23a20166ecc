"""What is wrong with the arguments of a call, as far as it is the same for every operator."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchgraft.arguments import flag, real, require_tensor, whole


class Argument(NamedTuple):
    """An argument of a schema, in words: compilers trace what is explained, and PyTorch's own description they cannot.

    Attributes:
        name: as in the schema.
        kind: 'Tensor', 'int', 'float', 'bool' or another word of the schema, without the mark for an optional one.
        optional: whether None may stand for it.
    """

    name: str
    kind: str
    optional: bool


def describe(arguments: Sequence[Any]) -> tuple[Argument, ...]:
    """The arguments of a FunctionSchema in words."""
    kinds = [str(argument.type) for argument in arguments]
    optional = [kind.startswith("Optional[") for kind in kinds]
    return tuple(
        Argument(argument.name, kind.removeprefix("Optional[").removesuffix("]") if may_be_none else kind, may_be_none)
        for argument, kind, may_be_none in zip(arguments, kinds, optional, strict=True)
    )


def explain_kinds(
    name: str,
    arguments: Sequence[Argument],
    values: Sequence[Any],
    dtypes: Sequence[torch.dtype] | None,
    mixed: Sequence[str] = (),
) -> None:
    """Raises where the types, dtypes or devices of the arguments make no sense; returns where they do.

    Args:
        name: the operator's name, for the message.
        arguments: the arguments of its schema.
        values: what was passed for them.
        dtypes: what every tensor must be, and all of them the same; None where anything goes.
        mixed: arguments that may be of another of `dtypes` than the first.

    Raises:
        TypeError: a value of another type, or a tensor of another dtype.
        ValueError: tensors on different devices.
    """
    if len(values) != len(arguments):
        raise TypeError(f"{name} takes {len(arguments)} arguments, got {len(values)}")
    tensors: dict[str, Tensor] = {}
    for argument, value in zip(arguments, values, strict=True):
        if value is None and argument.optional:
            continue
        if argument.kind == "Tensor":
            require_tensor(name, argument.name, value)
            tensors[argument.name] = value
        else:
            _explain_number(name, argument.name, argument.kind, value)
    _explain_dtypes(name, tensors, dtypes, mixed)
    explain_devices(name, arguments, values)


def _explain_number(name: str, argument: str, kind: str, value: object) -> None:
    if kind in ("int", "SymInt"):
        found = whole(name, argument, value)
        if isinstance(found, int) and not -(2**63) <= found < 2**63:
            raise ValueError(f"{name}: {argument} must fit 64 bits, got {found}")
    elif kind == "float":
        real(name, argument, value)
    elif kind == "bool":
        flag(name, argument, value)


def _explain_dtypes(
    name: str, tensors: Mapping[str, Tensor], dtypes: Sequence[torch.dtype] | None, mixed: Sequence[str]
) -> None:
    if dtypes is None or not tensors:
        return
    first, *others = tensors.items()
    for argument, tensor in [first, *(other for other in others if other[0] in mixed)]:
        if tensor.dtype not in dtypes:
            expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
            raise TypeError(f"{name}: {argument} has dtype {tensor.dtype}, expected one of {expected}")
    for other, tensor in others:
        if tensor.dtype != first[1].dtype and other not in mixed:
            raise TypeError(
                f"{name}: {other} has dtype {tensor.dtype} and {first[0]} has {first[1].dtype}; they must be the same"
            )


def explain_devices(name: str, arguments: Sequence[Argument], values: Sequence[Any]) -> None:
    """Raises ValueError where tensors are on different devices."""
    tensors = {
        argument.name: value for argument, value in zip(arguments, values, strict=True) if isinstance(value, Tensor)
    }
    if not tensors:
        return
    first, *others = tensors.items()
    for other, tensor in others:
        if tensor.device != first[1].device:
            raise ValueError(
                f"{name}: {other} is on {tensor.device} and {first[0]} on {first[1].device}; they must be on one device"
            )


def explain_memory(name: str, arguments: Sequence[Argument], values: Sequence[Any]) -> None:
    """Raises where a tensor's storage was made smaller than the tensor, as `untyped_storage().resize_(0)` does.

    Only tensors of numbers are asked: what a compiler or a transform passes instead of one has no storage.

    Raises:
        ValueError: a tensor without memory for all of its elements.
    """
    for argument, value in zip(arguments, values, strict=True):
        if type(value) not in (Tensor, torch.nn.Parameter) or value.layout != torch.strided or not value.numel():
            continue
        try:
            stored = value.untyped_storage().nbytes()
        except RuntimeError:
            # A tensor that a transform of torch.func wraps.
            continue
        steps = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        needed = (value.storage_offset() + steps + 1) * value.element_size()
        if stored < needed:
            raise ValueError(
                f"{name}: {argument.name} needs a storage of {needed} bytes, and its storage has {stored}: its memory"
                " was freed"
            )


# How PyTorch's allocators begin to say it, and kernels with them (torchgraft/allocation.h).
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def out_of_memory(error: Exception) -> torch.OutOfMemoryError | None:
    """What to raise for an error of a kernel that ran out of memory; None for any other.

    The C interface through which kernels ask PyTorch for memory turns each exception into a RuntimeError.
    """
    text = str(error)
    if type(error) is RuntimeError and any(words in text for words in _OUT_OF_MEMORY):
        return torch.OutOfMemoryError(text)
    return None
