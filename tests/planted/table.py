"""Writes down what catches which planted bug: `python tests/planted/table.py --device cpu`.

The page is benchmarks/results/<chip>/planted.md. `tests/test_planted.py` holds its rows against what it finds itself.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from planted import kernels
from planted.bug import Bug
from planted.catalogue import BUGS, bugs_of
from planted.finding import Finding, find
from torchgraft.machine.environment import describe_environment

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

_ROW = re.compile(r"^\| (?P<wrong>[^|]+?) \| `(?P<caught_by>\w+)` \| (?P<opcheck>[a-z ]+) \|$", re.MULTILINE)


def row(bug: Bug, finding: Finding) -> tuple[str, str, str]:
    """The row of a bug: what is wrong, which property catches it, and whether opcheck does."""
    return bug.wrong, bug.caught_by if finding.result.status == "fail" else "nothing", finding.opcheck


def read_rows(text: str) -> dict[str, tuple[str, str, str]]:
    """The rows of a page, by what is wrong."""
    return {found["wrong"]: (found["wrong"], found["caught_by"], found["opcheck"]) for found in _ROW.finditer(text)}


def write(rows: list[tuple[str, str, str]], device: str, environment: str) -> str:
    """The page."""
    caught = sum(caught_by != "nothing" for _, caught_by, _ in rows)
    by_opcheck = sum(opcheck in ("yes", "dies") for _, _, opcheck in rows)
    by_chance = sum(opcheck == "by chance" for _, _, opcheck in rows)
    lines = [
        f"### Planted bugs, {device}",
        "",
        f"Of {len(rows)} operators that are wrong in one way each, `graft check` catches {caught}, by the property "
        "that is meant to. PyTorch's `torch.library.opcheck` alone, given the same samples, "
        f"catches {by_opcheck}, and {by_chance} as chance has it.",
        "",
        "| what is wrong | caught by | by opcheck alone |",
        "| --- | --- | --- |",
        *(f"| {wrong} | `{caught_by}` | {opcheck} |" for wrong, caught_by, opcheck in rows),
        "",
        environment,
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the page; 1 where a bug is not caught."""
    parser = argparse.ArgumentParser(description="Writes down what catches which planted bug.")
    parser.add_argument("--device", choices=sorted({device for bug in BUGS for device in bug.devices}), default="cpu")
    parser.add_argument("--chip", help="the folder of benchmarks/results to write to; the device where left out")
    parser.add_argument("--build", action="store_true", help="only build the kernels, for a machine without compilers")
    options = parser.parse_args()
    kernels.load()
    if options.build:
        return 0
    # Before bugs change it.
    environment = str(describe_environment(options.device))
    rows = []
    for bug in bugs_of(options.device):
        finding = find(bug, options.device)
        rows.append(row(bug, finding))
        print("  ".join((*rows[-1], finding.result.reason)), flush=True)
    path = RESULTS / (options.chip or options.device) / "planted.md"
    path.write_text(write(rows, options.device, environment))
    return int(any(caught_by == "nothing" for _, caught_by, _ in rows))


if __name__ == "__main__":
    sys.exit(main())
