"""`graft explain`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from torchgraft.cli.options import JsonOption
from torchgraft.cli.shared import end_with, make_console, prepare_files, write_files
from torchgraft.machine.documents import as_document

if TYPE_CHECKING:
    from torchgraft.checking.explaining import Explanation


def explain(
    key: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY]",
            help="What a report of `graft check` names: a property, a cause (`kind` in its JSON), the part at fault, "
            "or the check of a tool, such as 'address sanitizer'. Default: list the keys.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Explain a failure of `graft check`: what it means, what usually mends it, and an example.

    Without a key, lists the keys; with --json, writes the explanations of all. The exit status is 2 if there is no such
    key; the message then names the nearest ones.
    """
    from torchgraft.checking.explaining import explanations, find_explanation

    prepare_files(("--json", json_file))
    console = make_console(json_file)
    if key:
        try:
            found = [find_explanation(" ".join(key))]
        except LookupError as mistake:
            end_with(mistake.args[0])
        _print_explanation(console, found[0])
    else:
        found = list(explanations().values())
        _print_keys(console, found)
    write_files((json_file, lambda: as_document("explain", {"explanations": [asdict(each) for each in found]})))


def _print_explanation(console: Console, found: Explanation) -> None:
    console.print(Text(f"{found.key} ({found.kind})", "bold"))
    rows = {
        "means": found.summary,
        "proves": found.proves,
        "cannot prove": found.cannot_prove,
        "mend": found.mend,
        "example": found.example,
    }
    table = RichTable(Column(no_wrap=True, style="bold"), Column(), box=None, pad_edge=False, show_header=False)
    for name, text in rows.items():
        if text:
            table.add_row(name, Text(text))
    console.print(table)


def _print_keys(console: Console, found: list[Explanation]) -> None:
    for kind in dict.fromkeys(each.kind for each in found):
        console.print()
        console.print(Text(kind, "dim"))
        table = RichTable(Column(no_wrap=True, style="bold"), Column(), box=None, pad_edge=False, show_header=False)
        for each in found:
            if each.kind == kind:
                table.add_row(each.key, Text(each.summary))
        console.print(table)
