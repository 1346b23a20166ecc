"""`graft bench --draw`: rows drawn from what networks use, on which nothing was tuned, beside one rival each.

On a GPU every contender is captured as a CUDA graph, so that the device's time alone is measured. A row takes little
time, so that there can be hundreds: each result is compared with the rival's, and not with the reference in float64,
which `graft check` is for.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from torchgraft import native
from torchgraft.benchmarking.explaining import explain
from torchgraft.benchmarking.graphs import Capturing
from torchgraft.benchmarking.measuring import functions_of, precision_of, row_of, why_it_fails
from torchgraft.benchmarking.passes import Candidate, bind, bind_yardstick
from torchgraft.benchmarking.provenance import Provenance, provenance_of_operator
from torchgraft.benchmarking.roofs import Roofs
from torchgraft.benchmarking.rows import KERNEL, Row
from torchgraft.benchmarking.suite import Planned, Wanted, expect_known
from torchgraft.benchmarking.timing import Stopwatch
from torchgraft.checking.subject import Subject
from torchgraft.checking.tensors.compare import Mismatch, expect_close
from torchgraft.kernels import measured_choice, python_kernels
from torchgraft.kernels.fallback import PerformanceWarning, fallbacks
from torchgraft.operator import FLOATING
from torchgraft.sampling import Benchmark, Budget, Distribution, Samples

# What is drawn from where nobody names dtypes.
_DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.float16, torch.bfloat16)}
# As large as layers are where each kind of device trains, and quick enough that hundreds can be timed.
_BUDGETS = {"cpu": Budget(2**22, 2**29), "cuda": Budget(2**27, 2**36)}
# Seconds a contender.
SECONDS = {"cpu": 0.05, "cuda": 0.02}
# A contender holds its arguments, results, and gradients of either; a graph of a rival may hold copies of all.
_COPIES = 12
_MOST_REFUSED = 10_000
# A rival rounds what is between two of its steps, and ours is compared with it and not with the exact result.
_ROUNDINGS = 4


@dataclass
class Inputs:
    """The arguments of a row, which all its passes share: made by the first, and dropped by the next row's."""

    made: tuple[Any, ...] = ()
    of: tuple[Any, ...] = ()

    def take(self, candidate: Candidate) -> tuple[Any, ...]:
        """The arguments of a candidate."""
        wanted = candidate.operator.name, candidate.benchmark.sample.name, candidate.dtype_name, candidate.layout
        if wanted != self.of:
            self.made, self.of = (), ()
            self.made, self.of = candidate.call.make(on_device=True), wanted
        return self.made


@dataclass
class Bench:
    """The state that all rows of a run share.

    Attributes:
        capturing: captures calls; None on a CPU.
        measured: whether operators take the kernels that are fastest when timed, and not those of their policies.
        inputs: of the row at hand.
        provenances: what each operator's passes are measured on.
    """

    capturing: Capturing | None
    measured: bool = False
    inputs: Inputs = field(default_factory=Inputs)
    provenances: dict[tuple[str, bool], Provenance] = field(default_factory=dict)

    def provenance(self, candidate: Candidate) -> Provenance:
        """The sources and tools of a candidate."""
        gradients = candidate.direction != "forward"
        key = candidate.operator.qualified_name, gradients
        if key not in self.provenances:
            kind = candidate.device.type
            self.provenances[key] = provenance_of_operator(candidate.operator, kind, gradients=gradients)
        return self.provenances[key]


def plan_drawn(subjects: Sequence[Subject], wanted: Wanted, count: int, seed: int, *, named: bool) -> list[Planned]:
    """So many rows of each operator, each in every pass; see `draw_candidates`."""
    candidates = draw_candidates(subjects, wanted, count, seed, named=named, memory=_memory_of(wanted.device))
    bench = Bench(Capturing(wanted.device) if wanted.device.type == "cuda" else None, wanted.measured)
    return [_plan(each, wanted, bench) for each in candidates]


def draw_candidates(
    subjects: Sequence[Subject], wanted: Wanted, count: int, seed: int, *, named: bool, memory: float = math.inf
) -> list[Candidate]:
    """So many inputs of each operator, each in every pass; the device need not be here.

    Args:
        subjects: the operators.
        wanted: where to measure; which dtypes, layouts and passes. Those of `directions` that an operator has not are
            left out; none means all.
        count: how many rows to draw of each operator. The same seed draws the same.
        seed: of all that is drawn.
        named: whether each of the operators must have something to draw from; else those are left out that have not.
        memory: the bytes of the device. An input that does not fit is drawn again.

    Raises:
        LookupError: an operator has nothing to draw from, nothing that is drawn suits, or there is no such pass.
    """
    missing = [each.name for each in subjects if each.samples.networks is None]
    if missing and (named or len(missing) == len(subjects)):
        raise LookupError(
            f"{', '.join(missing)} has nothing to draw from: give its Samples `networks`, as docs/bench.md shows; "
            "gradients are measured as passes of the operator that they belong to"
        )
    distributions = [(each, each.samples.networks) for each in subjects if each.samples.networks is not None]
    expect_known("pass", wanted.directions, [name for _, networks in distributions for name in networks.passes])
    return [
        Candidate(subject.operator, _with_rivals(subject.samples), benchmark, dtype, wanted.device, each)
        for subject, networks in distributions
        for benchmark, dtype in _draw(subject, networks, wanted, count, seed, memory)
        for each in networks.passes
        if not wanted.directions or each in wanted.directions
    ]


def _with_rivals(samples: Samples) -> Samples:
    """Samples with the rivals of drawn rows."""
    assert samples.networks is not None
    return replace(samples, rivals={**samples.rivals, **samples.networks.rivals})


def _draw(
    subject: Subject, networks: Distribution, wanted: Wanted, count: int, seed: int, memory: float
) -> Iterator[tuple[Benchmark, torch.dtype]]:
    """Rows of an operator, and the dtype of each."""
    random = Random(f"{seed} {subject.operator.qualified_name}")
    device = wanted.device
    dtypes = [
        each for each in wanted.dtypes or _DTYPES[device.type] if each in (subject.declaration.dtypes or FLOATING)
    ]
    budget = _BUDGETS[device.type]
    refused = 0
    while dtypes and count > 0:
        benchmark = networks.draw(random, budget)
        dtype = random.choice(dtypes)
        if benchmark is not None and benchmark.sample.tf32:
            # In no other may tf32 be used.
            dtype = torch.float32
        if benchmark is None or not _suits(subject, benchmark, dtype, wanted, memory):
            refused += 1
            if refused > _MOST_REFUSED:
                break
            continue
        refused, count = 0, count - 1
        yield benchmark, dtype
    if count:
        raise LookupError(
            f"no call drawn for {subject.name} has one of these dtypes and layouts and fits into memory: allow others"
        )


def _suits(subject: Subject, benchmark: Benchmark, dtype: torch.dtype, wanted: Wanted, memory: float) -> bool:
    candidate = Candidate(subject.operator, subject.samples, benchmark, dtype, wanted.device)
    return (
        wanted.device.type in benchmark.devices
        and candidate.layout in wanted.layouts
        and (wanted.dtypes is None or dtype in wanted.dtypes)
        and _COPIES * benchmark.sample.elements * dtype.itemsize <= memory
    )


def _memory_of(device: torch.device) -> int:
    """The bytes that a device has, or that this machine has."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _plan(candidate: Candidate, wanted: Wanted, bench: Bench) -> Planned:
    networks = candidate.samples.networks
    assert networks is not None
    candidate = replace(
        candidate,
        against=wanted.against or (networks.against,),
        explained=wanted.explained,
        every_kernel=wanted.every_kernel,
    )
    name, sample = candidate.operator.short_name, candidate.benchmark.sample.name
    return Planned(
        name,
        candidate.benchmark.suite,
        sample,
        candidate.dtype,
        (name, candidate.benchmark.suite, sample, candidate.dtype_name, candidate.layout, candidate.direction),
        f"{name}, {candidate.direction}, {sample}, {candidate.dtype_name}, {candidate.layout}",
        False,
        partial(measure_drawn, candidate, bench),
        partial(_refuse, candidate),
    )


def _refuse(candidate: Candidate, problem: str, roofs: Roofs) -> Row:
    return row_of(candidate, candidate.call.make("meta"), {}, {"ours": problem}, roofs, ())


def measure_drawn(candidate: Candidate, bench: Bench, stopwatch: Stopwatch, roofs: Roofs) -> Row:
    """Times an operator and its rival in one pass, on a GPU both as CUDA graphs, and compares what they gave."""
    arguments = bench.inputs.take(candidate)
    refused: dict[str, str] = {}
    measured = measured_choice.measuring(True) if bench.measured else nullcontext()
    with warnings.catch_warnings(), precision_of(candidate), measured:
        # What falls back is told by the row; what PyTorch's layers advise their users is no news here.
        warnings.simplefilter("ignore", PerformanceWarning)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"torch\.nn\.")
        before = {each[:4]: each.calls for each in fallbacks()}
        bound = _bind_all(candidate, arguments)
        chosen = _choices(candidate, bound["ours"], bench)
        if candidate.every_kernel:
            others = _kernels_that_serve(candidate, bound["ours"])
            candidate = replace(candidate, against=(*candidate.against, *others))
            bound |= {name: _forced(candidate, name.removeprefix(KERNEL), bound["ours"]) for name in others}
        contenders: dict[str, Callable[[], Any]] = {}
        for name, call in bound.items():
            if problem := why_it_fails(partial(_prepare, name, call, contenders, bench)):
                refused[name] = problem
        # In the order of their captures, and compared before any is called again: what one computes on the way lies
        # where the results of those captured after it are.
        results = {name: call() for name, call in contenders.items() if name not in candidate.samples.yardsticks}
        for name, result in results.items():
            if name != "ours" and "ours" in results and (problem := _difference(candidate, results["ours"], result)):
                refused["ours" if name == candidate.against[0] else name] = problem
        del results
        served = {}
        if candidate.explained:
            served = {name: explain(call, candidate.device) for name, call in contenders.items()}
        timings = stopwatch.time(contenders, warm=()) if "ours" in contenders else {}
    fell_back = [
        each.reason
        for each in fallbacks()
        if each.operator == candidate.operator.qualified_name and each.calls > before.get(each[:4], 0)
    ]
    row = row_of(candidate, arguments, timings, refused, roofs, fell_back)
    return replace(row, served=served, chosen=chosen, provenance=bench.provenance(candidate))


def _bind_all(candidate: Candidate, arguments: Sequence[Any]) -> dict[str, Callable[[], Any]]:
    """Each contender's call, by name."""
    functions = {name: each for name, each in functions_of(candidate).items() if name != "again"}
    calls = {name: bind(candidate, function, arguments) for name, function in functions.items()}
    for name, make in candidate.samples.yardsticks.items():
        if name in candidate.against:
            calls[name] = bind_yardstick(candidate, make, arguments)
    return calls


def _prepare(name: str, call: Callable[[], Any], contenders: dict[str, Callable[[], Any]], bench: Bench) -> None:
    """Makes a contender of a call: on a GPU a graph of it."""
    if bench.capturing is None:
        call()
        contenders[name] = call
    else:
        contenders[name] = bench.capturing.capture(call)


def _on_stream(call: Callable[[], Any], bench: Bench) -> Callable[[], Any]:
    """A call on the stream on which it is captured later: gradients are computed where the forward pass was."""
    return call if bench.capturing is None else partial(bench.capturing.call, call)


def _choices(candidate: Candidate, call: Callable[[], Any], bench: Bench) -> tuple[str, ...]:
    """The kernels that the operator's library chooses in a pass; none where it fails, which the row tells later."""
    names: list[str] = []
    beside = _on_stream(call, bench)

    def look() -> None:
        # At first it may make a forward pass, too.
        beside()
        names.extend(native.chosen_kernels(candidate.operator.namespace, candidate.device.type, beside))

    why_it_fails(look)
    # Where none of its own was asked, though they are timed, PyTorch's was the fastest.
    return tuple(names) or (("pytorch",) if bench.measured else ())


def _kernels_that_serve(candidate: Candidate, call: Callable[[], Any]) -> list[str]:
    """The kernels of the operator's library that support a pass, as rivals are named."""
    serving = []
    listed = native.kernels(candidate.operator.namespace, candidate.device.type).values()
    for kernel in dict.fromkeys(name for names in listed for name in names):
        forced = python_kernels.forced(candidate.declaration, candidate.device.type, kernel)
        with forced:
            problem = why_it_fails(call)
        if forced.served and not problem:
            serving.append(f"{KERNEL}{kernel}")
    return serving


def _forced(candidate: Candidate, kernel: str, call: Callable[[], Any]) -> Callable[[], Any]:
    """A call in which a kernel serves all that it supports."""

    def with_kernel() -> Any:
        with python_kernels.forced(candidate.declaration, candidate.device.type, kernel):
            return call()

    return with_kernel


def _difference(candidate: Candidate, found: Any, expected: Any) -> str:
    """The difference between two results that is too large; empty if there is none."""
    call = candidate.call
    summed = max(call.summed, candidate.benchmark.sample.elements if candidate.direction != "forward" else 1)
    try:
        expect_close(
            found,
            tree_map_only(Tensor, lambda each: each.double(), expected),
            dtype=candidate.dtype,
            summed=summed,
            scale=4.0,
            roundings=_ROUNDINGS + candidate.samples.rival_roundings.get(candidate.against[0], 0),
        )
    except Mismatch as mismatch:
        return f"beside {candidate.against[0]}, {mismatch}"
    return ""
