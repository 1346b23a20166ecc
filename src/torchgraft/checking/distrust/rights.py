"""Rights that a process gives up, so that no process of the same user reads its memory, or it the memory of others.

Only Linux has them.
"""

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Numbers of prctl and of capabilities, from linux/prctl.h and linux/capability.h.
_SET_PARENT_DEATH_SIGNAL, _GET_DUMPABLE, _SET_DUMPABLE, _SET_NO_NEW_PRIVILEGES = 1, 3, 4, 38
_CAPABILITIES_VERSION_3 = 0x20080522
# Reading and writing files as their owner does: all that a process of root keeps.
_KEPT_CAPABILITIES = 1 << 1 | 1 << 2


def can_be_given_up() -> bool:
    """Whether this system has such rights; else nothing keeps one process out of another's memory."""
    return sys.platform == "linux"


def _prctl(option: int, value: int) -> int:
    return int(ctypes.CDLL(None).prctl(option, value, 0, 0, 0))


@contextmanager
def unreadable() -> Iterator[None]:
    """A scope in which no other process may read the memory of this one, unless root's capabilities let it."""
    before = _prctl(_GET_DUMPABLE, 0)
    _prctl(_SET_DUMPABLE, 0)
    try:
        yield
    finally:
        _prctl(_SET_DUMPABLE, before)


def give_up(*, readable: bool) -> None:
    """Gives up for good the capabilities to look into other processes; this process ends when its parent does.

    Args:
        readable: whether processes of the same user may read this one's memory.
    """
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    # Else a program that it starts as root would have all capabilities again.
    _prctl(_SET_NO_NEW_PRIVILEGES, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION_3, 0)
    # Two groups of 32 capabilities, each with those in effect, permitted and inheritable.
    held = (ctypes.c_uint32 * 6)()
    if libc.capget(header, held):
        raise OSError(ctypes.get_errno(), "capget")
    kept = (ctypes.c_uint32 * 6)(held[0] & _KEPT_CAPABILITIES, held[1] & _KEPT_CAPABILITIES, 0, 0, 0, 0)
    if libc.capset(header, kept):
        raise OSError(ctypes.get_errno(), "capset")
    _prctl(_SET_DUMPABLE, int(readable))
