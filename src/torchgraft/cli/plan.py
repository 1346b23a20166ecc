"""The jobs that a command line asks for: `graft check` and `graft adopt` make theirs here."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import typer

from torchgraft.building import cache
from torchgraft.cli.options import Devices
from torchgraft.cli.shared import end_with, find_dtypes, prepare_folder

if TYPE_CHECKING:
    from torchgraft.checking.jobs import Job
    from torchgraft.checking.subject import Subject


@dataclass(frozen=True)
class Selection:
    """The options that select jobs.

    Attributes:
        properties: names of properties; empty: all.
        dtypes: names of dtypes; empty: all.
        sample: the name of the only sample; None: all.
        quick: whether slow properties are left out.
        seed: of all inputs.
    """

    properties: Sequence[str] = ()
    dtypes: Sequence[str] = ()
    sample: str | None = None
    quick: bool = False
    seed: int = 0

    def expect_sample(self, subjects: Sequence[Subject]) -> None:
        """Raises a LookupError if no operator has a sample of the name."""
        named = dict.fromkeys(each.name for subject in subjects for each in subject.samples.named)
        if self.sample is not None and self.sample not in named:
            raise LookupError(f"there is no sample {self.sample!r}; the samples are {', '.join(map(repr, named))}")

    def make_jobs(self, subjects: Sequence[Subject], devices: Sequence[str]) -> list[Job]:
        """Makes the selected jobs of operators on devices.

        Raises:
            LookupError: there is no property or dtype of a name.
        """
        from torchgraft.checking.jobs import make_jobs

        return make_jobs(
            subjects,
            devices=devices,
            properties=self.properties or None,
            dtypes=find_dtypes(self.dtypes) or None,
            seed=self.seed,
            quick=self.quick,
            only=self.sample,
        )

    def left_out_by_dtypes(self, subjects: Sequence[Subject], devices: Sequence[str]) -> tuple[str, ...]:
        """Finds the properties that an operator would be asked on a device if no dtypes were named."""
        if not self.dtypes:
            return ()
        asked, every = (
            {(job.property_name, job.operator.qualified_name, job.device): None for job in each}
            for each in (
                self.make_jobs(subjects, devices),
                replace(self, dtypes=()).make_jobs(subjects, devices),
            )
        )
        return tuple(dict.fromkeys(job[0] for job in every if job not in asked))


@dataclass(frozen=True)
class Ways:
    """The options that run kernels in another way than a call does.

    Attributes:
        every_kernel: whether each kernel is forced in turn.
        kernels: names of kernels that are forced; empty: none, or all with `every_kernel`.
        sanitize: whether kernels also run under sanitizers.
        emulate: whether CUDA kernels also run in the emulator.
        compile_cuda: whether CUDA kernels are also compiled by nvcc.
        stress: how many random calls are made instead of all properties; None: none.
    """

    every_kernel: bool = False
    kernels: Sequence[str] = ()
    sanitize: bool = False
    emulate: bool = False
    compile_cuda: bool = False
    stress: int | None = None

    @property
    def forces(self) -> bool:
        """Whether kernels are forced."""
        return self.every_kernel or bool(self.kernels)

    def find_devices(self, device: Devices) -> list[str]:
        """Finds the devices on which jobs run, and the tools that these ways need.

        Raises:
            LookupError: options contradict each other, or there is no such device.
            MissingToolError: a compiler is missing.
        """
        from torchgraft.checking.jobs import find_devices
        from torchgraft.checking.without_gpu import expect_tools

        only_cuda = device is Devices.cuda and (self.emulate or self.compile_cuda)
        if (self.emulate or self.compile_cuda) and device is Devices.cpu:
            raise LookupError("--emulate and --compile-cuda are for CUDA kernels, which --device cpu leaves out")
        if self.emulate and (self.forces or self.sanitize):
            raise LookupError(
                "--emulate cannot be combined with --every-kernel, --kernel or --sanitize: `python -m"
                " torchgraft.emulation --help` says how the emulator does the same"
            )
        expect_tools(emulate=self.emulate, compile_cuda=self.compile_cuda)
        devices = find_devices("all" if only_cuda else device.value)
        if only_cuda:
            # With --emulate the emulator runs the CUDA kernels in place of the GPU.
            devices = [] if self.emulate else devices[1:]
        return devices

    def choose_properties(self, selection: Selection) -> Sequence[str]:
        """The properties that jobs are of: those selected, or those that these ways imply; empty: all.

        Raises:
            LookupError: properties or a sample are selected, and random calls are asked for.
        """
        from torchgraft.checking import PROPERTIES

        if self.stress is not None:
            if selection.properties or selection.sample is not None:
                raise LookupError("--stress draws its own calls, so it cannot be combined with --property or --sample")
            return ["stress"]
        if self.forces and not selection.properties:
            return [name for name, each in PROPERTIES.items() if each.sanitized]
        return selection.properties


@dataclass(frozen=True)
class Plan:
    """The jobs of a command.

    Attributes:
        jobs: that run as calls do.
        again: that run under sanitizers, in the emulator, or that a compiler alone takes.
        not_asked: the properties that the chosen dtypes leave out, as they are asked in others.
    """

    jobs: Sequence[Job]
    again: Sequence[Job] = ()
    not_asked: Sequence[str] = ()

    def prepare_folders(self) -> None:
        """Ends with one line if kernels must be built and the cache cannot be written to."""
        from torchgraft.checking.result import EMULATED, NVCC

        sanitized = [job for job in self.again if not job.place and torch.device(job.device).type == "cpu"]
        emulated, compiled = ([job for job in self.again if job.place == place] for place in (EMULATED, NVCC))
        for option, needing in (("--sanitize", sanitized), ("--emulate", emulated), ("--compile-cuda", compiled)):
            if needing:
                prepare_folder(option, cache.folder(), "set TORCHGRAFT_CACHE to another folder")


def make_plan(
    subjects: Sequence[Subject], devices: Sequence[str], selection: Selection, ways: Ways | None = None
) -> Plan:
    """Makes the jobs of a command.

    Args:
        subjects: the operators.
        devices: on which they are checked.
        selection: of properties, dtypes and samples.
        ways: in which kernels run; None: as a call runs them.

    Raises:
        LookupError: there is nothing of a name, or nothing to check.
    """
    from torchgraft.checking.jobs import make_kernel_jobs, make_stress_jobs
    from torchgraft.checking.own_compilers import compiled_by_authors
    from torchgraft.checking.properties import PROPERTIES
    from torchgraft.checking.sanitizers.run import sanitized
    from torchgraft.checking.triton_targets import compiled_by_triton
    from torchgraft.checking.without_gpu import compiled, emulated, find_emulated

    ways = ways or Ways()
    selection.expect_sample(subjects)
    jobs = selection.make_jobs(subjects, devices)
    in_emulator: list[Job] = []
    if ways.emulate:
        in_emulator = selection.make_jobs(find_emulated(subjects), ["cpu"])
        in_emulator = [job for job in in_emulator if selection.properties or PROPERTIES[job.property_name].sanitized]
    if ways.stress is not None:
        jobs, in_emulator = (make_stress_jobs(each, ways.stress) for each in (jobs, in_emulator))
    extra = emulated(in_emulator, watch=not selection.quick)
    extra += compiled(find_emulated(subjects)) if ways.compile_cuda else []
    if "cpu" in devices and not selection.properties:
        extra += [*compiled_by_triton(subjects), *compiled_by_authors(subjects)]
    if not jobs and not extra:
        raise LookupError("there is nothing to check: no property applies to this device and dtype")
    if ways.forces:
        jobs = make_kernel_jobs(jobs, ways.kernels)
    not_asked = () if ways.stress is not None else selection.left_out_by_dtypes(subjects, devices)
    return Plan(jobs, [*(sanitized(jobs) if ways.sanitize else ()), *extra], not_asked)


@contextmanager
def mistakes_end_the_command() -> Iterator[None]:
    """Ends with status 2 if what is done inside fails: with one line for a mistake on the command line.

    An error of a module that declares operators is shown with its traceback, as its author needs all of it.
    """
    from torchgraft.building import MissingToolError

    try:
        yield
    except typer.Exit:
        raise
    except (LookupError, MissingToolError) as mistake:
        end_with(mistake.args[0])
    except Exception:
        traceback.print_exc()
        raise typer.Exit(2) from None
