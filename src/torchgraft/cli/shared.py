"""Shared parts of the commands: the console, the names of operators and dtypes, and how files are written."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch
import typer
from rich.console import Console
from rich.table import Table as RichTable

from torchgraft.benchmarking import Table

if TYPE_CHECKING:
    from torchgraft.checking.subject import Subject

STANDARD_OUTPUT = Path("-")

# The exit status of a command that needs a package which is not installed. docs/api/commands.md lists every status.
MISSING_EXTRA = 3

_PIPED_WIDTH = 120


class Device(str, Enum):
    """The device on which to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def find_device(device: Device) -> torch.device:
    """The device that is meant; ends with one line where this machine has none of the kind."""
    available = torch.cuda.is_available()
    if device is Device.auto:
        return torch.device("cuda" if available else "cpu")
    if device is Device.cuda and not available:
        raise typer.BadParameter("PyTorch finds no CUDA device here", param_hint="--device")
    return torch.device(device.value)


def find_subjects(targets: Sequence[str], replay: Path | None = None) -> list[Subject]:
    """The operators that are named on the command line; says where a name could mean something else.

    Ends with what the compiler says where a package compiles kernels as it is imported, and they do not compile; and
    with one line where a file of the folder of captured calls is damaged.

    Raises:
        LookupError: there is no such operator, or it has no samples.
    """
    from torchgraft.building import BuildError
    from torchgraft.capturing.folder import CapturedFileError
    from torchgraft.checking import subject

    for target in targets:
        if doubt := subject.say_which_is_meant(target):
            typer.echo(doubt, err=True)
    try:
        if replay is not None:
            return subject.find_subjects(targets, replay=replay)
        return subject.find_subjects(targets)
    except (BuildError, CapturedFileError) as error:
        end_with(str(error))


def end_with(message: str, status: int = 2) -> NoReturn:
    """Ends with one line."""
    typer.echo(message, err=True)
    raise typer.Exit(status)


def find_dtypes(names: Sequence[str]) -> tuple[torch.dtype, ...]:
    """The dtypes of these names.

    Raises:
        LookupError: there is none of a name.
    """
    for name in names:
        if not isinstance(getattr(torch, name, None), torch.dtype):
            raise LookupError(f"there is no dtype {name!r}; write it like float32")
    return tuple(getattr(torch, name) for name in names)


def explain_missing(missing: ModuleNotFoundError, extra: str) -> None:
    """Ends with one line, and with a status of its own, where a package is missing that an extra brings."""
    package = (missing.name or "").partition(".")[0]
    if package in ("sklearn", "matplotlib", "hypothesis", "jinja2", "tree_sitter", "tree_sitter_cpp"):
        end_with(f"{package} is not installed: run pip install 'torchgraft[{extra}]'", MISSING_EXTRA)


def make_console(*files: Path | None) -> Console:
    """Makes the console for a person: on standard error if standard output is for a machine."""
    console = Console(stderr=STANDARD_OUTPUT in files, highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


def interrupt_when_told_to_end() -> None:
    """Has what ends the process raise a KeyboardInterrupt: a long command shows and writes what it has.

    That is `timeout`, and a terminal that is closed, unless the command is to go on without one, as under `nohup`.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Windows has no such signal.
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def print_table(console: Console, table: Table) -> None:
    """Prints a table of figures."""
    name, *figures = table.header
    shown = RichTable(name, title=table.title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for figure in figures:
        shown.add_column(figure, justify="right")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    for note in table.notes:
        console.print(note, style="dim", markup=False)


def prepare_files(*files: tuple[str, Path | None]) -> None:
    """Asks whether files can be written, before the work whose results they are to hold; makes missing folders.

    Ends with status 2 and one line where a file cannot be written, or where two of them are the same.

    Args:
        files: the option that names each file, and the file; None for one that nobody wants.
    """
    seen: dict[str, str] = {}
    for option, path in files:
        if path is None:
            continue
        same = "-" if path == STANDARD_OUTPUT else os.path.realpath(path)
        if same in seen and not _is_special(path):
            what = "standard output" if path == STANDARD_OUTPUT else str(path)
            end_with(f"{seen[same]} and {option} both name {what}: give one of them another file")
        seen[same] = option
        try:
            _try_to_write(path)
        except OSError as error:
            end_with(f"{option}: cannot write {path}: {_reason(error)}")


def prepare_folder(option: str, folder: Path, advice: str) -> None:
    """Asks, as `prepare_files` does, whether files can be written to a folder.

    Args:
        option: what needs the folder.
        folder: made where it is missing.
        advice: how another folder is chosen.
    """
    try:
        _try_to_write(folder / "a file")
    except OSError as error:
        end_with(f"{option}: cannot write to {folder}: {_reason(error)}; {advice}")


def _try_to_write(path: Path) -> None:
    if path == STANDARD_OUTPUT:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if not _is_special(path):
        try:
            with _beside(path) as temporary:
                temporary.touch(exist_ok=False)
        except OSError as error:
            if not _may_write_in_place(error, path):
                raise


def write_files(*files: tuple[Path | None, Callable[[], str | bytes]]) -> None:
    """Writes each file whole or not at all: beside its place first, and then moved there.

    Where one cannot be written, one line says so, the others are written all the same, and the command ends with
    status 2.

    Args:
        files: where each goes (`-`: to standard output; None: nowhere), and what makes its content. The first is
            written before the content of the second is made.
    """
    failed = False
    for path, make in files:
        if path is None:
            continue
        content = make()
        try:
            _write(path, content.encode() if isinstance(content, str) else content)
        except OSError as error:
            failed = True
            place = "standard output" if path == STANDARD_OUTPUT else path
            typer.echo(f"could not write {place}: {_reason(error)}", err=True)
    if failed:
        raise typer.Exit(2)


def _write(path: Path, content: bytes) -> None:
    if path == STANDARD_OUTPUT:
        try:
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        except OSError:
            # Python would try again to write the rest when it ends, and then complain as well.
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise
    elif _is_special(path):
        path.write_bytes(content)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with _beside(path) as temporary:
                temporary.write_bytes(content)
                if path.exists():
                    shutil.copymode(path, temporary)
                # Where the place is a link, what it points to is replaced, and not the link.
                os.replace(temporary, os.path.realpath(path))
        except OSError as error:
            if not _may_write_in_place(error, path):
                raise
            path.write_bytes(content)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """The name of a file in the folder of another, for as long as it takes to write it; removed if it is left over."""
    temporary = Path(os.path.realpath(path)).parent / f".graft-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    """Whether a path is a pipe or a device, or what a process has open: such is written to, and never replaced."""
    is_open_file = path.is_symlink() and path.absolute().parts[1] in ("dev", "proc")
    return path.exists() and (is_open_file or not (path.is_file() or path.is_dir()))


def _may_write_in_place(error: OSError, path: Path) -> bool:
    """Whether only the folder refuses: one that is read-only may hold a file that is not, as in a container."""
    refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY)
    return refused and path.is_file() and os.access(path, os.W_OK)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
