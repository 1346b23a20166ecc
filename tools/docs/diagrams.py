"""Draws the diagrams of the pages, and writes the tables that belong to them: `python tools/docs/diagrams.py`.

docs/lltm.svg shows how a step of lltm is shared out on CUDA, in the reader's light or dark; a table in docs/lltm.md
says what a step costs by design. With `--check` it only says whether both are current, and exits with 1 if not.
"""

from __future__ import annotations

import json
import sys

from generated import ROOT, write_or_check

DOCS = ROOT / "docs"
RESULTS = ROOT / "benchmarks/results/h200/bench.json"

# Of an H200, from its data sheet.
MULTIPLY_ADDS_A_CLOCK, CLOCK = 128, 1.98e9
# Of clusters of sixteen blocks seven find room on it, and share 32 rows.
CLUSTER_ROWS = 5

STYLE = """
  .box { fill: #f2f5f9; stroke: #5b6b7d; } .chip { fill: #dbe9fb; stroke: #2f6bb3; }
  .far { fill: #f8ecd4; stroke: #a8741a; }
  text { font: 13px system-ui, sans-serif; fill: #1d2733; } .head { font-weight: 600; font-size: 15px; }
  .quiet { fill: #5b6b7d; } path { fill: none; stroke: #5b6b7d; stroke-width: 1.5; }
  #tip { fill: #5b6b7d; stroke: none; }
  @media (prefers-color-scheme: dark) {
    .box { fill: #1c2530; stroke: #8fa1b5; } .chip { fill: #17324f; stroke: #6aa7ee; }
    .far { fill: #3a2d12; stroke: #dcab52; }
    text { fill: #e8eef5; } .quiet { fill: #9fb0c3; } path { stroke: #9fb0c3; } #tip { fill: #9fb0c3; }
  }
"""

# A way to run: its title, where h comes from, what is on the chip, what a step does, how it ends, and who takes part.
WAYS = (
    (
        "In groups of blocks: up to 512 units",
        "own shared memory: h of the group's rows",
        "registers: a part of weight_hh",
        ("product, a part of the depth a warp", "sums of the warps", "a unit a lane: gates, c, h"),
        "h to all blocks: counted bytes",
        "one block up to 128 units, else a cluster of up to 16; a group has rows of its own, and meets no other",
    ),
    (
        "On the grid: up to about 1000 units",
        "L2: h of all rows",
        "shared memory: a part of weight_hh",
        ("product, some rows a warp", "sums of the lanes", "a unit a thread: gates, c, h"),
        "barrier of the grid",
        "a block a multiprocessor, all resident: a cooperative launch, or none",
    ),
    (
        "Step by step: beyond, and in float64",
        "memory: h and weight_hh",
        "nothing stays from step to step",
        ("product: PyTorch's", "elementwise kernel: gates, c, h", ""),
        "end of the kernel",
        "two launches a step, queued without waiting for the host",
    ),
)


def _box(kind: str, x: int, y: int, width: int, text: str) -> str:
    middle = x + width // 2
    return (
        f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="30" rx="5"/>'
        f'<text x="{middle}" y="{y + 20}" text-anchor="middle">{text}</text>'
    )


def _arrow(x: int, top: int, bottom: int) -> str:
    return f'<path d="M{x} {top} V{bottom}" marker-end="url(#arrow)"/>'


def diagram() -> str:
    """The three ways of a sequence in float32 on CUDA, forward, a column each."""
    width, gap, parts = 330, 20, []
    for number, (title, source, kept, doing, end, who) in enumerate(WAYS):
        x = gap + number * (width + gap)
        inside, middle = x + 14, x + width // 2
        parts.append(f'<text class="head" x="{x}" y="28">{title}</text>')
        parts.append(_box("far", inside, 48, width - 28, source))
        parts.append(_arrow(middle, 78, 98))
        parts.append(_box("chip", inside, 100, width - 28, kept))
        top = 130
        for text in filter(None, doing):
            parts.append(_arrow(middle, top, top + 16))
            parts.append(_box("box", inside, top + 18, width - 28, text))
            top += 48
        parts.append(_arrow(middle, top, 296))
        parts.append(_box("far", inside, 298, width - 28, end))
        # Back to the beginning, a step later.
        right = x + width - 14
        parts.append(f'<path d="M{right} 313 h12 V63 h-10" marker-end="url(#arrow)"/>')
        first, _, second = who.partition("; " if "; " in who else ", ")
        parts.append(f'<text class="quiet" x="{x}" y="352">{first}</text>')
        parts.append(f'<text class="quiet" x="{x}" y="370">{second}</text>')
    total = gap + len(WAYS) * (width + gap)
    arrow = (
        '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path id="tip" d="M0 0 L8 4 L0 8 z"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} 385" role="img">',
            "<title>A step of lltm on CUDA, forward, in groups of blocks, on the grid, and step by step</title>",
            f"<style>{STYLE}</style><defs>{arrow}</defs>",
            *parts,
            "</svg>",
            "",
        ]
    )


def _microseconds(multiply_adds: float) -> str:
    return f"{multiply_adds / MULTIPLY_ADDS_A_CLOCK / CLOCK * 1e6:.1f} us"


def budget() -> str:
    """The table of what a step costs in each way, for a size that takes it."""
    launch = json.loads(RESULTS.read_text())["roofs"]["launch"]
    rows = []
    for batch, units, own, blocks in ((16, 128, 1, 1), (32, 512, CLUSTER_ROWS, 16)):
        work = 3 * own * units * units / blocks
        group = "one block" if blocks == 1 else f"a cluster of {blocks} blocks"
        where = f"{batch} rows of {units} units: {group} has {own} row{'s' if own > 1 else ''}"
        rows.append((where, work, 0, "none" if blocks == 1 else "counted bytes"))
    batch, units = 64, 1024
    blocks = units // 8
    work = 3 * batch * units * units / blocks
    rows.append(
        (f"{batch} rows of {units} units: a grid of {blocks} blocks has them", work, batch * units * 4, "of the grid")
    )
    lines = [
        "| a step, forward, float32 | multiply-adds a block | at the least | read from L2 a block | meetings |",
        "| --- | ---: | ---: | ---: | --- |",
        *(
            f"| {name} | {work:,.0f} | {_microseconds(work)} | {f'{read / 1024:.0f} KiB' if read else ''} | {meets} |"
            for name, work, read, meets in rows
        ),
        f"| step by step | as PyTorch's product | | | two launches, {2 * launch * 1e6:.1f} us at the least |",
        "",
        f"Multiply-adds at {MULTIPLY_ADDS_A_CLOCK} a clock and multiprocessor, {CLOCK / 1e9:.2f} GHz; the launch as "
        "`graft bench` measured it on an H200. Going back on the grid a step reads three times as much, the gradients "
        "of three gates.",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    """Writes, or checks, both."""
    return write_or_check("diagrams", {DOCS / "lltm.svg": diagram(), "lltm-budget": budget()})


if __name__ == "__main__":
    sys.exit(main())
