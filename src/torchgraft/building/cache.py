"""A cache of compiled libraries, by a hash of everything that they are made from, for many processes at once.

An entry is made in a temporary folder and moved into its place in one step, so that a process finds a whole entry or
none. A lock keeps processes from making the same entry at the same time; the cache is correct without it. The cache
belongs to the user: nothing is loaded from a folder that somebody else may write to.
"""

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from torchgraft.machine import locks

# The file that lists the other files of an entry, with their hashes.
_CONTENT = "content.json"
# A process waits so long for another one that makes the same entry, and then makes it too.
_PATIENCE_SECONDS = 600.0
_LOOKS_A_SECOND = 20
# When an entry is made, others are removed that nobody has used for so long, and what processes that died left behind.
# Environments are removed earlier, because they take gigabytes.
_UNUSED_SECONDS, _UNUSED_ENVIRONMENT_SECONDS, _LEFT_SECONDS = 60 * 86400.0, 30 * 86400.0, 86400.0
# The beginning of an environment's name while it is made.
_MAKING = ".making-"


def folder() -> Path:
    """The folder of the cache: TORCHGRAFT_CACHE, or by default `torchgraft` in the user's folder of caches."""
    if own := os.environ.get("TORCHGRAFT_CACHE"):
        return Path(own).absolute()
    # Not Path.home(), which raises an error for a user whom the system does not know.
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return (home if home.is_absolute() else Path(tempfile.gettempdir())) / "torchgraft"


def find(key: str) -> Path | None:
    """Returns the folder of an entry; None if it is missing or damaged, or if others may write to the cache."""
    made = folder() / "made"
    return made / key if not _why_unsafe(made) and _is_whole(made / key) else None


def keep(key: str, make: Callable[[Path], None]) -> Path:
    """Returns the folder of an entry, and makes the entry if it is missing.

    If the cache is not writable, or others may write to it, the entry is made for this process alone, with a warning.

    Args:
        key: stands for everything that the entry is made from.
        make: fills an empty folder. If it raises an error, this function raises it too, and keeps nothing.

    Raises:
        OSError: no folder at all can be written.
    """
    if (found := find(key)) is not None:
        with contextlib.suppress(OSError):
            os.utime(found / _CONTENT)
        return found
    if why := why_unusable():
        return _keep_for_this_process(key, make, why)
    root = folder()
    with _others_waited_for(root / "locks" / key, lambda: find(key) is not None):
        if find(key) is None:
            _make_at(root / "made" / key, root / "making", make)
    _tidy(root)
    return root / "made" / key


def keep_environment(name: str, make: Callable[[Path], None]) -> Path:
    """Returns a folder of the cache that may be changed, such as an environment of Python; makes it if it is missing.

    It is removed if it is not asked for during a month.

    Args:
        name: of the folder.
        make: makes it at a path. If it raises an error, this function raises it too, and keeps nothing.

    Raises:
        OSError: the cache cannot be written.
    """
    root = folder()
    place = root / "environments" / name
    for each in (place.parent, root / "locks"):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (root / "locks" / name).open("w") as lock:
        # Others wait until it is made, and nobody removes it before.
        locks.lock(lock)
        if place.is_dir():
            os.utime(place)
            return place
        # Made elsewhere and then moved, so that a half-made folder is not taken for a whole one.
        with tempfile.TemporaryDirectory(prefix=_MAKING, dir=place.parent) as aside:
            made = Path(aside, name)
            make(made)
            os.utime(made)
            made.rename(place)
    _tidy(root)
    return place


def why_unusable() -> str:
    """Returns why the cache cannot be used, in words for a message; empty if it can. Makes its folders if need be."""
    root = folder()
    try:
        for each in ("made", "making", "locks"):
            (root / each).mkdir(mode=0o700, parents=True, exist_ok=True)
        # The folders may exist and not be writable.
        with tempfile.TemporaryDirectory(dir=root / "making"):
            return _why_unsafe(root / "made")
    except OSError as error:
        return f"{root} cannot be written: {error.strerror}"


def _why_unsafe(made: Path) -> str:
    """Returns why nothing is loaded from a folder; empty if only the user may write to it."""
    try:
        found = made.stat()
    except OSError as error:
        return f"{made}: {error.strerror}"
    # Windows has neither users' numbers nor these bits: a folder of caches is the user's there.
    if not hasattr(os, "getuid"):
        return ""
    if found.st_uid != os.getuid():
        return f"{made} belongs to another user"
    return f"others may write to {made}" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def _is_whole(place: Path) -> bool:
    try:
        content = json.loads((place / _CONTENT).read_bytes())
        return all(_digest(place / name) == digest for name, digest in content.items())
    except (OSError, ValueError, AttributeError):
        return False


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _make_at(place: Path, apart: Path, make: Callable[[Path], None]) -> None:
    """Makes an entry in a temporary folder, and moves it into its place in one step."""
    built = Path(tempfile.mkdtemp(dir=apart))
    try:
        make(built)
        _write_content(built)
        _put(built, place)
    finally:
        shutil.rmtree(built, ignore_errors=True)


def _write_content(built: Path) -> None:
    """Lists the files of a folder with their hashes, and writes all of them to the disk."""
    files = sorted(path for path in built.rglob("*") if path.is_file())
    (built / _CONTENT).write_text(json.dumps({str(path.relative_to(built)): _digest(path) for path in files}))
    for path in (*files, built / _CONTENT):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _put(built: Path, place: Path) -> None:
    """Moves a folder into its place. If a whole one is there already, that one stays."""
    while True:
        try:
            built.rename(place)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if _is_whole(place):
            return
        # The folder there is damaged, and is moved away and removed.
        with contextlib.suppress(FileNotFoundError), tempfile.TemporaryDirectory(dir=built.parent) as aside:
            place.rename(Path(aside) / place.name)


@contextlib.contextmanager
def _others_waited_for(lock: Path, is_there: Callable[[], bool]) -> Iterator[None]:
    """A scope for one process at a time. Others enter when the entry is there, or after `_PATIENCE_SECONDS`."""
    # The file is never removed: a lock on a removed file excludes nobody.
    with lock.open("w") as file:
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                locks.lock(file, waits=False)
                break
            if is_there():
                break
            time.sleep(1 / _LOOKS_A_SECOND)
        yield


@functools.cache
def _own_folder() -> Path:
    made = Path(tempfile.mkdtemp(prefix="torchgraft-"))
    atexit.register(_remove_own, made, os.getpid())
    return made


def _remove_own(made: Path, process: int) -> None:
    # A forked process must not remove the folder of its parent.
    if os.getpid() == process:
        shutil.rmtree(made, ignore_errors=True)


def _keep_for_this_process(key: str, make: Callable[[Path], None], why: str) -> Path:
    place = _own_folder() / key
    if not _is_whole(place):
        warnings.warn(
            f"{why}, so compiled kernels are kept for this process only. Set TORCHGRAFT_CACHE to a folder of your own.",
            RuntimeWarning,
            stacklevel=3,
        )
        _make_at(place, _own_folder(), make)
    return place


def _tidy(root: Path) -> None:
    """Removes entries that were not used for long, and what processes left behind."""
    now = time.time()
    for kind, seconds in (("made", _UNUSED_SECONDS), ("making", _LEFT_SECONDS)):
        for each in root.glob(f"{kind}/*"):
            with contextlib.suppress(OSError):
                used = (each / _CONTENT if kind == "made" else each).stat().st_mtime
                if now - used > seconds:
                    each.unlink() if each.is_file() else shutil.rmtree(each)
    for each in root.glob("environments/*"):
        with contextlib.suppress(OSError):
            if each.name.startswith(_MAKING):
                _remove_where_older(each, _LEFT_SECONDS)
                continue
            with (root / "locks" / each.name).open("w") as lock:
                # A process that asks for it now has either marked it as used already, or waits and makes it again.
                locks.lock(lock, waits=False)
                _remove_where_older(each, _UNUSED_ENVIRONMENT_SECONDS)


def _remove_where_older(place: Path, seconds: float) -> None:
    """Removes a folder that was marked as used longer ago than that."""
    if time.time() - place.stat().st_mtime > seconds:
        # Renamed first, so that a half-removed folder is not taken for a whole one.
        with tempfile.TemporaryDirectory(prefix=_MAKING, dir=place.parent) as aside:
            place.rename(Path(aside) / place.name)
