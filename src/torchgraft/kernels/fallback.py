"""Counts the calls that ran without a kernel, and warns at the first one of each kind."""

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import torch

from torchgraft.declaration import Declaration
from torchgraft.declaration.schema import tensors_in


class PerformanceWarning(UserWarning):
    """An operator ran on its reference, in PyTorch: the result is right, but slower than from a kernel."""


class Fallback(NamedTuple):
    """Calls of an operator that ran on its reference, not on a kernel, for one reason."""

    operator: str
    device: str
    dtype: str
    reason: str
    calls: int


_counts: Counter[tuple[str, str, str, str]] = Counter()
_lock = threading.Lock()


def fallbacks() -> list[Fallback]:
    """The calls in this process that ran on a reference: operator, device, dtype, reason and number of calls.

    Calls inside `torch.compile` and `torch.export` are not counted: they happen once, while tracing.
    """
    with _lock:
        return [Fallback(*key, calls) for key, calls in _counts.items()]


# Texts of warnings about calls that are slower than they could be.
ON_REFERENCE = "runs on its reference, not on a kernel"
GRADIENT_ON_REFERENCE = "computes its gradient by its reference, not by a kernel"
IN_A_LOOP = "runs once for each element of a batch"


def note_fallback(operator: str, arguments: Iterable[object], reason: str, what: str = ON_REFERENCE) -> None:
    """Counts a call that is slower than it could be, as one that a reference answers, and warns at the first."""
    if torch.compiler.is_compiling():
        return
    tensor = next(tensors_in(arguments), None)
    device = tensor.device.type if tensor is not None else "none"
    dtype = str(tensor.dtype).removeprefix("torch.") if tensor is not None else "none"
    key = (operator, device, dtype, reason)
    with _lock:
        _counts[key] += 1
        first = _counts[key] == 1
    if first:
        message = f"{operator} on {device} in {dtype} {what}: {reason}"
        warnings.warn(message, PerformanceWarning, stacklevel=_callers_level())


def note(declaration: Declaration, arguments: Iterable[object], reason: str, what: str = ON_REFERENCE) -> None:
    """Counts a call as `note_fallback` does, unless the reference is the best kernel of the operator."""
    if declaration.wants_kernels:
        note_fallback(declaration.qualified_name, arguments, reason, what)


def _callers_level() -> int:
    """How far up the stack the first line is that belongs neither to PyTorch nor to torchgraft."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("torch", "torchgraft"):
        level, frame = level + 1, frame.f_back
    return level
