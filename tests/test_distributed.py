"""Training on several devices, each a process, is training on one; and what goes wrong on one is known on all."""

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from distributed import cases

FILE = Path(cases.__file__)
ROOT = Path(__file__).parents[1]
MOST_SECONDS = 600
WORLDS = [
    pytest.param(("gloo", 2), id="gloo-2"),
    pytest.param(("gloo", 4), id="gloo-4", marks=pytest.mark.slow),
    *(
        pytest.param(
            ("nccl", count),
            id=f"nccl-{count}",
            marks=(
                pytest.mark.cuda,
                pytest.mark.skipif(torch.cuda.device_count() < count, reason=f"there are no {count} CUDA devices here"),
            ),
        )
        for count in (2, 4)
    ),
]


def start(folder, backend, count, *names, **environment):
    """Processes of one group."""
    known = {**os.environ, "WORLD_SIZE": str(count), "BACKEND": backend, "OMP_NUM_THREADS": "1", **environment}
    return [
        subprocess.Popen(
            [sys.executable, str(FILE), str(folder), *names],
            env={**known, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]


@pytest.fixture(scope="module", params=WORLDS)
def outcomes(request, tmp_path_factory):
    """The results of each case that each process wrote, and what it printed."""
    backend, count = request.param
    folder = tmp_path_factory.mktemp("processes")
    processes = start(folder, backend, count)
    try:
        said = [process.communicate(timeout=MOST_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    files = [folder / f"{rank}.json" for rank in range(count)]
    return [json.loads(file.read_text()) if file.exists() else {} for file in files], said


@pytest.mark.parametrize("name", cases.CASES)
def test_several_processes_do_as_one(outcomes, name):
    found, said = outcomes
    for rank, (each, text) in enumerate(zip(found, said, strict=True)):
        assert name in each, f"process {rank} did not come to it:\n{text[-2000:]}"
        assert not each[name], f"process {rank}: {each[name]}"


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_a_process_that_dies_ends_the_others(world, tmp_path):
    backend, count = world
    seconds = 60
    processes = start(tmp_path, backend, count, "dies", SECONDS=str(seconds))
    started = time.monotonic()
    said = [process.communicate(timeout=MOST_SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes][-1] == 3
    for process, text in zip(processes[:-1], said, strict=False):
        assert process.returncode not in (0, None)
        assert "Error" in text or "timeout" in text.lower(), text[-500:]
    # NCCL's watchdog takes another minute, and processes take some time to begin.
    assert time.monotonic() - started < seconds + 180


def test_the_page_shows_how_training_scaled():
    scaling = runpy.run_path(str(ROOT / "benchmarks/scaling.py"))
    assert scaling["page"]() == scaling["FRAGMENT"].read_text()


def test_time_in_which_something_runs_counts_once():
    covered = runpy.run_path(str(ROOT / "examples/train_imagenet_like.py"))["covered"]
    assert covered([]) == 0
    assert covered([(5, 7), (0, 2), (1, 3), (1, 2)]) == 5
    assert covered([(0, 4), (1, 2), (4, 6)]) == 6


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_example_goes_on_from_its_last_checkpoint(strategy, tmp_path):
    script = ROOT / "examples" / "train_imagenet_like.py"

    def train(folder, steps):
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
        command += ["--model", "small", "--batch", "2", "--pixels", "32", "--every", "2", "--measured", "2"]
        command += ["--strategy", strategy, "--steps", str(steps), "--checkpoints", str(tmp_path / folder)]
        command += ["--json", str(tmp_path / "figures.json")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=True)
        return done.stdout, json.loads((tmp_path / "figures.json").read_text())

    _, whole = train("whole", 6)
    said, _ = train("stopped", 4)
    assert "going on" not in said
    # As of a run that was killed while it wrote: what names it is not there yet.
    (tmp_path / "stopped" / "step-6").mkdir()
    said, found = train("stopped", 6)
    assert "going on from step 4" in said
    assert found["loss"] == pytest.approx(whole["loss"], rel=1e-6)


@pytest.mark.slow
def test_the_demo_trains_on_two_devices():
    command = [sys.executable, "-m", "torchgraft", "demo", "--devices", "2", "--epochs", "1"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "DistributedDataParallel on 2 devices" in done.stdout
    assert "losses differ by" in done.stdout
