"""Kernels in other languages on a machine without a GPU: each is compiled by what its author passed as `compile=`.

Nothing runs them. A process compiles what every sample launches, in every dtype that the operator declares for CUDA, so
that a compiler that crashes or hangs does not end the check.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
import warnings
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from torchgraft.checking.jobs import Job, OnResult, OnStart
from torchgraft.checking.kernels import claims_kernel
from torchgraft.checking.result import OWN_COMPILER, Failure, Result
from torchgraft.checking.subject import Subject, subject_of
from torchgraft.checking.without_gpu import COMPILES
from torchgraft.finding import places
from torchgraft.kernels import python_kernels
from torchgraft.operator import Operator

# An operator whose kernels take longer than this is left out: nothing is known of them.
_SECONDS = 300.0


def compiled_by_authors(subjects: Sequence[Subject]) -> list[Job]:
    """Makes jobs that compile kernels whose authors say how, on a machine without a GPU."""
    if torch.cuda.is_available():
        return []
    return [
        Job(COMPILES, each.operator, None, "cuda", torch.float32, place=OWN_COMPILER)
        for each in subjects
        if each.beside and not each.replay and _compilers_of(each.operator)
    ]


def _compilers_of(operator: Operator) -> Mapping[str, python_kernels.CompileForGpu]:
    found = python_kernels.kernels_of(operator.qualified_name, "cuda")
    traits = found.traits if found is not None else {}
    return {name: each.compile for name, each in traits.items() if each.compile is not None}


def run_own_compilers(
    jobs: Sequence[Job], *, on_start: OnStart, on_result: OnResult, on_step: Any, seconds: float = _SECONDS
) -> list[Result]:
    """Runs the jobs that `compiled_by_authors` gave, one operator in a process at a time.

    Args:
        jobs: see `compiled_by_authors`.
        on_start: see `run_jobs`.
        on_result: see `run_jobs`.
        on_step: told what is being done before a compiler starts.
        seconds: how long one operator may take.
    """
    results = []
    for job in jobs:
        started = time.monotonic()
        on_start(job)
        on_step(f"compiling the kernels of {job.name} for a GPU")
        message, remark = _in_process(job, seconds)
        passed = time.monotonic() - started
        if message:
            result = job.result("fail", passed, failure=Failure(message, reproduce=job.reproduce()))
        else:
            result = job.result("not applicable" if remark else "pass", passed, reason=remark)
        results.append(result)
        on_result(job, result)
    return results


def _in_process(job: Job, seconds: float) -> tuple[str, str]:
    """Compiles the kernels of an operator in a process of their own.

    Returns:
        Why a kernel does not compile, and why nothing is known; both are empty if all compile.
    """
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    arguments = (sending, places.places(), job.operator.module, job.operator.qualified_name)
    process = context.Process(target=_work, args=arguments, daemon=True)
    process.start()
    sending.close()
    try:
        if not receiving.poll(seconds):
            return "", f"the kernels were not compiled within {seconds:.0f} seconds"
        message: str = receiving.recv()
        return message, ""
    except EOFError:
        process.join()
        code = process.exitcode or 0
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"the compiler ended its process ({how})", ""
    finally:
        process.kill()
        process.join()
        receiving.close()


def _work(connection: Connection, known: Mapping[str, Path], module: str, name: str) -> None:
    """Compiles the kernels of an operator, and sends why one does not compile; an empty text if all do."""
    warnings.simplefilter("ignore")
    # What a compiler prints would stand in the middle of a table; its errors have a text.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    places.remember(known)
    importlib.import_module(module)
    connection.send(why_not_compiled(Operator.registered[name]))


def why_not_compiled(operator: Operator) -> str:
    """Compiles what the samples of an operator launch, and returns why a kernel does not compile; empty if all do."""
    declaration = operator.declaration
    for kernel, compile in _compilers_of(operator).items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128):
            if not claims_kernel(operator, "cuda", dtype):
                continue
            for sample in subject_of(operator).samples.named:
                where = f"the kernel {kernel!r} in {str(dtype).removeprefix('torch.')}, for the sample {sample.name!r},"
                try:
                    code = compile(*declaration.with_defaults(sample.make("meta", dtype)))
                except Exception as error:
                    return f"{where} does not compile for a GPU: {type(error).__name__}: {error}"
                if not code:
                    return f"{where} gives no code: compile= must return what the compiler made"
    return ""
