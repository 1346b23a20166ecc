"""`graft watch`: at each save it builds kernels and asks what failed last, and then all that is quick.

Each round is a process of its own, so that what is saved may be as wrong as it likes: it ends a round, not the watch.
That process is started before anything is saved, and imports PyTorch while nobody waits.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from torchgraft import building
from torchgraft.finding.places import declaring_modules
from torchgraft.finding.sources import folder_of
from torchgraft.operator import Operator

_PACKAGE = Path(building.__file__).parents[1]
_SECONDS_BETWEEN_LOOKS = 0.1
# A check that is told to end shows what it has first.
_SECONDS_TO_END = 10
_COMPILED = (".cpp", ".cu")
_SUFFIXES = (".py", *_COMPILED, ".h", ".hpp", ".cuh", ".inl", ".cmake")
# Folders with these hold what was built or installed.
_FOREIGN = {"CMakeCache.txt", "pyvenv.cfg"}
# How a source says which namespace its kernels belong to.
_NAMESPACE = re.compile(r"\b(?:TORCHGRAFT_KERNEL(?:_BESIDE)?|(?:STABLE_)?TORCH_LIBRARY_IMPL)\(\s*(\w+)\s*,")
_IMPORTS_BUILDING = re.compile(r"^\s*(?:from|import)\b.*\bbuilding\b", re.MULTILINE)


# Imports what a check needs and nothing that it asks about, and then runs the command whose words it is told. Where the
# watch ends before, it ends too.
_CHECK = """
import json, sys
import hypothesis, torch
if "prepare" in sys.argv:
    import torchgraft.cli
    from torchgraft.checking.run import prepare
    prepare()
if line := sys.stdin.readline():
    sys.argv = json.loads(line)
    from torchgraft.cli import main
    main()
"""


class Files:
    """The files of folders that an operator is made of, and which of them were saved since somebody last asked."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = list(dict.fromkeys(folders))
        self._known: dict[Path, tuple[tuple[int, int], bytes]] = {}

    def changed(self) -> list[Path]:
        """The files that are new, gone, or have another content than when this was last asked."""
        found: dict[Path, tuple[tuple[int, int], bytes]] = {}
        for path in (each for folder in self._folders for each in files_in(folder)):
            # Some editors put a new file in the place of the old one, and for a moment there is none.
            with suppress(FileNotFoundError):
                status = path.stat()
                mark = status.st_mtime_ns, status.st_size
                known = self._known.get(path)
                found[path] = (
                    known if known and known[0] == mark else (mark, hashlib.sha256(path.read_bytes()).digest())
                )
        before, self._known = self._known, found
        paths = sorted({*before, *found})
        return [path for path in paths if before.get(path, (0, b""))[1] != found.get(path, (0, b""))[1]]


def files_in(folder: Path) -> Iterator[Path]:
    """Sources and Python files of a folder and below, but not what is hidden, built or installed there."""
    for root, folders, names in os.walk(folder):
        if not _FOREIGN.isdisjoint(names):
            folders.clear()
            continue
        folders[:] = [each for each in folders if not each.startswith((".", "__pycache__"))]
        yield from (Path(root, name) for name in names if name.endswith(_SUFFIXES))


def sources_in(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """The sources to compile in folders, by namespace, without packages that compile theirs when they are imported.

    A source that names no namespace goes into each library of its folder.
    """
    found: dict[str, list[Path]] = {}
    for folder in folders:
        modules = (path for path in declaring_modules(folder) if path.is_file())
        if any(_IMPORTS_BUILDING.search(path.read_text(errors="replace")) for path in modules):
            continue
        sources = sorted(path for path in files_in(folder) if path.suffix in _COMPILED)
        named = {path: set(_NAMESPACE.findall(path.read_text(errors="replace"))) for path in sources}
        for namespace in sorted(set().union(*named.values())):
            mine = [path for path in sources if namespace in (named[path] or {namespace})]
            found.setdefault(namespace, []).extend(mine)
    return found


def find_folder(target: str) -> Path:
    """The folder of what a person names as for `graft check`; nothing is imported, as it may be broken.

    Raises:
        LookupError: there is none.
    """
    if (operator := Operator.registered.get(f"torchgraft::{target}")) is not None:
        return folder_of(operator)
    before = target.rpartition(":")[0]
    for path in (Path(name).resolve() for name in (target, before) if name):
        if path.is_dir() or (path.suffix == ".py" and path.is_file()):
            return path if path.is_dir() else path.parent
    top, *rest = before.split(".")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    spec = importlib.util.find_spec(top) if top.isidentifier() else None
    if spec is None or not spec.has_location:
        raise LookupError(f"nothing to watch: there is no operator, folder, file or module {target!r}")
    place = Path(spec.origin or "").resolve().parent.joinpath(*rest)
    return place if place.is_dir() else place.parent


class FileWatch:
    """One person's watch over some operators.

    Args:
        targets: as `graft check` takes them.
        device: as its option takes it.
        properties: that are asked; none: all that are quick.
        console: for what is said here; what a check says goes to standard output.

    Raises:
        LookupError: a target names nothing, or there is nothing to watch.
    """

    def __init__(self, targets: Sequence[str], device: str, properties: Sequence[str], console: Console) -> None:
        self._targets, self._device, self._properties = targets, device, properties
        self._console = console
        self._folders = list(dict.fromkeys(map(find_folder, targets)))
        self._files = Files(self._folders)
        # A process that waits to be told what to check.
        self._waiting: subprocess.Popen[str] | None = None
        self._is_prepared = False
        # The properties that did not hold when they were last asked.
        self._failed: list[str] = []
        if not (watched := self._files.changed()):
            raise LookupError(f"nothing to watch: {self._folders[0]} holds neither kernel sources nor Python files")
        places = ", ".join(map(str, self._folders))
        files = "one file" if len(watched) == 1 else f"{len(watched)} files"
        self._said = f"watching {files} in {places}; press Ctrl-C to stop"

    def run(self) -> NoReturn:
        """Goes on until somebody interrupts it."""
        with tempfile.TemporaryDirectory(prefix="graft-watch-") as folder, ExitStack() as at_the_end:
            at_the_end.callback(self._end_waiting)
            while True:
                if self._console.is_terminal:
                    self._console.clear()
                self._console.print(self._said, style="dim", markup=False, soft_wrap=True)
                changed = self._round(Path(folder))
                if not changed:
                    self._console.print("waiting for a file to be saved", style="dim")
                    self._waiting = self._waiting or self._start(Path(folder))
                while not changed:
                    time.sleep(_SECONDS_BETWEEN_LOOKS)
                    changed = self._files.changed()
                # An editor may save several files at once.
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                names = dict.fromkeys(path.name for path in (*changed, *self._files.changed()))
                self._said = f"saved: {', '.join(names)}"

    def _round(self, folder: Path) -> list[Path]:
        """Builds, asks what failed last, and then all; ends where something is wrong or files are saved: these."""
        try:
            with self._console.status("building"):
                self._build(folder)
        except building.BuildError as error:
            self._console.print(str(error), style="red", markup=False, soft_wrap=True)
            return []
        if self._failed:
            self._console.print(f"failed the last time: {', '.join(self._failed)}", markup=False, soft_wrap=True)
            changed, holds = self._check(self._failed, folder)
            if changed or not holds:
                return changed
        return self._check(self._properties, folder)[0]

    def _build(self, folder: Path) -> None:
        """Builds what packages do not build themselves as they are imported, and puts it where checks look first."""
        for link in folder.glob("*.so"):
            link.unlink()
        for namespace, sources in sources_in(self._folders).items():
            cuda = building.can_build_cuda(sources)
            if cuda or any(source.suffix == ".cpp" for source in sources):
                # Apart from the author's own libraries, which may be made of more than these sources.
                for library in building.build_once(namespace, sources, cuda=cuda).glob("*.so"):
                    (folder / library.name).symlink_to(library)

    def _may_prepare(self) -> bool:
        """Whether torchgraft and a compiler may be imported before the operators are known."""
        # Our own operators are imported with torchgraft, once their kernels are built; Triton, which the compiler
        # imports, must be told first where its interpreter is to run kernels.
        return not any(folder.is_relative_to(_PACKAGE) for folder in self._folders) and not any(
            "triton" in path.read_text(errors="replace")
            for folder in self._folders
            for path in files_in(folder)
            if path.suffix == ".py"
        )

    def _start(self, folder: Path) -> subprocess.Popen[str]:
        """A process that imports what a check needs, and then waits to be told what to check."""
        self._is_prepared = self._may_prepare()
        return subprocess.Popen(
            [sys.executable, "-c", _CHECK, *(("prepare",) if self._is_prepared else ())],
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "TORCHGRAFT_LIBRARIES": str(folder)},
            # In a session of its own: Ctrl-C is for the watch, which ends the check.
            start_new_session=True,
        )

    def _take_waiting(self, folder: Path) -> subprocess.Popen[str]:
        if self._waiting is not None and (self._waiting.poll() is not None or self._is_prepared != self._may_prepare()):
            self._end_waiting()
        process, self._waiting = self._waiting, None
        return process or self._start(folder)

    def _end_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.kill()
            self._waiting.communicate()
            self._waiting = None

    def _check(self, properties: Sequence[str], folder: Path) -> tuple[list[Path], bool]:
        """Runs `graft check`: the files that were saved meanwhile, which end it; and whether every property holds."""
        report = folder / "report.json"
        report.unlink(missing_ok=True)
        words = ["graft", "check", *self._targets, "--device", self._device, "--quick", "--json", str(report)]
        words += [word for name in properties for word in ("--property", name)]
        with self._take_waiting(folder) as process:
            try:
                assert process.stdin is not None
                # Where it has died meanwhile, its end is what is told.
                with suppress(BrokenPipeError), process.stdin:
                    process.stdin.write(json.dumps(words))
                while not _has_ended(process, _SECONDS_BETWEEN_LOOKS):
                    if changed := self._files.changed():
                        return changed, False
            finally:
                process.terminate()
                if not _has_ended(process, _SECONDS_TO_END):
                    process.kill()
        if report.is_file():
            results = json.loads(report.read_text())["results"]
            self._failed = list(dict.fromkeys(each["property"] for each in results if each["status"] == "fail"))
        return [], process.returncode == 0


def _has_ended(process: subprocess.Popen[str], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
