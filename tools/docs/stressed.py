"""Writes the tables of randomly sampled calls, from benchmarks/results/*/stress*.json.

`python tools/docs/stressed.py` writes them into docs/check/evidence.md; with `--check` it only says whether they are
current, and exits with 1 if they are not.
"""

import json
import sys
from collections import Counter
from typing import Any

from generated import ROOT, write_or_check
from torchgraft.benchmarking.table import Table


def table(runs: list[dict[str, Any]]) -> str:
    """A row an operator: its calls in each dtype, those that were wrong, and those that were not compared."""
    calls: dict[str, Counter[str]] = {}
    wrong: Counter[str] = Counter()
    uncompared: Counter[str] = Counter()
    for run in runs:
        for name, counts in run["calls"].items():
            calls.setdefault(name, Counter()).update(counts)
        for failure in run["failures"]:
            (uncompared if "OutOfMemoryError" in failure["message"] else wrong)[failure["operator"]] += 1
    dtypes = list(dict.fromkeys(dtype for counts in calls.values() for dtype in counts))
    rows = []
    for name, counts in calls.items():
        figures = sum(counts.values()), *(counts[dtype] for dtype in dtypes), wrong[name], uncompared[name]
        rows.append([f"`{name}`", *(f"{figure:,}" for figure in figures)])
    return Table("", ["operator", "calls", *dtypes, "wrong", "out of memory"], rows).markdown().strip()


def tables() -> str:
    """A table a machine."""
    parts = []
    for path in sorted((ROOT / "benchmarks/results").glob("*/stress*.json")):
        runs = json.loads(path.read_text())["runs"]
        first = runs[0]["environment"]
        dates = sorted(run["environment"]["date"][:10] for run in runs)
        total = sum(sum(counts.values()) for run in runs for counts in run["calls"].values())
        when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
        # As `make test-emulated` does it.
        emulated = "CUDA kernels on an emulated GPU, under AddressSanitizer, by "
        where = f"{emulated if path.stem == 'stress-emulated' else ''}**{first['chip']}**"
        parts += [f"{where}, PyTorch {first['torch']}, {when}: {total:,} calls.", table(runs)]
        wrong = [
            f"- `{failure['operator']}`, {failure['dtype']}, {failure['arguments']}: {failure['message']}"
            for run in runs
            for failure in run["failures"]
            if "OutOfMemoryError" not in failure["message"]
        ]
        parts += ["Wrong were:\n\n" + "\n".join(wrong)] if wrong else []
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Writes, or checks, the tables."""
    return write_or_check("stressed", {"stress": tables()})


if __name__ == "__main__":
    sys.exit(main())
