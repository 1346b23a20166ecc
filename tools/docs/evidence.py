"""Writes the table of figures in docs/design/how-we-know.md, from the reports that other programs wrote.

`python tools/docs/evidence.py`; with `--check` it only says whether the page is current, and exits with 1 if it is not.
"""

import json
import re
import sys
from collections.abc import Iterator

from generated import ROOT, write_or_check
from support import VERSIONS, holds, table
from torchgraft.checking import PROPERTIES

RESULTS = ROOT / "benchmarks/results"
FRAGMENTS = ROOT / "docs/fragments"
_PLANTED = re.compile(r"^Of (?P<all>\d+) operators .*? catches (?P<caught>\d+),", re.MULTILINE)
_ALL = re.compile(r"^\| all \|(?P<cells>.+)\|$", re.MULTILINE)


def total_cells(name: str) -> list[str]:
    """The cells behind the name in the row `all` of a fragment's table.

    Raises:
        ValueError: the table has no such row.
    """
    found = _ALL.search((FRAGMENTS / f"{name}.md").read_text())
    if found is None:
        raise ValueError(f"docs/fragments/{name}.md has no row 'all'")
    return [cell.strip() for cell in found["cells"].split("|")]


def planted() -> Iterator[str]:
    """The planted bugs on each machine, and how many of them are caught."""
    for path in sorted(RESULTS.glob("*/planted.md")):
        found = _PLANTED.search(path.read_text())
        if found is None:
            raise ValueError(f"{path.relative_to(ROOT)} does not say how many bugs are caught")
        yield f"{path.parent.name}: {found['caught']} of {found['all']} are caught"


def drawn() -> Iterator[str]:
    """The drawn calls on each machine, and how many were wrong: of our kernels, and of `linear`, which has none."""
    for path in sorted(RESULTS.glob("*/stress*.json")):
        runs = json.loads(path.read_text())["runs"]
        calls = sum(sum(counts.values()) for run in runs for counts in run["calls"].values())
        failures = [each for run in runs for each in run["failures"] if "OutOfMemoryError" not in each["message"]]
        ours = sum(each["operator"] != "linear" for each in failures)
        yield f"{path.parent.name}: {calls:,} calls, {ours} wrong; {len(failures) - ours} more in PyTorch's `linear`"


def coverage() -> Iterator[str]:
    """The lines and branches of each operator's kernels that run."""
    for path in sorted(FRAGMENTS.glob("coverage-*.md")):
        operator = path.stem.removeprefix("coverage-")
        if operator != "left":
            lines, branches = total_cells(path.stem)
            yield f"`{operator}`: {lines} lines, {branches} branches"


def mutants() -> str:
    """The mutants of CPU kernels, and the share of them that samples detect."""
    killed, survived, *_, share = total_cells("mutants-cpu")
    return f"CPU kernels: {killed} detected, {survived} not: {share}"


def devices() -> str:
    """The emulated GPUs, and the launches that would exceed their limits."""
    found = json.loads((ROOT / "docs/devices.json").read_text())
    asked = [each for device in found for each in device["plans"].values()]
    launches, refused = sum(each["launches"] for each in asked), sum(len(each["refused"]) for each in asked)
    wrong = sum(device["failed"] for device in found)
    return f"{len(found)} GPUs, {launches:,} launches, {refused} beyond a limit; {wrong} wrong values"


def versions() -> str:
    """The versions of PyTorch that were checked, and those under which a property fails."""
    found = {path.stem: json.loads(path.read_text()) for path in VERSIONS.glob("*.json")}
    failing = sorted(name for name, each in found.items() if not holds(each))
    verdict = f"not every property holds under {', '.join(failing)}" if failing else "every property holds under all"
    return f"{len(found)} versions; {verdict}"


def evidence() -> str:
    """The table."""
    rows = {
        "properties": f"{len(PROPERTIES)} properties",
        "planted bugs": "<br>".join(planted()),
        "drawn calls": "<br>".join(drawn()),
        "coverage": "<br>".join(coverage()),
        "mutants": mutants(),
        "other GPUs": devices(),
        "other versions of PyTorch": versions(),
    }
    return table("evidence | last report", rows.items())


def main() -> int:
    """Writes, or checks, the table."""
    return write_or_check("evidence", {"evidence": evidence()})


if __name__ == "__main__":
    sys.exit(main())
