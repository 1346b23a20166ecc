"""Jobs: which properties of which operators run on which devices, in which dtypes, and with which kernels."""

import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal

import torch

from torchgraft.capturing.samples import CapturedSample
from torchgraft.checking.adopting.adopted import words_of
from torchgraft.checking.kernel_code import UnreachedLines, unreached_lines
from torchgraft.checking.kernel_place import place_of_kernel
from torchgraft.checking.kernels import expect_kernels, listed_kernels
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.result import (
    ALL_DTYPES,
    COMPILERS,
    DIED,
    EMULATED,
    NVCC,
    OWN_COMPILER,
    TRITON,
    Failure,
    Result,
)
from torchgraft.checking.subject import Subject, target_of
from torchgraft.operator import Operator
from torchgraft.sampling import Samples

# The seeds that PyTorch takes and that random calls, which have a seed each, can count on from.
SEEDS = range(-(2**63), 2**63)
# The property that runs before all others, and whose failure is printed at once.
SMOKE = "smoke"
# The reason of a result about a kernel that supports no call on this device, and would on another one.
RULED_OUT = "this device lacks something that the kernel needs"


@dataclass(frozen=True)
class Job:
    """One property of one operator on one device in one dtype; it travels to other processes.

    Attributes:
        property_name: the name of the property.
        operator: that is checked.
        samples: its inputs; None for those beside its declaration. Samples hold functions, which do not travel.
        device: where it runs.
        dtype: of its tensors.
        seed: of all inputs.
        quick: whether a few samples are enough.
        only: the name of the only sample; None: all.
        calls: how many random calls a property makes that checks any call; None: a few.
        under: the sanitizer under which the property runs again; empty: none.
        kernel: the kernel that runs every call that it supports; empty: the library chooses.
        place: where kernels run or are compiled, if not on the device: EMULATED, NVCC, TRITON or OWN_COMPILER.
        replay: the folder of captured calls that are the samples; empty: none.
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
    replay: str = ""

    @property
    def where(self) -> str:
        """The device, as a report names it."""
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
        """Writes the command that runs this job alone, or only its call of a seed."""
        words = ["graft", *words_of(self.operator)]
        if self.place == NVCC:
            return shlex.join([*words, "--device", "cuda", "--compile-cuda"])
        if self.place in (TRITON, OWN_COMPILER):
            return shlex.join([*words, "--device", "cpu", "--quick"])
        # A single random call is the first of a run from its seed: of one call with --stress, or else of the few calls
        # that the property makes by itself.
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
        if self.replay:
            words += ["--replay", self.replay]
        if sample and not sample.endswith("(drawn)"):
            words += ["--sample", sample]
        return shlex.join(words)

    def located(self, failure: Failure, arguments: Sequence[Any] | None = None) -> Failure:
        """Returns a failure with the place of the kernel in source code, if it is known.

        Args:
            failure: of this job.
            arguments: of a call, from which an author's policy chooses a kernel; None: not known.
        """
        # An emulator and a compiler take CUDA kernels.
        device = "cuda" if self.place else torch.device(self.device).type
        place = place_of_kernel(self.operator, device, self.kernel, arguments)
        return replace(failure, file=place.file, line=place.line)

    def result(self, status: Literal["pass", "fail", "not applicable"], seconds: float, **more: Any) -> Result:
        """Makes a result of this job; a failure without a place in source code gets that of the kernel."""
        title = f"{self.under}: {self.property_name}" if self.under else self.property_name
        dtype = ALL_DTYPES if self.place in COMPILERS else self.dtype_name
        failure: Failure | None = more.get("failure")
        if failure is not None and not failure.file:
            more["failure"] = self.located(failure)
        return Result(title, self.name, self.where, dtype, status, seconds, kernel=self.kernel, **more)


def find_devices(device: str = "all") -> list[str]:
    """Finds the devices of this machine that 'cpu', 'cuda' or 'all' means.

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
    """Makes a job of every property of every operator on every device in every dtype; all of `smoke` come first.

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
        captured = [each.captured for each in subject.samples.table if isinstance(each, CapturedSample)]
        for device in devices:
            for name in PROPERTIES if properties is None else properties:
                asked = PROPERTIES[name]
                left_out = (quick and asked.slow) or not asked.asked_of(subject.operator)
                left_out |= bool(subject.replay) and not asked.of_samples
                if (left_out and properties is None) or torch.device(device).type not in asked.devices:
                    continue
                wanted = dtypes
                if subject.replay and asked.dtypes is None and dtypes is None:
                    # What is asked in every dtype is asked in that of a real call.
                    wanted = captured
                chosen = [dtype for dtype in asked.dtypes_for(subject.operator) if wanted is None or dtype in wanted]
                jobs += [
                    Job(name, subject.operator, samples, device, dtype, seed, quick, only, replay=subject.replay)
                    for dtype in chosen
                ]
    return sorted(jobs, key=lambda job: job.property_name != SMOKE)


# The calls of one job: a failure, a crash or a call that hangs ends no more than these.
_CALLS_A_JOB = 50


def make_stress_jobs(jobs: Sequence[Job], calls: int) -> list[Job]:
    """Makes jobs of so many random calls of each operator on each device, its dtypes in turn.

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
    """Repeats each job with every kernel of its operator forced; leaves out operators that list no kernels.

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
    """Makes a failure for each forced kernel that supported no call of any job, as nothing is known of it.

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
        failure = job.located(failure)
        dtypes = ", ".join(dict.fromkeys(job.dtype_name for job, _ in asked))
        unreached.append(
            Result("reached", job.name, job.device, dtypes, "fail", 0.0, failure=failure, kernel=job.kernel)
        )
    return unreached


def find_unreached_lines(jobs: Sequence[Job], results: Sequence[Result]) -> tuple[UnreachedLines, ...]:
    """Finds the lines of kernels in Python that no job has run.

    Args:
        jobs: of all properties that an operator is asked.
        results: a result a job.

    Returns:
        The lines, of each kernel; nothing of an operator whose lines could not be watched: a process that died has not
        told which of them it ran.
    """
    places: dict[tuple[str, str], list[tuple[Job, Result]]] = {}
    for job, result in zip(jobs, results, strict=True):
        if not job.place and not job.under:
            kind = torch.device(job.device).type
            places.setdefault((job.operator.qualified_name, kind), []).append((job, result))
    found: list[UnreachedLines] = []
    for (_, kind), asked in places.items():
        told = [result.lines for _, result in asked]
        if None in told or any(result.failure and result.failure.message.startswith(DIED) for _, result in asked):
            continue
        found += unreached_lines([asked[0][0].operator], [kind], (line for lines in told for line in lines or ()))
    return tuple(found)


OnStart = Callable[[Job], None]
OnResult = Callable[[Job, Result], None]


def leave_out(jobs: Sequence[Job], reason: str, on_result: OnResult) -> list[Result]:
    """Returns a result for each job that is not run, and passes it on.

    Args:
        jobs: that are left out.
        reason: why they are not applicable.
        on_result: called with each job and its result.
    """
    results = [job.result("not applicable", 0.0, reason=reason) for job in jobs]
    for job, result in zip(jobs, results, strict=True):
        on_result(job, result)
    return results
