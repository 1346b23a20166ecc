"""`torchgraft.capture`: writes the arguments of calls to a folder before they run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from torchgraft.capturing.folder import (
    IndexRow,
    describe,
    file_of,
    last_file_of,
    process_name,
    write_call,
    write_index,
)
from torchgraft.capturing.taken import TakenCall, take, with_ranges
from torchgraft.capturing.watching import WatchedCall, alone, watching
from torchgraft.declaration.schema import tensors_in
from torchgraft.operator import Operator

_log = logging.getLogger("torchgraft.capture")

# What `operators` may be: operators, their names, functions of torchgraft's own, or several of these.
Operators = Operator | str | Callable[..., Any] | Sequence[Operator | str | Callable[..., Any]]


def find_operators(operators: Operators) -> list[Operator]:
    """Finds the operators that a person means.

    Raises:
        TypeError: one is no operator.
        ValueError: there are none, or nothing declares one of a name.
    """
    several = operators if isinstance(operators, (list, tuple)) else [operators]
    if not several:
        raise ValueError("operators must name one operator at least, got an empty sequence")
    return list(dict.fromkeys(map(_find_operator, several)))


def _find_operator(operator: Any) -> Operator:
    if isinstance(operator, Operator):
        return operator
    name = operator
    if getattr(operator, "__module__", "").startswith("torchgraft.operators."):
        # The public function of an operator, which checks its arguments and calls it.
        name = operator.__name__
    if not isinstance(name, str):
        raise TypeError(
            f"operators must be torchgraft.Operators, their names or functions of torchgraft's own, got {operator!r}"
        )
    found = Operator.registered.get(name if "::" in name else f"torchgraft::{name}")
    if found is None:
        known = ", ".join(sorted(Operator.registered))
        raise ValueError(f"operators must be declared, and nothing declares {name!r}; declared are {known}")
    return found


def is_recording_graph(arguments: Sequence[Any]) -> bool:
    """Whether a CUDA graph is being captured, so that nobody may wait for the GPU."""
    return any(tensor.is_cuda for tensor in tensors_in(arguments)) and torch.cuda.is_current_stream_capturing()


class Capture:
    """The calls that one process captures: what `torchgraft.capture` gives.

    Attributes:
        folder: to which they are written.
    """

    def __init__(
        self, folder: Path, *, values: bool, ranges: bool, largest: int, calls: int, total: int, last: bool
    ) -> None:
        self.folder, self._ranges = folder, ranges
        self._values, self._largest, self._calls, self._total, self._last = values, largest, calls, total, last
        self._process = process_name()
        self._lock = threading.RLock()
        self._rows: dict[tuple[str, str], IndexRow] = {}
        self._seen = self._bytes = self._refused = self._unwritten = 0
        self._next_index = 1

    def __repr__(self) -> str:
        return f"Capture({str(self.folder)!r}, {self.seen} calls seen, {self.distinct} written)"

    @property
    def seen(self) -> int:
        """How many calls of the operators were seen."""
        return self._seen

    @property
    def distinct(self) -> int:
        """How many calls differ in more than values."""
        return len(self._rows)

    @property
    def left_out(self) -> int:
        """How many calls were not written: they are too many, of a kind that no file holds, or writing failed."""
        return self._refused + self._unwritten

    def _note_call(self, call: WatchedCall) -> None:
        """Writes a call that is about to run, if none like it was written."""
        with self._lock, alone():
            self._seen += 1
            try:
                self._note(call)
            except ValueError as error:
                self._say_once("_refused", f"a call of {call.operator.qualified_name} is not captured: {error}")
            except OSError as error:
                # A model must not stop because a disk is full.
                self._say_once("_unwritten", f"a call of {call.operator.qualified_name} could not be written: {error}")

    def _note(self, call: WatchedCall) -> None:
        operator, taken = call.operator, take(call.operator.declaration, call.arguments)
        may_wait = not is_recording_graph(call.arguments)
        if self._last and may_wait:
            self._write(last_file_of(self.folder, self._process), operator, taken, values=True)
        if self._ranges and may_wait:
            taken = with_ranges(taken)
        key = operator.qualified_name, taken.key
        if (row := self._rows.get(key)) is not None:
            self._rows[key] = IndexRow(row.operator, row.call, row.count + 1, row.file, row.bytes)
            if self._seen >= self._next_index:
                self._write_index()
            return
        if len(self._rows) >= self._calls:
            self._say_once(
                "_refused", f"{self._calls} different calls are written, and further ones are left out: raise calls="
            )
            return
        path, written = file_of(self.folder, operator, taken.key), 0
        if not path.is_file():
            needed = sum(piece.bytes for piece in taken.pieces if piece.bytes <= self._largest)
            values = self._values and may_wait and self._bytes + needed <= self._total
            written = self._write(path, operator, taken, values=values, statistics=may_wait)
        self._bytes += written
        self._rows[key] = IndexRow(operator.qualified_name, describe(taken.arguments), 1, path.name, written)
        self._write_index()

    def _write(self, path: Path, operator: Operator, taken: TakenCall, *, values: bool, statistics: bool = True) -> int:
        return write_call(path, operator, taken, values=values, largest=self._largest, statistics=statistics)

    def _say_once(self, counter: str, message: str) -> None:
        if not getattr(self, counter):
            _log.warning(message)
        setattr(self, counter, getattr(self, counter) + 1)

    def _write_index(self) -> None:
        """Writes the index of this process."""
        # Counts are right at the end; on the way the index need not be written at each call.
        self._next_index = 2 * self._seen
        notes = {"process": self._process, "seen": self._seen, "left out": self.left_out}
        write_index(self.folder / f"{self._process}.json", list(self._rows.values()), notes)

    def _end(self, *, failed: bool) -> None:
        """Writes the index once more, and removes the last call unless an exception ended the scope."""
        with self._lock:
            if not failed:
                with suppress(OSError):
                    last_file_of(self.folder, self._process).unlink(missing_ok=True)
            try:
                if self._seen:
                    self._write_index()
            except OSError as error:
                self._say_once("_unwritten", f"the index of {self.folder} could not be written: {error}")


@contextmanager
def capture(
    operators: Operators,
    folder: str | Path,
    *,
    values: bool = True,
    ranges: bool = False,
    largest: int = 64 << 20,
    calls: int = 256,
    total: int = 1 << 30,
    last: bool = False,
) -> Iterator[Capture]:
    """Writes the arguments of operators' calls to a folder, each before it runs, while the scope lasts.

    `graft check --replay FOLDER` checks the operators on these calls, and `graft bench --replay FOLDER` times them.
    Calls are seen in eager code, in backward passes and in compiled graphs, in all threads; each operator that a
    backward pass calls is named for itself. Calls that differ only in values are written once, and counted. Calls that
    a compiler or `torch.func` makes with tensors that have no values are not seen; nor are those that a CUDA graph
    replays, nor those that compiled code computes by the reference.

    Several processes may write to one folder. The file of a call is read without running code from it.

    Args:
        operators: a torchgraft.Operator, a name such as 'mypackage::softplus', a function of torchgraft's that calls an
            operator, or several of these.
        folder: to which to write; it is made if it is missing, and may hold calls of earlier runs.
        values: whether the values of tensors are written. Without them sizes, strides, dtypes and numbers are, and
            statistics from which a replay draws values anew.
        ranges: whether calls differ if their largest floating-point numbers are of other powers of 16, or some are not
            finite. Each call then waits for the GPU.
        largest: memory of more bytes is written without values.
        calls: the most different calls that this process writes.
        total: the most bytes of values that this process writes; further calls are written without values.
        last: whether each call is written, even if one like it was, to a file that the next call replaces: what a
            process was doing when it ended. It is removed if the scope ends without an exception.

    Returns:
        A scope that gives a Capture, with how many calls were `seen`, `distinct` and `left_out`.

    Raises:
        TypeError: an operator is none.
        ValueError: nothing declares an operator, or a limit is negative.
        OSError: the folder cannot be made.
    """
    found = find_operators(operators)
    for name, limit in (("largest", largest), ("calls", calls), ("total", total)):
        if limit < 0:
            raise ValueError(f"{name} must be 0 or more, got {limit}")
    place = Path(folder).absolute()
    place.mkdir(parents=True, exist_ok=True)
    captured = Capture(place, values=values, ranges=ranges, largest=largest, calls=calls, total=total, last=last)
    with ExitStack() as scopes:
        for operator in found:
            scopes.enter_context(watching(operator, captured._note_call))
        try:
            yield captured
        except BaseException:
            captured._end(failed=True)
            raise
        captured._end(failed=False)
