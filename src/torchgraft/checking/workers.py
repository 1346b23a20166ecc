"""Processes that run jobs: a crash, or a job that does not end, is a result like any other."""

import importlib
import multiprocessing
import os
import signal
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from torchgraft.checking.jobs import Job
from torchgraft.checking.one_job import run_here
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.result import DIED, Failure, Result
from torchgraft.finding import places
from torchgraft.machine import locks
from torchgraft.machine.processes import clean_processes, waiting_asleep

# A property that takes longer than this hangs.
_SECONDS_TO_END = 900.0
# If the part at fault is not found in this time, the failure is reported without it.
_SECONDS_TO_BLAME = 60.0

_is_worker = False


def in_worker() -> bool:
    """Whether this process is one that `run_jobs` started."""
    return _is_worker


def _work(
    connection: Connection,
    known: Mapping[str, Path],
    modules: Sequence[str],
    output: Connection,
    environment: Mapping[str, str],
) -> None:
    """Works: imports the operators' modules, then runs jobs until there are no more."""
    global _is_worker
    _is_worker = True
    # A process from the fork server has the variables that were set when the server started.
    os.environ.clear()
    os.environ.update(environment)
    # The parent reports a crash; printed here, its text would stand in the middle of the table.
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    warnings.simplefilter("ignore")
    places.remember(known)
    for module in modules:
        importlib.import_module(module)
    while (job := connection.recv()) is not None:
        result = run_here(
            job,
            lambda doing: connection.send(("doing", doing)),
            lambda failure: connection.send(("failure", failure)),
        )
        is_last = result.status == "fail" and _is_broken(torch.device(job.device))
        connection.send(("last result" if is_last else "result", result))


def _is_broken(device: torch.device) -> bool:
    """Whether this process can no longer use a device: after a kernel's fault every call to a GPU fails."""
    try:
        torch.get_device_module(device).synchronize()
    except RuntimeError:
        return True
    return False


class _Worker:
    """A process that runs one job at a time, and may die of it.

    Attributes:
        is_usable: whether it can be given another job.
    """

    def __init__(self, context: Any, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self.connection, other = context.Pipe()
        # The output of the process since its last job began, in a file without a name, which nothing can leave behind.
        self.output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        # Both processes share one position in the file; in append mode output always goes to its end.
        locks.append_only(self.output)
        # A Connection can be sent to a process that is spawned; a file cannot.
        written = Connection(os.dup(self.output.fileno()), readable=False)
        # A new process inherits the variables of the one that starts it.
        with patch.dict(os.environ, {**waiting_asleep(), **environment}):
            arguments = (other, places.places(), modules, written, dict(os.environ))
            self.process = context.Process(target=_work, args=arguments, daemon=True)
            self.process.start()
        other.close()
        written.close()
        self.job: Job | None = None
        self.started = 0.0
        # The failure of the job while the process finds what is at fault.
        self.failure: Result | None = None
        self.doing = ""
        self.is_usable = True

    def give(self, job: Job) -> None:
        self.job, self.started, self.doing, self.failure = job, time.monotonic(), "", None
        os.ftruncate(self.output.fileno(), 0)
        self.connection.send(job)

    def take(self) -> Result | None:
        """Receives the result of the job; None while it goes on."""
        assert self.job is not None
        try:
            kind, value = self.connection.recv()
        # ConnectionError: the process ended before it read its job.
        except (EOFError, ConnectionError):
            self.process.join()
            self.is_usable = False
            if self.failure is not None:
                return self.failure
            code = self.process.exitcode
            killed = code is not None and code < 0
            how = f"{signal.Signals(-code).name} ({signal.strsignal(-code)})" if killed else f"exit status {code}"
            is_fault = killed and -code in (signal.SIGSEGV, signal.SIGBUS)
            return self._died(f"{DIED}: {how}", is_fault=is_fault)
        if kind == "doing":
            self.doing = value
            return None
        if kind == "failure":
            self.failure, self.started = value, time.monotonic()
            return None
        self.is_usable = kind == "result"
        result: Result = value
        return result

    def overdue(self) -> Result | None:
        """Ends the process if its job takes too long, and returns a failure; None if it does not."""
        if time.monotonic() - self.started < (_SECONDS_TO_END if self.failure is None else _SECONDS_TO_BLAME):
            return None
        self.process.kill()
        self.process.join()
        self.is_usable = False
        if self.failure is not None:
            return self.failure
        return self._died(f"it did not finish within {_SECONDS_TO_END:.0f} seconds")

    def _died(self, how: str, *, is_fault: bool = False) -> Result:
        assert self.job is not None
        doing, _, of_fault = self.doing.partition("\n")
        kind, _, which = doing.partition(" ")
        sample, seed = which.strip("'") if kind == "sample" else "", int(which) if kind == "seed" else None
        at = f", while at {doing}" if doing else ""
        self.output.seek(0)
        failure = Failure(
            f"{of_fault}: {how}{at}" if is_fault and of_fault else f"{how}{at}",
            sample=sample,
            reproduce=self.job.reproduce(sample, seed),
            traceback=self.output.read().strip(),
            seed=seed,
        )
        called = 0 if seed is None else seed - self.job.seed + 1
        return self.job.result("fail", time.monotonic() - self.started, failure=failure, called=called)

    def end(self) -> None:
        if self.process.is_alive():
            try:
                self.connection.send(None)
            except OSError:
                self.process.kill()
        self.process.join(10)
        self.connection.close()
        self.output.close()


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    environment: Mapping[str, str] | None = None,
    skip: Callable[[Job], str] = lambda job: "",
    on_start: Callable[[Job], None] = lambda job: None,
    on_result: Callable[[Job, Result], None] = lambda job, result: None,
) -> list[Result]:
    """Runs jobs in processes of their own, so that a crash is a result like any other.

    Args:
        jobs: their operators must be declared in modules that can be imported.
        workers: how many processes at a time.
        environment: variables for the processes.
        skip: called before each job starts; returns why it need not run, or an empty text.
        on_start: called with each job as it starts.
        on_result: called with each result as it comes.

    Returns:
        A result a job, in the order of the jobs.
    """
    modules = sorted({job.operator.module for job in jobs})
    # A sanitizer must be loaded when a process starts, and CUDA does not work in a process that was forked.
    if environment or any(torch.device(job.device).type != "cpu" for job in jobs):
        context: Any = multiprocessing.get_context("spawn")
    else:
        context = clean_processes({name for job in jobs for name in PROPERTIES[job.property_name].imports})
    waiting = deque(enumerate(jobs))
    results: dict[int, Result] = {}
    running: dict[_Worker, int] = {}
    idle: list[_Worker] = []

    def start() -> None:
        while waiting and len(running) < workers:
            number, job = waiting.popleft()
            if reason := skip(job):
                results[number] = job.result("not applicable", 0.0, reason=reason)
                on_result(job, results[number])
                continue
            worker = idle.pop() if idle else _Worker(context, modules, environment or {})
            running[worker] = number
            worker.give(job)
            on_start(job)

    try:
        start()
        while running:
            ready = wait([worker.connection for worker in running], timeout=1.0)
            for worker in [each for each in running if each.connection in ready] or list(running):
                result = worker.take() if worker.connection in ready else worker.overdue()
                if result is None:
                    continue
                number = running.pop(worker)
                results[number] = result
                on_result(jobs[number], result)
                if worker.is_usable:
                    idle.append(worker)
                else:
                    worker.end()
            start()
    finally:
        # Workers still run only after an interrupt, such as Ctrl-C, and then nobody waits for their results.
        for worker in running:
            worker.process.kill()
        for worker in (*running, *idle):
            worker.end()
    return [results[number] for number in range(len(jobs))]
