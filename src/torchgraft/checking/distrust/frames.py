"""Frames between the judge and the process of a kernel: a head in JSON, and the bytes of tensors.

Nothing that is received is executed: of a tensor come the name of a dtype, sizes and strides, which are checked, and as
many bytes as follow from them.
"""

import ctypes
import json
import math
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.result import NotApplicable

_LENGTH_BYTES = 8
_MOST_HEAD_BYTES = 1 << 20
_MOST_DIMENSIONS = 64
# The names of dtypes that may be sent. PyTorch 2.11 has not all of them.
_NAMES = (
    *("float64", "float32", "float16", "bfloat16", "complex128", "complex64", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in _NAMES if hasattr(torch, name)}


class BadFrame(Exception):  # noqa: N818  an answer that is none, not an error of the program
    """The bytes that came are no frame, or are more than agreed; or none came in time."""


def send(channel: socket.socket, head: Mapping[str, Any], tensors: Sequence[Tensor] = ()) -> None:
    """Sends a frame.

    Args:
        channel: to the other process.
        head: what JSON can hold.
        tensors: on the CPU. One whose elements lie side by side keeps its strides, any other becomes contiguous.
    """
    dense = [each if _is_dense(each.shape, each.stride()) else each.contiguous() for each in map(_plain, tensors)]
    described = [[_name(each.dtype), list(each.shape), list(each.stride())] for each in dense]
    text = json.dumps({**head, "tensors": described}).encode()
    channel.sendall(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    for each in dense:
        if each.numel():
            channel.sendall(_bytes_of(each))


def receive(
    channel: socket.socket, *, most_bytes: int | None = None, seconds: float | None = None
) -> tuple[dict[str, Any], list[Tensor]]:
    """Receives a frame: its head, and tensors in memory of this process.

    Args:
        channel: from the other process.
        most_bytes: that all tensors may have together; None: any number.
        seconds: until which all must have come; None: it waits.

    Raises:
        BadFrame: what came is no frame, has more bytes, or did not come in time.
        EOFError: the other process has closed the channel.
    """
    ends = None if seconds is None else time.monotonic() + seconds
    length = bytearray(_LENGTH_BYTES)
    _fill(channel, memoryview(length), ends)
    text = bytearray(_expect(int.from_bytes(length, "little"), _MOST_HEAD_BYTES, "bytes of its head"))
    _fill(channel, memoryview(text), ends)
    try:
        head = json.loads(text)
        described = head.pop("tensors")
        layouts = [_layout(*each) for each in described]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadFrame(f"its head cannot be read: {type(error).__name__}") from None
    total = sum(dtype.itemsize * math.prod(sizes) for dtype, sizes, _ in layouts)
    if most_bytes is not None:
        _expect(total, most_bytes, "bytes of tensors")
    try:
        tensors = [torch.empty_strided(sizes, strides, dtype=dtype) for dtype, sizes, strides in layouts]
    except RuntimeError:
        # One without elements may have sizes whose product PyTorch cannot compute.
        raise BadFrame("no tensor has such sizes") from None
    for each in tensors:
        if each.numel():
            _fill(channel, memoryview(_bytes_of(each)), ends)
    return head, tensors


def _plain(tensor: Tensor) -> Tensor:
    """Makes of lazy conjugates and negatives what they mean."""
    return tensor.detach().resolve_conj().resolve_neg()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _layout(name: Any, sizes: Any, strides: Any) -> tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]:
    """Reads what was said about a tensor; raises ValueError or LookupError if no tensor is like that."""
    for each in (*sizes, *strides):
        if type(each) is not int or not 0 <= each < 2**48:
            raise ValueError("a size or a stride is no number of elements")
    if len(sizes) != len(strides) or len(sizes) > _MOST_DIMENSIONS or not _is_dense(sizes, strides):
        raise ValueError("the strides do not fit the sizes")
    return _DTYPES[name], tuple(sizes), tuple(strides)


def _is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements lie side by side in memory, in any order of dimensions."""
    elements = 1
    if 0 in sizes:
        return True
    for stride, size in sorted((stride, size) for stride, size in zip(strides, sizes, strict=True) if size != 1):
        if stride != elements:
            return False
        elements *= size
    return True


def _bytes_of(tensor: Tensor) -> Any:
    """The memory of a tensor whose elements lie side by side, as a buffer."""
    return (ctypes.c_ubyte * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())


def _expect(count: int, most: int, what: str) -> int:
    if count > most:
        raise BadFrame(f"{count:,} {what} were announced, and at most {most:,} were expected")
    return count


def _fill(channel: socket.socket, buffer: memoryview, ends: float | None) -> None:
    """Receives as many bytes as a buffer has."""
    filled = 0
    while filled < len(buffer):
        left = None if ends is None else ends - time.monotonic()
        if left is not None and left <= 0:
            raise BadFrame("it did not answer in time")
        channel.settimeout(left)
        try:
            count = channel.recv_into(buffer[filled:])
        except TimeoutError:
            continue
        except ConnectionError:
            count = 0
        if not count:
            raise EOFError
        filled += count


def pack(arguments: Sequence[Any], tensors: list[Tensor]) -> list[Any]:
    """Writes arguments as JSON can hold them; appends their tensors to a list, and writes their places there.

    Raises:
        NotApplicable: an argument cannot be sent, such as a device.
    """
    return [_packed(each, tensors) for each in arguments]


def _packed(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value)
        return {"tensor": len(tensors) - 1}
    if isinstance(value, (list, tuple)):
        return [_packed(each, tensors) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.dtype):
        return {"dtype": _name(value)}
    raise NotApplicable(f"an argument of type {type(value).__name__} cannot be sent to another process")


def unpack(packed: Sequence[Any], tensors: Sequence[Tensor]) -> list[Any]:
    """Returns the arguments that `pack` wrote."""
    return [_unpacked(each, tensors) for each in packed]


def _unpacked(value: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpacked(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return tensors[value["tensor"]]
    return _DTYPES[value["dtype"]] if "dtype" in value else complex(*value["complex"])


def leaves(values: Any) -> Iterator[Any]:
    """Yields what results hold, those in lists and tuples one by one, in their order."""
    if isinstance(values, (list, tuple)):
        for each in values:
            yield from leaves(each)
    else:
        yield values
