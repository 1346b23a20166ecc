"""Kernels of the CPU under GCC's sanitizers.

The operator's sources are built anew, instrumented, and run in processes into which the sanitizer's runtime was loaded
first. The first report ends the process, so it belongs to the job and the sample that caused it.
"""

import ctypes
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torchgraft.building import BuildError, MissingToolError, build_once
from torchgraft.building.compile import Sanitizer
from torchgraft.checking.jobs import Job, OnResult, OnStart, leave_out
from torchgraft.checking.result import DIED, Failure, Result
from torchgraft.checking.sanitizers.reports import explain_report
from torchgraft.checking.workers import run_jobs
from torchgraft.finding.sources import kernel_folder_of, sources_in


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


CPU_TOOLS = {
    "address sanitizer": _CpuTool(
        "address",
        "libasan.so",
        {
            # Python and PyTorch keep memory until they end, which would be reported as leaks.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        },
        re.compile(r"ERROR: AddressSanitizer|: runtime error: |Assertion '.*' failed"),
    ),
    "thread sanitizer": _CpuTool(
        "thread",
        "libtsan.so",
        # PyTorch, its OpenMP and Python are not instrumented, so reports about them are false.
        {"TSAN_OPTIONS": "halt_on_error=1:ignore_noninstrumented_modules=1:report_signal_unsafe=0"},
        re.compile(r"(WARNING|ERROR): ThreadSanitizer"),
    ),
}


def run_on_cpu(
    jobs: Sequence[Job], tool: _CpuTool, workers: int, on_start: OnStart, on_result: OnResult
) -> list[Result]:
    """Builds the kernels of one folder for a sanitizer, and runs jobs with them.

    Args:
        jobs: of operators of that folder.
        tool: the sanitizer.
        workers: how many processes at a time.
        on_start: see `run_jobs`.
        on_result: see `run_jobs`.
    """
    folder, namespace = kernel_folder_of(jobs[0].operator, "cpu"), jobs[0].operator.namespace
    sources = [path for path in sources_in(folder) if path.suffix == ".cpp"]
    if not sources:
        return leave_out(jobs, f"there are no sources of CPU kernels, *.cpp, in {folder}", on_result)
    try:
        preloaded = find_runtimes(tool)
        libraries = build_once(namespace, sources, sanitizer=tool.sanitizer)
    except MissingToolError as missing:
        return leave_out(jobs, str(missing), on_result)
    except (BuildError, OSError) as error:
        # One failure is enough: all jobs would fail for the same reason.
        failed = jobs[0].result("fail", 0.0, failure=Failure(str(error), reproduce=jobs[0].reproduce()))
        on_result(jobs[0], failed)
        return [failed, *leave_out(jobs[1:], "its kernels could not be built for this sanitizer", on_result)]

    ended: set[str] = set()

    def skip(job: Job) -> str:
        return "not run, as an earlier one ended its process" if job.operator.qualified_name in ended else ""

    def tell(job: Job, result: Result) -> None:
        if result.failure is not None and result.failure.message.startswith(DIED):
            ended.add(job.operator.qualified_name)
        on_result(job, explain_report(result, tool.report, folder))

    environment = {**tool.environment, "LD_PRELOAD": preloaded, "TORCHGRAFT_LIBRARIES": str(libraries)}
    with _at_fixed_addresses():
        results = run_jobs(jobs, workers=workers, environment=environment, skip=skip, on_start=on_start, on_result=tell)
    return [explain_report(result, tool.report, folder) for result in results]


def find_runtimes(tool: _CpuTool) -> str:
    """Finds the libraries that must be loaded before Python is, as LD_PRELOAD takes them."""
    compiler = os.environ.get("CXX", "c++")
    found = []
    # libstdc++ must be loaded too: AddressSanitizer looks for the function that throws exceptions when it starts, finds
    # none in Python, and would end the process at the first exception.
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
    """A scope in which new processes have their memory at the same addresses each time.

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
