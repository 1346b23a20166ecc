"""A table of results, for a terminal and for the documentation alike."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the first column names the rows, the others hold figures.

    Attributes:
        title: what was measured; empty where the text around it says so.
        header: a name a column.
        rows: a cell a column.
        notes: lines to print below.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def markdown(self) -> str:
        """The table in GitHub's markdown, its title as a heading and its notes as paragraphs."""
        alignment = ("---", *("---:",) * (len(self.header) - 1))
        lines = [_markdown_row(cells) for cells in (self.header, alignment, *self.rows)]
        notes = [line for note in self.notes for line in ("", note)]
        heading = [f"### {self.title}", ""] if self.title else []
        return "\n".join([*heading, *lines, *notes, ""])


def _markdown_row(cells: Sequence[str]) -> str:
    # A cell that holds a bar would be two.
    escaped = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(escaped)} |"
