"""`graft check`."""

from __future__ import annotations

import importlib.util
import os
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable

from torchgraft import cache, python_kernels
from torchgraft.cli.mutants import check_mutants
from torchgraft.cli.shared import (
    Devices,
    DevicesOption,
    DtypesOption,
    JsonOption,
    PropertiesOption,
    QuickOption,
    SampleOption,
    SeedOption,
    end_with,
    explain_missing,
    find_dtypes,
    find_subjects,
    interrupt_when_told_to_end,
    make_console,
    prepare_files,
    prepare_folder,
    write_files,
)
from torchgraft.figures import as_json

if TYPE_CHECKING:
    from torchgraft.checking.jobs import Job
    from torchgraft.checking.result import Result
    from torchgraft.checking.subject import Subject
    from torchgraft.operator import Operator


def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATOR",
            help="What to check: the name of a torchgraft operator, package.module:operator, a folder or a file that "
            "declares operators, or folder:operator. If an operator and a folder have the same name, the name means "
            "the operator, and ./name the folder. Default: all operators of torchgraft.",
            show_default=False,
        ),
    ] = None,
    device: DevicesOption = Devices.all,
    properties: PropertiesOption = None,
    dtypes: DtypesOption = None,
    sample: SampleOption = None,
    every_kernel: Annotated[
        bool,
        typer.Option(
            "--every-kernel",
            help="Check the properties that call kernels, or those given by --property, once for each kernel of the "
            "library. Each time, that kernel runs for every input that it supports, even where another kernel is "
            "faster. A kernel that no sample reaches is a failure.",
        ),
    ] = False,
    kernels: Annotated[
        list[str] | None,
        typer.Option("--kernel", metavar="NAME", help="Like --every-kernel, for this kernel only. May be repeated."),
    ] = None,
    sanitize: Annotated[
        bool,
        typer.Option(
            "--sanitize",
            help="Also run the kernels under sanitizers. CPU kernels are rebuilt and run under AddressSanitizer with "
            "UndefinedBehaviorSanitizer, and under ThreadSanitizer. GPU kernels run under the tools of "
            "compute-sanitizer.",
        ),
    ] = False,
    emulate: Annotated[
        bool,
        typer.Option(
            "--emulate",
            help="Also run the CUDA kernels on the CPU, in an emulator of CUDA, which needs a C++ compiler and no CUDA "
            "toolkit: the properties that call kernels, or those given by --property. Without --quick also finds data "
            "races. With --device cuda, nothing else is checked. `python -m torchgraft.emulation --help` lists more "
            "options.",
        ),
    ] = False,
    compile_cuda: Annotated[
        bool,
        typer.Option(
            "--compile-cuda",
            help="Also compile the CUDA kernels with nvcc, for the GPU that is present, or else for compute capability "
            "9.0. With --device cuda on a machine without a GPU, nothing else is checked.",
        ),
    ] = False,
    stress: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Instead of all properties, check N random calls of each operator on each device. The calls take the "
            "dtypes in turn. They have any strides and any gradients, and sizes around the limits at which code "
            "makes a choice. On a GPU some calls run on two streams at once, and some from CUDA graphs.",
            show_default=False,
        ),
    ] = None,
    mutants: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Instead of all properties, check the samples: make N small changes to the sources of the CPU "
            "kernels, spread evenly over the files, and list the changes that no sample detects. A second run "
            "continues from the first.",
            show_default=False,
        ),
    ] = None,
    quick: QuickOption = False,
    json_file: JsonOption = None,
    seed: SeedOption = 0,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of processes at a time. 0: check in this process, where a crash ends the whole run. Default: "
            "one process per core. Only one process at a time uses a GPU; with --stress up to eight do, and under "
            "CUDA's Multi-Process Service (CUDA_MPS_PIPE_DIRECTORY) all do.",
            show_default=False,
        ),
    ] = None,
    list_properties: Annotated[
        bool, typer.Option("--list", help="List the properties, with --json as JSON, and check nothing.")
    ] = False,
) -> None:
    """Check operators against their references, property by property.

    The exit status is 1 if a property fails or a mutant survives, and 2 if the command line is wrong or the report
    cannot be written.
    """
    expect_hypothesis()
    from torchgraft.building import MissingToolError
    from torchgraft.checking import PROPERTIES, find_devices
    from torchgraft.checking.jobs import make_jobs, make_kernel_jobs, make_stress_jobs
    from torchgraft.checking.sanitizers.run import sanitized
    from torchgraft.checking.without_gpu import compiled, emulated, expect_tools, find_emulated

    prepare_files(("--json", json_file))
    console = make_console(json_file)
    if list_properties:
        table = RichTable(Column(no_wrap=True, style="bold"), Column(), box=None, pad_edge=False, show_header=False)
        for name, each in PROPERTIES.items():
            table.add_row(name, each.summary)
        console.print(table)
        listed = [
            {
                "name": name,
                "proves": each.summary,
                "devices": list(each.devices),
                "quick": not each.slow,
                "sanitized": each.sanitized,
            }
            for name, each in PROPERTIES.items()
        ]
        write_files((json_file, lambda: as_json({"properties": listed})))
        return

    count = os.cpu_count() or 1 if workers is None else workers
    if mutants is not None:
        others = (properties, dtypes, sample, every_kernel, kernels, sanitize, stress, emulate, compile_cuda)
        if device is Devices.cuda or any(others):
            end_with("--mutants can be combined only with operators, --seed, --workers and --json")
        outcomes = check_mutants(targets or [], mutants, seed=seed, workers=count, console=console, json_file=json_file)
        if any(outcome.status in ("survived", "not reached") for _, outcome in outcomes):
            raise typer.Exit(1)
        return

    forced = every_kernel or bool(kernels)
    only_cuda = device is Devices.cuda and (emulate or compile_cuda)
    try:
        if (emulate or compile_cuda) and device is Devices.cpu:
            raise LookupError("--emulate and --compile-cuda are for CUDA kernels, which --device cpu leaves out")
        if emulate and (forced or sanitize):
            raise LookupError(
                "--emulate cannot be combined with --every-kernel, --kernel or --sanitize: `python -m"
                " torchgraft.emulation --help` says how the emulator does the same"
            )
        expect_tools(emulate=emulate, compile_cuda=compile_cuda)
        devices = find_devices("all" if only_cuda else device.value)
        if only_cuda:
            # A GPU is not asked where its kernels are to run in the emulator.
            devices = [] if emulate else devices[1:]
        if stress is not None:
            if properties or sample is not None:
                raise LookupError("--stress draws its own calls, so it cannot be combined with --property or --sample")
            properties = ["stress"]
        elif forced and not properties:
            properties = [name for name, each in PROPERTIES.items() if each.sanitized]
        with _triton_interpreted(workers=count) as interpreted:
            subjects = find_subjects(targets or [])
            interpreted += [subject for subject in subjects if python_kernels.is_run_by_interpreter(subject.operator)]
        named = dict.fromkeys(each.name for subject in subjects for each in subject.samples.named)
        if sample is not None and sample not in named:
            raise LookupError(f"there is no sample {sample!r}; the samples are {', '.join(map(repr, named))}")
        chosen: Any = {"dtypes": find_dtypes(dtypes or ()) or None, "seed": seed, "quick": quick, "only": sample}
        jobs = make_jobs(subjects, devices=devices, properties=properties or None, **chosen)
        in_emulator = []
        if emulate:
            in_emulator = make_jobs(find_emulated(subjects), devices=["cpu"], properties=properties or None, **chosen)
            in_emulator = [job for job in in_emulator if properties or PROPERTIES[job.property_name].sanitized]
        if stress is not None:
            jobs, in_emulator = (make_stress_jobs(each, stress) for each in (jobs, in_emulator))
        extra = [*emulated(in_emulator, watch=not quick), *(compiled(find_emulated(subjects)) if compile_cuda else ())]
        if not jobs and not extra:
            raise LookupError("there is nothing to check: no property applies to this device and dtype")
        if forced:
            jobs = make_kernel_jobs(jobs, kernels or ())
        again = sanitized(jobs) if sanitize else []
        _tell_of_undeclared(dict.fromkeys(subject.operator.namespace for subject in subjects))
    except typer.Exit:
        raise
    except (LookupError, MissingToolError) as mistake:
        end_with(mistake.args[0])
    except Exception:
        # Of a module that declares operators: its author wants the whole of it.
        traceback.print_exc()
        raise typer.Exit(2) from None

    for option, needs in (
        ("--sanitize", any(torch.device(job.device).type == "cpu" for job in again)),
        ("--emulate", emulate),
        ("--compile-cuda", compile_cuda),
    ):
        if needs:
            prepare_folder(option, cache.folder(), "set TORCHGRAFT_CACHE to another folder")
    unreached = sample is None and not dtypes
    run_and_report(
        console,
        jobs,
        [*again, *extra],
        find_kernels_unreached=unreached,
        workers=count,
        seed=seed,
        quick=quick,
        json_file=json_file,
        operators=[subject.operator for subject in subjects],
    )


def expect_hypothesis() -> None:
    """Ends with one line where the package is missing that draws inputs; it is imported where it does."""
    if importlib.util.find_spec("hypothesis") is None:
        explain_missing(ModuleNotFoundError(name="hypothesis"), "check")


def run_and_report(
    console: Console,
    jobs: Sequence[Job],
    again: Sequence[Job] = (),
    *,
    workers: int,
    seed: int,
    quick: bool,
    json_file: Path | None,
    find_kernels_unreached: bool = False,
    operators: Sequence[Operator] = (),
) -> None:
    """Runs jobs, shows them as they go on, and prints and writes what came of them.

    Ends with status 1 where a property does not hold.

    Args:
        console: for a person.
        jobs: to run.
        again: those that are run under sanitizers, in the emulator, or by nvcc alone.
        workers: processes at a time; 0: none but this one.
        seed: of all inputs.
        quick: whether slow properties were left out.
        json_file: the report for a machine; None: nobody wants one.
        find_kernels_unreached: whether a forced kernel that served no call is a failure.
        operators: those that were named, with a job or without: the report says which of their kernels did not run.
    """
    from torchgraft.checking import CheckReport
    from torchgraft.checking.jobs import find_unreached
    from torchgraft.checking.report.left_out import find_left_out
    from torchgraft.checking.report.live import LiveCheck
    from torchgraft.checking.report.printed import print_report
    from torchgraft.checking.result import EMULATED, NVCC
    from torchgraft.checking.run import run_everywhere
    from torchgraft.checking.sanitizers.run import run_sanitized
    from torchgraft.checking.without_gpu import run_compiled, run_emulated
    from torchgraft.environment import describe_environment

    started = time.monotonic()
    finished: list[Result] = []
    unreached: list[Result] = []
    interrupt_when_told_to_end()
    with LiveCheck(console, [*jobs, *again]) as live:

        def finish(job: Job, result: Result) -> None:
            finished.append(result)
            live.finish(job, result)

        try:
            results = run_everywhere(jobs, workers=workers, on_start=live.start, on_result=finish)
            if find_kernels_unreached:
                unreached = find_unreached(jobs, results)
            shown: Any = {"on_start": live.start, "on_result": finish, "on_step": live.say}
            results += run_sanitized([job for job in again if not job.place], workers=workers, **shown)
            results += run_compiled([job for job in again if job.place == NVCC], **shown)
            results += run_emulated([job for job in again if job.place == EMULATED], workers=workers, **shown)
        except KeyboardInterrupt:
            results = finished
    # The machine on which nvcc compiles, and on which the emulator runs, is the CPU.
    devices = {job.where: "cpu" if job.place else job.device for job in (*jobs, *again)}
    environments = {where: describe_environment(each) for where, each in devices.items()}
    unfinished = len(jobs) + len(again) - len(results)
    left_out = find_left_out([*jobs, *again], results, operators)
    report = CheckReport((*results, *unreached), environments, seed, quick, unfinished, left_out)
    try:
        print_report(console, live.board, report, time.monotonic() - started)
    finally:
        # Also where nobody listens any longer, as after a terminal has been closed.
        write_files((json_file, lambda: as_json(report.as_dict())))
    if not report.passed:
        raise typer.Exit(1)


def _tell_of_undeclared(namespaces: Iterable[str]) -> None:
    """Says which kernels of the libraries belong to no operator that was imported."""
    from torchgraft.operator import Operator
    from torchgraft.signatures import undeclared

    for namespace in namespaces:
        for device in ("cpu", "cuda"):
            if names := undeclared(namespace, device):
                declared = [each.name for each in Operator.registered.values() if each.namespace == namespace]
                typer.echo(
                    f"{namespace} has {device.upper()} kernels without an operator, so nothing checks them:"
                    f" {', '.join(names)}; its operators: {', '.join(declared)}",
                    err=True,
                )


@contextmanager
def _triton_interpreted(*, workers: int) -> Iterator[list[Subject]]:
    """A scope in which operators are declared: their kernels in Triton become the CPU's where there is no GPU.

    The caller adds those that have such kernels to the list, and Triton's interpreter then stays switched on for the
    processes that are started later. In this process Triton may be imported already, and it is too late for that.
    """
    found: list[Subject] = []
    name = "TRITON_INTERPRET"
    if torch.cuda.is_available() or name in os.environ or not workers:
        yield found
        return
    os.environ[name] = "1"
    try:
        yield found
    finally:
        if not found:
            del os.environ[name]
    if found:
        names = ", ".join(dict.fromkeys(subject.name for subject in found))
        typer.echo(
            f"this machine has no GPU: Triton's interpreter runs the kernels of {names} on the CPU ({name}=1)", err=True
        )
