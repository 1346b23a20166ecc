"""`graft check`."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable

from torchgraft.cli.distrust import check_distrusted
from torchgraft.cli.mutants import check_mutants
from torchgraft.cli.options import (
    CheckWorkersOption,
    CompileCudaOption,
    Devices,
    DevicesOption,
    DistrustOption,
    DtypesOption,
    EmulateOption,
    EveryKernelOption,
    JsonOption,
    JUnitOption,
    KernelsOption,
    ListOption,
    MutantsOption,
    PropertiesOption,
    QuickOption,
    ReplayOption,
    SampleOption,
    SanitizeOption,
    SarifOption,
    SeedOption,
    StressOption,
    TargetsArgument,
)
from torchgraft.cli.plan import Plan, Selection, Ways, make_plan, mistakes_end_the_command
from torchgraft.cli.shared import (
    end_with,
    explain_missing,
    find_subjects,
    interrupt_when_told_to_end,
    make_console,
    prepare_files,
    write_files,
)
from torchgraft.kernels import python_kernels, triton_launches
from torchgraft.machine.documents import as_document
from torchgraft.machine.figures import as_json

if TYPE_CHECKING:
    from torchgraft.checking.jobs import Job
    from torchgraft.checking.result import Result
    from torchgraft.checking.subject import Subject
    from torchgraft.operator import Operator


def check(
    targets: TargetsArgument = None,
    device: DevicesOption = Devices.all,
    properties: PropertiesOption = None,
    dtypes: DtypesOption = None,
    sample: SampleOption = None,
    every_kernel: EveryKernelOption = False,
    kernels: KernelsOption = None,
    sanitize: SanitizeOption = False,
    emulate: EmulateOption = False,
    compile_cuda: CompileCudaOption = False,
    stress: StressOption = None,
    replay: ReplayOption = None,
    mutants: MutantsOption = None,
    distrust: DistrustOption = None,
    quick: QuickOption = False,
    json_file: JsonOption = None,
    junit_file: JUnitOption = None,
    sarif_file: SarifOption = None,
    seed: SeedOption = 0,
    workers: CheckWorkersOption = None,
    list_properties: ListOption = False,
) -> None:
    """Check operators against their references, property by property.

    The exit status is 1 if a property fails or a mutant survives, 2 if the command line is wrong or a report cannot be
    written, and 3 if a package is missing that the extra `check` brings.
    """
    expect_hypothesis()
    prepare_files(("--json", json_file), ("--junit", junit_file), ("--sarif", sarif_file))
    console = make_console(json_file, junit_file, sarif_file)
    if list_properties:
        _list_properties(console, json_file)
        return
    count = os.cpu_count() or 1 if workers is None else workers
    if mutants is not None:
        others = (
            properties,
            dtypes,
            sample,
            every_kernel,
            kernels,
            sanitize,
            stress,
            replay,
            emulate,
            compile_cuda,
            quick,
        )
        if device is Devices.cuda or any((*others, junit_file, sarif_file)):
            end_with("--mutants can be combined only with operators, --seed, --workers and --json")
        outcomes = check_mutants(targets or [], mutants, seed=seed, workers=count, console=console, json_file=json_file)
        if any(outcome.status in ("survived", "not reached") for _, outcome in outcomes):
            raise typer.Exit(1)
        return
    if distrust is not None:
        if workers is not None or any(
            (properties, every_kernel, kernels, sanitize, stress, replay, emulate, compile_cuda)
        ):
            end_with("--distrust can be combined only with --device, --dtype, --sample, --quick, --seed and --json")
        check_distrusted(
            console, targets or [], distrust, Selection((), dtypes or (), sample, quick, seed), device, json_file
        )
        return
    if replay is not None and stress is not None:
        end_with("--stress draws its own calls, so it cannot be combined with --replay")
    selection = Selection(properties or (), dtypes or (), sample, quick, seed)
    ways = Ways(every_kernel, kernels or (), sanitize, emulate, compile_cuda, stress)
    with mistakes_end_the_command():
        devices = ways.find_devices(device)
        selection = replace(selection, properties=ways.choose_properties(selection))
        subjects = _find_subjects(targets or [], replay, workers=count)
        plan = make_plan(subjects, devices, selection, ways)
        _tell_of_undeclared(dict.fromkeys(subject.operator.namespace for subject in subjects))
    plan.prepare_folders()
    run_and_report(
        console,
        plan,
        find_kernels_unreached=sample is None and not dtypes,
        find_lines_unreached=not (sample or dtypes or properties or kernels or every_kernel or stress),
        workers=count,
        seed=seed,
        quick=quick,
        json_file=json_file,
        junit_file=junit_file,
        sarif_file=sarif_file,
        operators=[subject.operator for subject in subjects],
    )


def _list_properties(console: Console, json_file: Path | None) -> None:
    """Prints the properties, and writes them as JSON."""
    from torchgraft.checking import PROPERTIES

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
    write_files((json_file, lambda: as_document("check-list", {"properties": listed})))


def _find_subjects(targets: Sequence[str], replay: Path | None, *, workers: int) -> list[Subject]:
    """Finds the operators; on a machine without a GPU their kernels in Triton and Helion become the CPU's."""
    with ExitStack() as scopes:
        interpreted = scopes.enter_context(_interpreted("TRITON_INTERPRET", "Triton's interpreter", workers=workers))
        in_reference_mode = {
            language: scopes.enter_context(_interpreted(names[0], f"{language}'s reference mode", workers=workers))
            for language, names in python_kernels.REFERENCE_MODES.items()
        }
        subjects = find_subjects(targets, replay)
        for subject in subjects:
            if python_kernels.is_run_by_interpreter(subject.declaration):
                interpreted.append(subject)
            if language := python_kernels.reference_mode_of(subject.declaration):
                in_reference_mode[language].append(subject)
    return subjects


def expect_hypothesis() -> None:
    """Ends with one line if the package is missing that makes random inputs; a property imports it when it does."""
    if importlib.util.find_spec("hypothesis") is None:
        explain_missing(ModuleNotFoundError(name="hypothesis"), "check")


def run_and_report(
    console: Console,
    plan: Plan,
    *,
    workers: int,
    seed: int,
    quick: bool,
    json_file: Path | None,
    junit_file: Path | None = None,
    sarif_file: Path | None = None,
    find_kernels_unreached: bool = False,
    find_lines_unreached: bool = False,
    operators: Sequence[Operator] = (),
) -> None:
    """Runs jobs, shows them while they run, and prints and writes the report.

    Ends with status 1 if a property does not hold.

    Args:
        console: on which they are shown.
        plan: the jobs.
        workers: how many processes run at a time; 0: jobs run in this one.
        seed: of all inputs.
        quick: whether slow properties were left out.
        json_file: where the report is written as JSON; None: nowhere.
        junit_file: where it is written as JUnit XML; None: nowhere.
        sarif_file: where its failures are written as SARIF; None: nowhere.
        find_kernels_unreached: whether a forced kernel that served no call is a failure.
        find_lines_unreached: whether the report says which lines of kernels in Python did not run.
        operators: that were named, with a job or without: the report says which of their kernels did not run.
    """
    from torchgraft.checking import CheckReport
    from torchgraft.checking.jobs import find_unreached, find_unreached_lines
    from torchgraft.checking.report.junit import as_junit
    from torchgraft.checking.report.left_out import find_left_out
    from torchgraft.checking.report.live import LiveCheck
    from torchgraft.checking.report.printed import print_report
    from torchgraft.checking.report.sarif import as_sarif
    from torchgraft.checking.result import TRITON
    from torchgraft.checking.run import run_everywhere
    from torchgraft.machine.environment import describe_environment

    started = time.monotonic()
    every = [*plan.jobs, *plan.again]
    finished: list[Result] = []
    unreached: list[Result] = []
    stopped_in: tuple[str, ...] = ()
    interrupt_when_told_to_end()
    is_compiled = any(job.place == TRITON for job in plan.again)
    with LiveCheck(console, every) as live, triton_launches.recorded(is_compiled) as launches:

        def finish(job: Job, result: Result) -> None:
            finished.append(result)
            live.finish(job, result)

        try:
            results = run_everywhere(plan.jobs, workers=workers, on_start=live.start, on_result=finish)
            if find_kernels_unreached:
                unreached = find_unreached(plan.jobs, results)
            shown: Any = {"on_start": live.start, "on_result": finish, "on_step": live.say}
            results += _run_again(plan, launches, workers, shown)
        except KeyboardInterrupt:
            results, stopped_in = finished, tuple(live.running)
    # Compilers and the emulator run on the CPU.
    devices = {job.where: "cpu" if job.place else job.device for job in every}
    environments = {where: describe_environment(each) for where, each in devices.items()}
    unfinished = len(every) - len(results)
    left_out = find_left_out(every, results, operators)
    lines = find_unreached_lines(every, results) if find_lines_unreached and not unfinished else ()
    report = CheckReport(
        (*results, *unreached),
        environments,
        seed,
        quick,
        unfinished,
        left_out,
        lines,
        tuple(plan.not_asked),
        stopped_in,
    )
    try:
        print_report(console, live.board, report, time.monotonic() - started)
    finally:
        # The file is written even if printing fails, as it does after a terminal has been closed.
        write_files(
            (json_file, lambda: as_json(report.as_dict())),
            (junit_file, lambda: as_junit(report)),
            (sarif_file, lambda: as_sarif(report)),
        )
    if not report.passed:
        raise typer.Exit(1)


def _run_again(plan: Plan, launches: Any, workers: int, shown: dict[str, Any]) -> list[Result]:
    """Runs the jobs that repeat others: under sanitizers, by compilers, and in the emulator."""
    from torchgraft.checking.own_compilers import run_own_compilers
    from torchgraft.checking.result import EMULATED, NVCC, OWN_COMPILER, TRITON
    from torchgraft.checking.sanitizers.run import run_sanitized
    from torchgraft.checking.triton_targets import run_triton_compiler
    from torchgraft.checking.without_gpu import run_compiled, run_emulated

    places = ("", TRITON, OWN_COMPILER, NVCC, EMULATED)
    at = {place: [job for job in plan.again if job.place == place] for place in places}
    return [
        *run_sanitized(at[""], workers=workers, **shown),
        *run_triton_compiler(at[TRITON], launches, **shown),
        *run_own_compilers(at[OWN_COMPILER], **shown),
        *run_compiled(at[NVCC], **shown),
        *run_emulated(at[EMULATED], workers=workers, **shown),
    ]


def _tell_of_undeclared(namespaces: Iterable[str]) -> None:
    """Prints which kernels of the libraries belong to no operator that was imported."""
    from torchgraft.kernels.signatures import undeclared
    from torchgraft.operator import Operator

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
def _interpreted(name: str, interpreter: str, *, workers: int) -> Iterator[list[Subject]]:
    """A scope in which operators are declared; without a GPU, an interpreter runs their kernels on the CPU.

    The caller adds the operators with such kernels to the list. The interpreter then stays switched on for processes
    that are started later; for this one it is too late if it has imported the language already.

    Args:
        name: the environment variable that switches the interpreter on.
        interpreter: its name, for people.
        workers: how many processes the check starts; the interpreter is not switched on if there are none.
    """
    found: list[Subject] = []
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
            f"this machine has no GPU: {interpreter} runs the kernels of {names} on the CPU ({name}=1)", err=True
        )
