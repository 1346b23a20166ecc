"""Takes the arguments of a call apart: what they are, as text, and the memory that their tensors lie in.

Tensors that overlap lie in one piece of memory, so that arguments that share elements do so again when they are made
anew. A piece begins where the memory of its first tensor does, and tells how that is aligned.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchgraft.capturing.statistics import statistics_of
from torchgraft.declaration import FLOATING, Declaration
from torchgraft.declaration.schema import tensors_in

# Allocations of PyTorch have this alignment at least, in bytes.
ALIGNMENT = 64
# Bytes in which a piece of memory is held that tensors of several dtypes share.
_BYTES = torch.uint8


@dataclass(frozen=True)
class Piece:
    """A piece of memory that tensors lie in.

    Attributes:
        dtype: in which it is held: that of its tensors, or uint8 if they differ.
        elements: how many of these it has.
        tensor: the tensor that has most elements in it.
        memory: the piece itself, over the memory of the call.
    """

    dtype: torch.dtype
    elements: int
    tensor: Tensor
    memory: Tensor

    @property
    def bytes(self) -> int:
        """How much memory it is."""
        return self.elements * self.dtype.itemsize

    def statistics(self) -> dict[str, Any]:
        """Returns the statistics of its values, without those between the elements of its tensors."""
        return statistics_of(self.memory if self.dtype != self.tensor.dtype else self.tensor)


class TakenCall(NamedTuple):
    """The arguments of a call, taken apart.

    Attributes:
        arguments: by name, as values that JSON holds.
        pieces: the memory of the tensors.
        dtype: that of the call, as samples have one.
        key: the same for calls that differ only in values, in what `random` declares, and in where memory lies.
    """

    arguments: dict[str, Any]
    pieces: tuple[Piece, ...]
    dtype: torch.dtype
    key: str


def take(declaration: Declaration, arguments: Sequence[Any]) -> TakenCall:
    """Takes the arguments of a call apart, without a copy of any memory.

    Raises:
        ValueError: a tensor is not strided, or an argument is of a kind that cannot be written down.
    """
    tensors = list(tensors_in(arguments))
    for tensor in tensors:
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError(f"it has a tensor of layout {tensor.layout}, and only strided ones can be kept")
    # Where a lazy conjugate lies are not the values that a kernel reads.
    tensors = [tensor.detach().resolve_conj().resolve_neg() for tensor in tensors]
    pieces, places = _find_pieces(tensors)
    described = iter(_describe(given, place) for given, place in zip(list(tensors_in(arguments)), places, strict=True))
    written = {
        argument.name: _as_text(value, described)
        for argument, value in zip(declaration.arguments, arguments, strict=True)
    }
    known = {name: _without_place(value) for name, value in written.items() if name not in declaration.random}
    shapes = [(each.elements, str(each.dtype)) for each in pieces]
    key = _hashed([declaration.schema, known, shapes])
    return TakenCall(written, tuple(pieces), _dtype_of(declaration, arguments), key)


def with_ranges(taken: TakenCall) -> TakenCall:
    """Gives a call another key if its numbers lie in another range: another power of 16, or some not finite.

    A GPU is waited for.
    """
    ranges = []
    for piece in taken.pieces:
        if not piece.tensor.dtype.is_floating_point or not piece.tensor.numel():
            continue
        sizes = piece.tensor.detach().to(torch.promote_types(piece.tensor.dtype, torch.float32)).abs()
        largest = sizes.nan_to_num(0.0, 0.0).amax().item()
        is_finite = bool(sizes.isfinite().all())
        ranges.append((math.floor(math.log2(largest) / 4) if largest else None, is_finite))
    return taken._replace(key=_hashed([taken.key, ranges]))


def _hashed(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _dtype_of(declaration: Declaration, arguments: Sequence[Any]) -> torch.dtype:
    """The dtype of a call: of its primary tensor, or of the first that has one of the operator's dtypes."""
    own = declaration.dtypes or FLOATING
    primary = list(tensors_in([arguments[declaration.primary]]))
    dtypes = [tensor.dtype for tensor in (*primary, *tensors_in(arguments))]
    return next((dtype for dtype in dtypes if dtype in own), dtypes[0] if dtypes else torch.float32)


class Place(NamedTuple):
    """Where a tensor lies: the number of its piece, and the place of its first element there, in its own elements."""

    piece: int
    offset: int


class _Span(NamedTuple):
    """The bytes from the first element of a tensor to the end of its last one."""

    begin: int
    end: int
    number: int


def _find_pieces(tensors: Sequence[Tensor]) -> tuple[list[Piece], list[Place]]:
    """Finds the pieces of memory that tensors lie in, and the place of each tensor."""
    groups: list[list[_Span]] = []
    for span in sorted(_span(tensor, number) for number, tensor in enumerate(tensors)):
        last = groups[-1] if groups else []
        shares = bool(last) and span.begin < max(each.end for each in last) and span.begin < span.end
        if shares and tensors[last[0].number].device == tensors[span.number].device:
            last.append(span)
        else:
            groups.append([span])
    pieces: list[Piece] = []
    places: dict[int, Place] = {}
    for group in groups:
        own = [tensors[span.number] for span in group]
        begin, end = group[0].begin, max(span.end for span in group)
        # A storage ends where its memory does. Memory that has several, as NumPy and DLPack make them, is cut apart.
        holder = next((each for each in own if _holds(each, begin, end)), None)
        for part, holding in [(group, holder)] if holder is not None else [([span], None) for span in group]:
            members = [tensors[span.number] for span in part]
            start, stop = part[0].begin, max(span.end for span in part)
            piece, before = _cut(members, members[0] if holding is None else holding, start, stop)
            for span, member in zip(part, members, strict=True):
                places[span.number] = Place(len(pieces), (before + span.begin - start) // member.element_size())
            pieces.append(piece)
    # In the order of the tensors: equal calls lie at other addresses.
    order = list(dict.fromkeys(places[number].piece for number in range(len(tensors))))
    found = [places[number]._replace(piece=order.index(places[number].piece)) for number in range(len(tensors))]
    return [pieces[number] for number in order], found


def _span(tensor: Tensor, number: int) -> _Span:
    begin = tensor.data_ptr()
    if tensor.numel() == 0:
        return _Span(begin, begin, number)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _Span(begin, begin + (last + 1) * tensor.element_size(), number)


def _holds(tensor: Tensor, begin: int, end: int) -> bool:
    storage = tensor.untyped_storage()
    return storage.data_ptr() <= begin and end <= storage.data_ptr() + storage.nbytes()


def _cut(members: Sequence[Tensor], holder: Tensor, begin: int, end: int) -> tuple[Piece, int]:
    """Cuts a piece out of the storage of a tensor; returns the bytes that lie before `begin` in it for alignment."""
    dtypes = {each.dtype for each in members}
    dtype = members[0].dtype if len(dtypes) == 1 else _BYTES
    before = begin % ALIGNMENT if end > begin else 0
    if any(before % each.itemsize for each in dtypes):
        before = 0
    start = begin - holder.untyped_storage().data_ptr()
    size = dtype.itemsize
    if start % size:
        dtype, size = _BYTES, 1
    memory = torch.empty(0, dtype=dtype, device=holder.device)
    if end > begin:
        memory = memory.set_(holder.untyped_storage(), start // size, (-(-(end - begin) // size),), (1,))
    most = max(members, key=Tensor.numel)
    return Piece(dtype, (before + end - begin) // size, most, memory), before


def _describe(tensor: Tensor, place: Place) -> dict[str, Any]:
    if tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous():
        layout = "channels_last"
    elif tensor.dim() == 5 and tensor.is_contiguous(memory_format=torch.channels_last_3d):
        layout = "contiguous" if tensor.is_contiguous() else "channels_last_3d"
    else:
        layout = "contiguous" if tensor.is_contiguous() else "strided"
    return {
        "size": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": _name(tensor.dtype),
        "device": str(tensor.device),
        "layout": layout,
        "requires_grad": tensor.requires_grad,
        "storage_offset": tensor.storage_offset(),
        "memory": place.piece,
        "offset": place.offset,
    }


def _without_place(value: Any) -> Any:
    """Leaves out how far a tensor lies from the beginning of its storage: a kernel sees its alignment only."""
    if isinstance(value, list):
        return [_without_place(each) for each in value]
    if isinstance(value, dict) and "tensor" in value:
        return {name: each for name, each in value["tensor"].items() if name != "storage_offset"}
    return value


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _as_text(value: Any, tensors: Iterator[dict[str, Any]]) -> Any:
    """A value as JSON holds it: what JSON does not know stands in an object that names its kind."""
    if isinstance(value, Tensor):
        return {"tensor": next(tensors)}
    if isinstance(value, (list, tuple)):
        return [_as_text(each, tensors) for each in value]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, torch.SymInt)):
        return int(value)
    if isinstance(value, (float, torch.SymFloat)):
        number = float(value)
        return number if math.isfinite(number) else {"float": str(number)}
    if isinstance(value, complex):
        return {"complex": [_as_text(value.real, tensors), _as_text(value.imag, tensors)]}
    for kind, cls in _KINDS.items():
        if isinstance(value, cls):
            return {kind: _name(value)}
    raise ValueError(f"it has an argument of type {type(value).__name__}, which cannot be written to a file")


_KINDS: dict[str, type] = {
    "dtype": torch.dtype,
    "device": torch.device,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}


def as_value(text: Any, make: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Returns the value that `take` wrote down.

    Args:
        text: of one argument.
        make: returns what stands for a tensor.

    Raises:
        ValueError: no call was written so.
    """
    if isinstance(text, list):
        return [as_value(each, make) for each in text]
    if not isinstance(text, dict):
        return text
    [(kind, value)] = text.items()
    if kind == "tensor":
        return make(value)
    if kind == "float":
        return float(value)
    if kind == "complex":
        return complex(*(as_value(each, make) for each in value))
    if kind == "device":
        return torch.device(value)
    found = getattr(torch, value, None)
    if kind not in _KINDS or not isinstance(found, _KINDS[kind]):
        raise ValueError(f"there is no {kind} {value!r}")
    return found


def dtype_named(name: str) -> torch.dtype:
    """Returns the dtype of a name.

    Raises:
        ValueError: there is none.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"there is no dtype {name!r}")
    return found
