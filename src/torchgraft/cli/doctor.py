"""`graft doctor`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table as RichTable
from rich.text import Text

from torchgraft.cli.options import JsonOption
from torchgraft.cli.shared import make_console, prepare_files, write_files
from torchgraft.machine.documents import as_document

if TYPE_CHECKING:
    from torchgraft.authoring.doctor import Finding

_MARKS = {"ok": ("✓", "green"), "absent": ("-", "dim"), "wrong": ("✗", "red")}


def doctor(
    packages: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PACKAGE]...",
            help="Installed packages with operators: each operator is called once on each device, and what is missing "
            "for its kernels is named.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Check whether this machine can run and build kernels, and say how to fix what is wrong.

    The exit status is 1 if something is wrong. A missing optional part is not wrong; its line says who needs it.
    """
    from torchgraft.authoring.doctor import examine

    prepare_files(("--json", json_file))
    console = make_console(json_file)
    findings = examine(packages or ())
    console.print(_table(findings))
    wrong = sum(finding.status == "wrong" for finding in findings)
    console.print()
    if wrong:
        console.print(f"{wrong} {'problem' if wrong == 1 else 'problems'}; each line says what to do")
    else:
        console.print("no problem was found")
    write_files((json_file, lambda: as_document("doctor", {"findings": [asdict(finding) for finding in findings]})))
    raise typer.Exit(1 if wrong else 0)


def _table(findings: "list[Finding]") -> RichTable:
    shown = RichTable(box=None, show_header=False, pad_edge=False)
    for name in ("", "thing", "found"):
        shown.add_column(name, overflow="fold")
    for finding in findings:
        mark, style = _MARKS[finding.status]
        found = Text(finding.found)
        if finding.advice:
            found.append(f"\n{finding.advice}", style="bold" if finding.status == "wrong" else "dim")
        shown.add_row(Text(mark, style=style), finding.thing, found)
    return shown
