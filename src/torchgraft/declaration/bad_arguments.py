"""Checks of arguments that every operator needs. They raise errors that name the argument."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft.arguments import flag, real, require_tensor, whole
from torchgraft.declaration.schema import Argument

# The dtypes that each tensor argument may have, by name. An argument that is missing here may have any dtype.
Dtypes = Mapping[str, tuple[torch.dtype, ...]]


def explain_kinds(
    name: str, arguments: Sequence[Argument], values: Sequence[Any], dtypes: Dtypes, mixed: Sequence[str] = ()
) -> None:
    """Raises an error if the types, dtypes or devices of the arguments are wrong; otherwise returns.

    Args:
        name: the operator's name, for the message.
        arguments: the arguments of its schema.
        values: what was passed for them.
        dtypes: the dtypes that each tensor may have. Arguments with the same entry must have the same dtype.
        mixed: names of arguments that may have another dtype of their entry than the other arguments.

    Raises:
        TypeError: a value has the wrong type, or a tensor the wrong dtype.
        ValueError: tensors are on different devices.
    """
    if len(values) != len(arguments):
        raise TypeError(f"{name} takes {len(arguments)} arguments, got {len(values)}")
    for argument, value in zip(arguments, values, strict=True):
        if value is None and argument.optional:
            continue
        if not argument.is_list:
            _explain_value(name, argument.name, argument.kind, value)
        # In PyTorch, one number may stand for a list of a known length.
        elif argument.length is None or not isinstance(value, (int, float)):
            _explain_list(name, argument, value)
    tensors = list(_tensors(arguments, values))
    if not tensors:
        raise ValueError(f"{name}: at least one argument must be a tensor, got none")
    _explain_dtypes(name, tensors, dtypes, mixed)
    explain_devices(name, arguments, values)


def _tensors(arguments: Sequence[Argument], values: Sequence[Any]) -> Iterator[tuple[str, str, Tensor]]:
    """Yields the tensors among some values, each with its argument and its name for a message."""
    for argument, value in zip(arguments, values, strict=True):
        if isinstance(value, Tensor):
            yield argument.name, argument.name, value
        elif argument.holds_tensors and isinstance(value, (list, tuple)):
            for number, element in enumerate(value):
                if isinstance(element, Tensor):
                    yield argument.name, f"{argument.name}[{number}]", element


def _explain_value(name: str, argument: str, kind: str, value: object) -> None:
    """Raises an error if a value does not have the kind of its argument."""
    if kind == "Tensor":
        require_tensor(name, argument, value)
    elif kind in ("int", "SymInt"):
        found = whole(name, argument, value)
        if isinstance(found, int) and not -(2**63) <= found < 2**63:
            raise ValueError(f"{name}: {argument} must fit 64 bits, got {found}")
    elif kind == "float":
        real(name, argument, value)
    elif kind == "bool":
        flag(name, argument, value)
    elif kind in _KINDS and not isinstance(value, _KINDS[kind][0]):
        raise TypeError(f"{name}: {argument} must be {_KINDS[kind][1]}, got {type(value).__name__}")


# The Python types for the other kinds of a schema, and their name in a message.
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a str"),
    "ScalarType": ((torch.dtype,), "a torch.dtype"),
    "Device": ((torch.device, str), "a torch.device"),
    "Generator": ((torch.Generator,), "a torch.Generator"),
    "Scalar": ((int, float, complex, torch.SymInt, torch.SymFloat), "a number"),
}


def _explain_list(name: str, argument: Argument, value: object) -> None:
    """Raises an error if a value is not a list of the kind and length of its argument."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name}: {argument.name} must be a list, got {type(value).__name__}")
    if argument.length is not None and len(value) != argument.length:
        raise ValueError(f"{name}: {argument.name} must have {argument.length} elements, got {len(value)}")
    for number, element in enumerate(value):
        if element is not None or not argument.optional_elements:
            _explain_value(name, f"{argument.name}[{number}]", argument.kind, element)


def _explain_dtypes(
    name: str, tensors: Sequence[tuple[str, str, Tensor]], dtypes: Dtypes, mixed: Sequence[str]
) -> None:
    firsts: dict[tuple[torch.dtype, ...], tuple[str, Tensor]] = {}
    others = []
    for argument, shown, tensor in tensors:
        allowed = dtypes.get(argument)
        if allowed is None:
            continue
        if allowed in firsts and argument not in mixed:
            others.append((shown, tensor, *firsts[allowed]))
            continue
        if argument not in mixed:
            firsts[allowed] = shown, tensor
        if tensor.dtype not in allowed:
            expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
            raise TypeError(f"{name}: {shown} has dtype {tensor.dtype}, expected one of {expected}")
    for shown, tensor, first, like in others:
        if tensor.dtype != like.dtype:
            raise TypeError(
                f"{name}: {shown} has dtype {tensor.dtype} and {first} has {like.dtype}; they must be the same"
            )


def explain_devices(name: str, arguments: Sequence[Argument], values: Sequence[Any]) -> None:
    """Raises ValueError if tensors are on different devices."""
    tensors = list(_tensors(arguments, values))
    for _, shown, tensor in tensors[1:]:
        _, first, like = tensors[0]
        if tensor.device != like.device:
            raise ValueError(
                f"{name}: {shown} is on {tensor.device} and {first} on {like.device}; they must be on the same device"
            )


def explain_values(name: str, arguments: Sequence[Argument], values: Sequence[Any]) -> None:
    """Raises ValueError for a tensor on meta, which holds no values; for an operator whose sizes depend on them."""
    for _, shown, tensor in _tensors(arguments, values):
        if tensor.is_meta:
            raise ValueError(
                f"{name}: {shown} is on meta and holds no values, but the sizes of the results depend on values; pass a"
                " tensor on a device"
            )


def explain_memory(name: str, arguments: Sequence[Argument], values: Sequence[Any]) -> None:
    """Raises ValueError if a tensor's storage is smaller than the tensor, as after `untyped_storage().resize_(0)`.

    Only plain tensors are checked: the tensors that compilers and transforms pass have no storage.
    """
    if torch.compiler.is_dynamo_compiling():
        # TorchDynamo cannot trace the code below. It would report that instead of the error that led here.
        return
    for _, shown, value in _tensors(arguments, values):
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
                f"{name}: {shown} needs a storage of {needed} bytes, but its storage has {stored}: its memory was"
                " freed; call the operator before that, or resize the storage again"
            )


# Parts of the messages that PyTorch's allocators and kernels (torchgraft/allocation.h) raise when memory runs out.
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")


def out_of_memory(error: Exception) -> torch.OutOfMemoryError | None:
    """Returns the OutOfMemoryError for a kernel's error if memory ran out; None for any other error.

    The C interface through which kernels ask PyTorch for memory turns each exception into a RuntimeError.
    """
    text = str(error)
    if type(error) is RuntimeError and any(words in text for words in _OUT_OF_MEMORY):
        return torch.OutOfMemoryError(text)
    return None
