"""`graft check --mutants`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from torchgraft.cli.shared import (
    explain_missing,
    find_subjects,
    interrupt_when_told_to_end,
    prepare_folder,
    write_files,
)
from torchgraft.machine.documents import as_document

if TYPE_CHECKING:
    from torchgraft.checking.mutants.folders import MutantPlace, Outcome

STATES = ("killed", "survived", "not reached", "equivalent", "does not compile")
_STYLES = {"-": "red", "+": "green"}


def check_mutants(
    targets: Sequence[str],
    count: int,
    *,
    seed: int,
    workers: int,
    console: Console,
    json_file: Path | None,
    place: MutantPlace | None = None,
) -> list[tuple[str, Outcome]]:
    """Asks which of so many mutants no sample tells from the original, and shows it while it does.

    Args:
        targets: as `graft check` takes them.
        count: of mutants.
        seed: of random mutants and inputs.
        workers: how many mutants run at a time.
        console: where it is shown.
        json_file: where to write it; None: nowhere.
        place: where they run; None: on the CPU.

    Returns:
        What became of each mutant, with the name of its folder.

    Raises:
        typer.Exit: with status 2 where they cannot be built or asked, and 1 where it was stopped.
    """
    from torchgraft.building import BuildError, cache
    from torchgraft.checking.mutants.folders import ON_CPU, MutantError, find_folders, random_mutants
    from torchgraft.checking.mutants.run import run_mutants

    found: list[tuple[str, Outcome]] = []
    started, stopped = time.monotonic(), False
    columns = BarColumn(bar_width=20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    prepare_folder("--mutants", cache.folder() / "mutants", "set TORCHGRAFT_CACHE to another folder")
    interrupt_when_told_to_end()
    try:
        operators = [subject.operator for subject in find_subjects(targets)]
        folders = find_folders(operators, place or ON_CPU)
        chosen = random_mutants(folders, count, seed)
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task("", total=sum(map(len, chosen)))
            for folder, own in zip(folders, chosen, strict=True):

                def finish(outcome: Outcome, name: str = folder.path.name) -> None:
                    found.append((name, outcome))
                    progress.advance(task)

                def say(doing: str) -> None:
                    progress.update(task, description=doing)

                run_mutants(folder, own, seed=seed, workers=workers, on_step=say, on_outcome=finish)
    except ModuleNotFoundError as missing:
        explain_missing(missing, "check")
        raise
    except (LookupError, BuildError, MutantError) as mistake:
        typer.echo(str(mistake.args[0]), err=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        stopped = True
        console.print("stopped: run the same command again to continue", style="bold yellow")
    try:
        _print(console, found, time.monotonic() - started)
    finally:
        figures = [{"folder": name, **outcome.as_dict()} for name, outcome in found]
        write_files((json_file, lambda: as_document("check-mutants", {"seed": seed, "mutants": figures})))
    if stopped:
        raise typer.Exit(1)
    return found


def _print(console: Console, found: Sequence[tuple[str, Outcome]], seconds: float) -> None:
    from torchgraft.checking.mutants.changes import ADVICE
    from torchgraft.checking.mutants.folders import EQUIVALENT
    from torchgraft.checking.mutants.outcomes import count, share_killed

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for state in STATES:
        table.add_column(state, justify="right")
    table.add_column("share killed", justify="right")
    for name, each in count(found).items():
        table.add_row(name, *(f"{each[state]:,}" if each[state] else "" for state in STATES), share_killed(each))
    console.print(table)
    for name, outcome in found:
        if outcome.status not in ("survived", "not reached"):
            continue
        mutant = outcome.mutant
        advice = ADVICE[mutant.kind] if outcome.status == "survived" else "a sample that reaches this line"
        console.print()
        console.print(Text(f"{name}/{mutant.file}:{mutant.line} {outcome.status}", "bold"), soft_wrap=True)
        for sign, text in zip("-+", mutant.shown, strict=True):
            for line in text.splitlines():
                console.print(Text(f"  {sign} {line}", _STYLES[sign]), soft_wrap=True)
        console.print(Text(f"  add {advice}"), soft_wrap=True)
    reached = {
        (name, outcome.mutant.file, outcome.mutant.line)
        for name, outcome in found
        if outcome.status in ("killed", "survived")
    }
    lines: dict[str, set[int]] = {}
    for name, outcome in found:
        is_reached = (name, outcome.mutant.file, outcome.mutant.line) in reached
        if outcome.status == "not reached" and not is_reached:
            lines.setdefault(f"{name}/{outcome.mutant.file}", set()).add(outcome.mutant.line)
    for file, numbers in lines.items():
        console.print()
        shown = ", ".join(map(str, sorted(numbers)))
        console.print(Text(f"{file}: no sample reached line{'s' * (len(numbers) > 1)} {shown}"), soft_wrap=True)
    left = sum(outcome.status in ("survived", "not reached") for _, outcome in found)
    if left:
        told = "A change that affects no result, or only the time, is no gap: list it with the reason in"
        console.print()
        console.print(Text(f"{told} {EQUIVALENT}, beside the declaration."), soft_wrap=True)
    verdict = Text(f"{left} mutants survive" if left else "the samples detect every mutant", "bold")
    console.print()
    console.print(Text.assemble(verdict, f": {len(found)} tried, in {seconds:.1f} s"))
