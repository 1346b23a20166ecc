"""Guarded memory: all memory that an operator asks PyTorch for is cut out of one arena and lies between guards.

For as long as an operator runs, on its kind of device alone, PyTorch's own kernels of `empty_strided` and `empty` are
replaced, and so is the function that kernels get memory from past the dispatcher (`torchgraft/allocation.h`).
"""

import ctypes
import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from torchgraft import native
from torchgraft._private import pytorch
from torchgraft.checking.tensors.compare import Mismatch

# If every bit is set, floating-point numbers of all sizes are NaN.
NAN_BYTE = 0xFF
# With these bytes, floating-point numbers of all sizes are small and positive.
NUMBER_BYTE = 0x3C
_GUARD_BYTES = 4096
_FIRST_BYTES = 1 << 17
# The alignment that PyTorch's allocators promise.
_ALIGNMENT = {"cpu": 64, "cuda": 512}
# On the CPU one thread fills and reads so few bytes: waking others would cost more on a busy machine.
_PIECE_BYTES = {"cpu": 1 << 15}
_T = TypeVar("_T")


class _Full(Exception):  # noqa: N818  a signal to itself
    """The arena is too small."""


@dataclass(frozen=True)
class Allocation:
    """Bytes of the arena that belong to a tensor.

    Attributes:
        start: of its first byte.
        end: behind its last byte.
        of: what it is, for a person.
        asked: whether the operator asked for it; else it is an argument, placed there.
    """

    start: int
    end: int
    of: str
    asked: bool


class Arena:
    """Memory of one device, every byte of which is known; tensors are cut out of it with guards between them.

    Attributes:
        device: where it lies.
        allocations: what has been cut out since it was cleared, in the order of memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.allocations: list[Allocation] = []
        self._memory = torch.empty(_FIRST_BYTES, dtype=torch.uint8, device=device)
        self._fill = NAN_BYTE
        self._needed = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[], _T], fill: int) -> _T:
        """Does work whose memory comes from the arena; repeats it in a larger arena if this one is too small.

        Args:
            work: what to do; it may be done more than once.
            fill: the byte that all memory holds before.
        """
        while True:
            self.allocations, self._fill, self._needed = [], fill, 0
            for piece in self._pieces(0, self._memory.numel()):
                piece.fill_(fill)
            try:
                return work()
            except Exception:
                # A kernel may turn the exception that is raised here into another one.
                if not self._needed:
                    raise
            # The size is a whole number of elements of every dtype.
            size = -(-max(2 * self._memory.numel(), 2 * self._needed) // 16) * 16
            self._memory = torch.empty(size, dtype=torch.uint8, device=self.device)

    def place(self, tensor: Tensor) -> Tensor:
        """Copies a tensor, with its strides, to memory between guards."""
        return self._cut(tensor.shape, tensor.stride(), tensor.dtype, asked=False).copy_(tensor)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """A scope in which PyTorch's memory on this kind of device comes from the arena."""
        with self._serving_dispatcher(), self._serving_libraries():
            yield

    @contextmanager
    def _serving_dispatcher(self) -> Iterator[None]:
        def empty_strided(
            size: Sequence[int], stride: Sequence[int], *, dtype: torch.dtype | None = None, **where: Any
        ) -> Tensor:
            dtype = dtype or torch.get_default_dtype()
            if 0 in size:
                # It has no bytes until PyTorch resizes it, as it does with results of reductions, so it is not in the
                # arena.
                storage = torch.UntypedStorage(0, device=self.device)
                return self._memory.view(dtype).data.set_(storage, 0, size, stride)
            return self._cut(size, stride, dtype, asked=True)

        def empty(
            size: Sequence[int],
            *,
            dtype: torch.dtype | None = None,
            memory_format: torch.memory_format | None = None,
            **where: Any,
        ) -> Tensor:
            layout = torch.contiguous_format if memory_format is None else memory_format
            # The arena does not serve memory of the meta device.
            stride = torch.empty(size, device="meta", memory_format=layout).stride()
            return empty_strided(size, stride, dtype=dtype)

        key = self.device.type.upper()
        with pytorch.scoped_library("aten", "IMPL") as library:
            with warnings.catch_warnings():
                # PyTorch warns that a kernel is replaced, which is intended.
                warnings.simplefilter("ignore")
                library.impl("empty_strided", empty_strided, key)
                library.impl("empty.memory_format", empty, key)
            yield

    @contextmanager
    def _serving_libraries(self) -> Iterator[None]:
        pytorch, kind = _pytorch_library(), self.device.type
        dtypes = _dtypes_by_code()

        def allocate(
            dim: int, sizes: Any, strides: Any, dtype_code: int, device_type: int, device_index: int, handle: Any
        ) -> int:
            # The pointers of a scalar may be null.
            size, stride = (sizes[:dim], strides[:dim]) if dim else ([], [])
            try:
                start = self._reserve(size, stride, dtypes[dtype_code], asked=True)
            except _Full:
                return _FAILURE
            address = self._memory.data_ptr() + start
            return pytorch.aoti_torch_create_tensor_from_blob(
                address, dim, sizes, strides, 0, dtype_code, device_type, device_index, handle
            )

        function = _ALLOCATE(allocate)
        # A library lacks this function if none of its kernels asks for memory in this way.
        found = (each.function("torchgraft_set_allocate") for each in native.libraries() if each.device == kind)
        setters = [setter for setter in found if setter is not None]
        for setter in setters:
            setter(function)
        try:
            yield
        finally:
            for setter in setters:
                setter(_ALLOCATE())

    def asked_bytes(self) -> int:
        """The number of bytes that the operator has asked for since the arena was cleared."""
        return sum(each.end - each.start for each in self.allocations if each.asked)

    def expect_guards_intact(self) -> None:
        """Raises a Mismatch if a byte was written that belongs to no tensor."""
        borders = [0, *(border for each in self.allocations for border in (each.start, each.end)), self._memory.numel()]
        for number, (first, last) in enumerate(zip(borders[::2], borders[1::2], strict=True)):
            if not any((piece != self._fill).any() for piece in self._pieces(first, last)):
                continue
            places = (self._memory[first:last] != self._fill).nonzero()
            before, after = int(places[0]), last - first - 1 - int(places[-1])
            # A guard lies behind one tensor and before the next; the nearer of them was overrun.
            if number and (before <= after or number == len(self.allocations)):
                where = f"{before} bytes behind the end of {self.allocations[number - 1].of}"
            else:
                where = f"{after + 1} bytes before the start of {self.allocations[number].of}"
            raise Mismatch(f"{len(places)} bytes outside all tensors are written, the nearest {where}")

    def _pieces(self, first: int, last: int) -> Iterable[Tensor]:
        return self._memory[first:last].split(_PIECE_BYTES.get(self.device.type, self._memory.numel()))

    def _cut(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, *, asked: bool) -> Tensor:
        start = self._reserve(size, stride, dtype, asked=asked)
        # DLPack gives it a storage of its own, so that PyTorch sees no tensors that share memory.
        return from_dlpack(self._memory.view(dtype).as_strided(size, stride, start // dtype.itemsize))

    def _reserve(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, *, asked: bool) -> int:
        """Reserves memory between guards; returns its first byte."""
        what = f"new memory of shape {tuple(size)} in {str(dtype).removeprefix('torch.')}"
        of = what if asked else f"an argument of shape {tuple(size)}"
        extent = 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        with self._lock:
            behind = self.allocations[-1].end if self.allocations else 0
            alignment = _ALIGNMENT.get(self.device.type, 512)
            start = -(-(behind + _GUARD_BYTES) // alignment) * alignment
            end = start + extent * dtype.itemsize
            if end + _GUARD_BYTES > self._memory.numel():
                self._needed = end + _GUARD_BYTES
                raise _Full(f"{of} does not fit")
            self.allocations.append(Allocation(start, end, of, asked))
        return start


# PyTorch's C interface: the type of aoti_torch_empty_strided, which the arena replaces.

_FAILURE = 1
# The arguments: the number of dimensions, their sizes and strides; dtype, kind and index of the device; the result.
_LAYOUT = (ctypes.c_int64, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int64))
_KIND = (ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int32, *_LAYOUT, *_KIND)


@functools.cache
def _pytorch_library() -> ctypes.CDLL:
    suffix = "dylib" if sys.platform == "darwin" else "so"
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / f"libtorch_cpu.{suffix}"))
    # The first argument is the address of the memory, the last before the kind is the offset of the tensor in it.
    library.aoti_torch_create_tensor_from_blob.argtypes = (ctypes.c_void_p, *_LAYOUT, ctypes.c_int64, *_KIND)
    return library


@functools.cache
def _dtypes_by_code() -> dict[int, torch.dtype]:
    whole = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    codes = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
    names = ("float64", "float32", "float16", "bfloat16", *whole, "bool", "complex64", "complex128", *codes)
    codes_of = {name: f"aoti_torch_dtype_{name}" for name in names}
    # PyTorch 2.11 has no code for all of them.
    return {
        getattr(_pytorch_library(), code)(): getattr(torch, name)
        for name, code in codes_of.items()
        if hasattr(_pytorch_library(), code)
    }
