"""`graft check --emulate` and `--compile-cuda`: CUDA kernels on a machine without a GPU.

Under `--emulate` the properties that call kernels run with the CUDA kernels in the place of those of the CPU, on the
emulator, and once more while it watches for data races. Under `--compile-cuda` nvcc compiles the kernels, which nothing
then runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from torchgraft import building
from torchgraft.building import BuildError, cache, inline
from torchgraft.checking.jobs import Job, OnResult, OnStart, leave_out
from torchgraft.checking.kernels import claims_device, sources_of
from torchgraft.checking.result import ALL_DTYPES, EMULATED, NVCC, Failure, Result
from torchgraft.checking.subject import Subject
from torchgraft.checking.workers import run_jobs
from torchgraft.emulation import library
from torchgraft.operator import Operator

# The properties that run once more while the emulator watches for data races, and the name of that in a report.
RACES = "data races"
_WATCHED = ("value", "sizes")
# The row of a report for the compilation by nvcc.
COMPILES = "compiles"
# The architecture that nvcc compiles for on a machine without a GPU.
_NEWEST_COMMON = "90-real"


@dataclass(frozen=True)
class _Unit:
    """Sources of one library: the CUDA kernels of a namespace, or a text that `load_inline` was given.

    Attributes:
        stem: of the library's name.
        sources: the files, where it is no text.
        inline: the qualified name of the operator whose text it is.
    """

    stem: str
    sources: tuple[Path, ...] = ()
    inline: str = ""

    def written(self) -> tuple[Path, ...]:
        """Returns the files; writes a text to a file that its content names, so that it is compiled once."""
        if not self.inline:
            return self.sources
        text = inline.cuda_text(self.inline)
        assert text is not None
        digest = hashlib.sha256(str(text).encode()).hexdigest()[:16]
        folder = cache.keep_environment(f"{self.stem}-text-{digest}", lambda made: made.mkdir())
        return (inline.write_source(self.inline, "cuda", text, folder),)


def expect_tools(*, emulate: bool, compile_cuda: bool) -> None:
    """Raises MissingToolError if a tool is missing that is needed; the text says what to install."""
    if emulate:
        library.expect_tools()
    if compile_cuda:
        building.find_tool("cmake")
        building.find_tool("ninja")
        building.require_compiler("CXX", ("c++", "g++", "clang++"), "C++ compiler: install g++")
        building.require_compiler("CUDACXX", ("nvcc",), "CUDA compiler: install the CUDA toolkit and put nvcc on PATH")


def find_emulated(subjects: Sequence[Subject]) -> list[Subject]:
    """Finds the subjects whose CUDA kernels can be compiled here, as their sources are known.

    Raises:
        LookupError: there are none; the text says why.
    """
    claiming = [each for each in subjects if claims_device(each.operator, "cuda")]
    found = [each for each in claiming if _has_sources(each.operator)]
    names = ", ".join(subject.name for subject in claiming or subjects)
    if not claiming:
        raise LookupError(f"no CUDA kernels are declared for {names}")
    if not found:
        if any(subject.operator.module.startswith("torchgraft.") for subject in subjects):
            raise LookupError(
                f"there are no sources of the CUDA kernels of {names} here: a wheel of torchgraft does not have those"
                " of its own operators. Clone its repository and run the command there"
            )
        raise LookupError(
            f"there are no sources of CUDA kernels of {names}: *.cu files beside the declaration, or given to"
            " torchgraft.building.load, torchgraft.native.load(..., sources=) or torchgraft.load_inline(cuda=)"
        )
    return found


def _has_sources(operator: Operator) -> bool:
    return bool(inline.cuda_text(operator.qualified_name) or sources_of(operator, "cuda"))


def emulated(jobs: Sequence[Job], *, watch: bool) -> list[Job]:
    """Makes jobs of the emulator from jobs of the CPU.

    Args:
        jobs: of operators that `find_emulated` gave.
        watch: whether some are run once more, watched for data races.
    """
    run = [replace(job, place=EMULATED) for job in jobs]
    watched = [replace(job, under=RACES) for job in run if watch and job.property_name in _WATCHED]
    return [*run, *watched]


def compiled(subjects: Sequence[Subject]) -> list[Job]:
    """Makes jobs that compile the CUDA kernels of operators."""
    return [Job(COMPILES, each.operator, None, "cuda", torch.float32, place=NVCC) for each in subjects]


def run_emulated(
    jobs: Sequence[Job],
    *,
    workers: int,
    on_start: OnStart,
    on_result: OnResult,
    on_step: Callable[[str], None],
) -> list[Result]:
    """Runs the jobs that `emulated` gave, as `run_jobs` runs others.

    Args:
        jobs: of the emulator.
        workers: how many processes at a time, at least one.
        on_start: see `run_jobs`.
        on_result: see `run_jobs`.
        on_step: told what is being done before jobs start.
    """
    results: dict[int, Result] = {}
    for (unit, under), numbers in _grouped(jobs):
        chosen = [jobs[number] for number in numbers]
        on_step(f"compiling the CUDA kernels of {unit.stem} for the emulator{f', to find {under}' if under else ''}")
        try:
            built = library.build_once(unit.stem, unit.written(), sanitizer="races" if under else "")
        except BuildError as error:
            found = _failed(chosen, str(error), on_result)
        else:
            # Triton's interpreter is off: its kernels for the CPU would run in place of the emulated ones.
            variables = {**library.environment(built, chosen[0].operator.namespace), "TRITON_INTERPRET": "0"}
            found = run_jobs(
                chosen, workers=max(workers, 1), environment=variables, on_start=on_start, on_result=on_result
            )
        results.update(zip(numbers, found, strict=True))
    return [results[number] for number in range(len(jobs))]


def run_compiled(
    jobs: Sequence[Job], *, on_start: OnStart, on_result: OnResult, on_step: Callable[[str], None]
) -> list[Result]:
    """Runs the jobs that `compiled` gave: nvcc compiles what has changed since the last time.

    Args:
        jobs: see `compiled`.
        on_start: see `run_jobs`.
        on_result: see `run_jobs`.
        on_step: told what is being done before jobs start.
    """
    architecture = _NEWEST_COMMON
    if torch.cuda.is_available():
        architecture = "{}{}-real".format(*torch.cuda.get_device_capability())
    results: dict[int, Result] = {}
    for (unit, _), numbers in _grouped(jobs):
        chosen = [jobs[number] for number in numbers]
        on_start(chosen[0])
        on_step(f"compiling the CUDA kernels of {unit.stem} for {architecture}")
        try:
            sources = unit.written()
            digest = hashlib.sha256(repr(sources).encode()).hexdigest()[:16]
            folder = cache.keep_environment(f"{unit.stem}-nvcc-{architecture}-{digest}", lambda made: made.mkdir())
            building.build(unit.stem, sources, folder, cuda=True, architectures=architecture)
        except BuildError as error:
            found = _failed(chosen, str(error), on_result)
        else:
            found = [job.result("pass", 0.0) for job in chosen]
            for job, result in zip(chosen, found, strict=True):
                on_result(job, result)
        results.update(zip(numbers, found, strict=True))
    return [results[number] for number in range(len(jobs))]


def _grouped(jobs: Sequence[Job]) -> Iterator[tuple[tuple[_Unit, str], list[int]]]:
    """Groups the numbers of jobs by the library and the tool that watches it; a namespace has one library."""
    sources: dict[str, dict[Path, None]] = {}
    for job in jobs:
        if not inline.cuda_text(job.operator.qualified_name):
            sources.setdefault(job.operator.namespace, {}).update(dict.fromkeys(sources_of(job.operator, "cuda")))
    groups: dict[tuple[_Unit, str], list[int]] = {}
    for number, job in enumerate(jobs):
        name, namespace = job.operator.qualified_name, job.operator.namespace
        if inline.cuda_text(name):
            unit = _Unit(inline.stem_of(name), inline=name)
        else:
            unit = _Unit(namespace, tuple(sources[namespace]))
        groups.setdefault((unit, job.under), []).append(number)
    yield from groups.items()


def _failed(jobs: Sequence[Job], why: str, on_result: OnResult) -> list[Result]:
    """Returns results of jobs whose kernels do not compile: the first fails, and the others are not applicable."""
    first, *others = jobs
    failed = first.result("fail", 0.0, failure=Failure(why, reproduce=first.reproduce()))
    told = replace(failed, property=COMPILES, dtype=ALL_DTYPES)
    on_result(first, told)
    return [told, *leave_out(others, "its CUDA kernels did not compile", on_result)]
