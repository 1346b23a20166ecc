"""Adds to the results what `graft check --stress N --json FILE` found.

`python benchmarks/stressed.py FILE... --chip h200` writes benchmarks/results/h200/stress.json, with a run for each
file: which seeds, how many calls of each operator, and each that failed. `make docs` writes the tables of
docs/check/evidence.md from it. A run replaces an earlier run with the same first seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from torchgraft.machine.figures import as_json

RESULTS = Path(__file__).parent / "results"


def summarise(report: dict[str, Any], device: str) -> dict[str, Any]:
    """A run in short: calls by operator and dtype, and failures without their tracebacks.

    Raises:
        ValueError: the report is of something else than drawn calls.
    """
    found = [each for each in report["results"] if each["device"] == device]
    if not found or {each["property"] for each in found} != {"stress"}:
        raise ValueError(
            f"there is more in this report than drawn calls on {device}: graft check --stress N --json FILE"
        )
    calls: dict[str, Counter[str]] = {}
    for each in found:
        calls.setdefault(each["operator"], Counter())[each["dtype"]] += each["called"]
    failures = [
        {
            "operator": each["operator"],
            "dtype": each["dtype"],
            "message": each["failure"]["message"][:200],
            "arguments": each["failure"]["arguments"],
            "reproduce": each["failure"]["reproduce"],
        }
        for each in found
        if each["status"] == "fail"
    ]
    return {
        "seed": report["seed"],
        "environment": report["environments"][device],
        "calls": {name: dict(sorted(counts.items())) for name, counts in sorted(calls.items())},
        "failures": failures,
    }


def _key(run: dict[str, Any]) -> tuple[int, tuple[str, ...]]:
    return run["seed"], tuple(run["calls"])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", type=Path, help="Files that --json wrote.")
    parser.add_argument("--chip", required=True, help="The folder of benchmarks/results.")
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--emulated", action="store_true", help="CUDA kernels ran there: `make test-emulated`.")
    given = parser.parse_args()
    path = RESULTS / given.chip / ("stress-emulated.json" if given.emulated else "stress.json")
    # A run that is repeated takes its own place; other operators may have drawn from the same seed.
    known = json.loads(path.read_text())["runs"] if path.is_file() else []
    runs = {_key(each): each for each in known}
    for report in given.reports:
        run = summarise(json.loads(report.read_text()), "cpu" if given.emulated else given.device)
        runs[_key(run)] = run
    path.write_text(as_json({"runs": [runs[key] for key in sorted(runs)]}))
    print(f"{path}: {len(runs)} runs; `make docs` writes the table")
    return 0


if __name__ == "__main__":
    sys.exit(main())
