"""Bounds of the time and the memory that a call may take whose arguments make no sense."""

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_BYTES = 4 * 2**30
_SECONDS = 20.0
# A definition answers at once, or counts up to a number: for that nobody waits as long.
REFERENCE_SECONDS = 5.0


class TooLong(Exception):  # noqa: N818  a signal to itself
    """A call in a scope of `time_bounded` took too long."""


@contextmanager
def time_bounded(raising: type[Exception] | None = None, seconds: float = _SECONDS) -> Iterator[None]:
    """A scope that may take some seconds; then `raising` is raised in it or, if that is None, the process ends."""

    def ring(number: int, frame: FrameType | None) -> None:
        assert raising is not None
        raise raising

    before = signal.signal(signal.SIGALRM, signal.SIG_DFL if raising is None else ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def ends_in_time(function: Callable[[], Any], seconds: float = _SECONDS) -> bool:
    """Whether a function on the CPU returns or raises in some seconds, found out in a copy of this process.

    A loop in C++ does not let Python answer a signal, but it can be killed.
    """
    with warnings.catch_warnings():
        # Threads of this process do not exist in the copy. One that waits for them is killed like one that loops.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            # The pool of threads was not copied.
            torch.set_num_threads(1)
            with time_bounded(seconds=seconds):
                function()
        except BaseException:
            os._exit(0)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return not os.WIFSIGNALED(status)


@contextmanager
def memory_bounded(device: torch.device) -> Iterator[None]:
    """A scope in which huge sizes fail at once: a GPU gives 4 GiB in all, and the host 4 GiB beyond what is in use."""
    # Windows has no such module, and `graft check --list` imports this one.
    import resource

    if device.type == "cuda":
        _, total = torch.cuda.mem_get_info(device)
        torch.cuda.set_per_process_memory_fraction(min(1.0, _BYTES / total), device.index or 0)
    sizes = Path("/proc/self/statm")
    before, most = resource.getrlimit(resource.RLIMIT_AS)
    if sizes.exists():
        in_use = int(sizes.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + _BYTES, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, most))
        if device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0, device.index or 0)
