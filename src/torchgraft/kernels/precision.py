"""PyTorch's switches that trade precision for speed."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torchgraft import native
from torchgraft._private import pytorch
from torchgraft.kernels.measured_choice import measuring

# Found once: the way to them takes four microseconds.
_recurrent: Any = torch.backends.cudnn.rnn
_matrix_products: Any = torch.backends.cuda.matmul


class _Switch:
    """Whether a kind of operation may compute float32 in tf32 on CUDA.

    PyTorch has two names for it. By the newer one it can always be read and set. The older one raises when it is read
    while the newer says what it has no word for, and holds a value of its own, which must agree again afterwards.
    """

    def __init__(self, newer: Any, older: Any) -> None:
        self._newer, self._older = newer, older

    def read(self) -> tuple[str, bool | None]:
        """Switches as they were, for `restore`."""
        try:
            older: bool | None = self._older.allow_tf32
        except RuntimeError:
            older = None
        return self._newer.fp32_precision, older

    def turn_off_older(self) -> None:
        self._older.allow_tf32 = False

    def turn_off_newer(self) -> None:
        # What it does not say itself it takes from a switch for all kinds.
        if self._newer.fp32_precision == "tf32":
            self._newer.fp32_precision = "ieee"

    def turn_on_newer(self) -> None:
        self._newer.fp32_precision = "tf32"

    def restore(self, newer: str, older: bool | None) -> None:
        if older is not None:
            self._older.allow_tf32 = older
        if self._newer.fp32_precision != newer:
            self._newer.fp32_precision = newer


def _switches() -> tuple[_Switch, ...]:
    """The switches of convolutions, of recurrent layers, and of matrix products."""
    cudnn: Any = torch.backends.cudnn
    return _Switch(cudnn.conv, cudnn), _Switch(_recurrent, cudnn), _Switch(_matrix_products, _matrix_products)


def true_precision() -> AbstractContextManager[None]:
    """A scope in which float32 is computed as float32: no tf32."""
    # The older names first: two of the switches share one, which sets both.
    return _switched(_Switch.turn_off_older, _Switch.turn_off_newer)


def tf32_permitted() -> AbstractContextManager[None]:
    """A scope in which float32 may be computed in tf32 by all that has a switch for it."""
    return _switched(_Switch.turn_on_newer)


@contextmanager
def _switched(*steps: Callable[[_Switch], None]) -> Iterator[None]:
    """A scope before which each step was taken with every switch, one step after the other."""
    switches = _switches()
    before = [switch.read() for switch in switches]
    for step in steps:
        for switch in switches:
            step(switch)
    try:
        yield
    finally:
        _restore(switches, before)


def _restore(switches: Sequence[_Switch], before: Sequence[tuple[str, bool | None]]) -> None:
    # Twice, as two of them share a name.
    for switch, values in 2 * list(zip(switches, before, strict=True)):
        switch.restore(*values)


@contextmanager
def equal_precision() -> Iterator[None]:
    """A scope in which PyTorch is as fast as it can be at the precision of the dtype: best algorithm, no tf32."""
    with cudnn_switches(benchmark=True), true_precision():
        yield


@contextmanager
def exact_reductions() -> Iterator[None]:
    """A scope in which PyTorch's matrix products of halves are added up in float32, on CUDA.

    By default PyTorch permits its libraries to add up parts of such a sum in halves.
    """
    names = [f"allow_{dtype}_reduced_precision_reduction" for dtype in ("fp16", "bf16")]
    before = [_read_reduction(name) for name in names]
    for name in names:
        setattr(_matrix_products, name, False)
    try:
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(_matrix_products, name, value)


def _read_reduction(name: str) -> bool | tuple[bool, bool]:
    """Sets such a switch again. Newer versions of PyTorch have a second one, which permits cutting a sum into parts."""
    permitted: bool = getattr(_matrix_products, name)
    return permitted if getattr(_matrix_products, name + "_split_k", True) else (permitted, False)


@contextmanager
def cudnn_switches(**values: bool) -> Iterator[None]:
    """A scope in which switches of `torch.backends.cudnn` have values; all others stay as they are.

    For torchgraft's own kernels it changes nothing: none is chosen by measuring.
    """
    cudnn: Any = torch.backends.cudnn
    before = {name: getattr(cudnn, name) for name in values}
    with measuring(False):
        try:
            for name, value in values.items():
                setattr(cudnn, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(cudnn, name, value)


def recurrent_precision() -> str:
    """'tf32' where PyTorch's recurrent layers may compute products of float32 in it on CUDA, or else 'ieee'."""
    return "tf32" if _recurrent.fp32_precision == "tf32" else "ieee"


# A compiler takes what it says when it traces.
@pytorch.constant_when_traced
def _recurrent_layers_use_tf32() -> bool:
    return recurrent_precision() == "tf32"


def recurrent_tf32(input: Tensor) -> bool:
    """Whether PyTorch's recurrent layers may compute in tf32 what they are given here."""
    return input.is_cuda and input.dtype == torch.float32 and _recurrent_layers_use_tf32()


class _RecurrentProducts:
    """A scope in which the kernels of a thread compute products of float32 as recurrent layers of PyTorch's may.

    Switches of PyTorch's belong to the process, and other threads compute while this one does: they are left as they
    are. What a thread's products are made in is told to our own library, of this thread alone, by the function
    `torchgraft_set_products` that it exports.
    """

    __slots__ = ("_before", "_precision", "_set")

    def __init__(self, set_products: Callable[[int], int], precision: str) -> None:
        self._set, self._precision = set_products, precision
        self._before = 0

    def __enter__(self) -> None:
        self._before = self._set(_PRODUCTS[self._precision])

    def __exit__(self, *raised: object) -> None:
        self._set(self._before)


_all_by_pytorch = False


@contextmanager
def products_by_pytorch() -> Iterator[None]:
    """A scope in which kernels leave every product to PyTorch: for tools that replace what PyTorch multiplies with."""
    global _all_by_pytorch
    before, _all_by_pytorch = _all_by_pytorch, True
    try:
        yield
    finally:
        _all_by_pytorch = before


# As `enum class Products` of that library has them; 0 leaves products to PyTorch and its switch.
_PRODUCTS = {"ieee": 1, "tf32": 2}
_unchanged = nullcontext()


@functools.cache
def _products_setter() -> Callable[[int], int] | None:
    """The function of the loaded library that sets what products of the current thread are made in, if there is one."""
    found = native.libraries_of("torchgraft", "cuda")
    return found[0].function("torchgraft_set_products") if found else None


def recurrent_products(input: Tensor) -> AbstractContextManager[None]:
    """A scope in which kernels multiply float32 as precisely as PyTorch's recurrent layers would, given `input`.

    It is of the current thread, and changes no switch of PyTorch's: what PyTorch itself multiplies follows its own.

    A compiler chooses how to compute what it traces; there it changes nothing.
    """
    if torch.compiler.is_compiling() or not input.is_cuda or input.dtype == torch.float64:
        return _unchanged
    set_products = None if _all_by_pytorch else _products_setter()
    return _unchanged if set_products is None else _RecurrentProducts(set_products, recurrent_precision())
