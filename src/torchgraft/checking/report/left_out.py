"""The kernels that a check did not run where their users run them, and why: nothing is known of these."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from torchgraft import native
from torchgraft.checking.jobs import Job
from torchgraft.checking.kernels import compiled_kernels, is_compiled_there
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.report.check_report import LeftOut
from torchgraft.checking.result import EMULATED, NVCC, OWN_COMPILER, TRITON, Result
from torchgraft.checking.subject import target_of
from torchgraft.checking.without_gpu import COMPILES
from torchgraft.kernels import python_kernels
from torchgraft.operator import Operator

_MACHINES = {"cpu": "CPU", "cuda": "GPU"}
_NO_GPU = "PyTorch finds no GPU here"
_NOT_CHECKED = "not checked"
_COMPILED = "compiled, not run"
_EMULATED = "run in an emulator only"
_INTERPRETED = "run in Triton's interpreter only"
_INTERPRETED_AND_COMPILED = "run in Triton's interpreter, and compiled for GPUs, only"


@dataclass(frozen=True)
class _Found:
    """Kernels of one operator, as LeftOut has those of several."""

    operator: Operator
    device: str
    kernels: str
    sources: tuple[str, ...]
    state: str
    reason: str
    advice: str


def find_left_out(
    jobs: Sequence[Job], results: Sequence[Result], operators: Sequence[Operator] = ()
) -> tuple[LeftOut, ...]:
    """Finds the kernels of operators that no result is about, and those that ran only in place of a GPU.

    Args:
        jobs: what was asked.
        results: what came of them, as far as it came; each says of which operator and where it is.
        operators: those that were named, with a job or without; those of the jobs are added.
    """
    wanted = {(job.name, job.where) for job in jobs}
    ran = {(each.operator, each.device) for each in results if each.status != "not applicable" and _is_of_kernels(each)}
    built = [each for each in results if each.property == COMPILES and each.status == "pass"]
    compiled = {each.operator for each in built if each.device == NVCC}
    own = {each.operator for each in built if each.device == OWN_COMPILER}
    remarks = {each.operator: each.reason for each in built if each.device == TRITON}
    groups: dict[tuple[str, ...], list[_Found]] = {}
    for operator in dict.fromkeys((*operators, *(job.operator for job in jobs))):
        for found in _left_out_of(operator, wanted, ran, compiled, own, remarks):
            groups.setdefault((found.device, found.kernels, found.state, found.reason, found.advice), []).append(found)
    return tuple(_together(group) for group in groups.values())


def _is_of_kernels(result: Result) -> bool:
    """Whether the property of a result is about kernels; the name of a sanitizer may stand before it."""
    asked = PROPERTIES.get(result.property.rpartition(": ")[-1])
    return asked is not None and asked.of_kernels


def _left_out_of(
    operator: Operator,
    wanted: set[tuple[str, str]],
    ran: set[tuple[str, str]],
    compiled: set[str],
    own: set[str],
    remarks: Mapping[str, str],
) -> Iterator[_Found]:
    name = operator.short_name
    for device in native.SUFFIXES:
        emulates = device == "cuda" and native.emulates(operator.namespace)
        has_run = (name, device) in ran
        reason, advice = _why(operator, device, wanted)
        sources = compiled_kernels(operator, device)
        is_there = is_compiled_there(operator, device)
        if sources is not None and not (has_run and is_there):
            if has_run or ((name, device) in wanted and not is_there):
                reason, advice = native.why_no_kernel(operator.namespace, device), ""
            state = _NOT_CHECKED
            if device == "cuda" and name in compiled:
                state = _COMPILED
            if device == "cuda" and ((name, EMULATED) in ran or emulates):
                state, advice = _EMULATED, "docs/design/emulator.md says what only a GPU shows"
            elif device == "cuda" and reason == _NO_GPU:
                advice = _advise(sources, emulates=(name, EMULATED) in wanted, compiles=(name, NVCC) in wanted)
            yield _Found(operator, device, device.upper(), tuple(sources), state, reason, advice)
        in_python = python_kernels.kernels_of(operator.qualified_name, device)
        is_interpreter = device == "cpu" and in_python and (in_python.interpreted or in_python.in_reference_mode)
        if in_python is not None and not has_run and not is_interpreter:
            for language, kernels in in_python.by_language.items():
                state = _NOT_CHECKED
                if device == "cuda" and reason == _NO_GPU:
                    is_compiled = any(in_python.traits[each].compile for each in kernels) and name in own
                    state, advice = _without_gpu(operator, language, (name, "cpu") in ran, is_compiled, remarks)
                yield _Found(operator, device, language, kernels, state, reason, advice)


def _without_gpu(
    operator: Operator, language: str, has_run: bool, is_compiled: bool, remarks: Mapping[str, str]
) -> tuple[str, str]:
    """Returns what became of kernels for a GPU where there is none, and advice.

    Args:
        operator: whose kernels they are.
        language: that they are written in.
        has_run: whether properties ran on the CPU.
        is_compiled: whether the compiler of the language took them.
        remarks: by the name of an operator, what Triton's compiler does not vouch for.
    """
    name = operator.short_name
    if language == "Triton" and has_run and python_kernels.is_run_by_interpreter(operator.declaration):
        return _INTERPRETED_AND_COMPILED if name in remarks else _INTERPRETED, remarks.get(name, "")
    if has_run and python_kernels.reference_mode_of(operator.declaration) == language:
        return f"run in {language}'s reference mode only", python_kernels.UNSEEN_IN_REFERENCE_MODE[language]
    return _COMPILED if is_compiled else _NOT_CHECKED, "run the check on a machine with a GPU"


def _why(operator: Operator, device: str, wanted: set[tuple[str, str]]) -> tuple[str, str]:
    """Returns why kernels for a kind of device did not run, and what to do about it."""
    if (operator.short_name, device) in wanted:
        return "no property of this run calls them", ""
    if device == "cuda" and not torch.cuda.is_available():
        return _NO_GPU, ""
    return f"this run left out the {_MACHINES[device]}", f"`graft check {{}} --device {device}` checks them"


def _advise(sources: Sequence[str], *, emulates: bool, compiles: bool) -> str:
    """Returns advice for a machine without a GPU."""
    if not sources:
        return "run the check on a machine with a GPU"
    emulate = "`graft check {} --device cuda --emulate` runs them in an emulator on the CPU"
    compile = "`--compile-cuda` compiles them"
    return ", ".join(advice for advice, done in ((emulate, emulates), (compile, compiles)) if not done)


def _together(group: Sequence[_Found]) -> LeftOut:
    first = group[0]
    alike = {each.sources for each in group}
    targets = " ".join(dict.fromkeys(shlex.quote(target_of(each.operator)) for each in group))
    return LeftOut(
        tuple(each.operator.short_name for each in group),
        first.device,
        first.kernels,
        first.sources if len(alike) == 1 else (),
        first.state,
        first.reason,
        first.advice.format(targets),
    )
