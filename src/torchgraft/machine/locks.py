"""Locks between processes: a file is locked until it is closed, or its process ends, however it ends."""

import os
from typing import IO

try:
    import fcntl
except ImportError:
    # Windows has other locks, which nobody has tried here. Nothing is locked there.
    fcntl = None  # type: ignore[assignment]


def lock(file: IO[str], *, waits: bool = True) -> None:
    """Locks a file against other processes that lock it; without effect where there are no locks of POSIX.

    Args:
        file: is never removed, because a lock on a removed file excludes nobody.
        waits: for other processes that have locked it.

    Raises:
        BlockingIOError: another process has locked it, and this one does not wait.
    """
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))


def append_only(file: IO[str]) -> None:
    """Has whatever is written to a file go to its end, by every process that shares it."""
    if fcntl is not None:
        fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
