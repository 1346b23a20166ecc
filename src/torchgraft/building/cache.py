"""A cache of what was compiled: by the bytes that it is made of, for any number of processes at once.

What is made goes into a folder of its own first, and into its place in one step, so that whoever looks finds all of it
or nothing. A lock saves others the same work, and nothing but work depends on it. The cache is the user's own: nothing
is taken from where somebody else may write.
"""

import atexit
import contextlib
import errno
import fcntl
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

# The file in an entry that says what else is in it.
_CONTENT = "content.json"
# After which nobody waits for another process any longer, and makes it too.
_PATIENCE_SECONDS = 600.0
_LOOKS_A_SECOND = 20
# What nobody took for so long goes when something else is made, and what a process that died left behind.
# An environment weighs gigabytes.
_UNUSED_SECONDS, _UNUSED_ENVIRONMENT_SECONDS, _LEFT_SECONDS = 60 * 86400.0, 30 * 86400.0, 86400.0
# What an environment is called while it is made.
_MAKING = ".making-"


def folder() -> Path:
    """Where the cache lies: TORCHGRAFT_CACHE names it; else it is `torchgraft` in the user's folder of caches."""
    if own := os.environ.get("TORCHGRAFT_CACHE"):
        return Path(own).absolute()
    # Not Path.home(), which raises an error for a user whom the system does not know.
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    return (home if home.is_absolute() else Path(tempfile.gettempdir())) / "torchgraft"


def find(key: str) -> Path | None:
    """The folder of what was made for a key, where it is there, whole, and the user's own."""
    made = folder() / "made"
    return made / key if not _why_unsafe(made) and _is_whole(made / key) else None


def keep(key: str, make: Callable[[Path], None]) -> Path:
    """The folder of what was made for a key; made now where it is not there.

    Where the cache cannot be written, or others may write there, it is made for this process alone, with a warning.

    Args:
        key: a word for all that it is made of.
        make: fills a folder that is empty; what it raises is raised, and nothing is kept then.

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
    """A folder of the cache that may be changed, such as an environment of Python; made now where it is not there.

    It goes once nobody has asked for it for a month.

    Args:
        name: of the folder.
        make: makes it at a path; what it raises is raised, and nothing is kept then.

    Raises:
        OSError: the cache cannot be written.
    """
    root = folder()
    place = root / "environments" / name
    for each in (place.parent, root / "locks"):
        each.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (root / "locks" / name).open("w") as lock:
        # Others wait for as long as it takes to make; nobody removes it meanwhile.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if place.is_dir():
            os.utime(place)
            return place
        # Made aside and moved: what is stopped half way is not taken for whole.
        with tempfile.TemporaryDirectory(prefix=_MAKING, dir=place.parent) as aside:
            made = Path(aside, name)
            make(made)
            os.utime(made)
            made.rename(place)
    _tidy(root)
    return place


def why_unusable() -> str:
    """Why nothing can be kept, for a person to read; empty where the cache, made if need be, is as it must be."""
    root = folder()
    try:
        for each in ("made", "making", "locks"):
            (root / each).mkdir(mode=0o700, parents=True, exist_ok=True)
        # It may be there and not be writable.
        with tempfile.TemporaryDirectory(dir=root / "making"):
            return _why_unsafe(root / "made")
    except OSError as error:
        return f"{root} cannot be written: {error.strerror}"


def _why_unsafe(made: Path) -> str:
    """Why nothing is taken from a folder; empty where it is the user's own."""
    try:
        found = made.stat()
    except OSError as error:
        return f"{made}: {error.strerror}"
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
    """Makes an entry in a folder of its own, and puts it in its place in one step."""
    built = Path(tempfile.mkdtemp(dir=apart))
    try:
        make(built)
        _write_content(built)
        _put(built, place)
    finally:
        shutil.rmtree(built, ignore_errors=True)


def _write_content(built: Path) -> None:
    """Says what is in a folder, once all of it has reached the disk."""
    files = sorted(path for path in built.rglob("*") if path.is_file())
    (built / _CONTENT).write_text(json.dumps({str(path.relative_to(built)): _digest(path) for path in files}))
    for path in (*files, built / _CONTENT):
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _put(built: Path, place: Path) -> None:
    """Puts a folder in its place; where a whole one is there already, that stays."""
    while True:
        try:
            built.rename(place)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if _is_whole(place):
            return
        # Something broke it: it goes where what is left behind goes.
        with contextlib.suppress(FileNotFoundError), tempfile.TemporaryDirectory(dir=built.parent) as aside:
            place.rename(Path(aside) / place.name)


@contextlib.contextmanager
def _others_waited_for(lock: Path, is_there: Callable[[], bool]) -> Iterator[None]:
    """A scope that one process is in at a time; who waits goes in at the end of its patience, or once it is there."""
    # Never removed: who holds a lock on a file that is gone holds nothing.
    with lock.open("w") as file:
        end = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
    # A fork would take it away from its parent.
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
    """Removes what nobody has use for."""
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
                # Somebody who asks for it now marks it as used before this is looked at, or waits and makes it anew.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove_where_older(each, _UNUSED_ENVIRONMENT_SECONDS)


def _remove_where_older(place: Path, seconds: float) -> None:
    """Removes a folder that was marked as used longer ago than that."""
    if time.time() - place.stat().st_mtime > seconds:
        # Renamed first: what is half removed would be taken for whole.
        with tempfile.TemporaryDirectory(prefix=_MAKING, dir=place.parent) as aside:
            place.rename(Path(aside) / place.name)
