"""`graft check --sanitize`: runs the properties that call kernels once more, under every sanitizer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from torchgraft.checking.jobs import Job, OnResult, OnStart
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.result import Result
from torchgraft.checking.sanitizers.cpu import CPU_TOOLS, run_on_cpu
from torchgraft.checking.sanitizers.cuda import CUDA_TOOLS, run_on_cuda
from torchgraft.finding.sources import kernel_folder_of


def sanitized(jobs: Sequence[Job]) -> list[Job]:
    """Makes the jobs that run again under sanitizers, each under every sanitizer of its device.

    Raises:
        LookupError: there are none among them.
    """
    again = [job for job in jobs if PROPERTIES[job.property_name].sanitized]
    if not again:
        names = ", ".join(name for name, each in PROPERTIES.items() if each.sanitized)
        raise LookupError(f"--sanitize runs only these properties, and --property names none of them: {names}")
    return [
        replace(job, under=under)
        for device, tools in (("cpu", CPU_TOOLS), ("cuda", CUDA_TOOLS))
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
        shared = kernel_folder_of(job.operator, "cpu") if job.under in CPU_TOOLS else Path(job.operator.namespace)
        groups.setdefault((job.under, shared), []).append(number)

    results: dict[int, Result] = {}
    for (under, _), numbers in groups.items():
        chosen = [jobs[number] for number in numbers]
        if under in CPU_TOOLS:
            on_step(f"building {kernel_folder_of(chosen[0].operator, 'cpu').name} for the {under}")
            found = run_on_cpu(chosen, CPU_TOOLS[under], max(workers, 1), on_start, on_result)
        else:
            on_step(f"starting {under}")
            found = run_on_cuda(chosen, CUDA_TOOLS[under], on_start, on_result)
        results.update(zip(numbers, found, strict=True))
    return [results[number] for number in range(len(jobs))]
