"""The place in source code at which an author finds the part of an operator that is wrong."""

import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

from torchgraft.building import inline
from torchgraft.checking.kernels import sources_of
from torchgraft.kernels import python_kernels
from torchgraft.operator import Operator


class Place(NamedTuple):
    """A line of a file.

    Attributes:
        file: an absolute path; empty if the place is not known.
        line: counted from 1; 0 if the place is not known.
    """

    file: str = ""
    line: int = 0


def place_of_kernel(operator: Operator, device: str, kernel: str = "", arguments: Sequence[Any] | None = None) -> Place:
    """Finds where a kernel of an operator is written.

    Args:
        operator: the operator.
        device: the kind of device, 'cpu' or 'cuda'.
        kernel: the name of one of several kernels; empty: the one that is called.
        arguments: of a call, from which a policy chooses a kernel; None: not known.

    Returns:
        The place of a function in Python, or of the C++ function that TORCHGRAFT_KERNEL registers; an empty one if it
        is not known.
    """
    in_python = python_kernels.kernels_of(operator.qualified_name, device)
    if in_python is not None:
        if not kernel and arguments is not None:
            kernel = in_python.choose(arguments)
        # The names of compiled kernels are others.
        kernel = kernel or (next(iter(in_python.kernels)) if len(in_python.kernels) == 1 else "")
        if kernel in in_python.kernels:
            return place_of_function(in_python.kernels[kernel])
        if not in_python.compiled:
            return Place()
    return _place_of_text(operator, device) or _place_in_sources(operator, device)


def place_of_function(function: Callable[..., Any] | None) -> Place:
    """Finds where a function in Python is written; an empty place for one that is not."""
    inner = inner_function(function)
    if inner is None or not Path(inner.__code__.co_filename).is_file():
        return Place()
    code = inner.__code__
    return Place(str(Path(code.co_filename).resolve()), code.co_firstlineno)


def inner_function(function: Any) -> FunctionType | None:
    """Returns a function as its author wrote it, without what wraps it; None if it is no function in Python."""
    if not callable(function):
        return None
    function = inspect.unwrap(function)
    return function if isinstance(function, FunctionType) else None


def _place_of_text(operator: Operator, device: str) -> Place | None:
    """Finds the kernel of an operator that was given to `load_inline`; None if there is none."""
    found = inline.text_of(operator.qualified_name, device)
    if found is None:
        return None
    text, file, line = found
    name = f"{operator.name}_{device}"
    if isinstance(text, Path):
        return Place(str(text.resolve()), _line_of(name, text.read_text()) or 1) if text.is_file() else Place()
    if not Path(file).is_file():
        return Place()
    # A text that the caller's file holds as it is has lines there; any other is where it was handed over.
    before, found_there, _ = Path(file).read_text().partition(text)
    if found_there and (inside := _line_of(name, text)):
        line = before.count("\n") + inside
    return Place(str(Path(file).resolve()), line)


def _place_in_sources(operator: Operator, device: str) -> Place:
    """Finds the function that TORCHGRAFT_KERNEL registers among the sources of a library."""
    words = (operator.namespace, device.upper(), operator.name)
    registration = re.compile(r"TORCHGRAFT_KERNEL\w*\(\s*" + r"\s*,\s*".join(words) + r"\s*,\s*([\w:]+)")
    for path in sources_of(operator, device):
        text = path.read_text(errors="replace")
        if registered := registration.search(text):
            function = registered[1].rpartition("::")[2]
            at_registration = text.count("\n", 0, registered.start()) + 1
            return Place(str(path.resolve()), _line_of(function, text) or at_registration)
    return Place()


def _line_of(function: str, text: str) -> int:
    """Returns the first line of C++ text that has a function's name before a parenthesis; 0 if there is none."""
    found = re.search(rf"\b{re.escape(function)}\s*\(", text)
    return text.count("\n", 0, found.start()) + 1 if found else 0
