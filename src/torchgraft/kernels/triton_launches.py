"""Records of the Triton kernels that operators launch under the interpreter: enough to compile them for a GPU.

A check names a folder in an environment variable, and its processes write there; another process, in which the
interpreter is off, reads it.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

# The folder into which processes write.
FOLDER = "TORCHGRAFT_TRITON_LAUNCHES"

OnLaunch = Callable[[Any, Mapping[str, Any], Mapping[str, Any]], None]


@dataclass(frozen=True)
class Launch:
    """One way in which an operator launches a Triton kernel.

    Attributes:
        operator: the qualified name of the operator.
        module: that defines the function.
        function: its qualified name there.
        arguments: by the name of a parameter, what it is and its value: ('tensor', 'float32'), ('value', 16),
            ('dtype', 'fp32'), or ('unknown', text). Whole numbers that a kernel gets when it runs are rounded to 1, 16,
            17, 2**40 or 2**40 + 1: what Triton's compiler sees of them.
        options: of the launch, such as num_warps.
    """

    operator: str
    module: str
    function: str
    arguments: dict[str, tuple[str, Any]]
    options: dict[str, Any]

    @property
    def size(self) -> int:
        """How large the constants are together: a larger one needs more of a GPU."""
        values = (value for kind, value in self.arguments.values() if kind == "value")
        return sum(value for value in values if isinstance(value, int))

    @property
    def dtypes(self) -> tuple[Any, ...]:
        """The dtypes of its tensors."""
        return tuple(value for kind, value in self.arguments.values() if kind == "tensor")


def recorder(operator: str) -> OnLaunch | None:
    """Returns what records the launches of an operator; None if nobody reads them.

    Args:
        operator: its qualified name.
    """
    folder = os.environ.get(FOLDER)
    return functools.partial(_record, Path(folder), operator) if folder else None


_recorded: set[str] = set()


def _record(folder: Path, operator: str, kernel: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    function = kernel.fn
    constants = {name for name, each in function.__annotations__.items() if "constexpr" in str(each)}
    described = {name: _describe(value, name in constants) for name, value in arguments.items()}
    plain = {name: value for name, value in options.items() if isinstance(value, int | float | str | bool)}
    text = json.dumps(asdict(Launch(operator, function.__module__, function.__qualname__, described, plain)))
    if text not in _recorded:
        _recorded.add(text)
        with (folder / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(f"{text}\n")


def _describe(value: Any, is_constant: bool) -> tuple[str, Any]:
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype).removeprefix("torch.")
    if isinstance(value, int) and not isinstance(value, bool) and not is_constant and value != 1:
        divisible = value % 16 == 0
        if -(2**31) <= value < 2**31:
            return "value", 16 if divisible else 17
        return "value", 2**40 + (not divisible)
    if value is None or isinstance(value, int | float | str):
        return "value", value
    return ("dtype", value.name) if type(value).__module__.startswith("triton.") else ("unknown", repr(value))


@contextmanager
def recorded(is_wanted: bool) -> Iterator[Path]:
    """A scope in which processes that start record their launches; gives the folder that holds them until it ends.

    Args:
        is_wanted: whether they record anything.
    """
    made = tempfile.TemporaryDirectory(prefix="torchgraft-launches-")
    with made as folder, patch.dict(os.environ, {FOLDER: folder} if is_wanted else {}):
        yield Path(folder)


def read(folder: Path) -> list[Launch]:
    """Reads what processes recorded, each launch once."""
    lines = {line: None for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()}
    found = [json.loads(line) for line in lines]
    return [
        Launch(**{**each, "arguments": {name: tuple(pair) for name, pair in each["arguments"].items()}})
        for each in found
    ]
