"""Builds libraries of kernels that count which lines run, and runs checks and tests on them: `make coverage`.

A question is one run of `graft check`, or of a file of tests, on a library; the answer is its status and output. Each
library counts in files beside its objects, which gcovr reads. Libraries are built and asked several at a time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from subprocess import PIPE
from threading import Event, Lock

from torchgraft.building import find_tool
from torchgraft.checking.subject import find_subjects
from torchgraft.emulation import library, own
from torchgraft.finding.sources import folder_of
from torchgraft.sampling import Drawn

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/torchgraft"
# The files that answers depend on: kernels and samples.
SOURCES = (".h", ".cuh", ".cu", ".cpp", ".py")
WORK = ROOT / "build/coverage"
# Architectures to compile for, each with the multiprocessors of the device. The first one is asked all of PROPERTIES.
# The others differ in which kernels there are and in how work is divided, for which a call of each sample is enough. On
# a single multiprocessor blocks take one piece of work after another even for small samples.
DEVICES = ("90:16", "90:1", "90:84", "90:132", "80:16", "75:16")
# C++ kernels compiled for the least processor, on one thread, and for this machine's, on two, with further properties.
# On one thread bad input crashes the reference of a convolution's gradient, which is PyTorch's function.
KINDS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "cpu": ("OFF", 1, ()),
    "cpu-native": ("ON", 2, ("bad_input",)),
}
# The program that asks. It reads a question a line, and answers each with a status and a text. It forks for each
# question, because imports take longer than most questions, and a process writes its counts when it ends; a property
# that may end its process runs in that one. The first word of a question is the precision of lltm's products in
# float32, which torchgraft/kernels/precision.py sets on a GPU. An interrupt ends the question, which then writes its
# counts.
ASKED = """
import json, os, signal, sys, tempfile
from torchgraft import native
from torchgraft.checking import workers
from torchgraft.cli import main
workers._is_worker = True
signal.signal(signal.SIGINT, signal.SIG_IGN)
for question in sys.stdin:
    with tempfile.TemporaryFile("w+") as said:
        if child := os.fork():
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            said.seek(0)
            print(json.dumps([status, said.read()]), flush=True)
            continue
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        products, *sys.argv = json.loads(question)
        if products:
            native.libraries_of("torchgraft", "cpu")[0].function("torchgraft_set_products")(int(products))
        if sys.argv[0] == "pytest":
            import pytest
            sys.exit(pytest.console_main())
        main()
"""
PROPERTIES = ("value", "sizes", "empty", "non_finite", "layouts")
PROPERTIES_ELSEWHERE = ("value",)
# Properties that are asked of the chosen kernel only: under autocast weights have another dtype than images, and other
# functions compute gradients of gradients.
PROPERTIES_UNFORCED = ("autocast", "gradient", "second_gradient")
# Samples that a quick check on a CPU leaves out, each with the kernel and the property that it is there for.
SAMPLES = {
    "lltm_grads": (
        ("steps_backward", "value", "step by step, more units than a block has threads for"),
        ("steps_backward_in_parts", "value", "step by step, more units than a block has threads for"),
    ),
    "shift_input_grad": (("channels_last", "non_finite", "whole along x alone, nhwc"),),
}
# Tests that ask an operator for what no property asks: errors of PyTorch's own operators, sizes that no memory holds,
# and strides of which PyTorch takes 32 bits.
TESTS = {
    "causal_conv1d": ("test_causal_conv1d.py",),
    "depthwise_conv2d": (*(f"test_depthwise_conv{rank}d.py" for rank in (1, 2, 3)), "test_recorded.py"),
    "lltm": ("test_lltm.py",),
    "shift": ("test_shift.py",),
}
# Operators whose tests expect that the contents of an index are looked at, as they are on a CPU alone.
OF_CPU = ("causal_conv1d",)
# The kernels between which each operator of torchgraft chooses in a library.
LIST_KERNELS = """
import json
from torchgraft.checking.kernels import listed_kernels
from torchgraft.checking.subject import find_subjects
print(json.dumps({each.name: listed_kernels(each.operator, "cpu") for each in find_subjects([])}))
"""
# How long what is being asked may take to end, in seconds, once nothing more is asked.
PATIENCE = 30.0


@dataclass(frozen=True, eq=False)
class Library:
    """A library that counts what runs of the sources of an operator's folder.

    Attributes:
        place: where it runs: one of DEVICES or KINDS.
        folder: of the operators.
        objects: the folder of what the sources were compiled to.
        variables: of a process that asks it.
    """

    place: str
    folder: Path
    objects: Path
    variables: dict[str, str]

    def kind(self) -> str:
        """The architecture or the kind of processor that it was compiled for."""
        return self.place.partition(":")[0]

    def questions(self) -> Iterator[list[str]]:
        """The questions: a precision of products or "", an operator, options of its check; or pytest and a file."""
        emulated = self.place in DEVICES
        elsewhere = emulated and self.place != DEVICES[0]
        properties = PROPERTIES_ELSEWHERE if elsewhere else (*PROPERTIES, *KINDS.get(self.place, ("", 0, ()))[2])
        places = ("cpu-native",) if self.folder.name in OF_CPU else (DEVICES[0], "cpu-native")
        for name in TESTS.get(self.folder.name, ()) if self.place in places else ():
            yield ["", "pytest", f"tests/{name}"]
        kernels = self._kernels() if emulated else {}
        for operator in (each.name for each in own.find_operators(self.folder, "cuda" if emulated else "cpu")):
            for kernel in kernels.get(operator, ()):
                yield ["", operator, "--kernel", kernel, *_asked(*properties)]
            for name in properties if elsewhere else (*properties, *PROPERTIES_UNFORCED):
                yield ["", operator, *_asked(name)]
            if emulated and self.folder.name == "lltm":
                yield ["1", operator, *_asked("value")]
            for sample in _held_by_tf32(operator) if emulated else ():
                yield ["2", operator, "--sample", sample, *_asked("value")]
            for kernel, name, sample in SAMPLES.get(operator, ()) if emulated and not elsewhere else ():
                yield ["", operator, "--kernel", kernel, "--sample", sample, *_asked(name)]

    def _kernels(self) -> dict[str, list[str]]:
        variables = {**os.environ, **self.variables}
        listed = subprocess.run([sys.executable, "-c", LIST_KERNELS], env=variables, check=True, stdout=PIPE)
        return dict(json.loads(listed.stdout))


def _held_by_tf32(operator: str) -> list[str]:
    """The samples that permit tf32 and whose numbers tf32 holds exactly.

    The results of other samples, if products are computed in tf32, are as far from the exact result as tf32 is.
    """
    [subject] = find_subjects([operator])
    return [
        sample.name
        for sample in subject.samples.table
        if sample.tf32 and all(each.rounded for each in sample.arguments if isinstance(each, Drawn))
    ]


class Answered:
    """The questions that were answered about an operator, for the sources as they are: lines of a file."""

    def __init__(self, folder: Path) -> None:
        self.path = WORK / f"{folder.name}.answered"
        served = (each for device in ("cpu", "cuda") for each in own.find_operators(folder, device))
        sources = [*_sources(folder), *_sources(PACKAGE / "include"), *_sources(PACKAGE / "emulation")]
        sources += sorted({folder_of(each) / "samples.py" for each in served} - {*sources})
        sources += [ROOT / "tests" / name for name in TESTS.get(folder.name, ())]
        asked = PROPERTIES, PROPERTIES_ELSEWHERE, PROPERTIES_UNFORCED, SAMPLES, KINDS
        now = sha256(b"".join(path.read_bytes() for path in sources) + repr(asked).encode()).hexdigest()
        known = self.path.read_text().splitlines() if self.path.is_file() else []
        fresh = known[:1] == [now]
        self.lines = set(known[1:]) if fresh else set()
        if not fresh:
            self.path.write_text(f"{now}\n")
            for report in WORK.glob(f"{folder.name}-*.json"):
                report.unlink()

    def add(self, line: str) -> None:
        """Notes that something was answered."""
        with self.path.open("a") as file:
            file.write(f"{line}\n")
        self.lines.add(line)

    def places(self) -> list[str]:
        """The places where everything was asked."""
        return [each for each in (*DEVICES, *KINDS) if f"all of {each}" in self.lines]


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in SOURCES)


def _of_emulated(device: str, folder: Path, compilers: int) -> Library:
    architecture, _, count = device.partition(":")
    work = ROOT / "build/emulation" / f"{architecture}-coverage"
    built = library.build(
        own.NAMESPACE,
        own.sources_in([folder]),
        work,
        architecture=int(architecture),
        sanitizer="coverage",
        workers=compilers,
    )
    # Operators share a folder of objects.
    [counted] = (path for path in (work / "ninja").rglob(f"sources/operators/{folder.name}") if path.is_dir())
    return Library(device, folder, counted, library.environment(built, own.NAMESPACE, multiprocessors=int(count)))


def _of_cpu(kind: str, folder: Path, compilers: int) -> Library:
    objects = WORK / kind
    native, threads, _ = KINDS[kind]
    defined = ["-DTORCHGRAFT_SANITIZER=coverage", "-DTORCHGRAFT_CUDA=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
    defined.append(f"-DTORCHGRAFT_NATIVE={native}")
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    configure = [cmake, "-S", str(ROOT), "-B", str(objects), "-G", "Ninja", "-Wno-author", *defined]
    subprocess.run([*configure, f"-DCMAKE_MAKE_PROGRAM={ninja}"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([cmake, "--build", str(objects), "--parallel", str(compilers)], check=True, stdout=sys.stderr)
    # A thread that waits leaves its core to other checks.
    variables = {
        "TORCHGRAFT_LIBRARIES": str(objects),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
    }
    # A folder without C++ kernels has no objects.
    counted = next((path for path in objects.rglob(f"operators/{folder.name}") if path.is_dir()), WORK / folder.name)
    return Library(kind, folder, counted, variables)


def _asked(*properties: str) -> tuple[str, ...]:
    return tuple(word for name in properties for word in ("--property", name))


def ask_all(
    answered: dict[Path, Answered], places: Sequence[str], jobs: int, end: float | None
) -> dict[Library, list[list[str]]]:
    """Builds libraries, and asks them what they were not asked yet, as they get ready, one after the other.

    Args:
        answered: by the folder of an operator.
        places: that are asked.
        jobs: how many questions are asked at a time.
        end: when, of time.monotonic, no more is asked.

    Returns:
        For each library that had not been asked everything: all of its questions.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    for place in places:
        kinds[place.partition(":")[0]].append(place)
    compilers = -(-2 * jobs // len(kinds))
    questions = dict[Library, list[list[str]]]()

    def make(kind: str) -> list[tuple[Library, list[str]]]:
        """Libraries of one architecture, each with a question that it was not asked yet."""
        for folder, known in answered.items():
            left = [place for place in kinds[kind] if place not in known.places()]
            library_of = _of_cpu if kind in KINDS else _of_emulated
            made = [library_of(place, folder, compilers) for place in left]
            # Places of one architecture count in the same objects, which a source compiled anew starts again.
            if made and not any(line.partition(" ")[0].partition(":")[0] == kind for line in known.lines):
                for counted in made[0].objects.rglob("*.gcda"):
                    counted.unlink()
            questions.update((each, [*each.questions()]) for each in made)
        # All folders are asked about the first place before the next place.
        own = sorted((each for each in questions if each.kind() == kind), key=lambda each: places.index(each.place))
        of_kind = [(each, question) for each in own for question in questions[each]]
        return [each for each in of_kind if answer(*each) not in answered[each[0].folder].lines]

    with ThreadPoolExecutor(min(jobs, len(kinds))) as makers:
        making = [makers.submit(make, kind) for kind in kinds]
        _Asking((each for made in making for each in made.result()), answered, end).run(jobs)
    return questions


def answer(library: Library, question: list[str]) -> str:
    """The line that says that a question was answered."""
    return " ".join([library.place, *question])


@dataclass
class _Asking:
    """Asks libraries questions, several at a time.

    Attributes:
        waiting: pairs of a library and a question to it; a pair may take a while, as the library is built first.
        answered: by the folder of an operator.
        end: when, of time.monotonic, no more is asked.
    """

    waiting: Iterator[tuple[Library, list[str]]]
    answered: dict[Path, Answered]
    end: float | None
    _turns: Lock = field(default_factory=Lock)
    _writes: Lock = field(default_factory=Lock)
    _all_asked: Event = field(default_factory=Event)
    _asked: set[subprocess.Popen[str]] = field(default_factory=set)

    def run(self, jobs: int) -> None:
        """Returns once all was asked, or time is over."""
        with ThreadPoolExecutor(jobs + 1) as pool:
            asking = [pool.submit(self._ask) for _ in range(jobs)]
            ending = pool.submit(self._end_in_time)
            try:
                for each in asking:
                    each.result()
            finally:
                self._all_asked.set()
            ending.result()

    def _is_over(self) -> bool:
        return self.end is not None and time.monotonic() > self.end

    def _end_in_time(self) -> None:
        """Interrupts what is being asked when time is over, and ends what does not heed that."""
        if self.end is None or self._all_asked.wait(max(self.end - time.monotonic(), 0)):
            return
        for told in (signal.SIGINT, signal.SIGKILL):
            with self._writes:
                for each in self._asked:
                    os.killpg(each.pid, told)
            if self._all_asked.wait(PATIENCE):
                return

    def _ask(self) -> None:
        library, asked = None, None
        try:
            while not self._is_over():
                with self._turns:
                    following, question = next(self.waiting, (None, []))
                if following is None or self._is_over():
                    return
                if asked is None or following is not library:
                    self._finish(asked)
                    library, asked = following, self._start(following)
                self._ask_one(library, asked, question)
        finally:
            self._finish(asked)

    def _start(self, library: Library) -> subprocess.Popen[str]:
        """A process of its own, each of whose questions writes what it counted as it ends."""
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **library.variables}
        command = [sys.executable, "-c", ASKED]
        asked = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=variables, start_new_session=True)
        with self._writes:
            self._asked.add(asked)
        return asked

    def _finish(self, asked: subprocess.Popen[str] | None) -> None:
        if asked is None:
            return
        with self._writes:
            self._asked.discard(asked)
        assert asked.stdin
        with asked:
            asked.stdin.close()

    def _ask_one(self, library: Library, asked: subprocess.Popen[str], question: list[str]) -> None:
        products, asks, *options = question
        check = ["graft", "check", asks, "--device", "cpu", "--quick", "--workers", "0", *options]
        # Tests that need torchgraft without its libraries are left out: here there is one.
        tests = ["pytest", "-q", "-p", "no:cacheprovider", "-k", "not without_libraries", *options]
        assert asked.stdin
        assert asked.stdout
        print(json.dumps([products, *(tests if asks == "pytest" else check)]), file=asked.stdin, flush=True)
        line = asked.stdout.readline()
        # An interrupted process ends without an answer. Its question does not count as answered, and is asked again.
        if self._is_over():
            return
        status, said = json.loads(line)
        with self._writes:
            if status:
                print(f"{answer(library, question)} does not hold:\n{said}", file=sys.stderr)
            self.answered[library.folder].add(answer(library, question))


def report(objects: Path, path: Path) -> None:
    """Writes what objects counted, as JSON of gcovr's, with what a file has of it already."""
    if not any(objects.rglob("*.gcda")):
        return
    # Objects that wrote no counts belong to sources that were removed.
    for compiled in objects.rglob("*.gcno"):
        if not compiled.with_suffix(".gcda").is_file():
            compiled.unlink()
    before = path.with_suffix(".before")
    if path.is_file():
        path.replace(before)
    new = path.with_suffix(".new") if before.is_file() else path
    # Lines of kernels do run 2**32 times.
    options = ["--exclude-throw-branches", "--gcov-suspicious-hits-threshold", "0", "-j", "2"]
    gcovr("--object-directory", str(objects), str(objects), *options, "--json", str(new))
    if before.is_file():
        gcovr("--add-tracefile", str(before), "--add-tracefile", str(new), "--json", str(path))
        new.unlink()
        before.unlink()


def gcovr(*arguments: str) -> None:
    """Runs gcovr on the sources of torchgraft."""
    command = [sys.executable, "-m", "gcovr", "--root", str(ROOT), "--filter", "src/torchgraft/"]
    # Of some functions there is one for each device, on other lines.
    command += ["--merge-mode-functions", "separate"]
    subprocess.run([*command, *arguments], check=True, cwd=ROOT)
