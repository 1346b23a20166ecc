"""Writes under which versions of PyTorch the properties hold, and what is known of GPUs that nobody here has.

The first is from what `make test-torch` found under each version, the other from what `python
tools/devices/devices.py` found. `python tools/docs/support.py` writes both tables into docs/operators.md, and the
newest version under which all properties hold into README.md; with `--check` it only names what is not current, and
exits with 1 if there is anything.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from generated import ROOT, write_or_check

VERSIONS = ROOT / "docs/versions"
DEVICES = ROOT / "docs/devices.json"
STATUSES = ("pass", "fail", "not applicable")


def number(path: Path) -> tuple[int, ...]:
    """A version as numbers, so that 2.9 comes before 2.11."""
    return tuple(int(part) for part in path.stem.split("."))


def holds(found: dict[str, Any]) -> bool:
    """Whether all was run, and nothing failed."""
    return not found["failed"] and not found["unfinished"]


def table(headings: str, rows: Iterable[Iterable[object]]) -> str:
    """A table of headings, with bars between, and rows."""
    lines = [headings.split(" | "), ["---"] * (headings.count(" | ") + 1), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def version_row(found: dict[str, Any]) -> list[object]:
    """A version: what it was checked on, and what came of it."""
    counts = (sum(each.get(status, 0) for each in found["operators"].values()) for status in STATUSES)
    failed = "; ".join(f"{operator}: {', '.join(names)}" for operator, names in found["failed"].items())
    unfinished = f"{found['unfinished']} not run" if found["unfinished"] else ""
    said = "; ".join(filter(None, (failed, unfinished))) or "every property holds"
    return [found["torch"], found["python"], found["date"][:10], len(found["operators"]), *counts, said]


def device_row(found: dict[str, Any]) -> list[object]:
    """A GPU: what was asked of it, and what came of it."""
    plans = found["plans"].values()
    problems, kernels, launches = (
        f"{sum(each[name] for each in plans):,}" for name in ("problems", "kernels", "launches")
    )
    unable, refused = (sum(len(each[name]) for each in plans) for name in ("unable", "refused"))
    values = f"{found['passed']} hold" + (f", {found['failed']} do not" if found["failed"] else "")
    compiled_for, device = found["compiled_for"] / 10, found["device"] / 10
    return [device, compiled_for, problems, kernels, unable, launches, refused, values]


def main() -> int:
    """Writes, or checks, the table and the version."""
    versions = {path.stem: json.loads(path.read_text()) for path in sorted(VERSIONS.glob("*.json"), key=number)}
    newest = [version for version, each in versions.items() if holds(each)][-1]
    written = {
        "newest-torch": newest,
        "versions": table(
            "PyTorch | Python | checked on | operators | passed | failed | not applicable | ",
            map(version_row, versions.values()),
        ),
        "devices": table(
            "compute capability | kernels compiled for | calls | kernels | kernels that it cannot run | launches | "
            "limits exceeded | values in the emulator",
            map(device_row, json.loads(DEVICES.read_text())),
        ),
    }
    return write_or_check("support", written)


if __name__ == "__main__":
    sys.exit(main())
