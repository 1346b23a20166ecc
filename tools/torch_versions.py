"""Runs `graft check --quick` on the CPU under this environment's PyTorch, and writes the counts to docs/versions.

`make test-torch` calls it in an environment of its own; `tools/docs/support.py` makes a table of what it wrote.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from torchgraft.machine.figures import as_json

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs/versions"


def summary(report: dict[str, Any], commit: str) -> dict[str, Any]:
    """The kept part of a report of `graft check`: counts by operator, and the names of properties that failed."""
    operators: dict[str, Counter[str]] = {}
    failed: dict[str, list[str]] = {}
    for result in report["results"]:
        operators.setdefault(result["operator"], Counter())[result["status"]] += 1
        if result["status"] == "fail":
            failed.setdefault(result["operator"], []).append(f"{result['property']} in {result['dtype']}")
    keys = ("date", "torch", "python", "platform")
    kept = {name: report["environments"]["cpu"][name] for name in keys}
    return {**kept, "commit": commit, "unfinished": report["unfinished"], "operators": operators, "failed": failed}


def main() -> int:
    """The command; what stands behind it goes to `graft check`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.json")
        command = [sys.executable, "-m", "torchgraft", "check", "--quick", "--device", "cpu", "--json", str(path)]
        status = subprocess.run([*command, *sys.argv[1:]], check=False).returncode
        # Of a narrower question nothing is kept.
        if not path.is_file() or sys.argv[1:]:
            return status
        report = json.loads(path.read_text())
    described = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(described, capture_output=True, text=True, check=True).stdout.strip()
    found = summary(report, commit)
    FOLDER.mkdir(exist_ok=True)
    written = FOLDER / f"{found['torch'].partition('+')[0]}.json"
    written.write_text(as_json(found))
    print(f"{written.relative_to(ROOT)}: written; `make docs` makes a table of it")
    return status


if __name__ == "__main__":
    sys.exit(main())
