"""Kernels in Triton on a machine without a GPU: Triton's compiler compiles what its interpreter ran.

The interpreter runs kernels that no GPU can: it is Python. While it runs them, each launch is recorded; afterwards a
process in which the interpreter is off compiles them for GPUs of compute capability 8.0 and 9.0, which needs none.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from torchgraft._private import triton as private_triton
from torchgraft._private.triton_compiler import TARGETS, CompilationError, Compiler
from torchgraft.checking.jobs import Job, OnResult, OnStart
from torchgraft.checking.result import TRITON, Failure, Result
from torchgraft.checking.subject import Subject
from torchgraft.checking.without_gpu import COMPILES
from torchgraft.finding import places
from torchgraft.kernels import python_kernels
from torchgraft.kernels.triton_launches import Launch, read

# A kernel is asked about so many of its launches whether Triton's language allows them.
_MOST_LAUNCHES = 64
# A kernel whose compilation takes longer than this is left out: nothing is known of it.
_SECONDS_TO_COMPILE = 30.0
_SECONDS_TO_START = 120.0


@dataclass
class _Found:
    """The findings about the kernels of one operator.

    Attributes:
        message: why a kernel does not compile; empty if all do.
        source: the lines of the kernel up to the one at fault.
        remarks: what is not vouched for, each once.
        compiled: how many kernels were compiled.
    """

    message: str = ""
    source: str = ""
    remarks: dict[str, None] = field(default_factory=dict)
    compiled: int = 0


def compiled_by_triton(subjects: Sequence[Subject]) -> list[Job]:
    """Makes jobs that compile the Triton kernels which the interpreter runs in place of a GPU."""
    if torch.cuda.is_available():
        return []
    return [
        Job(COMPILES, each.operator, None, "cuda", torch.float32, place=TRITON)
        for each in subjects
        if each.beside and python_kernels.is_run_by_interpreter(each.declaration)
    ]


def run_triton_compiler(
    jobs: Sequence[Job], folder: Path, *, on_start: OnStart, on_result: OnResult, on_step: Any
) -> list[Result]:
    """Runs the jobs that `compiled_by_triton` gave.

    Args:
        jobs: see `compiled_by_triton`.
        folder: that holds the launches which the interpreter ran.
        on_start: see `run_jobs`.
        on_result: see `run_jobs`.
        on_step: told what is being done before the compiler starts.
    """
    if not jobs:
        return []
    started = time.monotonic()
    on_start(jobs[0])
    launches = read(folder)
    architectures = " and ".join(_capability(each) for each in TARGETS)
    on_step(f"compiling {len(launches)} launches of Triton kernels for compute capability {architectures}")
    found = _compile_all(launches, sorted({job.operator.module for job in jobs}))
    seconds = (time.monotonic() - started) / len(jobs)
    results = []
    for job in jobs:
        about = found.get(job.operator.qualified_name, _Found())
        has_launches = any(each.operator == job.operator.qualified_name for each in launches)
        if about.message:
            failure = Failure(about.message, reproduce=job.reproduce(), traceback=about.source)
            result = job.result("fail", seconds, failure=failure)
        elif not has_launches:
            result = job.result("not applicable", seconds, reason="no property of this run launched a Triton kernel")
        else:
            result = job.result("pass", seconds, reason="; ".join(about.remarks))
        results.append(result)
        on_result(job, result)
    return results


def _capability(target: int) -> str:
    return f"{target // 10}.{target % 10}"


_Groups = dict[tuple[str, str, str], list[Launch]]


def _compile_all(launches: Sequence[Launch], modules: Sequence[str]) -> dict[str, _Found]:
    """Compiles launches, and returns what was found by the operator's qualified name.

    A process in which Triton's interpreter is off compiles one kernel after the other. If it ends or hangs, another one
    goes on with the next kernel.
    """
    waiting: _Groups = {}
    for launch in launches:
        waiting.setdefault((launch.operator, launch.module, launch.function), []).append(launch)
    found: dict[str, _Found] = {}
    context = multiprocessing.get_context("spawn")
    while waiting:
        receiving, sending = context.Pipe(duplex=False)
        with patch.dict(os.environ, {"TRITON_INTERPRET": "0"}):
            process = context.Process(target=_work, args=(sending, places.places(), modules, waiting), daemon=True)
            process.start()
        sending.close()
        died, why = _collect(receiving, waiting, found)
        process.kill()
        process.join()
        receiving.close()
        if died or why:
            key = next(iter(waiting))
            about = found.setdefault(key[0], _Found())
            about.message = about.message or f"{key[2]} was not compiled: {why or _death(process.exitcode or 0)}"
            del waiting[key]
    return found


def _death(code: int) -> str:
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    return f"Triton's compiler ended its process ({how})"


def _collect(receiving: Connection, waiting: _Groups, found: dict[str, _Found]) -> tuple[bool, str]:
    """Takes what a process finds until it has compiled all that is waiting, hangs or ends.

    Returns:
        Whether it died at the first kernel that still waits, and the error that it told of instead.
    """
    seconds = _SECONDS_TO_START
    try:
        while waiting:
            if not receiving.poll(seconds):
                operator, _, function = next(iter(waiting))
                why = f"{function} was not compiled within {seconds:.0f} seconds, and was left out"
                found.setdefault(operator, _Found()).remarks[why] = None
                del waiting[next(iter(waiting))]
                break
            kind, value = receiving.recv()
            seconds = _SECONDS_TO_COMPILE
            if kind == "error":
                return False, str(value)
            if kind == "found":
                (operator, *_), each = value
                about = found.setdefault(operator, _Found())
                about.message, about.source = about.message or each.message, about.source or each.source
                about.remarks.update(each.remarks)
                about.compiled += each.compiled
                del waiting[value[0]]
    except EOFError:
        return True, ""
    return False, ""


def _work(connection: Connection, known: Mapping[str, Path], modules: Sequence[str], waiting: _Groups) -> None:
    """Imports the operators' modules, and compiles the kernels that wait."""
    warnings.simplefilter("ignore")
    # What the compiler prints would stand in the middle of a table; its errors have a text.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    places.remember(known)
    try:
        for module in modules:
            importlib.import_module(module)
        compilers = {each: Compiler(each) for each in TARGETS}
        connection.send(("started", None))
        for key, launches in waiting.items():
            found = _Found()
            _compile_kernel(launches, compilers, found)
            connection.send(("found", (key, found)))
    except Exception as error:
        connection.send(("error", f"{type(error).__name__}: {error}"))


def _compile_kernel(launches: Sequence[Launch], compilers: Mapping[int, Compiler], found: _Found) -> None:
    """Compiles one kernel: all its launches as far as Triton's language, and to the end the largest of each dtype."""
    first = launches[0]
    kernel = _find(first)
    if kernel is None:
        found.remarks[f"{first.function} is made inside a function, and was not compiled"] = None
        return
    largest: dict[Any, Launch] = {}
    for launch in launches:
        kept = largest.setdefault(launch.dtypes, launch)
        largest[launch.dtypes] = launch if launch.size > kept.size else kept
    full = [launch for launch in largest.values() if _is_known(launch)]
    others = [launch for launch in launches if _is_known(launch) and launch not in full]
    for launch in (*full, *others[:_MOST_LAUNCHES]):
        made = {target: _attempt(each, kernel, launch, launch in full) for target, each in compilers.items()}
        errors = {target: each for target, each in made.items() if isinstance(each, CompilationError)}
        found.compiled += 1
        if len(errors) == len(compilers):
            newest = errors[max(errors)]
            message = f"{launch.function} does not compile for a GPU: {newest}"
            found.message, found.source = found.message or message, found.source or newest.source
        for target, error in errors.items():
            found.remarks[f"{launch.function} does not compile for {_capability(target)}: {error}"] = None
        ptx = {target: each for target, each in made.items() if isinstance(each, str)}
        found.remarks.update(dict.fromkeys(_doubts(ptx)))


def _attempt(compiler: Compiler, kernel: Any, launch: Launch, to_the_end: bool) -> str | CompilationError:
    """The PTX of a launch, empty if it is not compiled to the end; or why it does not compile."""
    try:
        if to_the_end:
            return compiler.compile(kernel, launch.arguments, launch.options)
        compiler.check(kernel, launch.arguments, launch.options)
        return ""
    except CompilationError as error:
        return error


def _is_known(launch: Launch) -> bool:
    return all(kind != "unknown" for kind, _ in launch.arguments.values())


def _find(launch: Launch) -> Any:
    """The kernel of a launch; None if its module has no name for it."""
    found: Any = importlib.import_module(launch.module)
    for name in launch.function.split("."):
        found = getattr(found, name, None)
    return None if found is None else private_triton.innermost(found)


def _doubts(ptx: Mapping[int, str]) -> list[str]:
    """Names the results that the interpreter does not vouch for, as the code differs between GPUs."""
    saturates = {target: "satfinite.e5m2" in text for target, text in ptx.items()}
    if any(saturates.values()) and not all(saturates.values()):
        return [
            "float8_e5m2: what is larger than 57344 becomes 57344 on 8.9 and later, as in the interpreter, and may "
            "become infinity on 8.0; results there are not vouched for"
        ]
    return []
