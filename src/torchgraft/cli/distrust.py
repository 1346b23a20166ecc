"""`graft check --distrust` and `graft bench --distrust`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from torchgraft.cli.options import Devices
from torchgraft.cli.plan import Selection, mistakes_end_the_command
from torchgraft.cli.shared import end_with, find_subjects, interrupt_when_told_to_end, print_table, write_files
from torchgraft.machine.documents import as_document
from torchgraft.machine.figures import as_json

if TYPE_CHECKING:
    from torchgraft.benchmarking.suite import Wanted
    from torchgraft.checking.subject import Subject


def _find_subject(targets: Sequence[str], kernel: str) -> Subject:
    """Finds the operator that is trusted.

    Raises:
        LookupError: there is not one alone, or it cannot judge the kernel.
    """
    from torchgraft.checking.distrust import rights
    from torchgraft.checking.distrust.judge import expect_apart, expect_judgeable

    if not rights.can_be_given_up():
        raise LookupError("--distrust needs Linux: on this system one process may read the memory of another")
    for target in targets:
        expect_apart(target, kernel)
    found = find_subjects(targets) if targets else []
    if len(found) != 1:
        names = f": {', '.join(each.name for each in found)}" if found else ""
        raise LookupError(f"--distrust needs one operator to judge by, got {len(found)}{names}")
    expect_judgeable(found[0], kernel)
    return found[0]


def check_distrusted(
    console: Console,
    targets: Sequence[str],
    kernel: str,
    selection: Selection,
    device: Devices,
    json_file: Path | None,
) -> None:
    """Checks the values of a kernel that is not trusted, and prints and writes the report; ends with 1 if one is wrong.

    Args:
        console: on which it is shown.
        targets: name the operator by which the kernel is judged.
        kernel: that is judged.
        selection: of dtypes and samples; its seed 0 means a new one.
        device: where the kernel computes.
        json_file: where the report is written as JSON; None: nowhere.
    """
    from torchgraft.checking import CheckReport
    from torchgraft.checking.distrust import judge
    from torchgraft.checking.jobs import Job, find_devices
    from torchgraft.checking.report.live import LiveCheck
    from torchgraft.checking.report.printed import print_report
    from torchgraft.cli.shared import find_dtypes
    from torchgraft.machine.environment import describe_environment
    from torchgraft.operator import FLOATING

    with mistakes_end_the_command():
        subject = _find_subject(targets, kernel)
        selection.expect_sample([subject])
        devices = find_devices(device.value)
        own = subject.declaration.dtypes or FLOATING
        named = find_dtypes(selection.dtypes)
        jobs = [
            Job(judge.QUESTION, subject.operator, None, where, dtype, 0, selection.quick, selection.sample)
            for where in devices
            for dtype in own
            if not named or dtype in named
        ]
        if not jobs:
            raise LookupError(f"there is nothing to check: {subject.name} does not take this dtype")
    secret = judge.Secret(selection.seed or None)
    interrupt_when_told_to_end()
    begun = time.monotonic()
    judged = judge.Judged()
    # What is there when it is interrupted is shown.
    stopped_in: tuple[str, ...] = ()
    with LiveCheck(console, jobs) as live:
        try:
            judge.judge(subject, kernel, jobs, secret, judged, on_start=live.start, on_result=live.finish)
        except KeyboardInterrupt:
            stopped_in = tuple(live.running)
    environments = {each: describe_environment(each) for each in devices}
    unfinished = len(jobs) - len(judged.results)
    report = CheckReport(
        tuple(judged.results), environments, secret.seed, selection.quick, unfinished, stopped_in=stopped_in
    )
    try:
        print_report(console, live.board, report, time.monotonic() - begun)
        _print_remarks(console, judged.called, secret.seed)
    finally:
        write_files((json_file, lambda: as_json({**report.as_dict(), "calls": list(judged.called)})))
    if not report.passed:
        raise typer.Exit(1)


def _print_remarks(console: Console, called: Iterable[str], seed: int) -> None:
    """Prints which of PyTorch's operators the kernel called, and the seed that repeats the check."""
    if names := ", ".join(f"aten::{name}" for name in called):
        line = f"PyTorch computes a part of it: the kernel calls {names}"
        console.print(Text(line, "yellow"), soft_wrap=True)
    console.print(Text(f"the inputs follow from --seed {seed}", "dim"))


def bench_distrusted(
    console: Console,
    targets: Sequence[str],
    kernel: str,
    wanted: Wanted,
    seed: int,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Times a kernel that is not trusted beside the reference; ends with 1 if a result is wrong.

    Args:
        console: on which it is shown.
        targets: name the operator by which the kernel is judged, and whose benchmarks are timed.
        kernel: that is timed.
        wanted: which rows.
        seed: of the inputs; 0 means a new one.
        json_file: where the figures are written as JSON; None: nowhere.
        markdown_file: where the table is written; None: nowhere.
    """
    from torchgraft.benchmarking.distrusted import measure_distrusted
    from torchgraft.benchmarking.suite import plan, select
    from torchgraft.checking.distrust.judge import KernelDied, Secret

    with mistakes_end_the_command():
        planned = select(plan([_find_subject(targets, kernel)], wanted), wanted)
    candidates = [each.candidate for each in planned if each.candidate is not None]
    try:
        with console.status("") as status:
            report = measure_distrusted(
                kernel, candidates, Secret(seed or None), wanted.asked_seconds, on_step=status.update
            )
    except KernelDied as died:
        end_with(f"{kernel} {died}", 1)
    for table in report.tables():
        print_table(console, table)
    write_files(
        (json_file, lambda: as_document("bench-distrust", report.as_dict())),
        (markdown_file, lambda: "\n".join(table.markdown() for table in report.tables())),
    )
    if not report.passed:
        raise typer.Exit(1)
