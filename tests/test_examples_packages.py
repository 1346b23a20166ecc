"""Packages among the examples hold what `graft check` asks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PACKAGES = sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))


def check(package, *options):
    folder = EXAMPLES / package / "src" / package
    arguments = ("--device", "cpu", "--quick", "--workers", "1", "--json", "-", *options)
    command = [sys.executable, "-m", "torchgraft", "check", folder, *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout)["results"]
    assert results
    assert {each["status"] for each in results} <= {"pass", "not applicable"}


@pytest.mark.parametrize("package", PACKAGES)
def test_values_and_gradients_hold(package):
    check(package, "--property", "value", "--property", "gradient", "--dtype", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_property_holds(package):
    check(package)
