"""Writes the table of docs/distributed.md: what `graft shard` says of each operator of torchgraft."""

import sys

from generated import write_or_check
from torchgraft.checking.spreading import Move, ShardingRow, spread
from torchgraft.checking.subject import find_subjects

DEVICES = 4


def table() -> str:
    """Returns the table."""
    lines = [
        "| operator | cut | arguments | result | forward moves | backward moves |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for subject in find_subjects([]):
        if why := subject.operator.declaration.why_unsharded:
            lines.append(f"| `{subject.operator.short_name}` | nothing: {why} | | | | |")
            continue
        found = spread(subject, DEVICES)
        for number, row in enumerate(found.rows):
            name = f"`{found.operator}`<br>`{found.declared}`" if number == 0 else ""
            lines.append(f"| {name} | {row.letter} | {_cells(row)} |")
    lines += ["", f"Bytes are what each of {DEVICES} devices sends, in float32, for the first sample that is measured."]
    return "\n".join(lines) + "\n"


def _cells(row: ShardingRow) -> str:
    placed = (
        ", ".join(f"{name} {each}" for name, each in placements.items() if isinstance(each, int)) or "in parts"
        for placements in (row.arguments, row.results)
    )
    return " | ".join((*placed, _moves(row.forward), _moves(row.backward)))


def _moves(moves: tuple[Move, ...]) -> str:
    said = (f"{move.name}: all-reduce {move.all_reduce:,} B" for move in moves)
    return "<br>".join(said) or "nothing"


def main() -> int:
    """Writes, or checks, the table."""
    return write_or_check("sharding", {"sharding": table()})


if __name__ == "__main__":
    sys.exit(main())
