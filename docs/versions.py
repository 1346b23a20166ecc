"""Writes with which versions of PyTorch the properties hold, from what `make test-torch` found under each.

`python docs/versions.py` writes docs/fragments/versions.md, which docs/operators.md includes, and the newest version
under which all hold, which README.md includes; with `--check` it only says which are not current, and exits with 1
where there are any.
"""

import json
import sys
from pathlib import Path
from typing import Any

from generated import ROOT, write_or_check

VERSIONS = ROOT / "docs/versions"
FRAGMENTS = ROOT / "docs/fragments"
STATUSES = ("pass", "fail", "not applicable")


def number(path: Path) -> tuple[int, ...]:
    """A version as numbers, so that 2.9 comes before 2.11."""
    return tuple(int(part) for part in path.stem.split("."))


def holds(found: dict[str, Any]) -> bool:
    """Whether all was run, and nothing failed."""
    return not found["failed"] and not found["unfinished"]


def row(found: dict[str, Any]) -> str:
    """A version: what it was checked on, and what came of it."""
    counts = (sum(each.get(status, 0) for each in found["operators"].values()) for status in STATUSES)
    failed = "; ".join(f"{operator}: {', '.join(names)}" for operator, names in found["failed"].items())
    unfinished = f"{found['unfinished']} not run" if found["unfinished"] else ""
    said = "; ".join(filter(None, (failed, unfinished))) or "every property holds"
    cells = [found["torch"], found["python"], found["date"][:10], len(found["operators"]), *counts, said]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> int:
    """Writes, or checks, the table and the version."""
    files = sorted(VERSIONS.glob("*.json"), key=number)
    found = {path.stem: json.loads(path.read_text()) for path in files}
    table = [
        "| PyTorch | Python | checked on | operators | passed | failed | not applicable | |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | --- |",
        *map(row, found.values()),
    ]
    newest = [version for version, each in found.items() if holds(each)][-1]
    written = {FRAGMENTS / "versions.md": "\n".join([*table, ""]), FRAGMENTS / "newest-torch.md": f"{newest}\n"}
    return write_or_check("versions", written)


if __name__ == "__main__":
    sys.exit(main())
