"""Draws the pictures of the documentation, each from the operator that it explains.

`python tools/docs/pictures.py` writes docs/pictures/*.svg; with `--check` it only says which are not current, and exits
with 1 where there are any.
"""

import sys

import torch

from generated import ROOT, write_or_check
from torchgraft import shift

FOLDER = ROOT / "docs/pictures"
# Legible on a light page and on a dark one.
STYLE = """<style>
svg { --paper: #ffffff; --ink: #1f2933; --faint: #d5dbe1; --mark: #b4532a; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  svg { --paper: #14181d; --ink: #e6eaee; --faint: #3a444f; --mark: #f0a35e; }
}
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.name { font-weight: 600; }
.cell { stroke: var(--faint); fill: var(--ink); }
.sample { fill: none; stroke: var(--mark); stroke-width: 2; }
</style>"""
SIDE, GAP, TOP = 22, 46, 52


def _cells(values: torch.Tensor, left: float) -> list[str]:
    """An image as squares, the darker the more it holds."""
    lines = []
    for row, line in enumerate(values.tolist()):
        for column, value in enumerate(line):
            x, y = left + column * SIDE, TOP + row * SIDE
            place = f'x="{x:g}" y="{y:g}" width="{SIDE}" height="{SIDE}"'
            lines.append(f'<rect class="cell" {place} fill-opacity="{value:.3f}"/>')
    return lines


def shift_picture() -> str:
    """The picture of two channels shifted by offsets of their own, and of where one result is sampled."""
    glyph = torch.zeros(7, 6)
    glyph[1:6, 1:3] = 1
    glyph[4:6, 2:5] = 1
    input = glyph.expand(1, 2, 7, 6)
    x_offset, y_offset = torch.tensor([-1.5, 1.0]), torch.tensor([-0.75, 1.0])
    output = shift(input.contiguous(), x_offset, y_offset)
    width = 6 * SIDE
    images = [
        ("each channel of the input", "channel 0's result at the square lies here", glyph),
        ("channel 0 of the output", f"x offset {x_offset[0]:g}, y offset {y_offset[0]:g}", output[0, 0]),
        ("channel 1 of the output", f"x offset {x_offset[1]:g}, y offset {y_offset[1]:g}", output[0, 1]),
    ]
    column = width + GAP + 110
    lines = []
    for place, (name, note, values) in enumerate(images):
        left = 16 + place * column
        lines.append(f'<text class="name" x="{left}" y="24">{name}</text>')
        lines.append(f'<text x="{left}" y="42">{note}</text>')
        lines += _cells(values, left)
    # A result lies between four pixels: as much of each as the square covers.
    row, at = 4 + y_offset[0].item(), 3 + x_offset[0].item()
    square = f'width="{SIDE}" height="{SIDE}"'
    lines.append(f'<rect class="sample" x="{16 + at * SIDE:g}" y="{TOP + row * SIDE:g}" {square}/>')
    lines.append(f'<rect class="sample" x="{16 + column + 3 * SIDE}" y="{TOP + 4 * SIDE}" {square}/>')
    size = (16 + 3 * column, TOP + 7 * SIDE + 16)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}">'
    title = "<title>Two channels of an image, each moved by an offset of its own</title>"
    paper = '<rect width="100%" height="100%" rx="8" fill="var(--paper)"/>'
    return "\n".join([opening, title, STYLE, paper, *lines, "</svg>", ""])


def main() -> int:
    """Writes, or checks, every picture."""
    return write_or_check("pictures", {FOLDER / "shift.svg": shift_picture()})


if __name__ == "__main__":
    sys.exit(main())
