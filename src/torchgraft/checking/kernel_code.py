"""The functions of an author's kernels in Python: their code, and which of its lines run."""

import builtins
import dis
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor

from torchgraft.checking.kernel_place import inner_function
from torchgraft.kernels import python_kernels
from torchgraft.operator import Operator

# Instructions that stand before the first line of a function.
_PROLOGUE = {"RESUME", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR", "GEN_START", "CACHE", "POP_TOP"}


def functions_of(operator: Operator, device: str) -> dict[str, list[FunctionType]]:
    """Finds the functions of which kernels in Python are made, by the name of the kernel.

    They are the kernel's own and those of the same file that it calls by their names. Kernels of Triton have none: a
    compiler reads their lines.
    """
    found = python_kernels.kernels_of(operator.qualified_name, device)
    if found is None:
        return {}
    triton = found.interpreted | found.shown_to_compilers
    kernels = {name: inner_function(kernel) for name, kernel in found.kernels.items() if name not in triton}
    return {name: list(_with_called(kernel)) for name, kernel in kernels.items() if kernel is not None}


def _with_called(function: FunctionType) -> Iterator[FunctionType]:
    """Yields a function, and those of the same file that it calls by a global name, directly or not."""
    waiting, seen = [function], {function}
    while waiting:
        each = waiting.pop()
        yield each
        for value in _globals_of(each).values():
            called = inner_function(value)
            if (
                called is not None
                and called not in seen
                and called.__code__.co_filename == function.__code__.co_filename
            ):
                seen.add(called)
                waiting.append(called)


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """The globals that the code of a function reads or writes, by name."""
    names = {
        instruction.argval
        for code in _codes_of(function.__code__)
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "STORE_GLOBAL")
    }
    held = function.__globals__
    return {name: held[name] for name in sorted(names) if name in held and not hasattr(builtins, name)}


def shared_state(kernels: dict[str, list[FunctionType]]) -> list[str]:
    """Names the globals of kernels that hold something from call to call: containers, tensors, and what is assigned."""
    found: dict[str, None] = {}
    for function in (each for functions in kernels.values() for each in functions):
        stored = {
            instruction.argval
            for code in _codes_of(function.__code__)
            for instruction in dis.get_instructions(code)
            if instruction.opname == "STORE_GLOBAL"
        }
        for name, value in _globals_of(function).items():
            if name in stored or isinstance(value, (dict, list, set, bytearray, Tensor)):
                found[f"the global `{name}`"] = None
    return list(found)


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    """Yields the code of a function and of all functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_of(constant)


def lines_of(functions: Iterable[FunctionType]) -> set[tuple[str, int]]:
    """The lines of functions that can run, each with its file."""
    return {
        (code.co_filename, line)
        for function in functions
        for code in _codes_of(function.__code__)
        for start, end, line in code.co_lines()
        if line is not None and not _operations(code, start, end) <= _PROLOGUE
    }


def _operations(code: CodeType, start: int, end: int) -> set[str]:
    return {dis.opname[code.co_code[place]] for place in range(start, end, 2)}


class LineRecorder:
    """Records which lines of the functions of kernels have run, each once.

    From Python 3.12 on the interpreter reports the lines of these functions alone. Before, a trace function is set
    while a kernel runs, until all its lines have run. Where another tool traces already, as a debugger does, nothing is
    recorded.
    """

    def __init__(self) -> None:
        self._new: list[tuple[str, int]] = []
        self._left: set[tuple[str, int]] = set()
        self._codes: set[CodeType] = set()
        self._is_complete = True
        self._tool: int | None = None
        self._lock = threading.Lock()

    @contextmanager
    def recording(self, operator: Operator, device: str) -> Iterator[None]:
        """A scope in which the lines of an operator's kernels for a kind of device are recorded."""
        kernels = functions_of(operator, device)
        functions = [each for own in kernels.values() for each in own]
        codes = {code for function in functions for code in _codes_of(function.__code__)}
        if not codes <= self._codes:
            self._codes |= codes
            self._left |= lines_of(functions)
            if _MONITORING is not None:
                self._monitor(codes)
        held = python_kernels.kernels_of(operator.qualified_name, device) if kernels else None
        if held is None or _MONITORING is not None:
            yield
            return
        before = {name: held.kernels[name] for name in kernels}
        held.kernels.update({name: self._traced(kernel) for name, kernel in before.items()})
        try:
            yield
        finally:
            held.kernels.update(before)

    def take(self) -> tuple[tuple[str, int], ...] | None:
        """Returns the lines that have run for the first time since the last call of this method.

        None if not all calls could be watched.
        """
        with self._lock:
            new, self._new = self._new, []
        return tuple(sorted(new)) if self._is_complete else None

    def _note(self, code: CodeType, line: int) -> None:
        place = code.co_filename, line
        with self._lock:
            if place in self._left:
                self._left.remove(place)
                self._new.append(place)

    def _monitor(self, codes: Iterable[CodeType]) -> None:
        """Has the interpreter report each line of these functions once."""
        events = _MONITORING.events
        if self._tool is None:
            self._tool = next((number for number in _TOOLS if _MONITORING.get_tool(number) is None), None)
            if self._tool is None:
                self._is_complete = False
                return
            _MONITORING.use_tool_id(self._tool, "torchgraft")
            _MONITORING.register_callback(self._tool, events.LINE, self._on_line)
            # A function of a single line has no event of a line.
            _MONITORING.register_callback(
                self._tool, events.PY_START, lambda code, offset: self._on_line(code, code.co_firstlineno)
            )
        for code in codes:
            _MONITORING.set_local_events(self._tool, code, events.LINE | events.PY_START)

    def _on_line(self, code: CodeType, line: int) -> Any:
        self._note(code, line)
        return _MONITORING.DISABLE

    def _traced(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a kernel: its lines are recorded while some have not run."""

        def on_line(frame: Any, event: str, argument: Any) -> Any:
            if event == "line":
                self._note(frame.f_code, frame.f_lineno)
            return on_line

        def on_call(frame: Any, event: str, argument: Any) -> Any:
            return on_line if frame.f_code in self._codes else None

        @wraps(kernel)
        def traced(*arguments: Any) -> Any:
            if not self._left:
                return kernel(*arguments)
            if sys.gettrace() is not None:
                self._is_complete = False
                return kernel(*arguments)
            sys.settrace(on_call)
            try:
                return kernel(*arguments)
            finally:
                sys.settrace(None)

        return traced


# What Python 3.12 and later have to watch some functions alone, and the numbers of tools that it keeps for no purpose.
_MONITORING: Any = getattr(sys, "monitoring", None)
_TOOLS = (3, 4)
RECORDER = LineRecorder()


@dataclass(frozen=True)
class UnreachedLines:
    """The lines of an author's kernel that no property has run.

    Attributes:
        operator: whose kernel it is.
        kernel: the name of the kernel.
        device: the kind of device.
        file: in which the lines are.
        lines: their numbers, counted from 1.
        count: how many lines of the kernel can run.
    """

    operator: str
    kernel: str
    device: str
    file: str
    lines: tuple[int, ...]
    count: int

    def __str__(self) -> str:
        verb = "was" if len(self.lines) == 1 else "were"
        numbers = ", ".join(map(str, self.lines))
        of = f"{self.operator} ({self.kernel})" if self.kernel != self.operator.rpartition("::")[2] else self.operator
        return f"{len(self.lines)} of {self.count} lines of {of} {verb} reached by no question: {self.file}:{numbers}"


def unreached_lines(
    operators: Sequence[Operator], devices: Iterable[str], ran: Iterable[tuple[str, int]]
) -> tuple[UnreachedLines, ...]:
    """Finds the lines of kernels in Python that are not among those that have run.

    Args:
        operators: whose kernels are looked at.
        devices: the kinds of device whose kernels are looked at.
        ran: the lines that have run, each with its file.
    """
    reached, found = set(ran), []
    for operator in operators:
        for device in devices:
            for kernel, functions in functions_of(operator, device).items():
                every = lines_of(functions)
                left = sorted(every - reached)
                if left:
                    numbers = tuple(line for _, line in left)
                    name = operator.short_name
                    found.append(UnreachedLines(name, kernel, device, left[0][0], numbers, len(every)))
    return tuple(found)
