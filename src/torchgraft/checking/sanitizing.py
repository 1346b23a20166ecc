"""`graft check --sanitize`: the properties that call kernels, once more, with a sanitizer watching the kernels.

On CPU the operator's sources are built anew, instrumented, and run in processes into which the sanitizer's runtime was
loaded first; the first report ends the process, so that it is laid to the job and sample that caused it. On CUDA the
library is the one that is installed, and compute-sanitizer watches one process that runs job after job.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from torchgraft import native
from torchgraft.building import BuildError, MissingToolError, build_once
from torchgraft.building.compile import Sanitizer
from torchgraft.checking import serial
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.result import DIED, Failure, Result
from torchgraft.checking.running import Job, run_jobs
from torchgraft.operator import Operator

# What a kernel is made of, beside the compiler.
_SOURCE_SUFFIXES = (".cpp", ".h", ".hpp", ".inl", ".cmake")
# Of one folder, for a person who goes to and fro between versions.
_KEPT_BUILDS = 4

OnStart = Callable[[Job], None]
OnResult = Callable[[Job, Result], None]

# Of a sanitizer's report: what happened, where, and what is known of the memory.
_REPORT_LINES = 6
# Of a stack: how many of its places in the operator's own sources.
_FRAMES = 2
_ACCESS = re.compile(
    r"(?:Previous )?(?:atomic )?(?:read|write) of size .*|\S+ is located .*|Location is .*", re.IGNORECASE
)


@dataclass(frozen=True)
class _CpuTool:
    """A sanitizer for code on the CPU.

    Attributes:
        sanitizer: as `building.build` takes it.
        runtime: the library that must be loaded before everything else.
        environment: how it shall behave.
        report: how its reports begin.
    """

    sanitizer: Sanitizer
    runtime: str
    environment: dict[str, str]
    report: re.Pattern[str]


@dataclass(frozen=True)
class _CudaTool:
    """A tool of compute-sanitizer.

    Attributes:
        filtered: whether it watches our kernels only: under racecheck PyTorch's own would take hours. But initcheck
            must see every kernel, as one that it does not see leaves memory as if nobody had written it.
        products: of `serial.PRODUCTS`, what makes PyTorch's matrix products such as the tool takes; empty: nothing.
    """

    filtered: bool = True
    products: str = ""


CPU_TOOLS = {
    "address sanitizer": _CpuTool(
        "address",
        "libasan.so",
        {
            # Python and PyTorch keep memory until they end.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        re.compile(r"ERROR: AddressSanitizer|: runtime error: |Assertion '.*' failed"),
    ),
    "thread sanitizer": _CpuTool(
        "thread",
        "libtsan.so",
        # PyTorch, its OpenMP and Python are not instrumented: what they do tells nothing.
        {"TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1:report_signal_unsafe=0"},
        re.compile(r"(WARNING|ERROR): ThreadSanitizer"),
    ),
}
_CUDA_TOOLS = {
    "memcheck": _CudaTool(),
    "racecheck": _CudaTool(products="--products-in-float32"),
    "initcheck": _CudaTool(filtered=False, products="--products-filled"),
    "synccheck": _CudaTool(),
}
_ERROR_EXIT_CODE = 9
# Of reports in one process. Where PyTorch's own kernels are watched too, theirs must not use up the few of the default.
_PRINT_LIMIT = 10000
# How compute-sanitizer begins its lines, and what of them is no report.
_SAYS = "========= "
_NO_REPORT = re.compile(r"COMPUTE-SANITIZER|ERROR SUMMARY|\w+ SUMMARY|Target application|Saved host backtrace")


def sanitized(jobs: Sequence[Job]) -> list[Job]:
    """The jobs that are run again under sanitizers, each under every sanitizer of its device.

    Raises:
        LookupError: there are none among them.
    """
    again = [job for job in jobs if PROPERTIES[job.property_name].sanitized]
    if not again:
        names = ", ".join(name for name, each in PROPERTIES.items() if each.sanitized)
        raise LookupError(f"--sanitize runs only these properties, and --property names none of them: {names}")
    return [
        replace(job, under=under)
        for device, tools in (("cpu", CPU_TOOLS), ("cuda", _CUDA_TOOLS))
        for under in tools
        for job in again
        if torch.device(job.device).type == device
    ]


def run_sanitized(
    jobs: Sequence[Job],
    *,
    workers: int,
    on_start: OnStart,
    on_result: OnResult,
    on_step: Callable[[str], None],
) -> list[Result]:
    """Runs the jobs that `sanitized` gave, as `run_jobs` runs others.

    Args:
        jobs: each with its sanitizer in `under`.
        workers: how many processes at a time, at least one; a GPU is watched in one.
        on_start: see `run_jobs`.
        on_result: see `run_jobs`.
        on_step: told what is being done before jobs start.
    """
    groups: dict[tuple[str, Path], list[int]] = {}
    for number, job in enumerate(jobs):
        # All operators of a folder share a build; those of a namespace share a process of compute-sanitizer.
        shared = folder_of(job.operator) if job.under in CPU_TOOLS else Path(job.operator.namespace)
        groups.setdefault((job.under, shared), []).append(number)

    results: dict[int, Result] = {}
    for (under, _), numbers in groups.items():
        chosen = [jobs[number] for number in numbers]
        if under in CPU_TOOLS:
            on_step(f"building {folder_of(chosen[0].operator).name} for the {under}")
            found = _run_on_cpu(chosen, CPU_TOOLS[under], max(workers, 1), on_start, on_result)
        else:
            on_step(f"starting {under}")
            found = _run_on_cuda(chosen, _CUDA_TOOLS[under], on_start, on_result)
        results.update(zip(numbers, found, strict=True))
    return [results[number] for number in range(len(jobs))]


def folder_of(operator: Operator) -> Path:
    """Where an operator is declared; its kernels' sources lie there and below."""
    file = getattr(sys.modules.get(operator.module), "__file__", None)
    return Path(file).resolve().parent if file else Path.cwd()


def _left_out(jobs: Sequence[Job], reason: str, on_result: OnResult) -> list[Result]:
    results = [job.result("not applicable", 0.0, reason=reason) for job in jobs]
    for job, result in zip(jobs, results, strict=True):
        on_result(job, result)
    return results


# CPU


def _run_on_cpu(
    jobs: Sequence[Job], tool: _CpuTool, workers: int, on_start: OnStart, on_result: OnResult
) -> list[Result]:
    folder, namespace = folder_of(jobs[0].operator), jobs[0].operator.namespace
    sources = [path for path in sources_in(folder) if path.suffix == ".cpp"]
    if not sources:
        return _left_out(jobs, f"there are no sources of CPU kernels, *.cpp, in {folder}", on_result)
    try:
        preloaded = find_runtimes(tool)
        libraries = build_once(namespace, sources, sanitizer=tool.sanitizer)
    except MissingToolError as missing:
        return _left_out(jobs, str(missing), on_result)
    except (BuildError, OSError) as error:
        # One failure tells it all.
        failed = jobs[0].result("fail", 0.0, failure=Failure(str(error), reproduce=jobs[0].reproduce()))
        on_result(jobs[0], failed)
        return [failed, *_left_out(jobs[1:], "its kernels could not be built for this sanitizer", on_result)]

    ended: set[str] = set()

    def skip(job: Job) -> str:
        return "not run, as an earlier one ended its process" if job.operator.qualified_name in ended else ""

    def tell(job: Job, result: Result) -> None:
        if result.failure is not None and result.failure.message.startswith(DIED):
            ended.add(job.operator.qualified_name)
        on_result(job, _explained(result, tool, folder))

    environment = {**tool.environment, "LD_PRELOAD": preloaded, "TORCHGRAFT_LIBRARIES": str(libraries)}
    with _at_fixed_addresses():
        results = run_jobs(jobs, workers=workers, environment=environment, skip=skip, on_start=on_start, on_result=tell)
    return [_explained(result, tool, folder) for result in results]


def sources_in(folder: Path, suffixes: Sequence[str] = _SOURCE_SUFFIXES) -> list[Path]:
    """What kernels are made of in a folder and below, but not in those that a build or an environment was put into."""
    foreign = {mark.parent for name in ("CMakeCache.txt", "pyvenv.cfg") for mark in folder.rglob(name)}
    found = (path for path in folder.rglob("*") if path.suffix in suffixes)
    return sorted(path for path in found if foreign.isdisjoint(path.parents))


def find_runtimes(tool: _CpuTool) -> str:
    """What must be loaded before Python is, as LD_PRELOAD takes it."""
    compiler = os.environ.get("CXX", "c++")
    found = []
    # libstdc++ too: AddressSanitizer looks for the function that throws exceptions when it starts, and finds none in
    # Python; at the first exception it would end the process.
    for name in (tool.runtime, "libstdc++.so"):
        command = [*compiler.split(), f"-print-file-name={name}"]
        try:
            path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
        except (OSError, subprocess.CalledProcessError):
            raise MissingToolError("there is no C++ compiler: install g++") from None
        # A compiler that has no such file repeats the name.
        if not path.is_absolute():
            raise MissingToolError(f"{compiler} has no {name}: install GCC's sanitizers and build with CXX=g++")
        found.append(str(path.resolve()))
    return " ".join(found)


@contextmanager
def _at_fixed_addresses() -> Iterator[None]:
    """Has processes that are started here laid out in memory without chance.

    ThreadSanitizer keeps fixed ranges for itself, and where the kernel spreads addresses widely it finds them taken.
    """
    no_randomize, ask = 0x0040000, 0xFFFFFFFF
    personality = getattr(ctypes.CDLL(None), "personality", None)
    before = -1 if personality is None else personality(ctypes.c_ulong(ask))
    if personality is None or before == -1:
        yield
        return
    personality(ctypes.c_ulong(before | no_randomize))
    try:
        yield
    finally:
        personality(ctypes.c_ulong(before))


def _explained(result: Result, tool: _CpuTool, folder: Path) -> Result:
    """A result whose failure says what the sanitizer reported, where it reported something."""
    failure = result.failure
    if failure is None or tool.report.search(failure.traceback) is None:
        return result
    message, *others = _in_short(failure.traceback.splitlines(), tool, folder)
    at = failure.message.partition(", while at ")[2]
    message = f"{message}, while at {at}" if at else message
    return replace(result, failure=replace(failure, message=message, traceback="\n".join(others)))


def _in_short(lines: Sequence[str], tool: _CpuTool, folder: Path) -> list[str]:
    """A report without what differs from run to run: what happened, and where in the operator's own sources."""
    first = next(number for number, line in enumerate(lines) if tool.report.search(line))
    message = re.sub(r"^==\d+==|WARNING: |ERROR: | on (unknown )?address .*| \(pid=\d+\)", "", lines[first].strip())
    kept = [message.replace(f"{folder}{os.sep}", "")]
    frames = 0
    for line in lines[first + 1 :]:
        if line.startswith("SUMMARY") or len(kept) > _REPORT_LINES:
            break
        if frame := re.search(rf"#\d+ .*{re.escape(str(folder))}{os.sep}(\S+):(\d+)", line):
            frames += 1
            if frames <= _FRAMES:
                kept.append(f"  {frame[1]}:{frame[2]}: {_source_line(folder / frame[1], int(frame[2]))}")
        elif heading := _ACCESS.search(line):
            frames = 0
            access = re.sub(r"^0x[0-9a-f]+ is located", "the place is", heading[0])
            kept.append(re.sub(r"( at)? 0x[0-9a-f]+| \[.*", "", access))
    return kept


def _source_line(path: Path, number: int) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


# CUDA


def _run_on_cuda(jobs: Sequence[Job], tool: _CudaTool, on_start: OnStart, on_result: OnResult) -> list[Result]:
    name, namespace = jobs[0].under, jobs[0].operator.namespace
    program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if program is None:
        return _left_out(jobs, "compute-sanitizer is not installed: it comes with the CUDA toolkit", on_result)
    if reason := _why_not_watched(namespace):
        return _left_out(jobs, reason, on_result)

    command = [program, "--tool", name, "--error-exitcode", str(_ERROR_EXIT_CODE), "--show-backtrace", "no"]
    command += ["--print-limit", str(_PRINT_LIMIT)]
    if name == "memcheck":
        # Calls of the CUDA runtime that fail: PyTorch finds out so what a device can do.
        command += ["--report-api-errors", "no"]
    if tool.filtered:
        command += ["--kernel-name", f"kns={namespace}"]
    # Every tensor an allocation: else one that is written past its end is followed by more of PyTorch's own memory.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONWARNINGS": "ignore"}
    watched = _Watched(jobs, tool, on_start, on_result)
    with tempfile.NamedTemporaryFile(prefix="graft-check-") as file:
        file.write(serial.encode(jobs))
        file.flush()
        command += [sys.executable, "-m", serial.__name__, file.name]
        if tool.products:
            command.append(tool.products)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    watched.read(line.decode(errors="replace").rstrip("\n"))
            except KeyboardInterrupt:
                process.kill()
                raise
    return watched.end(process.returncode)


def _why_not_watched(namespace: str) -> str:
    """Why compute-sanitizer, which is told of kernels by their names, would overlook those of a namespace."""
    library = next(iter(native.libraries_of(namespace, "cuda")), None)
    if library is None or not library.loaded:
        return native.why_no_kernel(namespace, "cuda")
    names = re.findall(rb"_Z[A-Z][\w.$]+", library.path.read_bytes())
    if any(namespace.encode() in name for name in names):
        return ""
    return f"its CUDA kernels must be in a C++ namespace {namespace}, by which the tools recognize them"


class _Watched:
    """What a process says that runs under compute-sanitizer: the marks of its jobs, and reports between them."""

    def __init__(self, jobs: Sequence[Job], tool: _CudaTool, on_start: OnStart, on_result: OnResult) -> None:
        self._jobs, self._tool = jobs, tool
        self._on_start, self._on_result = on_start, on_result
        self._results: dict[int, Result] = {}
        self._at: int | None = None
        self._report: list[str] = []
        self._reports: list[list[str]] = []
        self._said: deque[str] = deque(maxlen=_REPORT_LINES)

    def read(self, line: str) -> None:
        """Takes in a line."""
        mark = serial.decode(line)
        if mark is None:
            self._said.append(line)
            if line.startswith(_SAYS):
                self._take(line.removeprefix(_SAYS))
            return
        number, result = mark
        if result is None:
            self._at = number
            self._on_start(self._jobs[number])
        else:
            self._finish(number, result)

    def _take(self, line: str) -> None:
        # Indented lines tell more about the one before.
        if line.startswith("    ") and self._report:
            self._report.append(line.strip())
        elif line.strip() and not _NO_REPORT.match(line.strip()):
            self._report = [line.strip()]
            self._reports.append(self._report)

    def _finish(self, number: int, result: Result) -> None:
        """Ends a job: with what was reported since the last one ended, or else with its own result."""
        ours = [
            report
            for report in self._reports
            if self._tool.filtered or any(f"{self._jobs[0].operator.namespace}::" in line for line in report)
        ]
        self._reports, self._report = [], []
        if ours:
            message, *others = ours[0][: _REPORT_LINES + 1]
            more = f" (the first of {len(ours)} reports)" if len(ours) > 1 else ""
            again = self._jobs[number].reproduce()
            failure = Failure(message + more, reproduce=again, traceback="\n".join(others))
            result = replace(result, status="fail", reason="", failure=failure)
        self._results[number] = result
        self._on_result(self._jobs[number], result)

    def end(self, code: int) -> list[Result]:
        """A result a job, also of those that were not run as the process had ended."""
        said = "\n".join(self._said)
        if self._at is None:
            reason = f"compute-sanitizer does not work here: {' '.join(said.split())}"
            return _left_out(self._jobs, reason, self._on_result)
        missing = [number for number in range(len(self._jobs)) if number not in self._results]
        for number in missing:
            job = self._jobs[number]
            if number == self._at:
                failure = Failure(f"the process ended with status {code}", reproduce=job.reproduce(), traceback=said)
                self._finish(number, job.result("fail", 0.0, failure=failure))
            else:
                self._finish(number, job.result("not applicable", 0.0, reason="the process had ended before"))
        results = [self._results[number] for number in range(len(self._jobs))]
        if code == _ERROR_EXIT_CODE and self._tool.filtered and all(each.status != "fail" for each in results):
            last = self._jobs[-1]
            failure = Failure(f"{last.under} found errors", reproduce=last.reproduce(), traceback=said)
            results[-1] = last.result("fail", results[-1].seconds, failure=failure)
        return results
