"""Packages among the examples hold what `graft check` asks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PACKAGES = sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_property_holds(package):
    folder = EXAMPLES / package / "src" / package
    command = [sys.executable, "-m", "torchgraft", "check", folder, "--device", "cpu", "--quick", "--workers", "1"]
    done = subprocess.run([*map(str, command), "--json", "-"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)["results"]
    assert results
    assert {each["status"] for each in results} <= {"pass", "not applicable"}
