"""`graft check` checks itself: every planted bug is caught by the property that is meant to, and no control by any."""

import pytest
import torch

from planted import kernels
from planted.bug import Bug
from planted.catalogue import bugs_of, controls_of
from planted.finding import find
from planted.table import RESULTS, read_rows, row
from torchgraft import Operator
from torchgraft.checking import PROPERTIES
from torchgraft.checking.jobs import make_jobs
from torchgraft.checking.report.check_report import describe
from torchgraft.checking.run import run_job
from torchgraft.checking.subject import subject_of
from torchgraft.checking.workers import run_jobs

PAGES = {"cpu": RESULTS / "cpu" / "planted.md", "cuda": RESULTS / "h200" / "planted.md"}

on_cuda = (
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device here"),
)
DEVICES = [pytest.param("cpu"), pytest.param("cuda", marks=on_cuda)]


@pytest.fixture(scope="module", autouse=True)
def _kernels():
    kernels.load()


@pytest.mark.parametrize(
    ("bug", "device"),
    [
        pytest.param(bug, *device.values, id=f"{bug.name}-{device.values[0]}", marks=device.marks)
        for device in DEVICES
        for bug in bugs_of(*device.values)
    ],
)
def test_a_planted_bug_is_caught(bug: Bug, device: str):
    finding = find(bug, device)
    if finding.result.status == "not applicable":
        pytest.skip(finding.result.reason)
    failure = finding.result.failure
    assert failure is not None, f"{bug.caught_by} says nothing of an operator that {bug.wrong}"
    # An error that nobody foresaw would be luck.
    assert not failure.traceback, describe(finding.result)

    page = PAGES[device].read_text()
    found, recorded = row(bug, finding), read_rows(page)[bug.wrong]
    assert found[:2] == recorded[:2]
    # Another PyTorch has another opcheck.
    if f"PyTorch {torch.__version__}," in page:
        assert found == recorded


# Operators of ours are right too, and pass each property.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "device"),
    [
        pytest.param(operator, *device.values, id=f"{operator.name}-{device.values[0]}", marks=device.marks)
        for device in DEVICES
        for operator in controls_of(*device.values)
    ],
)
def test_a_control_passes(operator: Operator, device: str):
    jobs = make_jobs([subject_of(operator)], devices=[device], quick=True)
    results = [run_job(job) for job in jobs if not PROPERTIES[job.property_name].isolated]
    failed = [describe(result) for result in results if result.status == "fail"]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("device", DEVICES)
def test_controls_pass_what_needs_a_process_of_its_own(device: str):
    jobs = make_jobs([subject_of(operator) for operator in controls_of(device)], devices=[device], quick=True)
    results = run_jobs([job for job in jobs if PROPERTIES[job.property_name].isolated])
    failed = [describe(result) for result in results if result.status == "fail"]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("device", [device for device, page in PAGES.items() if page.exists()])
def test_the_page_has_a_row_for_each_bug(device: str):
    rows = read_rows(PAGES[device].read_text())
    assert list(rows) == [bug.wrong for bug in bugs_of(device)], "run `python tests/planted/table.py`"
