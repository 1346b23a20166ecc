"""Runs properties: each is a job, which says pass, fail or not applicable whatever happens to the process it is in."""

import fcntl
import importlib
import multiprocessing
import os
import shlex
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import cycle
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import torch

from torchgraft import _torch_private, native, python_kernels
from torchgraft.checking.adopted import declined, why_not_asked, words_of
from torchgraft.checking.blaming import find_blame
from torchgraft.checking.case import Case, CheckFailed, failure_of
from torchgraft.checking.kernel_sources import is_compiled_there
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.property import Property
from torchgraft.checking.result import ALL_DTYPES, DIED, EMULATED, NVCC, Failure, NotApplicable, Result
from torchgraft.checking.subject import Subject, claims_kernel, expect_kernels, listed_kernels, subject_of, target_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.fallback import PerformanceWarning, fallbacks
from torchgraft.finding import places
from torchgraft.operator import Operator
from torchgraft.precision import exact_reductions, true_precision
from torchgraft.processes import clean_processes, start_clean_processes, waiting_asleep
from torchgraft.sampling import Samples
from torchgraft.signatures import why_no_kernel

# PyTorch takes those of 64 bits, with or without a sign; calls that have seeds of their own count on from the first.
SEEDS = range(-(2**63), 2**63)
# The property that is asked before all others, and whose failure is told at once.
SMOKE = "smoke"
# A property that takes longer than this hangs.
_SECONDS_TO_END = 900.0
# A failure is told without what is at fault where that is not found in this time.
_SECONDS_TO_BLAME = 60.0
# Why a kernel is not asked that serves no call here, and would serve some on another device.
RULED_OUT = "this device lacks something that the kernel needs"


@dataclass(frozen=True)
class Job:
    """One property of one operator on one device in one dtype; travels to another process.

    `samples` is None for those beside the operator's declaration: samples hold functions, which do not travel. `calls`
    is how many are drawn where a property asks of any call. `under` is the sanitizer under which the property is run
    again, or an empty string. `kernel` is the kernel of the operator that serves every call that it supports; where
    empty the library chooses. `place` is where kernels run or are compiled, if not on the device: EMULATED or NVCC.
    """

    property_name: str
    operator: Operator
    samples: Samples | None
    device: str
    dtype: torch.dtype
    seed: int = 0
    quick: bool = False
    only: str | None = None
    calls: int | None = None
    under: str = ""
    kernel: str = ""
    place: str = ""

    @property
    def where(self) -> str:
        """What a report has as the device."""
        return self.place or self.device

    @property
    def name(self) -> str:
        """The operator as a person writes it."""
        return self.operator.short_name

    @property
    def dtype_name(self) -> str:
        """The dtype without PyTorch's prefix."""
        return str(self.dtype).removeprefix("torch.")

    def reproduce(self, sample: str = "", seed: int | None = None) -> str:
        """The command that runs this job alone, or only the call of a seed."""
        words = ["graft", *words_of(self.operator)]
        if self.place == NVCC:
            return shlex.join([*words, "--device", "cuda", "--compile-cuda"])
        # One of as many calls as somebody asked for is drawn alone; one of the few that the property draws otherwise is
        # the first of these.
        words += ["--property", self.property_name] if seed is None or self.calls is None else ["--stress", "1"]
        words += ["--device", "cuda", "--emulate"] if self.place == EMULATED else ["--device", self.device]
        words += ["--dtype", self.dtype_name]
        words += ["--seed", str(self.seed if seed is None else seed)]
        if self.kernel:
            words += ["--kernel", self.kernel]
        if self.quick:
            words.append("--quick")
        if self.under and not self.place:
            words.append("--sanitize")
        if sample and not sample.endswith("(drawn)"):
            words += ["--sample", sample]
        return shlex.join(words)

    def result(self, status: Literal["pass", "fail", "not applicable"], seconds: float, **more: Any) -> Result:
        """A result of this job."""
        title = f"{self.under}: {self.property_name}" if self.under else self.property_name
        dtype = ALL_DTYPES if self.place == NVCC else self.dtype_name
        return Result(title, self.name, self.where, dtype, status, seconds, kernel=self.kernel, **more)


def find_devices(device: str = "all") -> list[str]:
    """The devices of this machine that are meant by 'cpu', 'cuda' or 'all'.

    Raises:
        LookupError: 'cuda', and there is none.
    """
    if device == "all":
        return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise LookupError("PyTorch finds no CUDA device here")
    return [device]


def make_jobs(
    subjects: Sequence[Subject],
    *,
    devices: Sequence[str],
    properties: Sequence[str] | None = None,
    dtypes: Sequence[torch.dtype] | None = None,
    seed: int = 0,
    quick: bool = False,
    only: str | None = None,
) -> list[Job]:
    """Every property of every operator, on every device, in every dtype that it asks for; `smoke` of all comes first.

    Raises:
        LookupError: there is no property of a given name.
        ValueError: the seed is none that PyTorch takes.
    """
    if not SEEDS.start <= seed < SEEDS.stop:
        raise ValueError(f"seed must be from -2**63 to 2**63 - 1, got {seed}")
    unknown = sorted(set(properties or ()) - set(PROPERTIES))
    if unknown:
        raise LookupError(f"there is no property {unknown[0]!r}; the properties are {', '.join(PROPERTIES)}")
    jobs = []
    for subject in subjects:
        samples = None if subject.beside else subject.samples
        for device in devices:
            for name in PROPERTIES if properties is None else properties:
                asked = PROPERTIES[name]
                left_out = (quick and asked.slow) or not asked.asked_of(subject.operator)
                if (left_out and properties is None) or torch.device(device).type not in asked.devices:
                    continue
                chosen = (dtype for dtype in asked.dtypes_for(subject.operator) if dtypes is None or dtype in dtypes)
                jobs += [Job(name, subject.operator, samples, device, dtype, seed, quick, only) for dtype in chosen]
    return sorted(jobs, key=lambda job: job.property_name != SMOKE)


# Calls of one job: a failure, a crash and a call that hangs end no more than these.
_CALLS_A_JOB = 50


def make_stress_jobs(jobs: Sequence[Job], calls: int) -> list[Job]:
    """So many calls of each operator on each device, its dtypes in turn, of jobs that draw calls.

    Each of an operator's calls on a device has a seed of its own, from that of the jobs on. Operators take turns, so
    that a check that is stopped has asked all of them.

    Raises:
        LookupError: there are no such seeds.
    """
    if any(job.seed + calls > SEEDS.stop for job in jobs):
        raise LookupError(
            f"the seed is too large: {calls} calls from {jobs[0].seed} on would need seeds above 2**63 - 1"
        )
    places: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        places.setdefault((job.operator.qualified_name, job.device), []).append(job)
    pieces = []
    for dtypes in places.values():
        at_once = min(_CALLS_A_JOB, -(-calls // len(dtypes)))
        pieces += [
            replace(job, seed=job.seed + first, calls=min(at_once, calls - first))
            for job, first in zip(cycle(dtypes), range(0, calls, at_once), strict=False)
        ]
    return sorted(pieces, key=lambda piece: piece.seed)


def make_kernel_jobs(jobs: Sequence[Job], names: Collection[str] = ()) -> list[Job]:
    """Jobs, each once with every kernel of its operator forced; those of operators that list no kernels are left out.

    Args:
        jobs: let the library choose.
        names: of kernels; empty: all.

    Raises:
        LookupError: no kernels are listed, or none has a name.
    """
    known = expect_kernels([job.operator for job in jobs], list(dict.fromkeys(job.device for job in jobs)))
    for name in names:
        if name not in known:
            raise LookupError(f"there is no kernel {name!r}; the kernels are {', '.join(map(repr, known))}")
    return [
        replace(job, kernel=kernel)
        for job in jobs
        for kernel in listed_kernels(job.operator, job.device)
        if not names or kernel in names
    ]


def find_unreached(jobs: Sequence[Job], results: Sequence[Result]) -> list[Result]:
    """A failure for each kernel that was forced and served no call of any job, as nothing is known of it.

    One that this device cannot run is none.

    Args:
        jobs: those without a kernel are passed over.
        results: a result a job.
    """
    kernels: dict[tuple[str, str, str], list[tuple[Job, Result]]] = {}
    for job, result in zip(jobs, results, strict=True):
        if job.kernel:
            kernels.setdefault((job.operator.qualified_name, job.device, job.kernel), []).append((job, result))
    unreached = []
    for asked in kernels.values():
        if any(result.status != "not applicable" or result.reason == RULED_OUT for _, result in asked):
            continue
        job = asked[0][0]
        again = ["graft", "check", target_of(job.operator), "--device", job.device, "--kernel", job.kernel]
        failure = Failure("no sample runs on this kernel: add one that its rule supports", reproduce=shlex.join(again))
        dtypes = ", ".join(dict.fromkeys(job.dtype_name for job, _ in asked))
        unreached.append(
            Result("reached", job.name, job.device, dtypes, "fail", 0.0, failure=failure, kernel=job.kernel)
        )
    return unreached


def prepare() -> None:
    """Imports what a quick check on the CPU needs, in the process that its workers are forked from."""
    start_clean_processes({name for each in PROPERTIES.values() if not each.slow for name in each.imports})


def run_job(job: Job) -> Result:
    """Runs a job in this process; an isolated property gets a process of its own, unless this is one already."""
    asked = PROPERTIES[job.property_name]
    if asked.isolated and not _in_worker:
        if job.samples is not None:
            reason = "it runs in a process of its own, which finds only samples beside the operator's declaration"
            return job.result("not applicable", 0.0, reason=reason)
        return run_jobs([job], workers=1)[0]
    return _run_here(job)


def _why_not_watched(job: Job) -> str:
    """Why the kernels that a job calls are not those that were built for it: for a sanitizer, or for the emulator."""
    instead = os.environ.get("TORCHGRAFT_LIBRARIES")
    if not (job.under or job.place) or instead is None:
        return ""
    namespace = job.operator.namespace
    for library in native.libraries():
        if (library.namespace, library.path.parent) == (namespace, Path(instead)):
            return library.problem
    return f"{job.operator.module} does not load its kernels by torchgraft.native.load({namespace!r}, ...)"


def _expect_kernel(operator: Operator, device: str, dtype: torch.dtype) -> None:
    """Raises Mismatch where an operator claims a kernel that is not there."""
    if claims_kernel(operator, device, dtype) and not _torch_private.has_kernel(operator.raw, torch.device(device)):
        why = why_no_kernel(operator, torch.device(device).type)
        raise Mismatch(
            f"{operator.short_name} has no kernel, so the reference would be compared with itself: {why}. If it is not "
            "meant to have one, declare that: kernels='reference', or kernels={...} with the devices that have kernels"
        )


@contextmanager
def _kernels_expected(job: Job, asked: Property) -> Iterator[None]:
    """Expects that a property which asks what kernels do finds them: the operator's, and those of its gradient."""
    if not asked.of_kernels:
        yield
        return
    _expect_kernel(job.operator, job.device, job.dtype)
    if job.place == EMULATED and not is_compiled_there(job.operator, job.device):
        raise Mismatch(f"{job.name} has no kernel on the emulator: no source registers a CUDA kernel of this name")
    before = fallbacks()
    yield
    kind = torch.device(job.device).type
    for each in fallbacks():
        operator = Operator.registered.get(each.operator)
        # One that was called again since has another count.
        if each not in before and each.device == kind and operator is not None:
            _expect_kernel(operator, kind, getattr(torch, each.dtype))


@contextmanager
def _kernel_forced(job: Job) -> Iterator[None]:
    """Forces the kernel of a job; raises NotApplicable where it served no call."""
    if not job.kernel:
        yield
        return
    kind, alone = torch.device(job.device).type, PROPERTIES[job.property_name].forces_alone
    with python_kernels.forced(job.operator, kind, job.kernel, alone=alone) as forced:
        yield
    if forced.is_ruled_out:
        raise NotApplicable(RULED_OUT)
    if not forced.served:
        raise NotApplicable(f"the kernel supports no sample in {job.dtype_name}")


@contextmanager
def _precision(job: Job) -> Iterator[None]:
    """The precision in which PyTorch computes while a job runs."""
    # What kernels make of PyTorch's products they answer for as users have them, with the switches as they are.
    answers = claims_kernel(job.operator, job.device, job.dtype)
    with true_precision(), nullcontext() if answers else exact_reductions():
        yield


def _run_here(
    job: Job,
    progress: Callable[[str], None] = lambda doing: None,
    on_failure: Callable[[Result], None] = lambda failure: None,
) -> Result:
    """Runs a job; `on_failure` is told what failed before it is asked what is at fault, which may end the process."""
    asked = PROPERTIES[job.property_name]
    if reason := _why_not_watched(job):
        # Nobody sees this kernel otherwise, but sanitizers watch what is checked without them, too.
        if job.place == EMULATED:
            return job.result("fail", 0.0, failure=Failure(reason, reproduce=job.reproduce()))
        return job.result("not applicable", 0.0, reason=reason)
    if reason := why_not_asked(job.operator, job.property_name):
        return job.result("not applicable", 0.0, reason=reason)
    subject = subject_of(job.operator, job.samples)
    case = Case(subject, torch.device(job.device), job.dtype, job.seed, job.quick, job.only, job.calls, progress)
    torch.manual_seed(job.seed)
    started = time.perf_counter()

    def result(status: Literal["pass", "fail", "not applicable"], **more: Any) -> Result:
        return job.result(status, time.perf_counter() - started, **{"called": case.called, **more})

    try:
        with warnings.catch_warnings(), _precision(job):
            # Operators that fall back are complete; a property of their own tells which do.
            warnings.simplefilter("ignore", PerformanceWarning)
            with _kernels_expected(job, asked), _kernel_forced(job):
                asked.check(case)
        return result("pass", facts=case.facts)
    except NotApplicable as reason:
        return result("not applicable", reason=str(reason), called=0)
    except CheckFailed as failed:
        if left_out := declined(job.operator, job.property_name, failed.__cause__):
            return result("not applicable", reason=left_out, called=0)
        again = job.reproduce(failed.failure.sample, failed.failure.seed)
        failure = replace(failed.failure, reproduce=again, traceback=_format(failed.__cause__))
    except Exception as error:
        failure = failure_of(error, reproduce=job.reproduce(), traceback=_format(error))
    finally:
        if "torch._dynamo" in sys.modules:
            # What was compiled for one job would count towards the next one's limit of recompilations.
            torch._dynamo.reset()
    found = result("fail", failure=failure)
    on_failure(found)
    return replace(found, failure=_blamed(failure, job, case))


def _blamed(failure: Failure, job: Job, case: Case) -> Failure:
    """A failure with what is at fault."""
    # A sanitizer says itself where it is.
    if case.asked is None or job.under:
        return failure
    asked = PROPERTIES[job.property_name]
    call, ask = case.asked

    def ask_again() -> None:
        with _kernels_expected(job, asked), _kernel_forced(job):
            if failure.sample:
                ask()
            else:
                asked.check(replace(case, facts={}))

    with warnings.catch_warnings(), _precision(job):
        warnings.simplefilter("ignore")
        blame = find_blame(call, ask_again)
    return replace(failure, at_fault=blame.part, cause=blame.cause)


def _format(error: BaseException | None) -> str:
    """Where an error was raised; nothing of a Mismatch, which a check raised and which tells it all."""
    if error is None or isinstance(error, Mismatch):
        return ""
    return "".join(traceback.format_exception(error)).strip()


# Processes

_in_worker = False


def _work(
    connection: Connection,
    known: Mapping[str, Path],
    modules: Sequence[str],
    output: Connection,
    environment: Mapping[str, str],
) -> None:
    """What a worker does: imports the operators' modules, then runs jobs until there are no more."""
    global _in_worker
    _in_worker = True
    # A process that is forked has the variables of when the first one was.
    os.environ.clear()
    os.environ.update(environment)
    # What is said about a crash would stand in the middle of the table; the parent tells of it.
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    warnings.simplefilter("ignore")
    places.remember(known)
    for module in modules:
        importlib.import_module(module)
    while (job := connection.recv()) is not None:
        result = _run_here(
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
        # What the process says, since its last job began: in a file without a name, which nothing can leave behind.
        self.output = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        # Both processes share one position in it, but what is said always goes to the end.
        fcntl.fcntl(self.output, fcntl.F_SETFL, fcntl.fcntl(self.output, fcntl.F_GETFL) | os.O_APPEND)
        # A connection travels to a process that is spawned, as a bare file does not.
        written = Connection(os.dup(self.output.fileno()), readable=False)
        # A process takes the variables of the one that starts it.
        with patch.dict(os.environ, {**waiting_asleep(), **environment}):
            arguments = (other, places.places(), modules, written, dict(os.environ))
            self.process = context.Process(target=_work, args=arguments, daemon=True)
            self.process.start()
        other.close()
        written.close()
        self.job: Job | None = None
        self.started = 0.0
        # What failed, where it is being found out why.
        self.failure: Result | None = None
        self.doing = ""
        self.is_usable = True

    def give(self, job: Job) -> None:
        self.job, self.started, self.doing, self.failure = job, time.monotonic(), "", None
        os.ftruncate(self.output.fileno(), 0)
        self.connection.send(job)

    def take(self) -> Result | None:
        """What became of the job; None while it goes on."""
        assert self.job is not None
        try:
            kind, value = self.connection.recv()
        # The one where it ended with its job unread.
        except (EOFError, ConnectionError):
            self.process.join()
            self.is_usable = False
            if self.failure is not None:
                return self.failure
            code = self.process.exitcode
            killed = code is not None and code < 0
            how = f"{signal.Signals(-code).name} ({signal.strsignal(-code)})" if killed else f"exit status {code}"
            return self._died(f"{DIED}: {how}")
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
        """A failure where the job takes too long; the process is ended."""
        if time.monotonic() - self.started < (_SECONDS_TO_END if self.failure is None else _SECONDS_TO_BLAME):
            return None
        self.process.kill()
        self.process.join()
        self.is_usable = False
        if self.failure is not None:
            return self.failure
        return self._died(f"it did not finish within {_SECONDS_TO_END:.0f} seconds")

    def _died(self, how: str) -> Result:
        assert self.job is not None
        kind, _, which = self.doing.partition(" ")
        sample, seed = which.strip("'") if kind == "sample" else "", int(which) if kind == "seed" else None
        at = f", while at {self.doing}" if self.doing else ""
        self.output.seek(0)
        failure = Failure(
            f"{how}{at}",
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
        skip: asked before each job starts: why it need not be run, or an empty string.
        on_start: told of each job as it starts.
        on_result: told of each result as it comes.

    Returns:
        A result a job, in the order of the jobs.
    """
    modules = sorted({job.operator.module for job in jobs})
    # Sanitizers must be there from the start of a process, and CUDA wants one that it has seen begin.
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
        # Some run still only where this is left early, as by Ctrl-C: nobody waits for them.
        for worker in running:
            worker.process.kill()
        for worker in (*running, *idle):
            worker.end()
    return [results[number] for number in range(len(jobs))]


# Processes that draw calls on a GPU: they only take turns, and each takes some hundred megabytes of it before it does
# anything. Under CUDA's Multi-Process Service they run side by side, as many as there are cores.
_MOST_ON_GPU = 8
_SHARED_GPU = "CUDA_MPS_PIPE_DIRECTORY"


def run_everywhere(
    jobs: Sequence[Job],
    *,
    workers: int,
    on_start: Callable[[Job], None] = lambda job: None,
    on_result: Callable[[Job, Result], None] = lambda job, result: None,
) -> list[Result]:
    """Runs jobs as the command does: those of the CPU in so many processes, then those of a GPU, mostly in one.

    Args:
        jobs: see `run_jobs`, as for all else.
        workers: how many processes at a time; 0: all jobs run in this one, and a crash is the end.
        on_start: see `run_jobs`.
        on_result: see `run_jobs`.
    """
    results: dict[int, Result] = {}
    numbers = range(len(jobs))
    on_cpu = [number for number in numbers if torch.device(jobs[number].device).type == "cpu"]
    # One at a time: what a property measures of memory and of streams is the whole device's. Calls that somebody asked
    # for by number measure nothing.
    on_gpu = [number for number in numbers if torch.device(jobs[number].device).type != "cpu"]
    draws = all(jobs[number].calls is not None for number in on_gpu)
    at_once = 1 if not draws else workers if _SHARED_GPU in os.environ else _MOST_ON_GPU
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
