"""Runs jobs in their order and collects the results: in this process, or in processes of their own."""

import os
from collections.abc import Callable, Sequence

import torch

from torchgraft.checking.jobs import Job
from torchgraft.checking.one_job import run_here
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.result import Result
from torchgraft.checking.workers import in_worker, run_jobs
from torchgraft.machine.processes import start_clean_processes


def prepare() -> None:
    """Imports what a quick check on the CPU needs, in the process that its workers are forked from, if none is yet."""
    start_clean_processes({name for each in PROPERTIES.values() if not each.slow for name in each.imports})


def run_job(job: Job) -> Result:
    """Runs a job in this process; an isolated property gets a process of its own, unless this is one already."""
    asked = PROPERTIES[job.property_name]
    if asked.isolated and not in_worker():
        if job.samples is not None:
            reason = "it runs in a process of its own, which finds only samples beside the operator's declaration"
            return job.result("not applicable", 0.0, reason=reason)
        # Its process and those of later jobs are forked from one, which imports only when it starts.
        prepare()
        return run_jobs([job], workers=1)[0]
    return run_here(job)


# The most processes that make random calls on a GPU: they only take turns, and each takes some hundred megabytes of it
# before it does anything. Under CUDA's Multi-Process Service they run side by side, as many as there are cores.
_MOST_ON_GPU = 8
_SHARED_GPU = "CUDA_MPS_PIPE_DIRECTORY"


def run_everywhere(
    jobs: Sequence[Job],
    *,
    workers: int,
    on_start: Callable[[Job], None] = lambda job: None,
    on_result: Callable[[Job, Result], None] = lambda job, result: None,
) -> list[Result]:
    """Runs jobs as `graft check` does: those of the CPU in several processes, then those of a GPU, mostly in one.

    Args:
        jobs: see `run_jobs`, as for all else.
        workers: how many processes at a time; 0: all jobs run in this one, and a crash is the end.
        on_start: see `run_jobs`.
        on_result: see `run_jobs`.
    """
    results: dict[int, Result] = {}
    numbers = range(len(jobs))
    on_cpu = [number for number in numbers if torch.device(jobs[number].device).type == "cpu"]
    # One job at a time uses a GPU, as some properties measure the memory and the streams of the whole device. Random
    # calls measure nothing.
    on_gpu = [number for number in numbers if torch.device(jobs[number].device).type != "cpu"]
    are_random = all(jobs[number].calls is not None for number in on_gpu)
    at_once = 1 if not are_random else workers if _SHARED_GPU in os.environ else _MOST_ON_GPU
    for group, processes in ((on_cpu, workers), (on_gpu, min(workers, at_once))):
        chosen = [jobs[number] for number in group]
        if workers:
            found = run_jobs(chosen, workers=processes, on_start=on_start, on_result=on_result)
        else:
            found = []
            for job in chosen:
                on_start(job)
                found.append(run_job(job))
                on_result(job, found[-1])
        results.update(zip(group, found, strict=True))
    return [results[number] for number in numbers]
