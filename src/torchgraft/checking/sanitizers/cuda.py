"""Kernels of a GPU under the tools of compute-sanitizer.

The library is the one that is installed. compute-sanitizer watches one process that runs job after job.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchgraft import native
from torchgraft.checking.jobs import Job, OnResult, OnStart, leave_out
from torchgraft.checking.result import Failure, Result
from torchgraft.checking.sanitizers import serial
from torchgraft.checking.sanitizers.reports import REPORT_LINES


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


CUDA_TOOLS = {
    "memcheck": _CudaTool(),
    "racecheck": _CudaTool(products="--products-in-float32"),
    "initcheck": _CudaTool(filtered=False, products="--products-filled"),
    "synccheck": _CudaTool(),
}
_ERROR_EXIT_CODE = 9
# The most reports of one process. Those about PyTorch's own kernels must not use up the few of the default.
_PRINT_LIMIT = 10000
# The beginning of compute-sanitizer's lines, and the lines of it that are no report.
_SAYS = "========= "
_NO_REPORT = re.compile(r"COMPUTE-SANITIZER|ERROR SUMMARY|\w+ SUMMARY|Target application|Saved host backtrace")


def run_on_cuda(jobs: Sequence[Job], tool: _CudaTool, on_start: OnStart, on_result: OnResult) -> list[Result]:
    """Runs jobs in one process under a tool of compute-sanitizer.

    Args:
        jobs: of operators of one namespace.
        tool: of compute-sanitizer.
        on_start: see `run_jobs`.
        on_result: see `run_jobs`.
    """
    name, namespace = jobs[0].under, jobs[0].operator.namespace
    program = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if program is None:
        return leave_out(jobs, "compute-sanitizer is not installed: it comes with the CUDA toolkit", on_result)
    if reason := _why_not_watched(namespace):
        return leave_out(jobs, reason, on_result)

    command = [program, "--tool", name, "--error-exitcode", str(_ERROR_EXIT_CODE), "--show-backtrace", "no"]
    command += ["--print-limit", str(_PRINT_LIMIT)]
    if name == "memcheck":
        # Failing calls of the CUDA runtime are not reported: PyTorch finds out by them what a device can do.
        command += ["--report-api-errors", "no"]
    if tool.filtered:
        command += ["--kernel-name", f"kns={namespace}"]
    # Without the cache every tensor is an allocation of its own; else more of PyTorch's memory would follow its end.
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
    """Returns why compute-sanitizer, which finds kernels by their names, would overlook those of a namespace."""
    library = next(iter(native.libraries_of(namespace, "cuda")), None)
    if library is None or not library.loaded:
        return native.why_no_kernel(namespace, "cuda")
    names = re.findall(rb"_Z[A-Z][\w.$]+", library.path.read_bytes())
    if any(namespace.encode() in name for name in names):
        return ""
    return f"its CUDA kernels must be in a C++ namespace {namespace}, by which the tools recognize them"


class _Watched:
    """The output of a process under compute-sanitizer: the marks of its jobs, and reports between them."""

    def __init__(self, jobs: Sequence[Job], tool: _CudaTool, on_start: OnStart, on_result: OnResult) -> None:
        self._jobs, self._tool = jobs, tool
        self._on_start, self._on_result = on_start, on_result
        self._results: dict[int, Result] = {}
        self._at: int | None = None
        self._report: list[str] = []
        self._reports: list[list[str]] = []
        self._said: deque[str] = deque(maxlen=REPORT_LINES)

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
        # Indented lines belong to the line before.
        if line.startswith("    ") and self._report:
            self._report.append(line.strip())
        elif line.strip() and not _NO_REPORT.match(line.strip()):
            self._report = [line.strip()]
            self._reports.append(self._report)

    def _finish(self, number: int, result: Result) -> None:
        """Ends a job: with the first report since the last job ended, or else with its own result."""
        ours = [
            report
            for report in self._reports
            if self._tool.filtered or any(f"{self._jobs[0].operator.namespace}::" in line for line in report)
        ]
        self._reports, self._report = [], []
        if ours:
            message, *others = ours[0][: REPORT_LINES + 1]
            more = f" (the first of {len(ours)} reports)" if len(ours) > 1 else ""
            again = self._jobs[number].reproduce()
            failure = Failure(message + more, reproduce=again, traceback="\n".join(others))
            result = replace(result, status="fail", reason="", failure=failure)
        self._results[number] = result
        self._on_result(self._jobs[number], result)

    def end(self, code: int) -> list[Result]:
        """Returns a result for each job, even for those that did not run because the process had ended."""
        said = "\n".join(self._said)
        if self._at is None:
            reason = f"compute-sanitizer does not work here: {' '.join(said.split())}"
            return leave_out(self._jobs, reason, self._on_result)
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
