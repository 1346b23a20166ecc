"""Runs one job in this process, and finds what is at fault if the property does not hold."""

import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from torchgraft import native
from torchgraft._private import pytorch
from torchgraft.checking.adopting.applicable import declined, why_not_asked
from torchgraft.checking.blaming import CHANCE, find_blame
from torchgraft.checking.case import Case, CheckFailed, failure_of
from torchgraft.checking.helpers.settings import settings_restored
from torchgraft.checking.jobs import RULED_OUT, Job
from torchgraft.checking.kernel_code import RECORDER
from torchgraft.checking.kernel_place import Place, place_of_function
from torchgraft.checking.kernels import claims_kernel, is_compiled_there
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.property import Property
from torchgraft.checking.result import EMULATED, UNDECLARED_SIZE, Failure, NotApplicable, Result
from torchgraft.checking.subject import subject_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.kernels import python_kernels
from torchgraft.kernels.fallback import PerformanceWarning, fallbacks
from torchgraft.kernels.precision import exact_reductions, true_precision
from torchgraft.kernels.signatures import why_no_kernel
from torchgraft.operator import Operator


def _why_not_watched(job: Job) -> str:
    """Returns why a job does not call the kernels that were built for it, for a sanitizer or for the emulator."""
    instead = os.environ.get("TORCHGRAFT_LIBRARIES")
    if not (job.under or job.place) or instead is None:
        return ""
    namespace = job.operator.namespace
    for library in native.libraries():
        if (library.namespace, library.path.parent) == (namespace, Path(instead)):
            return library.problem
    return f"{job.operator.module} does not load its kernels by torchgraft.native.load({namespace!r}, ...)"


def _expect_kernel(operator: Operator, device: str, dtype: torch.dtype) -> None:
    """Raises Mismatch if an operator claims a kernel that is not there."""
    if claims_kernel(operator, device, dtype) and not pytorch.has_kernel(operator.raw, torch.device(device)):
        why = why_no_kernel(operator.declaration, torch.device(device).type)
        raise Mismatch(
            f"{operator.short_name} has no kernel, so the reference would be compared with itself: {why}. If it is not "
            "meant to have one, declare that: kernels='reference', or kernels={...} with the devices that have kernels"
        )


@contextmanager
def _kernels_expected(job: Job, asked: Property) -> Iterator[None]:
    """A scope in which a property about kernels must find them: the operator's, and those of its gradient."""
    if not asked.of_kernels:
        yield
        return
    _expect_kernel(job.operator, job.device, job.dtype)
    if job.place == EMULATED and not is_compiled_there(job.operator, job.device):
        raise Mismatch(f"{job.name} has no kernel on the emulator: no source registers a CUDA kernel of this name")
    before = fallbacks()
    yield
    kind = torch.device(job.device).type
    for each in fallbacks():
        operator = Operator.registered.get(each.operator)
        # A fallback that was called again since then has another count, and is no member of `before`.
        if each not in before and each.device == kind and operator is not None:
            _expect_kernel(operator, kind, getattr(torch, each.dtype))


@contextmanager
def _kernel_forced(job: Job) -> Iterator[None]:
    """A scope in which the kernel of a job is forced; raises NotApplicable if it supported no call."""
    if not job.kernel:
        yield
        return
    kind, alone = torch.device(job.device).type, PROPERTIES[job.property_name].forces_alone
    with python_kernels.forced(job.operator.declaration, kind, job.kernel, alone=alone) as forced:
        yield
    if forced.is_ruled_out:
        raise NotApplicable(RULED_OUT)
    if not forced.served:
        raise NotApplicable(f"the kernel supports no sample in {job.dtype_name}")


@contextmanager
def _precision(job: Job) -> Iterator[None]:
    """A scope in which PyTorch computes in the precision that a job needs."""
    # Kernels that call PyTorch's products are checked with its switches as they are, as users have them.
    answers = claims_kernel(job.operator, job.device, job.dtype)
    with true_precision(), nullcontext() if answers else exact_reductions():
        yield


def run_here(
    job: Job,
    progress: Callable[[str], None] = lambda doing: None,
    on_failure: Callable[[Result], None] = lambda failure: None,
) -> Result:
    """Runs a job in this process.

    Args:
        job: to run.
        progress: called with what is about to be done.
        on_failure: called with a failure before its cause is looked for, which may end the process.
    """
    # A kernel that is wrong may leave them changed, and the next job would be asked under others.
    with settings_restored():
        return _run_here(job, progress, on_failure)


def _run_here(job: Job, progress: Callable[[str], None], on_failure: Callable[[Result], None]) -> Result:
    asked = PROPERTIES[job.property_name]
    if reason := _why_not_watched(job):
        # A sanitizer only repeats checks, so a job that it cannot watch is left out; nothing else runs these kernels.
        if job.place == EMULATED:
            return job.result("fail", 0.0, failure=Failure(reason, reproduce=job.reproduce()))
        return job.result("not applicable", 0.0, reason=reason)
    if reason := why_not_asked(job.operator, job.property_name):
        return job.result("not applicable", 0.0, reason=reason)
    subject = subject_of(job.operator, job.samples, job.replay)
    case = Case(subject, torch.device(job.device), job.dtype, job.seed, job.quick, job.only, job.calls, progress)
    torch.manual_seed(job.seed)
    started = time.perf_counter()

    def result(status: Literal["pass", "fail", "not applicable"], **more: Any) -> Result:
        measured = {"called": case.called, "lines": RECORDER.take()}
        return job.result(status, time.perf_counter() - started, **{**measured, **more})

    try:
        with warnings.catch_warnings(), _precision(job):
            # The property `fallbacks` reports operators that fall back; the others ignore it.
            warnings.simplefilter("ignore", PerformanceWarning)
            watched = RECORDER.recording(job.operator, torch.device(job.device).type)
            with _kernels_expected(job, asked), _kernel_forced(job), watched:
                asked.check(case)
        return result("pass", facts=case.facts)
    except NotApplicable as reason:
        return result("not applicable", reason=str(reason), called=0, facts=case.facts)
    except CheckFailed as failed:
        if left_out := declined(job.operator, job.property_name, failed.__cause__):
            return result("not applicable", reason=left_out, called=0)
        again = job.reproduce(failed.failure.sample, failed.failure.seed)
        kind = _kind_of(failed.__cause__)
        failure = replace(failed.failure, reproduce=again, traceback=_format(failed.__cause__), kind=kind)
    except Exception as error:
        failure = failure_of(error, reproduce=job.reproduce(), traceback=_format(error), kind=_kind_of(error))
    finally:
        if "torch._dynamo" in sys.modules:
            # Compilations for this job would count towards the next one's limit.
            torch._dynamo.reset()
    failure = _placed(failure, job, case)
    found = result("fail", failure=failure)
    on_failure(found)
    return replace(found, failure=_blamed(failure, job, case))


def _kind_of(error: BaseException | None) -> str:
    return error.kind if isinstance(error, Mismatch) else ""


def _placed(failure: Failure, job: Job, case: Case) -> Failure:
    """Adds the place of the part that is at fault in source code, or else of the kernel."""
    declaration = job.operator.declaration
    functions = {
        "the gradient formula": declaration.gradient,
        "the reference": declaration.reference,
        "`output=`": declaration.output,
    }
    part = "`output=`" if failure.kind == UNDECLARED_SIZE else failure.at_fault.partition(":")[0]
    function = functions.get(part)
    place = place_of_function(function) if callable(function) else Place()
    if place.file:
        return replace(failure, file=place.file, line=place.line)
    arguments = None
    with suppress(Exception):
        arguments = case.asked[0].arguments if case.asked else None
    return job.located(failure, arguments)


def _blamed(failure: Failure, job: Job, case: Case) -> Failure:
    """Adds the part that is at fault to a failure, and the cause where it is known."""
    # The report of a sanitizer names the place itself.
    if case.asked is None or job.under:
        return failure
    asked = PROPERTIES[job.property_name]
    call, ask = case.asked

    def ask_again() -> None:
        with _kernels_expected(job, asked), _kernel_forced(job):
            if failure.sample:
                ask()
            else:
                asked.check(replace(case, facts={}))

    with warnings.catch_warnings(), _precision(job):
        warnings.simplefilter("ignore")
        blame = find_blame(call, ask_again, is_named=bool(failure.kind) or asked.of_calls)
    if blame.cause == CHANCE and asked.of_calls:
        return _placed(failure, job, case)
    blamed = replace(failure, at_fault=blame.part, cause=failure.kind or blame.cause)
    if blame.named is not None:
        blamed = replace(blamed, message=f"{blame.named.words}: {failure.message}", kind=blame.named.kind)
    return _placed(blamed, job, case)


def _format(error: BaseException | None) -> str:
    """Formats the traceback of an error; empty for a Mismatch, which a check raised and whose text is enough."""
    if error is None or isinstance(error, Mismatch):
        return ""
    return "".join(traceback.format_exception(error)).strip()
