"""The folder of captured calls: files that hold a call each, and an index of each process that a person can read.

A file is what `torch.save` writes of a dict of texts and tensors, and is read without unpickling anything else. Its
name follows from what the call is, so that processes which make equal calls write one file. Every file is written
beside its place and then moved there.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchgraft.capturing.samples import CapturedSample, sample_of, samples_from
from torchgraft.capturing.taken import Piece, TakenCall, dtype_named
from torchgraft.machine.figures import as_json
from torchgraft.operator import Operator
from torchgraft.sampling import Samples
from torchgraft.version import __version__

_FORMAT = 1
# A call ends so in the name of a file if it was the last of a process.
_LAST = ".last"


class CapturedFileError(ValueError):
    """A file in a folder of captured calls cannot be read."""


def process_name() -> str:
    """Returns a name that no other process has that writes to the same folder."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


def rank() -> int | None:
    """Returns the rank of this process among those of a run; None if it is alone."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    given = os.environ.get("RANK", "")
    return int(given) if given.isdigit() else None


def write_beside(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes a file whole or not at all.

    Args:
        path: of the file; its folder is made if it is missing.
        write: writes to a path.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def file_of(folder: Path, operator: Operator, key: str, *, alone: bool = False) -> Path:
    """Returns the file of a call, one of its own if its values matter."""
    values = f"-{secrets.token_hex(4)}" if alone else ""
    return folder / f"{operator.qualified_name.replace('::', '.')}-{key}{values}.pt"


def last_file_of(folder: Path, process: str) -> Path:
    """Returns the file of the last call of a process."""
    return folder / f"{process}{_LAST}.pt"


def write_call(
    path: Path, operator: Operator, taken: TakenCall, *, values: bool, largest: int, statistics: bool = True
) -> int:
    """Writes a call to a file; returns how many bytes of values are in it.

    Args:
        path: of the file.
        operator: that is called.
        taken: its arguments.
        values: whether the values of tensors are kept.
        largest: pieces of memory with more bytes are not.
        statistics: whether there may be some, for which a GPU is waited for.
    """
    memories, tensors = [], []
    for piece in taken.pieces:
        kept = values and piece.bytes <= largest and statistics
        memories.append(_memory_of(piece, kept=kept, statistics=statistics))
        tensors.append(values_of(piece).cpu() if kept else None)
    call = {
        "operator": operator.qualified_name,
        "declared in": operator.module,
        "dtype": str(taken.dtype).removeprefix("torch."),
        "arguments": taken.arguments,
        "memories": memories,
        "torchgraft": __version__,
        "torch": torch.__version__,
    }
    content = {"format": _FORMAT, "call": json.dumps(call), "values": tensors}
    write_beside(path, partial(torch.save, content))
    return sum(each.nbytes for each in tensors if each is not None)


def values_of(piece: Piece) -> Tensor:
    """Returns a copy of a piece, with zeros in front of it that align it as it was."""
    copied = torch.zeros(piece.elements, dtype=piece.dtype, device=piece.memory.device)
    copied[piece.elements - piece.memory.numel() :].copy_(piece.memory)
    return copied


def _memory_of(piece: Piece, *, kept: bool, statistics: bool) -> dict[str, Any]:
    return {
        "dtype": str(piece.dtype).removeprefix("torch."),
        "elements": piece.elements,
        "kept": kept,
        "statistics": piece.statistics() if statistics else {},
    }


def copied(taken: TakenCall) -> TakenCall:
    """Copies the memory of a call, so that it stays as it was before the call."""
    pieces = [(piece, values_of(piece)) for piece in taken.pieces]
    return taken._replace(pieces=tuple(replace(piece, memory=copy, tensor=copy) for piece, copy in pieces))


def sample_in_memory(name: str, taken: TakenCall) -> CapturedSample:
    """Makes a sample of a call whose memory was copied."""
    memories = [_memory_of(piece, kept=True, statistics=False) for piece in taken.pieces]
    values = [piece.memory for piece in taken.pieces]
    return sample_of(name, taken.arguments, memories, taken.dtype, values.__getitem__)


@dataclass(frozen=True)
class IndexRow:
    """A call in the index of a process.

    Attributes:
        operator: its qualified name.
        call: its arguments, for a person.
        count: how often it was seen.
        file: that holds it; empty if no file does.
        bytes: of the values in the file.
    """

    operator: str
    call: str
    count: int
    file: str
    bytes: int


def write_index(path: Path, rows: Sequence[IndexRow], notes: Mapping[str, Any]) -> None:
    """Writes the index of a process.

    Args:
        path: of the file.
        rows: the calls.
        notes: what else a person should know.
    """
    written = time.strftime("%Y-%m-%d %H:%M:%S %z")
    about = {"format": _FORMAT, "written": written, "rank": rank(), "torch": torch.__version__, **notes}
    text = as_json({**about, "calls": [vars(each) for each in rows]})
    write_beside(path, lambda temporary: temporary.write_text(text))


def describe(arguments: Mapping[str, Any]) -> str:
    """Describes the arguments of a call that was taken apart, for a person."""
    return ", ".join(f"{name}={_describe(value)}" for name, value in arguments.items())


def _describe(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_describe, value))}]"
    if not isinstance(value, dict):
        return str(value)
    [(kind, inner)] = value.items()
    if kind != "tensor":
        return str(inner)
    layout = "" if inner["layout"] == "contiguous" else f" {inner['layout']}"
    if layout == " strided":
        layout = f" in strides {tuple(inner['stride'])}"
    return f"{tuple(inner['size'])} {inner['dtype']}{layout}"


@dataclass(frozen=True)
class CapturedCall:
    """A call that was read from a folder.

    Attributes:
        operator: its qualified name.
        module: that declared it where it was captured.
        path: of the file.
        sample: the call.
    """

    operator: str
    module: str
    path: Path
    sample: CapturedSample


def read_folder(folder: str | Path) -> list[CapturedCall]:
    """Reads the calls in a folder, those that were seen most often first.

    Raises:
        LookupError: there is no such folder, or no call in it.
        CapturedFileError: a file is damaged, or is none that `torchgraft.capture` wrote.
    """
    folder = Path(folder)
    files = sorted(path for path in folder.glob("*.pt") if path.is_file())
    if not files:
        why = "holds no captured calls" if folder.is_dir() else "is not a folder"
        raise LookupError(f"{folder} {why}: run the model inside torchgraft.capture(operator, {str(folder)!r}) first")
    counts = _read_counts(folder)
    calls = [_read_call(path, counts.get(path.name, 1)) for path in files]
    return sorted(calls, key=lambda call: (call.path.stem.endswith(_LAST), -call.sample.count))


def captured_samples(operator: Operator, folder: str | Path) -> Samples:
    """Returns the captured calls of an operator as its samples.

    Raises:
        LookupError: the folder has none.
        CapturedFileError: a file in it is damaged.
    """
    calls = [each.sample for each in read_folder(folder) if each.operator == operator.qualified_name]
    if not calls:
        raise LookupError(f"{folder} holds no captured call of {operator.qualified_name}")
    return samples_from(operator, calls)


def _read_counts(folder: Path) -> dict[str, int]:
    """Adds up how often the calls were seen, over all processes."""
    counts: dict[str, int] = {}
    for path in sorted(folder.glob("*.json")):
        for name, count in _read_index(path):
            counts[name] = counts.get(name, 0) + count
    return counts


def _read_index(path: Path) -> list[tuple[str, int]]:
    try:
        return [(str(row["file"]), int(row["count"])) for row in json.loads(path.read_text())["calls"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CapturedFileError(_damaged(path, error)) from error


def _damaged(path: Path, error: BaseException) -> str:
    problem = (str(error).splitlines() or [""])[0][:200]
    return (
        f"{path} is damaged, or torchgraft.capture did not write it ({type(error).__name__}: {problem}): remove the"
        " file, and capture the call again"
    )


def _read_call(path: Path, count: int) -> CapturedCall:
    try:
        content = _load(path, path.stat().st_mtime_ns)
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']}, and this torchgraft reads {_FORMAT}")
        call = json.loads(content["call"])
        for tensor, memory in zip(content["values"], call["memories"], strict=True):
            _expect_values(tensor, memory)
        dtype = dtype_named(call["dtype"])
        sizes = " and ".join(str(tuple(size)) for size in _sizes(call["arguments"]))
        values = partial(_values_in, path, path.stat().st_mtime_ns)
        name = f"{sizes} {call['dtype']} {_which(path.stem)}"
        sample = sample_of(name, call["arguments"], call["memories"], dtype, values, count)
        return CapturedCall(call["operator"], call["declared in"], path, sample)
    except Exception as error:
        # Whatever a damaged file makes of PyTorch, JSON and the functions above.
        raise CapturedFileError(_damaged(path, error)) from error


def _which(stem: str) -> str:
    """Tells a call from others of the same sizes, by the name of its file."""
    if stem.endswith(_LAST):
        return f"last of {stem.removesuffix(_LAST)}"
    key, _, different = stem.partition("-")[2].partition("-")
    return f"{key[:8]}-{different}" if different else key[:8]


def _expect_values(tensor: Any, memory: Mapping[str, Any]) -> None:
    if (tensor is not None) != memory["kept"]:
        raise ValueError("its values are not those that it tells of")
    if tensor is not None and (tensor.shape != (memory["elements"],) or tensor.dtype != dtype_named(memory["dtype"])):
        raise ValueError(f"its values have the shape {tuple(tensor.shape)} in {tensor.dtype}")


def _sizes(value: Any) -> Iterator[Any]:
    """The sizes of the tensors among arguments that were taken apart."""
    if isinstance(value, dict) and "tensor" in value and "size" in value["tensor"]:
        yield value["tensor"]["size"]
    elif isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _sizes(each)


def _values_in(path: Path, modified: int, number: int) -> Tensor:
    found: Tensor = _load(path, modified)["values"][number]
    return found


# One call is asked many times in a row.
@lru_cache(maxsize=2)
def _load(path: Path, modified: int) -> dict[str, Any]:
    # PyTorch does not look at the checksums that it wrote.
    with zipfile.ZipFile(path) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {damaged} is wrong")
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content
