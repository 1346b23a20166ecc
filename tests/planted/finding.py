"""Finds out what catches a planted bug: the property that is meant to, and PyTorch's opcheck alone."""

from __future__ import annotations

import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import torch

from planted.bug import Bug
from torchgraft import Operator
from torchgraft.checking.call import Call
from torchgraft.checking.helpers.compiling import fresh_compiler
from torchgraft.checking.helpers.settings import settings_restored
from torchgraft.checking.jobs import make_jobs
from torchgraft.checking.property import COMPILER
from torchgraft.checking.result import Result
from torchgraft.checking.run import run_job
from torchgraft.checking.subject import subject_of
from torchgraft.checking.workers import run_jobs
from torchgraft.machine.processes import clean_processes
from torchgraft.operator import FLOATING


@dataclass(frozen=True)
class Finding:
    """The outcome of a search for a bug.

    Attributes:
        result: of the property that is meant to catch it.
        opcheck: whether opcheck catches it on the same sample, in the same dtype or in float16: 'yes', 'no', 'by
            chance', or 'dies' where the process does.
    """

    result: Result
    opcheck: str


def find(bug: Bug, device: str) -> Finding:
    """Asks the property and opcheck."""
    result = find_by_property(bug, device)
    if bug.by_chance:
        return Finding(result, "by chance")
    asked = bug.operator, result.failure.sample if result.failure else "", device, result.dtype
    if not bug.harms:
        return Finding(result, "yes" if _opcheck_catches(*asked) else "no")
    with ProcessPoolExecutor(1, mp_context=clean_processes(COMPILER)) as pool:
        try:
            caught = pool.submit(_opcheck_catches, *asked).result()
        except BrokenProcessPool:
            return Finding(result, "dies")
    return Finding(result, "yes" if caught else "no")


def find_by_property(bug: Bug, device: str) -> Result:
    """The answer of the property that is meant to catch a bug."""
    jobs = make_jobs([subject_of(bug.operator)], devices=[device], properties=[bug.caught_by], quick=True)
    for job in jobs:
        # Some harm only whoever comes after them.
        (result,) = run_jobs([job]) if bug.harms else (run_job(job),)
        if result.status == "fail":
            break
    return result


def _opcheck_catches(operator: Operator, sample: str, device: str, dtype_name: str) -> bool:
    samples = subject_of(operator).samples
    chosen = next((each for each in samples.table if each.name == sample), samples.smallest)
    with warnings.catch_warnings(), fresh_compiler(), settings_restored():
        warnings.simplefilter("ignore")
        for dtype in {getattr(torch, dtype_name), torch.float16} & {*(operator.declaration.dtypes or FLOATING)}:
            call = Call(operator, samples, chosen, torch.device(device), dtype, 0)
            # What is written to must not need a gradient.
            arguments = call.arguments if operator.declaration.mutates else call.leaves(required=False)
            outcomes = torch.library.opcheck(operator.public, arguments, raise_exception=False)
            if any(isinstance(outcome, Exception) for outcome in outcomes.values()):
                return True
    return False
