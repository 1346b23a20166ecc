"""Choices that are measured: which kernel is fastest for a problem, found at its first call and kept.

This happens where `torch.backends.cudnn.benchmark` is on, PyTorch's own switch. The timing and the table are in each
library of kernels (torchgraft/measured.h), for whatever it lists by torchgraft/choice.h. Without the switch the
library's policy chooses. So it does in compiled and exported programs, and while a CUDA graph is captured a new problem
is never timed.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchgraft import _torch_private, native


@dataclass(frozen=True)
class Choice:
    """The kernel that one problem takes.

    Attributes:
        operator: its qualified name.
        device: the kind of device, 'cpu' or 'cuda'.
        kernel: its name; 'pytorch' for PyTorch's own operator; empty for what the library's policy chooses.
        problem: shapes, strides, dtypes and numbers of the call, as the library writes them down.
        microseconds: what each kernel took, by name, empty for the policy's; nothing where the choice was loaded.
    """

    operator: str
    device: str
    kernel: str
    problem: tuple[int, ...]
    microseconds: Mapping[str, float]


# Whether the switch is on: asked at every call.
is_wanted = _torch_private.cudnn_benchmark

_paused = 0
# What announces a call to a library; None where that measures none.
_announcers: dict[tuple[str, str], Callable[[], None] | None] = {}


def _forget_announcer(namespace: str, device: str) -> None:
    """Another library may stand in a library's place from now on."""
    _announcers.pop((namespace, device), None)


native.tell_of_libraries(_forget_announcer)


def announce(namespace: str, values: Sequence[Any]) -> None:
    """Tells a library that the next call on this thread may be measured. Called where the switch is on."""
    if _paused:
        return
    for value in values:
        if isinstance(value, Tensor):
            key = namespace, value.device.type
            if key not in _announcers:
                _announcers[key] = native.functions_named("torchgraft_measure_next").get(key)
            if (announcer := _announcers[key]) is not None:
                announcer()
            return


@contextmanager
def not_measured() -> Iterator[None]:
    """A scope in which nothing is timed, whatever PyTorch's switch says: for tools that set it themselves."""
    with _pausing(_paused + 1):
        yield


@contextmanager
def measured() -> Iterator[None]:
    """A scope inside `not_measured` in which the switch counts all the same: for tools that show what it brings."""
    with _pausing(0):
        yield


@contextmanager
def _pausing(depth: int) -> Iterator[None]:
    """A scope inside so many scopes in which nothing is timed."""
    global _paused
    before, _paused = _paused, depth
    _tell_paused()
    try:
        yield
    finally:
        _paused = before
        _tell_paused()


def _tell_paused() -> None:
    for pause in native.functions_named("torchgraft_pause_measuring").values():
        pause(ctypes.c_bool(_paused > 0))


def choices() -> list[Choice]:
    """The kernels that were chosen by measuring so far in this process, or loaded: one for each problem.

    A problem is measured at its first call while `torch.backends.cudnn.benchmark` is on.
    """
    found = []
    for (namespace, device), tell in native.functions_named("torchgraft_choices").items():
        tell.restype = ctypes.c_char_p
        for line in tell().decode().splitlines():
            operator, kernel, problem, seconds = line.split("\t")
            taken = dict(each.split("=") for each in seconds.split())
            found.append(
                Choice(
                    f"{namespace}::{operator}",
                    device,
                    kernel,
                    tuple(map(int, problem.split())),
                    {name: float(value) for name, value in taken.items()},
                )
            )
    return found


def save_choices(path: str | Path) -> None:
    """Writes all choices to a file, so that other processes on the same kind of device, as the ranks of one run, agree.

    Args:
        path: of the file, in JSON.
    """
    found = {"devices": _devices(), "choices": [asdict(each) for each in choices()]}
    Path(path).write_text(json.dumps(found, indent=1) + "\n")


def load_choices(path: str | Path) -> None:
    """Takes over what `save_choices` wrote: problems in it are not measured again.

    Args:
        path: of the file.

    Raises:
        ValueError: it was written on a machine with another GPU, or is no such file.
    """
    try:
        found = json.loads(Path(path).read_text())
        devices, saved = found["devices"], [Choice(**each) for each in found["choices"]]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"load_choices: {path} was not written by save_choices: {error}") from None
    here = _devices()
    for device in {each.device for each in saved}:
        if devices.get(device) != here.get(device):
            raise ValueError(
                f"load_choices: {path} was written for {devices.get(device)!r}, this machine has {here.get(device)!r}"
            )
    functions = native.functions_named("torchgraft_choose")
    for each in saved:
        namespace, _, operator = each.operator.partition("::")
        choose = functions.get((namespace, each.device))
        if choose is not None:
            words = (ctypes.c_int64 * len(each.problem))(*each.problem)
            choose(operator.encode(), each.kernel.encode(), words, ctypes.c_int64(len(words)))


def forget_choices() -> None:
    """Forgets all choices: each problem is measured anew, or the policy chooses."""
    for choose in native.functions_named("torchgraft_choose").values():
        choose(None, None, None, ctypes.c_int64(0))


def _devices() -> dict[str, str]:
    """The name of each kind of device."""
    return {"cpu": "cpu", **({"cuda": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})}
