"""Finds matrix products of PyTorch, on this machine's GPU, that leave out what is over when cuBLAS shares a depth out.

Of both factors only the last 127 of the depth are ones, and all else is zero: each element of the product is 127, which
every dtype holds, or fewer by what was left out. lltm cuts products so that none of them can be short; run this where
cuBLAS is another one, to see whether that is needed still, or whether shallower products are short.

    python benchmarks/short_products.py benchmarks/results/h200/short_products.json --seconds 100
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from torchgraft.machine.environment import describe_environment
from torchgraft.machine.figures import as_json

_ONES = 127
_MOST_ROWS, _MOST_DEPTH, _MOST_ELEMENTS = 4096, 100_000, 1 << 28
# What is multiplied, and the dtype of the result; tf32 is float32 with PyTorch's switch on.
_KINDS = {
    "bfloat16 -> float32": (torch.bfloat16, torch.float32),
    "float16 -> float32": (torch.float16, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "float16": (torch.float16, torch.float16),
    "float32": (torch.float32, torch.float32),
    "tf32": (torch.float32, torch.float32),
    "float64": (torch.float64, torch.float64),
}


def _size(draw: random.Random, most: int) -> int:
    """Small ones as often as large ones, and half of them whole eights or 64s."""
    size = round(2 ** draw.uniform(0, math.log2(most)))
    step = draw.choice((1, 1, 8, 64))
    return min(max(size // step * step, step), most)


def _factor(rows: int, columns: int, dtype: torch.dtype, *, by_columns: bool) -> torch.Tensor:
    """Zeros, rows or columns at whole vectors, as factors of the fastest products lie."""
    shape = (columns, -(-rows // 8) * 8) if by_columns else (rows, -(-columns // 8) * 8)
    matrix = torch.zeros(shape, dtype=dtype, device="cuda")
    return matrix.t()[:rows] if by_columns else matrix[:, :columns]


def _ask(draw: random.Random) -> dict[str, Any] | None:
    """One product: its sizes, and how much of the depth it has; None for one too large."""
    kind = draw.choice(list(_KINDS))
    dtype, result_dtype = _KINDS[kind]
    rows, columns = _size(draw, _MOST_ROWS), _size(draw, _MOST_ROWS)
    depth = max(_size(draw, _MOST_DEPTH), _ONES)
    if depth * max(rows, columns) > _MOST_ELEMENTS:
        return None
    left_by_columns, right_by_columns = draw.random() < 0.5, draw.random() < 0.5
    left = _factor(rows, depth, dtype, by_columns=left_by_columns)
    right = _factor(depth, columns, dtype, by_columns=right_by_columns)
    left[:, -_ONES:] = 1
    right[-_ONES:] = 1
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    product = torch.mm(left, right) if dtype == result_dtype else torch.mm(left, right, out_dtype=result_dtype)
    return {
        "kind": kind,
        "rows": rows,
        "columns": columns,
        "depth": depth,
        "left by columns": left_by_columns,
        "right by columns": right_by_columns,
        "left out": _ONES - round(product.amin().item()),
        "left out at least": _ONES - round(product.amax().item()),
    }


def main() -> None:
    """Asks for as long as it is told to, and writes how many products it asked and which were short."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the JSON file to write")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    asked: Counter[str] = Counter()
    short = []
    begin = time.monotonic()
    while time.monotonic() - begin < arguments.seconds:
        if (found := _ask(draw)) is None:
            continue
        asked[found["kind"]] += 1
        if found["left out"]:
            short.append(found)
    environment = asdict(describe_environment("cuda"))
    figures = {"environment": environment, "cuda": torch.version.cuda, "asked": dict(asked), "short": short}
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text(as_json(figures))
    print(f"{len(short)} of {asked.total():,} products are short; {arguments.results} has them")


if __name__ == "__main__":
    main()
