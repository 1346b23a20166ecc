"""Choices that are measured: which kernel is fastest for a problem, found at its first call and kept.

Kernels are timed if `measure_kernels()` was called and `torch.backends.cudnn.benchmark` is on, PyTorch's own switch.
Each library of kernels times and keeps for itself (torchgraft/measured.h). Otherwise its policy chooses, as it always
does in compiled and exported programs.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from torchgraft import native
from torchgraft._private import pytorch
from torchgraft.machine.figures import as_json


@dataclass(frozen=True)
class Choice:
    """The kernel that one problem takes.

    Attributes:
        operator: its qualified name.
        device: the kind of device, 'cpu' or 'cuda'.
        kernel: its name; 'pytorch' for PyTorch's own operator; empty for what the library's policy chooses.
        problem: the GPU's architecture and multiprocessors, and shapes, strides, dtypes and numbers of the call, as the
            library writes them down.
        microseconds: what each candidate took, by name, empty for the policy's; nothing where the choice was loaded.
    """

    operator: str
    device: str
    kernel: str
    problem: tuple[int, ...]
    microseconds: Mapping[str, float]


# PyTorch's switch, which is asked at every call.
is_wanted = pytorch.cudnn_benchmark

_may_measure = os.environ.get("TORCHGRAFT_MEASURE") == "1"


def measure_kernels(wanted: bool = True) -> None:
    """Lets the first call of each problem time the kernels that support it; later calls take the fastest.

    It works while `torch.backends.cudnn.benchmark` is on, and in eager mode only. The environment variable
    TORCHGRAFT_MEASURE=1 has the same effect from the start. See docs/kernels.md.

    Args:
        wanted: False: from now on policies choose again, and what was chosen by measuring is kept for later.
    """
    global _may_measure
    _may_measure = bool(wanted)
    _tell_libraries()


def call(namespace: str, kernel: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Calls a kernel where PyTorch's switch is on: it is timed if that is asked for, too."""
    if not _may_measure:
        return kernel(*arguments)
    device = next((value.device.type for value in arguments if isinstance(value, Tensor)), "")
    measures = [measure for _, measure in _functions("torchgraft_measure", namespace, device)]
    try:
        for measure in measures:
            measure(True)
        return kernel(*arguments)
    finally:
        for measure in measures:
            measure(False)


@contextmanager
def measuring(wanted: bool) -> Iterator[None]:
    """A scope in which kernels are timed, or are not, whatever `measure_kernels` said before."""
    before = _may_measure
    measure_kernels(wanted)
    try:
        yield
    finally:
        measure_kernels(before)


def _functions(name: str, namespace: str = "", device: str = "") -> Iterator[tuple[native.NativeLibrary, Any]]:
    """A C function of each library that exports it: of all, or of a namespace on a kind of device."""
    for library in native.libraries_of(namespace, device) if namespace else native.libraries():
        if (function := library.function(name)) is not None:
            yield library, function


def _tell_libraries(*_: str) -> None:
    for _library, tell in _functions("torchgraft_may_measure"):
        tell(_may_measure)


native.tell_of_libraries(_tell_libraries)


def choices() -> list[Choice]:
    """The kernels that were chosen by measuring so far in this process, or loaded: one for each problem.

    A problem is measured at its first call after `measure_kernels()`, while `torch.backends.cudnn.benchmark` is on.
    """
    found = []
    for library, tell in _functions("torchgraft_choices"):
        tell.restype = ctypes.c_char_p
        for line in tell().decode().splitlines():
            operator, kernel, problem, taken = line.split("\t")
            microseconds = {name: float(value) for name, value in (each.split("=") for each in taken.split())}
            words = tuple(map(int, problem.split()))
            found.append(Choice(f"{library.namespace}::{operator}", library.device, kernel, words, microseconds))
    return found


def save_choices(path: str | Path) -> None:
    """Writes all choices to a file, so that other processes, as the ranks of one run, agree.

    Args:
        path: of the file, in JSON.
    """
    Path(path).write_text(as_json({"choices": [asdict(each) for each in choices()]}))


def load_choices(path: str | Path) -> None:
    """Takes over what `save_choices` wrote: problems in it are not measured again on GPUs of the same kind.

    A choice that its library cannot follow, because the kernel is gone or does not support the problem any more, is
    dropped at the first call of the problem, which is then measured.

    Args:
        path: of the file.

    Raises:
        ValueError: `save_choices` did not write it.
    """
    try:
        adopt([Choice(**each) for each in json.loads(Path(path).read_text())["choices"]])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"load_choices: {path} was not written by save_choices: {error}") from None


def adopt(choices: Sequence[Choice]) -> None:
    """Has problems take the kernels of some choices, unless one cannot: it is then dropped at its first call.

    Raises:
        TypeError: a problem is no sequence of integers.
    """
    problems = [(ctypes.c_int64 * len(each.problem))(*each.problem) for each in choices]
    for each, words in zip(choices, problems, strict=True):
        namespace, _, operator = each.operator.partition("::")
        for _library, choose in _functions("torchgraft_choose", namespace, each.device):
            choose(operator.encode(), each.kernel.encode(), words, ctypes.c_int64(len(words)))


def forget_choices() -> None:
    """Forgets all choices: the next call of each problem is measured again, or the policy chooses."""
    for _library, choose in _functions("torchgraft_choose"):
        choose(None, None, None, ctypes.c_int64(0))
