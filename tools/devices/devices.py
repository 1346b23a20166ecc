"""Checks GPUs that the project does not have: thousands of launches of each, and `graft check` in the emulator.

`python tools/devices/devices.py` writes docs/devices.json, which takes half an hour of a core;
`tools/docs/support.py` makes a table of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torchgraft.emulation import library, own
from torchgraft.machine.figures import as_json

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# By compute capability, the architecture that its kernels are compiled for. No source asks for another architecture, so
# that kernels compiled for 8.6 or 12.0 would be the same.
COMPILED_FOR = {75: 75, 80: 80, 86: 80, 89: 80, 90: 90, 100: 90, 120: 90}
PROBLEMS = 5000
# The size of the device. Launches depend on it.
_MULTIPROCESSORS = 84


def ask_plans(built: Path, problems: int) -> dict[str, list[dict[str, Any]]]:
    """Draws calls of every operator, and asks for their launches on each GPU.

    Args:
        built: the folder of the library that `own.build` made for 9.0.
        problems: how many calls are drawn.

    Returns:
        By operator, one plans.Asked for each GPU, as a dict.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "plans.json")
        variables = library.environment(
            built, own.NAMESPACE, launches=Path(os.devnull), multiprocessors=_MULTIPROCESSORS
        )
        command = [sys.executable, str(HERE / "plans.py"), str(problems), str(report)]
        subprocess.run(command, env={**os.environ, **variables}, stdout=sys.stderr, check=False)
        return json.loads(report.read_text())


def check(device: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Compares all operators with their references on an emulated GPU; `options` go to `graft check`."""
    folders = own.find_folders()
    built = own.build(folders, architecture=COMPILED_FOR[device], workers=2)
    command = own.check_command(folders, ["--property", "value", "--workers", "2", *options])
    variables = {**os.environ, **library.environment(built, own.NAMESPACE, device=device)}
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def main() -> int:
    """Runs the command."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    plans = ask_plans(own.build(own.find_folders(), workers=2), PROBLEMS)
    found = []
    for number, device in enumerate(COMPILED_FOR):
        results = json.loads(check(device, "--json", "-").stdout)["results"]
        statuses = [each["status"] for each in results]
        found.append(
            {
                "device": device,
                "compiled_for": COMPILED_FOR[device],
                "plans": {operator: asked[number] for operator, asked in plans.items()},
                "passed": statuses.count("pass"),
                "failed": statuses.count("fail"),
            }
        )
    (ROOT / "docs/devices.json").write_text(as_json(found))
    refused = [line for each in found for asked in each["plans"].values() for line in asked["refused"]]
    return 1 if refused or any(each["failed"] for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
