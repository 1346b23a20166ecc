"""The mutants of a folder of kernels: how they are built, and what is known of them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

from torchgraft.building import BuildError, build, cache
from torchgraft.checking.mutants.changes import Mutant, find_mutants, rewrite
from torchgraft.checking.sanitizers.cpu import CPU_TOOLS, find_runtimes
from torchgraft.finding.sources import folder_of, kernel_folder_of, sources_in
from torchgraft.operator import Operator

# The file beside an operator's declaration that lists mutants that compute the same as the original, and why.
EQUIVALENT = "equivalent_mutants.json"
_INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_MOST_BUILDS = 20
# The modules of this room that decide what is asked of a mutant.
_ASKING = ("ask", "errors", "known_calls", "library", "questions", "workers")

Status = Literal["killed", "survived", "equivalent", "not reached", "does not compile"]


class MutantError(Exception):
    """There is nothing to change, or the list of equivalent mutants is stale; the text says which."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a mutant.

    Attributes:
        how: how it was told apart: 'wrong', 'dies', 'sanitizer' or 'does not end'.
        by: the question that told it apart; or why it is equivalent.
    """

    mutant: Mutant
    status: Status
    how: str = ""
    by: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """The outcome as JSON has it."""
        line, changed = self.mutant.shown
        known = {name: value for name, value in asdict(self).items() if name != "mutant"}
        return {"file": self.mutant.file, "line": self.mutant.line, "kind": self.mutant.kind, **known} | {
            "original": line,
            "changed": changed,
        }


def _build(namespace: str, sources: Path, directory: Path, *, native: bool = False) -> Path:
    build(namespace, sources_in(sources), directory, sanitizer="address", native=native)
    return directory


@dataclass(frozen=True)
class Build:
    """One way to build and run mutants of a folder's kernels.

    Attributes:
        compile: compiles a folder, into another one, for a namespace; the directory of the library.
        environment: of the process that loads it.
        of_clones: whether it is other code only where sources are compiled for vectors of several widths.
    """

    compile: Callable[[str, Path, Path], Path]
    environment: Callable[[], Mapping[str, str]]
    of_clones: bool = False


@dataclass(frozen=True)
class MutantPlace:
    """The place where mutants of a folder's kernels are built and run.

    Attributes:
        name: of what is kept of them.
        suffix: of the sources; what these include goes with them.
        builds: what no sample tells apart in one is asked in the next; by the names of their folders.
        kinds: of mutants; empty: all.
    """

    name: str
    suffix: str
    builds: Mapping[str, Build]
    kinds: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        """The kind of device that the kernels are for."""
        return "cuda" if self.suffix == ".cu" else "cpu"


# New memory is filled with NaN, so that memory that a mutant leaves unwritten does not hold the original's results.
FILLED = ":max_malloc_fill_size=2147483647:malloc_fill_byte=255:quarantine_size_mb=8:malloc_context_size=0"


def _sanitizer_variables() -> dict[str, str]:
    tool = CPU_TOOLS["address sanitizer"]
    options = tool.environment
    return {**options, "ASAN_OPTIONS": options["ASAN_OPTIONS"] + FILLED, "LD_PRELOAD": find_runtimes(tool)}


# The first build is for any processor, the second for the widest vectors of this machine.
_CPU_BUILDS = {
    "any": Build(_build, _sanitizer_variables),
    "this": Build(partial(_build, native=True), _sanitizer_variables, of_clones=True),
}
ON_CPU = MutantPlace("cpu", ".cpp", _CPU_BUILDS)


@dataclass
class Folder:
    """A folder of kernels, the operators that they serve, and the mutants of these kernels."""

    path: Path
    place: MutantPlace
    operators: list[Operator]
    sources: dict[str, bytes] = field(init=False)
    mutants: list[Mutant] = field(init=False)

    def __post_init__(self) -> None:
        paths = sources_in(self.path, (*_SUFFIXES, ".cu", ".cuh"))
        self.all_sources = {str(path.relative_to(self.path)): path.read_bytes() for path in paths}
        self.sources = dict(self._compiled())
        self.left_out, self.equivalent = self._read_equivalent()
        self._digests = {file: hashlib.sha256(source) for file, source in self.sources.items()}
        self.mutants = [
            mutant
            for file, source in self.sources.items()
            if file not in self.left_out
            for mutant in find_mutants(file, source)
            if not self.place.kinds or mutant.kind in self.place.kinds
        ]
        at = hashlib.sha256(bytes(self.path)).hexdigest()[:8]
        self.work = cache.folder() / "mutants" / f"{self.path.name}-{at}-{self.place.name}"
        declaring = dict.fromkeys((self.path, *map(folder_of, self.operators)))
        scripts = [path for folder in declaring for path in sorted(folder.glob("*.py"))]
        scripts += [Path(__file__).with_name(f"{name}.py") for name in _ASKING]
        asked = b"".join(path.read_bytes() for path in scripts) + repr(len(self.builds)).encode()
        self._samples = hashlib.sha256(asked).hexdigest()[:16]

    @property
    def builds(self) -> dict[Path, Build]:
        """The builds of mutants, by the folder that holds them."""
        has_clones = any(b"TORCHGRAFT_VECTOR_CLONES(" in source for source in self.sources.values())
        is_wide = has_clones and platform.machine() == "x86_64"
        return {self.work / name: each for name, each in self.place.builds.items() if is_wide or not each.of_clones}

    def _compiled(self) -> Iterable[tuple[str, bytes]]:
        """Finds the sources of the place, and the files that they include by a name in quotes.

        A source that only tells which kernel a GPU would take is left out: no call runs it.
        """
        waiting = [
            file
            for file, source in self.all_sources.items()
            if file.endswith(self.place.suffix) and _PREDICTS not in source
        ]
        found: dict[str, None] = {}
        while waiting:
            file = waiting.pop()
            found[file] = None
            for name in _INCLUDE.findall(self.all_sources[file]):
                beside = os.path.normpath(os.path.join(os.path.dirname(file), name.decode()))
                waiting += [each for each in (beside, name.decode()) if each in self.all_sources and each not in found]
        return ((file, self.all_sources[file]) for file in sorted(found))

    def _read_equivalent(self) -> tuple[set[str], dict[tuple[str, str, str], str]]:
        """Reads the files in which every change computes the same, and single changes that do, with the reasons."""
        path = self.path / EQUIVALENT
        written = json.loads(path.read_text()) if path.is_file() else []
        # A file that both devices compile may be used by one of them alone.
        listed = [each for each in written if each.get("device", self.place.device) == self.place.device]
        whole = {each["file"] for each in listed if "original" not in each}
        return whole, {
            (each["file"], each["original"], each["changed"]): each["why"] for each in listed if "original" in each
        }

    def expect_current(self) -> None:
        """Raises MutantError if a change is listed as equivalent that cannot be made any more."""
        if self.place.kinds:
            return
        files = {mutant.file for mutant in self.mutants}
        known = {mutant.words for mutant in self.mutants}
        for file, original, changed in self.equivalent:
            if (file in files or file not in self.all_sources) and (file, original, changed) not in known:
                raise MutantError(
                    f"{self.path / EQUIVALENT}: {file} cannot be changed from `{original}` to `{changed}` any more;"
                    " correct the entry or remove it"
                )

    def key(self, mutant: Mutant) -> str:
        """The key of a mutant, which stays the same as long as its file does."""
        text = f"{mutant.file}:{mutant.start}:{mutant.end}:".encode() + mutant.after
        digest = self._digests[mutant.file].copy()
        digest.update(text)
        return digest.hexdigest()[:24]

    def known(self) -> dict[Mutant, Outcome]:
        """Reads the outcomes of earlier runs."""
        path = self.work / "outcomes.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        kept = {
            each["key"]: [each[name] for name in ("status", "how", "by", "seconds")]
            for each in lines
            if each["status"] in ("killed", "does not compile") or each["samples"] == self._samples
        }
        keys = ((mutant, self.key(mutant)) for mutant in self.mutants)
        return {mutant: self.judged(Outcome(mutant, *kept[key])) for mutant, key in keys if key in kept}

    def judged(self, outcome: Outcome) -> Outcome:
        """Marks the outcome of a listed mutant as equivalent, unless the mutant was told apart."""
        why = self.equivalent.get(outcome.mutant.words)
        if why and outcome.status in ("survived", "not reached"):
            return replace(outcome, status="equivalent", by=why)
        return outcome

    def expect_equivalent(self) -> None:
        """Raises MutantError if a listed mutant is told apart at every place where its words stand."""
        places = Counter(mutant.words for mutant in self.mutants)
        killed = Counter[tuple[str, str, str]]()
        for mutant, outcome in self.known().items():
            killed[mutant.words] += outcome.status == "killed"
            if mutant.words in self.equivalent and killed[mutant.words] == places[mutant.words]:
                raise MutantError(
                    f"{self.path / EQUIVALENT} lists a change of {mutant.file}:{mutant.line} that {outcome.by} detects:"
                    " remove the entry"
                )

    def keep(self, outcome: Outcome) -> None:
        """Writes the outcome of a mutant to a file, for later runs."""
        known = {"key": self.key(outcome.mutant), "samples": self._samples, **outcome.as_dict()}
        with (self.work / "outcomes.jsonl").open("a") as file:
            file.write(json.dumps(known) + "\n")

    def build(self, mutants: Mapping[int, Mutant], directory: Path) -> tuple[Path, list[int]]:
        """Compiles mutants into a library: its directory, and the numbers of those that the compiler refused.

        Args:
            mutants: by number.
            directory: of `builds`.
        """
        sources, refused = self.work / "sources" / self.path.name, list[int]()
        for _ in range(_MOST_BUILDS):
            for file, source in self.all_sources.items():
                own = {number: each for number, each in mutants.items() if each.file == file and number not in refused}
                text = rewrite(source, own, str(self.path / file)) if file in self.sources else source
                _write_if_new(sources / file, text)
            try:
                return self.builds[directory].compile(self.operators[0].namespace, sources, directory), refused
            except BuildError as error:
                blamed = self._blamed(str(error), mutants).difference(refused)
                if not blamed:
                    raise
                refused += blamed
        raise BuildError(f"{self.path}: the mutants do not compile")

    def _blamed(self, error: str, mutants: Mapping[int, Mutant]) -> set[int]:
        """Finds the mutants that a compiler refuses: those that it names, or else all on the lines that it names."""
        log = re.search(r"\(all of it: (.*)\)$", error)
        text = Path(log[1]).read_text() if log else error
        if named := re.findall(r"^mutants:(\d+):(?:\d+:)? +(?:error|.*required from)", text, re.MULTILINE):
            return {int(line) - 1 for line in named}
        lines = re.findall(rf"{re.escape(str(self.path))}/([^\s:]+):(\d+):(?:\d+:)? +(?:error|.*required from)", text)
        places = {(file, int(line)) for file, line in lines}
        return {number for number, each in mutants.items() if (each.file, each.line) in places}


_SUFFIXES = (".cpp", ".h", ".hpp", ".inl")
_PREDICTS = b"torchgraft/detail/predicted.h"


def _write_if_new(path: Path, content: bytes) -> None:
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def find_folders(operators: Sequence[Operator], place: MutantPlace = ON_CPU) -> list[Folder]:
    """Finds the folders of the kernels of operators, each with all operators whose kernels it holds.

    Args:
        operators: any of a folder stand for all of it.
        place: where mutants run.

    Raises:
        MutantError: nothing can be changed, or a list of equivalent mutants is stale.
    """
    # A folder is built for one namespace.
    namespaces = {operator.namespace for operator in operators}
    sharing: dict[Path, list[Operator]] = {}
    for operator in Operator.registered.values():
        if operator.namespace in namespaces:
            sharing.setdefault(kernel_folder_of(operator, place.device), []).append(operator)
    folders = []
    for path in dict.fromkeys(kernel_folder_of(operator, place.device) for operator in operators):
        folder = Folder(path, place, sharing[path])
        folder.expect_current()
        folders += [folder] if folder.mutants else []
    if not folders:
        names = ", ".join(operator.short_name for operator in operators)
        raise MutantError(f"{names}: there is nothing to change in the sources of kernels, *{place.suffix}")
    return folders


def random_mutants(folders: Sequence[Folder], count: int, seed: int) -> list[list[Mutant]]:
    """Chooses so many mutants, evenly over all files: one of each file in turn, for as long as it has any."""
    files: list[tuple[int, list[Mutant]]] = []
    for number, folder in enumerate(folders):
        for file in folder.sources:
            own = [mutant for mutant in folder.mutants if mutant.file == file]
            # The order of a file's mutants depends on the file alone, so outcomes of a larger run serve a smaller one.
            files.append((number, Random(f"{seed} {folder.path.name}/{file}").sample(own, len(own))))
    chosen: list[list[Mutant]] = [[] for _ in folders]
    left = count
    while left > 0 and any(own for _, own in files):
        for number, own in files:
            if own and left > 0:
                chosen[number].append(own.pop(0))
                left -= 1
    return chosen
