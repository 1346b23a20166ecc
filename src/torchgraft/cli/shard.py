"""`graft shard`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table as RichTable

from torchgraft.cli.options import JsonOption
from torchgraft.cli.plan import mistakes_end_the_command
from torchgraft.cli.shared import end_with, find_subjects, make_console, prepare_files, write_files
from torchgraft.machine.documents import with_format
from torchgraft.machine.figures import as_json


def shard(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="OPERATOR", help="Which operators, named as for `graft check`.", show_default=False),
    ],
    devices: Annotated[int, typer.Option(min=2, help="How many devices there are.")] = 4,
    sample: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Count the bytes of this sample. Default: the first that is measured."),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Show which dimensions of an operator's tensors may be cut over devices, and what then moves between devices.

    A row is a letter of the operator's `sharding`: the dimensions that are cut together, how the result lies, and how
    many bytes each device sends. Nothing moves while the operator itself runs. A result in parts must be added before
    it is used, and so must the gradient of an argument that every device has. If the operator declares no sharding,
    the command shows what follows from its reference, and prints what to declare.
    """
    from torchgraft.checking.spreading import spread

    prepare_files(("--json", json_file))
    console = make_console(json_file)
    found = []
    with mistakes_end_the_command():
        subjects = find_subjects(targets)
    for subject in subjects:
        try:
            each = spread(subject, devices, sample)
        except (LookupError, ValueError) as error:
            end_with(str(error))
        found.append(each)
        console.print(f"{each.operator}: {each.declared or each.derived}", markup=False, soft_wrap=True, style="bold")
        if each.declared is None:
            console.print(f"It declares none. Its reference allows sharding={each.derived!r}", markup=False)
        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for head in ("cut", "arguments", "result", "forward moves", "backward moves"):
            table.add_column(head, overflow="fold")
        for row in each.rows:
            cut = f"{row.letter}" if row.permitted else f"{row.letter} (not into {devices} here)"
            table.add_row(cut, *(map(_placed, (row.arguments, row.results))), _said(row.forward), _said(row.backward))
        console.print(table)
        never = "; ".join(f"{name} {', '.join(map(str, dims))}" for name, dims in each.never.items() if dims)
        if never:
            console.print(f"Never cut: {never}{f' ({each.reason})' if each.reason else ''}", markup=False)
        console.print(f"Bytes that each of {devices} devices sends, in float32, for {each.sample!r}\n", markup=False)
    write_files((json_file, lambda: as_json([with_format("shard", asdict(each)) for each in found])))


def _placed(placements: dict[str, Any]) -> str:
    """Which tensors are cut, where, and which are not."""
    words = {"replicated": "whole", "partial": "in parts"}
    return ", ".join(
        f"{name} {words[each] if isinstance(each, str) else f'dim {each}'}" for name, each in placements.items()
    )


def _said(moves: Any) -> str:
    if not moves:
        return "nothing"
    return "; ".join(
        f"{move.name}: all-reduce {_size(move.all_reduce)} or reduce-scatter {_size(move.reduce_scatter)}"
        for move in moves
    )


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
