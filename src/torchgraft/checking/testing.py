"""The pytest entry: one line makes a test of an operator, a case a property, device and dtype."""

from collections.abc import Callable

from torchgraft.checking.report import describe
from torchgraft.checking.running import Job, find_devices, make_jobs, run_job
from torchgraft.checking.subject import find_subjects
from torchgraft.operator import Operator


def make_test(
    *operators: Operator | str, device: str = "all", quick: bool = False, seed: int = 0
) -> Callable[..., None]:
    """A test function for pytest, with a case for each property, device and dtype.

    In a test module:

        test_softplus = torchgraft.checking.make_test("mypackage.softplus:softplus")

    Args:
        operators: each an operator, or what `graft check` takes: a name, `package.module:operator`, or a folder; none
            means all of torchgraft.
        device: 'cpu', 'cuda', or 'all' that there are.
        quick: leaves out what takes long.
        seed: of all inputs.
    """
    import pytest

    jobs = make_jobs(find_subjects(operators), devices=find_devices(device), seed=seed, quick=quick)

    @pytest.mark.parametrize(
        "job", [pytest.param(job, id=f"{job.name}-{job.property_name}-{job.device}-{job.dtype_name}") for job in jobs]
    )
    def test_operator(job: Job) -> None:
        result = run_job(job)
        if result.status == "not applicable":
            pytest.skip(result.reason)
        if result.status == "fail":
            pytest.fail(describe(result), pytrace=False)

    return test_operator
