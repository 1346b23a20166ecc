"""`graft check`: proves operators against their references, property by property.

A property is a file in `properties`; it checks a `case`, which makes `call`s of samples. `jobs` says which properties
of which operators run, `run` and `workers` run them, and `report` shows the results. Nothing here knows an operator by
name.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from torchgraft.checking.jobs import Job, find_devices, find_unreached_lines, make_jobs
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.property import Property
from torchgraft.checking.report.check_report import CheckReport, describe
from torchgraft.checking.report.left_out import find_left_out
from torchgraft.checking.result import Failure, Result
from torchgraft.checking.run import run_job
from torchgraft.checking.subject import find_subjects
from torchgraft.machine.environment import describe_environment
from torchgraft.operator import Operator
from torchgraft.sampling import Samples

__all__ = ["PROPERTIES", "CheckReport", "Failure", "Property", "Result", "check", "find_devices", "make_test"]


def check(
    operator: Operator | str,
    samples: Samples | None = None,
    *,
    device: str = "all",
    properties: Sequence[str] | None = None,
    seed: int = 0,
    quick: bool = False,
    replay: str | Path = "",
) -> CheckReport:
    """Checks an operator against its reference, property by property, in this process.

    Args:
        operator: the operator; or what `graft check` takes: a name, `package.module:operator`, or a folder.
        samples: its inputs; None takes those beside its declaration.
        device: 'cpu', 'cuda', or 'all' that there are.
        properties: the names of the properties; None takes all.
        seed: of all inputs.
        quick: leaves out what takes long: Inductor, ahead-of-time compilation, and most random inputs.
        replay: a folder of `torchgraft.capture`, whose calls are the samples; empty: they are not.

    Returns:
        A report whose `passed` says whether all hold, and whose text says what does not.

    Raises:
        LookupError: there is no such operator, property or device, or no samples.
        CapturedFileError: a file of the folder is damaged.
    """
    subjects = find_subjects([operator], samples, replay)
    devices = find_devices(device)
    jobs = make_jobs(subjects, devices=devices, properties=properties, seed=seed, quick=quick)
    results = tuple(run_job(job) for job in jobs)
    environments = {each: describe_environment(each) for each in devices}
    left_out = find_left_out(jobs, results)
    unreached = () if properties else find_unreached_lines(jobs, results)
    return CheckReport(results, environments, seed, quick, left_out=left_out, unreached=unreached)


def make_test(
    *operators: Operator | str, device: str = "all", quick: bool = False, seed: int = 0
) -> Callable[..., None]:
    """Makes a test function for pytest, with a case for each property, device and dtype.

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
