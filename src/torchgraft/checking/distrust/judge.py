"""The judge of a kernel that is not trusted: it makes the arguments, keeps the time, and compares what came back."""

import hashlib
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case, CheckFailed, describe_arguments, failure_of
from torchgraft.checking.distrust.frames import BadFrame, pack, receive, send
from torchgraft.checking.distrust.rights import unreadable
from torchgraft.checking.jobs import Job, OnResult, OnStart
from torchgraft.checking.result import DIED, Failure, NotApplicable, Result
from torchgraft.checking.subject import Subject, target_of
from torchgraft.checking.tensors.compare import Mismatch, expect_same
from torchgraft.kernels.precision import exact_reductions, true_precision
from torchgraft.machine.processes import waiting_asleep
from torchgraft.sampling import Sample

# The name of what is asked, as the table shows it.
QUESTION = "distrusted"
# A kernel may be compiled when it is imported, and a first call may compile as well.
_SECONDS_TO_ANSWER = 600.0
# So many bytes of what a process printed are looked at after it died.
_LAST_BYTES = 4000
# How long a process may take to end after it has closed its channel.
_SECONDS_TO_DIE = 5.0
# How often each sample is called, with new values each time; and in a quick run.
_TIMES, _QUICK_TIMES = 4, 2
# How many samples are drawn; and in a quick run.
_DRAWN, _QUICK_DRAWN = 20, 5
# The variables that the process of a kernel inherits, by name or by how their names begin. Others may hold secrets.
_INHERITED = {"PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "CC", "CXX", "CFLAGS", "CXXFLAGS"}
_INHERITED_KINDS = ("LC_", "LD_", "CUDA", "NVIDIA", "TRITON", "TORCH", "OMP_", "MKL_")
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from torchgraft.checking.distrust import kernel_process; kernel_process.main()"
)


@dataclass(frozen=True)
class Answer:
    """The answer of a kernel to one call.

    Attributes:
        results: in memory of the judge.
        seconds: from before the arguments were sent until all results had come, by the judge's clock.
        late: whether results changed after the kernel had returned them, as its process says.
        called: the names of PyTorch's operators that the kernel called, as its process says.
    """

    results: list[Tensor]
    seconds: float
    late: bool = False
    called: tuple[str, ...] = ()


class KernelDied(Exception):  # noqa: N818  a finding, not an error of the program
    """The process of a kernel has ended, or its answer was none, so that it was ended."""


class KernelRaised(Exception):  # noqa: N818  a finding, not an error of the program
    """The kernel raised an error, whose text this is."""


class KernelProcess:
    """A process that runs one kernel.

    Args:
        target: as `graft check --distrust` takes it; or a name of `kernel_process`, for what the judge trusts.
        device: where the kernel computes.
    """

    def __init__(self, target: str, device: torch.device) -> None:
        self.target, self.device = target, device
        self._is_over = False
        self._channel, other = socket.socketpair()
        # Its output is never read as an answer; the end of it tells what a process died of.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        variables = {
            name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith(_INHERITED_KINDS)
        }
        path = json.dumps([each for each in sys.path if each])
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _PROGRAM, path, str(other.fileno()), target],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**variables, **waiting_asleep()},
            pass_fds=[other.fileno()],
            start_new_session=True,
        )
        other.close()

    def wait_until_ready(self) -> None:
        """Waits until the kernel is imported.

        Raises:
            KernelDied: it cannot be.
        """
        head, _ = self._receive(0, _SECONDS_TO_ANSWER)
        if head["error"]:
            self.end()
            raise KernelDied(head["error"])

    def ask(self, call: Call, arguments: Sequence[Any], results: Sequence[Tensor], *, watched: bool = False) -> Answer:
        """Calls the kernel.

        Args:
            call: whose operator the kernel computes.
            arguments: on the CPU.
            results: of the sizes and dtypes that are expected, without values; empty if these depend on data.
            watched: whether the kernel's process looks at what the kernel does; such a call is not timed.

        Raises:
            KernelDied: there is no answer.
            KernelRaised: the answer is an error.
        """
        tensors: list[Tensor] = []
        head = {
            "arguments": pack(arguments, tensors),
            "device": str(self.device),
            "watched": watched,
            "written": [place for place, each in enumerate(call.declaration.arguments) if each.mutated],
            "returns": bool(call.declaration.lists),
            "results": [[str(each.dtype).removeprefix("torch."), list(each.shape)] for each in results],
        }
        given = sum(each.numel() * each.element_size() for each in tensors)
        # Nobody knows the sizes of results that depend on data: they are not much larger than the arguments.
        most = sum(map(_bytes_of, results)) if results else 64 * given + 2**20
        started = time.perf_counter()
        try:
            self._channel.settimeout(_SECONDS_TO_ANSWER)
            send(self._channel, head, tensors)
        except TimeoutError:
            self._died("the kernel's process did not read its arguments in time")
        except OSError:
            self._died(DIED)
        answer, found = self._receive(2 * most + 2**16, _SECONDS_TO_ANSWER)
        seconds = time.perf_counter() - started
        if answer["error"]:
            raise KernelRaised(answer["error"])
        called = answer.get("called", ())
        names = tuple(_printable(each)[:100] for each in called[:100]) if isinstance(called, list) else ()
        return Answer(found, seconds, answer.get("late") is True, names)

    @property
    def has_ended(self) -> bool:
        """Whether the process is no more."""
        return self._process.poll() is not None

    def pause(self) -> None:
        """Stops the process, so that it takes no time from others while they are timed."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets a stopped process go on."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Ends the process, and those that it has started in its session."""
        self._kill()
        self._channel.close()
        self._output.close()

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()
        # Its number may soon be that of another process.
        self._is_over = True

    def _signal(self, number: int) -> None:
        if not self._is_over:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _receive(self, most_bytes: int, seconds: float) -> tuple[dict[str, Any], list[Tensor]]:
        try:
            head, tensors = receive(self._channel, most_bytes=most_bytes, seconds=seconds)
        except EOFError:
            self._died(DIED)
        except BadFrame as error:
            self._died(f"the answer of the kernel's process is none: {error}")
        head["error"] = _printable(head.get("error", "it says nothing"))
        return head, tensors

    def _died(self, how: str) -> NoReturn:
        """Ends the process; raises KernelDied with the last that it printed."""
        if how == DIED:
            try:
                code = self._process.wait(_SECONDS_TO_DIE)
                how += f": {signal.Signals(-code).name}" if code < 0 else f": exit status {code}"
            except subprocess.TimeoutExpired:
                how = "the kernel's process has closed the channel to the judge"
        self._kill()
        # Nobody knows how much it has printed.
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - _LAST_BYTES))
        lines = [_printable(line) for line in self._output.read(_LAST_BYTES).decode(errors="replace").splitlines()[-6:]]
        raise KernelDied("\n".join([how, *lines]))


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _printable(text: Any) -> str:
    """Makes text of a kernel's process safe to print: a terminal obeys some characters."""
    return "".join(each if each.isprintable() else " " for each in str(text)[:2000])


@contextmanager
def started(*targets: str, device: torch.device) -> Iterator[list[KernelProcess]]:
    """A scope in which processes run, each with its kernel imported, and nobody can read the memory of this one.

    The last target is the kernel that is not trusted. It is imported when all others have read their files.

    Raises:
        KernelDied: a kernel cannot be imported.
    """
    with unreadable():
        processes: list[KernelProcess] = []
        try:
            for together in (targets[:-1], targets[-1:]):
                begun = [KernelProcess(target, device) for target in together]
                processes += begun
                for each in begun:
                    each.wait_until_ready()
            yield processes
        finally:
            for each in processes:
                each.end()


class Secret:
    """The source of everything that a kernel must not foresee.

    What is drawn for one call says nothing about another: the values of a call follow from a hash of the seed.

    Attributes:
        seed: of all; it repeats a check.
    """

    def __init__(self, seed: int | None = None) -> None:
        # 63 bits of the system's own randomness, as options take seeds of that size.
        self.seed = secrets.randbits(63) if seed is None else seed

    def of(self, *what: Any) -> int:
        """The seed of one thing, named by what is given."""
        digest = hashlib.sha256(repr((self.seed, *what)).encode()).digest()
        # One bit less than PyTorch takes, as a call counts on from its seed.
        return int.from_bytes(digest[:8], "little") >> 2


def expected_sizes(call: Call) -> list[Tensor]:
    """The results of a call without values; empty if their sizes depend on data."""
    if call.declaration.sizes_from_data:
        return []
    arguments = call.make("meta")
    results = call.declaration.visible(call.declaration.output(*arguments)) if call.declaration.lists else []
    return tree_leaves([call.written(arguments), results])


def verify(call: Call, answer: Answer, sizes: Sequence[Tensor]) -> None:
    """Compares the results of a call with the reference, which is asked only now.

    Raises:
        Mismatch: they are wrong.
    """
    # The reference computes where nothing else does.
    call = replace(call, device=torch.device("cpu"))
    try:
        likes = sizes or tree_leaves([call.reference(*call.arguments)])
        names = [str(each.dtype) for each in likes]
        expect_same([str(each.dtype) for each in answer.results], names, "the results have the wrong dtypes")
        call.expect_close(answer.results, tree_leaves([call.expected()]))
    except Mismatch as mismatch:
        if answer.late:
            mismatch.args = (f"{mismatch}; it was still written to after the kernel had returned it",)
        raise


@dataclass
class Judged:
    """The outcome of a check of a kernel that is not trusted.

    Attributes:
        results: a result a job.
        called: the names of PyTorch's operators that the kernel called, as its own process says.
    """

    results: list[Result] = field(default_factory=list)
    called: dict[str, None] = field(default_factory=dict)


def expect_apart(target: str, kernel: str) -> None:
    """Raises a LookupError if the judge, to find an operator, would import the kernel that is not trusted.

    Args:
        target: the operator, as a person names it.
        kernel: the kernel, likewise.
    """
    place, colon, name = kernel.rpartition(":")
    if not colon or not place or not name:
        raise LookupError(f"--distrust must be FILE.py:NAME, FOLDER:NAME or MODULE:NAME, got {kernel!r}")
    path = Path(place)
    if (path.suffix == ".py" or os.sep in place) and not path.exists():
        raise LookupError(f"there is no file or folder {place}")
    for folder in map(Path, (target, target.rpartition(":")[0] or target)):
        if path.exists() and folder.is_dir() and folder.resolve() in path.resolve().parents:
            raise LookupError(f"{place} lies in {folder}, whose files the judge imports: move it elsewhere")


def expect_judgeable(subject: Subject, kernel: str) -> None:
    """Raises a LookupError if nothing can judge the kernel, or if the judge has imported it."""
    if subject.declaration.random:
        raise LookupError(f"{subject.name} has random results, which no judge can expect")
    place = kernel.rpartition(":")[0]
    path = Path(place).resolve() if Path(place).exists() else None
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or os.devnull)
        if f"{name}.".startswith(f"{place}.") or (path is not None and path in (file, *file.parents)):
            raise LookupError(
                f"the judge has imported {name}, which is part of {place} and not trusted: name an operator that you"
                " have declared yourself, with its samples, and that does not import the kernel"
            )


def judge(
    subject: Subject,
    kernel: str,
    jobs: Sequence[Job],
    secret: Secret,
    judged: Judged,
    *,
    on_start: OnStart = lambda job: None,
    on_result: OnResult = lambda job, result: None,
) -> None:
    """Checks the values of a kernel that is not trusted.

    Args:
        subject: an operator that is trusted: its declaration, its reference and its samples.
        kernel: `FILE.py:NAME`, `FOLDER:NAME` or `MODULE:NAME`, a function or an Operator; another process imports it.
        jobs: a device and a dtype each.
        secret: of all inputs.
        judged: where the outcome is put, job by job.
        on_start: called with each job.
        on_result: called with each job and its result.
    """
    with true_precision(), exact_reductions(), _Restarted(kernel) as processes:
        for job in jobs:
            on_start(job)
            begun = time.perf_counter()
            case = Case(subject, torch.device(job.device), job.dtype, secret.seed, job.quick, job.only)
            status: Literal["pass", "fail", "not applicable"] = "pass"
            more: dict[str, Any] = {}
            try:
                judged.called.update(dict.fromkeys(judge_calls(case, processes.on(case.device), secret)))
            except (CheckFailed, KernelDied) as error:
                failure = error.failure if isinstance(error, CheckFailed) else _failure(error)
                status = "fail"
                more["failure"] = replace(failure, reproduce=_again(job, kernel, secret))
            except NotApplicable as reason:
                status = "not applicable"
                more["reason"] = str(reason)
            result = job.result(status, time.perf_counter() - begun, called=case.called, **more)
            judged.results.append(result)
            on_result(job, result)


class _Restarted:
    """The process of a kernel, for as long as it lives; a new one if it is asked for on another device."""

    def __init__(self, kernel: str) -> None:
        self._kernel, self._scope = kernel, ExitStack()
        self._process: KernelProcess | None = None
        self._problem: KernelDied | None = None

    def __enter__(self) -> "_Restarted":
        return self

    def __exit__(self, *raised: object) -> None:
        self._scope.close()

    def on(self, device: torch.device) -> KernelProcess:
        """The process that computes on a device. Raises KernelDied if the kernel cannot be imported."""
        if self._problem is not None:
            raise self._problem
        if self._process is None or self._process.has_ended or self._process.device != device:
            self._scope.close()
            try:
                [self._process] = self._scope.enter_context(started(self._kernel, device=device))
            except KernelDied as problem:
                self._problem = problem
                raise
        return self._process


def _again(job: Job, kernel: str, secret: Secret) -> str:
    """Writes the command that repeats a job with the same inputs."""
    place, _, name = kernel.rpartition(":")
    found = f"{Path(place).resolve()}:{name}" if Path(place).exists() else kernel
    words = ["graft", "check", target_of(job.operator), "--distrust", found, "--device", job.device]
    words += ["--dtype", job.dtype_name, "--seed", str(secret.seed)]
    words += ["--quick"] if job.quick else []
    return shlex.join([*words, *(["--sample", job.only] if job.only else [])])


def judge_calls(case: Case, process: KernelProcess, secret: Secret) -> dict[str, None]:
    """Makes all calls of a case; returns the names of PyTorch's operators that the kernel called.

    Raises:
        CheckFailed: a result is wrong, or there is none.
    """
    called: dict[str, None] = {}
    for number, sample in enumerate(_samples(case, secret)):
        case.called += 1
        called.update(dict.fromkeys(_judge_call(case, process, sample, number, secret)))
    return called


def _failure(error: Exception, **more: Any) -> Failure:
    """Makes a Failure of what the kernel's process said, or of a wrong result."""
    if isinstance(error, (KernelDied, KernelRaised)):
        first, _, rest = str(error).partition("\n")
        return Failure(first, traceback=rest, **more)
    return failure_of(error, **more)


def _samples(case: Case, secret: Secret) -> list[Sample]:
    """The calls in an order that the kernel cannot foresee: each sample several times, and samples that are drawn."""
    random = Random(secret.of(case.device, case.dtype, "order"))
    chosen = case.table() * (_QUICK_TIMES if case.quick else _TIMES)
    if case.samples.draw is not None and case.only is None:
        chosen += [case.samples.draw(random) for _ in range(_QUICK_DRAWN if case.quick else _DRAWN)]
    random.shuffle(chosen)
    return chosen


def _judge_call(case: Case, process: KernelProcess, sample: Sample, number: int, secret: Secret) -> tuple[str, ...]:
    """Makes one call and compares its results; returns what the kernel called. Raises CheckFailed."""
    call = replace(case.call(sample), seed=secret.of(case.device, case.dtype, number))
    try:
        sizes = expected_sizes(call)
        answer = process.ask(call, call.make("cpu"), sizes, watched=True)
        verify(call, answer, sizes)
    except (Mismatch, KernelDied, KernelRaised) as error:
        arguments = describe_arguments(case.operator, sample)
        raise CheckFailed(_failure(error, sample=sample.name, arguments=arguments)) from error
    return answer.called
