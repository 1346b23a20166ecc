"""`graft bench --draw`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from torchgraft.cli.plan import mistakes_end_the_command
from torchgraft.cli.shared import find_subjects, interrupt_when_told_to_end, print_table, write_files

if TYPE_CHECKING:
    from torchgraft.benchmarking.passes import Candidate
    from torchgraft.benchmarking.suite import Wanted


def draw_rows(
    console: Console,
    targets: Sequence[str],
    wanted: Wanted,
    count: int,
    seed: int,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Draws rows, measures them, and shows how they are distributed; ends with 1 where one of ours is refused."""
    from torchgraft.benchmarking import suite
    from torchgraft.benchmarking.distribution import (
        distribution_json,
        distribution_markdown,
        distribution_tables,
        notes,
        worst_tables,
    )
    from torchgraft.benchmarking.drawn import SECONDS, plan_drawn
    from torchgraft.benchmarking.live import LiveBench

    wanted = replace(wanted, seconds=SECONDS[wanted.device.type])
    with mistakes_end_the_command():
        planned = plan_drawn(find_subjects(targets), wanted, count, seed, named=bool(targets))
    interrupt_when_told_to_end()
    with LiveBench(console, planned, prints_suites=False) as live:
        report = suite.run(planned, wanted, on_start=live.start, on_row=live.finish, on_wait=live.wait)
    report = replace(report, drawn=(count, seed))
    try:
        for table in (*worst_tables(report), *distribution_tables(report)):
            print_table(console, table)
            console.print()
        for line in notes(report):
            console.print(line, style="dim", markup=False)
        console.print(f"{len(report.rows)} rows, measured in {report.seconds:.0f} s")
    finally:
        write_files(
            (json_file, lambda: distribution_json(report)),
            (markdown_file, lambda: distribution_markdown(report)),
        )
    if report.unmeasured or any(row.problem for row in report.rows):
        raise typer.Exit(1)


def draw_without_device(targets: Sequence[str], wanted: Wanted, count: int, seed: int) -> list[Candidate]:
    """Draws the rows that a device with room for all of them would time, whether or not it is here."""
    from torchgraft.benchmarking.drawn import draw_candidates

    with mistakes_end_the_command():
        return draw_candidates(find_subjects(targets), wanted, count, seed, named=bool(targets))
