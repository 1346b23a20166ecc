"""A recurrence whose steps are one kernel on a GPU, on the emulator of one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cells
from torchgraft.building.inline import write_source
from torchgraft.emulation import library
from torchgraft.recurrence.kernels import Kernels

TESTS = Path(__file__).parent
# Its gates are apart, so that all that a cell may ask for is there but parameters.
DECLARED = """
import cells
from torchgraft.recurrence import Recurrence

gru = Recurrence("on_chip::gru", cells.make("gru"))
gradients = gru.gradients
peephole = Recurrence("on_chip::peephole", cells.make("peephole")).gradients
"""
CALLS = """
import torch
from declared import gru

def call(units, dtype):
    def values(*shape):
        return torch.zeros(shape, dtype=dtype)

    weights = values(3 * units, 2), values(3 * units, units)
    gru.operator.call(values(4, 9, 2), *weights, None, None, values(9, units), False, True)

for units, dtype in ((40, "bfloat16"), (512, "float32"), (512, "float64"), (513, "float16")):
    call(units, getattr(torch, dtype))
"""


@pytest.fixture
def environment(tmp_path):
    """Variables of a process that finds the declaration."""
    (tmp_path / "declared.py").write_text(DECLARED)
    # As many multiprocessors as the largest cluster has.
    paths = os.pathsep.join((str(tmp_path), str(TESTS)))
    return {**os.environ, "PYTHONPATH": paths, "TORCHGRAFT_EMULATED_MULTIPROCESSORS": "16"}


def expect_passed(count, environment, folder, operators, *options):
    """Expects that `graft check` finds nothing wrong with operators that `declared` has, and checks so often."""
    command = [sys.executable, "-m", "torchgraft", "check", *(f"declared:{name}" for name in operators)]
    options = ["--device", "cuda", "--emulate", *options]
    done = subprocess.run([*command, *options], env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} passed, 0 failed" in done.stdout


@pytest.mark.slow
def test_its_values_hold_and_no_thread_races_another(tmp_path, environment):
    options = ["--property", "value", "--dtype", "bfloat16", "--dtype", "float32"]
    expect_passed(8, environment, tmp_path, ["gru", "gradients"], *options)


@pytest.mark.slow
def test_a_gradient_beside_an_infinite_one_meets_an_infinite_weight(tmp_path, environment):
    # Of these calls one has a finite gradient of a gate in a row of infinite ones, and a weight of -inf for it.
    options = ["--property", "non_finite", "--dtype", "float32", "--sample", "to states alone, back", "--seed", "0"]
    expect_passed(1, environment, tmp_path, ["peephole"], "--quick", *options)


@pytest.mark.slow
def test_one_kernel_runs_all_steps_where_the_weights_fit(tmp_path, environment):
    text = Kernels("on_chip::gru", cells.make("gru")).sequence["cuda"]
    built = library.build_once("on_chip__gru", [write_source("on_chip::gru", "cuda", text, tmp_path)])
    launches = tmp_path / "launches"
    variables = {**environment, **library.environment(built, "on_chip", launches=launches)}
    subprocess.run([sys.executable, "-c", CALLS], env=variables, check=True)
    found = [line.split("\t") for line in launches.read_text().splitlines()]
    # Clusters of two blocks for 40 units, and of 16 for 512; a kernel for each step of float64, and of more units.
    at_once = [int(grid.split()[0]) for kernel, grid, *_ in found if kernel.startswith("detail/recurrence_on_chip")]
    by_steps = [kernel for kernel, *_ in found if kernel.startswith("run_units")]
    first_messages = 4
    assert [grid % blocks for grid, blocks in zip(at_once, (2, 16), strict=True)] == [0, 0]
    assert len(by_steps) == first_messages + 2 * 4
