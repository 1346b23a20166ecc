"""`graft check`: an operator proved against its reference, property by property.

A property is a file in `properties`; a case is an operator, a device and a dtype; `running` puts them together, and
`report` says what came of it. Nothing here knows an operator by name.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchgraft.benchmarking.environment import describe_environment
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.property import Failure, Property, Result
from torchgraft.checking.report import CheckReport
from torchgraft.checking.running import make_jobs, run_job
from torchgraft.checking.subject import find_subjects, subject_of
from torchgraft.checking.testing import make_test
from torchgraft.operator import Operator
from torchgraft.sampling import Samples

__all__ = ["PROPERTIES", "CheckReport", "Failure", "Property", "Result", "check", "find_devices", "make_test"]


def find_devices(device: str = "all") -> list[str]:
    """The devices of this machine that are meant by 'cpu', 'cuda' or 'all'.

    Raises:
        LookupError: 'cuda', and there is none.
    """
    if device == "all":
        return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise LookupError("PyTorch finds no CUDA device here")
    return [device]


def check(
    operator: Operator | str,
    samples: Samples | None = None,
    *,
    device: str = "all",
    properties: Sequence[str] | None = None,
    seed: int = 0,
    quick: bool = False,
) -> CheckReport:
    """Checks an operator against its reference, property by property, in this process.

    Args:
        operator: the operator; or what `graft check` takes: a name, `package.module:operator`, or a folder.
        samples: its inputs; None takes those beside its declaration.
        device: 'cpu', 'cuda', or 'all' that there are.
        properties: the names of the properties; None takes all.
        seed: of all inputs.
        quick: leaves out what takes long: Inductor, ahead-of-time compilation, and most drawn inputs.

    Returns:
        A report whose `passed` says whether all hold, and whose text says what does not.

    Raises:
        LookupError: there is no such operator, property or device, or no samples.
    """
    subjects = find_subjects([operator]) if isinstance(operator, str) else [subject_of(operator, samples)]
    devices = find_devices(device)
    jobs = make_jobs(subjects, devices=devices, properties=properties, seed=seed, quick=quick)
    results = tuple(run_job(job) for job in jobs)
    return CheckReport(results, {each: describe_environment(each) for each in devices}, seed, quick)
