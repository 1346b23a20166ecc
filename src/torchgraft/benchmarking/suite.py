"""A run of `graft bench`: which rows there are, and all of them measured in one process."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from torchgraft.benchmarking import load
from torchgraft.benchmarking.card import CardReading, read_card
from torchgraft.benchmarking.measuring import measure, refuse
from torchgraft.benchmarking.passes import Candidate
from torchgraft.benchmarking.results import BenchReport, Card
from torchgraft.benchmarking.roofs import Roofs, measure_roofs
from torchgraft.benchmarking.rows import Row
from torchgraft.benchmarking.timing import Stopwatch
from torchgraft.checking.kernels import expect_kernels
from torchgraft.checking.subject import Subject
from torchgraft.kernels.precision import equal_precision
from torchgraft.machine.environment import describe_environment
from torchgraft.operator import FLOATING
from torchgraft.sampling import Benchmark

LAYOUTS = ("contiguous", "channels_last")
DIRECTIONS = ("forward", "backward")
# Rivals that every operator has.
_ALWAYS = ("reference", "compile", "cuda_graph")

# What is usually asked on each kind of device.
_DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16)}

# Seconds a contender, and seconds a roof.
_SECONDS, _ROOF_SECONDS = 0.25, 0.1
_QUICK_SECONDS, _QUICK_ROOF_SECONDS = 0.1, 0.03


@dataclass(frozen=True)
class Wanted:
    """Which rows to measure, of all that there are.

    Attributes:
        device: where.
        dtypes: None: float32, and bfloat16 on a GPU.
        layouts: of the tensors of four dimensions.
        directions: 'forward', or 'backward'; of rows that are drawn, passes of `sampling.Distribution`.
        against: names of rivals and yardsticks, 'reference', 'compile' or 'cuda_graph'; None: all that an operator
            names, its reference where it names no rival.
        suites: None: all.
        sample: None: all, or in a quick run those that stand for the others.
        quick: whether to measure little, and that briefly.
        explained: whether rows say what serves each call.
        every_kernel: whether the kernels between which an operator chooses are rivals of its forward pass.
        patience: seconds to wait, in all, for other programs to end; None: 30, or 5 in a quick run.
        seconds: about how long to measure one contender; None: 0.25, or 0.1 in a quick run.
        measured: whether operators take the kernels that are fastest when timed, and not those of their policies.
    """

    device: torch.device
    dtypes: tuple[torch.dtype, ...] | None = None
    layouts: tuple[str, ...] = LAYOUTS
    directions: tuple[str, ...] = ("forward",)
    against: tuple[str, ...] | None = None
    suites: tuple[str, ...] | None = None
    sample: str | None = None
    quick: bool = False
    explained: bool = False
    every_kernel: bool = False
    patience: float | None = None
    seconds: float | None = None
    measured: bool = False

    @property
    def asked_seconds(self) -> float:
        """About how long to measure one contender."""
        if self.seconds is not None:
            return self.seconds
        return _QUICK_SECONDS if self.quick else _SECONDS

    @property
    def asked_dtypes(self) -> tuple[torch.dtype, ...]:
        """The dtypes to measure in."""
        return _DTYPES[self.device.type] if self.dtypes is None else self.dtypes

    def dtypes_of(self, benchmark: Benchmark) -> tuple[torch.dtype, ...]:
        """The dtypes to measure a benchmark in."""
        own = benchmark.dtypes if self.dtypes is None else None
        return self.asked_dtypes if own is None else own

    @property
    def asked_patience(self) -> float:
        """The seconds to wait, in all, for other programs to end."""
        if self.patience is not None:
            return self.patience
        return load.QUICK_PATIENCE if self.quick else load.PATIENCE


@dataclass(frozen=True)
class Planned:
    """A row to be measured.

    Attributes:
        operator: whose it is.
        suite: which it belongs to.
        sample: on what.
        dtype: what it is computed in.
        key: what names the row that it becomes, in this run and in others.
        title: what a person is told while it is measured.
        quick: whether it is one of the few of a quick run.
        measure: makes the row; given how to time, and the roofs.
        refuse: makes the row that says why there is no time; given that, and the roofs.
        candidate: the pass of an operator that it times; None for a model.
    """

    operator: str
    suite: str
    sample: str
    dtype: torch.dtype
    key: tuple[str, ...]
    title: str
    quick: bool
    measure: Callable[[Stopwatch, Roofs], Row]
    refuse: Callable[[str, Roofs], Row]
    candidate: Candidate | None = None


def plan(subjects: Sequence[Subject], wanted: Wanted) -> list[Planned]:
    """Every row that operators have on a device, of the dtypes, layouts, directions and rivals that are wanted.

    Raises:
        LookupError: something is named that there is not, or none of the operators has a benchmark.
    """
    if not any(subject.samples.benchmarks for subject in subjects):
        names = ", ".join(subject.name for subject in subjects)
        raise LookupError(f"{names} has no benchmarks: give its Samples `benchmarks`, as docs/bench.md shows")
    expect_known("layout", wanted.layouts, LAYOUTS)
    expect_known("pass", wanted.directions, DIRECTIONS)
    if wanted.every_kernel:
        expect_kernels([subject.operator for subject in subjects], [wanted.device.type])
    rivals = [name for subject in subjects for name in (*subject.samples.rivals, *subject.samples.yardsticks)]
    expect_known("rival", wanted.against or (), [*rivals, *_ALWAYS])
    return [_plan_one(each) for subject in subjects for each in _candidates(subject, wanted)]


def select(planned: Sequence[Planned], wanted: Wanted) -> list[Planned]:
    """The rows of the suites and the sample that are wanted; without a sample, of a quick run the few that it has.

    Raises:
        LookupError: something is named that there is not, or nothing is left.
    """
    expect_known("suite", wanted.suites or (), [each.suite for each in planned])
    expect_known("sample", (wanted.sample,) if wanted.sample else (), [each.sample for each in planned])
    selected = [
        each
        for each in planned
        if (wanted.suites is None or each.suite in wanted.suites)
        and (each.sample == wanted.sample if wanted.sample else each.quick or not wanted.quick)
    ]
    if not selected:
        raise LookupError("nothing to measure: no benchmark has this combination of device, suite, dtype and layout")
    return selected


def expect_known(kind: str, named: Sequence[str], known: Sequence[str]) -> None:
    """Raises a LookupError, with what there is, where something is named that there is not."""
    for name in named:
        if name not in known:
            shown = ", ".join(repr(each) for each in dict.fromkeys(known)) or "none"
            raise LookupError(f"there is no {kind} {name!r}; choose from {shown}")


def _candidates(subject: Subject, wanted: Wanted) -> Iterator[Candidate]:
    operator, samples = subject.operator, subject.samples
    against = wanted.against
    if against is None:
        named = tuple(samples.rivals)
        # Nobody chose the sizes of captured calls, and rivals may not take them.
        named = named if named and not subject.replay else (*named, "reference")
        against = (*named, *samples.yardsticks)
    # One that another operator has is not this one's.
    against = tuple(name for name in against if name in {**samples.rivals, **samples.yardsticks} or name in _ALWAYS)
    rows = (
        (benchmark, direction, dtype)
        for benchmark in samples.benchmarks
        for direction, dtype in product(wanted.directions, wanted.dtypes_of(benchmark))
    )
    for benchmark, direction, dtype in rows:
        if wanted.device.type not in benchmark.devices or dtype not in (operator.declaration.dtypes or FLOATING):
            continue
        candidate = Candidate(
            operator,
            samples,
            benchmark,
            dtype,
            wanted.device,
            direction,
            against,
            wanted.explained,
            wanted.every_kernel and direction == "forward",
        )
        if direction == "backward" and not candidate.call.leaf_names:
            continue
        # What tf32 is permitted in is float32.
        if candidate.layout in wanted.layouts and not (benchmark.sample.tf32 and dtype != torch.float32):
            yield candidate


def _plan_one(candidate: Candidate) -> Planned:
    name, suite = candidate.operator.short_name, candidate.benchmark.suite
    backward = ", backward" if candidate.direction == "backward" else ""
    sample = candidate.benchmark.sample.name
    return Planned(
        name,
        suite,
        sample,
        candidate.dtype,
        (name, suite, sample, candidate.dtype_name, candidate.layout, candidate.direction),
        f"{name}{backward}, {sample}, {candidate.dtype_name}, {candidate.layout}",
        candidate.benchmark.quick,
        partial(measure, candidate),
        partial(refuse, candidate),
        candidate,
    )


def run(
    planned: Sequence[Planned],
    wanted: Wanted,
    *,
    on_start: Callable[[str], None] = lambda title: None,
    on_row: Callable[[Planned, Row], None] = lambda planned, row: None,
    on_wait: Callable[[str], None] = lambda why: None,
    watch: load.LoadWatch | None = None,
) -> BenchReport:
    """Measures the roofs of a device, and under them every row; of a run that is interrupted, those that it came to.

    It waits for other programs to end, before it begins and before a row beside which they worked is measured again.

    Args:
        planned: the rows.
        wanted: where to measure, and whether quickly.
        on_start: called with the title of what is measured next.
        on_row: called with each row.
        on_wait: called with the reason, again and again, while it waits.
        watch: looks at other programs; None: at those of this machine.
    """
    started = time.monotonic()
    device = wanted.device
    environment = describe_environment(device)
    rows: list[Row] = []
    readings: list[CardReading | None] = []
    watch = watch or load.LoadWatch(device, wanted.asked_patience)
    with equal_precision():
        watch.wait(on_wait)
        on_start("the roofs of this device")
        dtypes = tuple(dict.fromkeys(each.dtype for each in planned))
        roofs = measure_roofs(device, dtypes, _QUICK_ROOF_SECONDS if wanted.quick else _ROOF_SECONDS)
        # Before the first row but not of an idle card, whose clock says nothing.
        readings.append(read_card(device))
        stopwatch = Stopwatch(device, wanted.asked_seconds)
        for each in planned:
            try:
                row = _measure(each, stopwatch, roofs, on_start)
                if watch.load.is_too_much(row.others) and watch.wait(on_wait):
                    row = _measure(each, stopwatch, roofs, on_start)
                if device.type == "cuda":
                    readings.append(read_card(device))
            except KeyboardInterrupt:
                break
            rows.append(row)
            on_row(each, row)
    told = [each for each in readings if each]
    ends = [told[0], told[-1]] if told else []
    return BenchReport(
        environment,
        Card(environment.chip, tuple(each.clock for each in ends), tuple(each.temperature for each in ends)),
        roofs,
        tuple(rows),
        wanted.quick,
        time.monotonic() - started,
        unmeasured=len(planned) - len(rows),
        load=watch.load,
    )


def _measure(planned: Planned, stopwatch: Stopwatch, roofs: Roofs, on_start: Callable[[str], None]) -> Row:
    """A row, once."""
    on_start(planned.title)
    # Else what is compiled for one row counts against the number of variants that the next may have. To import the
    # compiler for that, where nothing was compiled, takes seconds.
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    try:
        return planned.measure(stopwatch, roofs)
    except torch.OutOfMemoryError as error:
        return planned.refuse(f"it does not fit into memory: {str(error).splitlines()[0]}", roofs)
    finally:
        if stopwatch.device.type == "cuda":
            _free_memory(stopwatch.device)


def _free_memory(device: torch.device) -> None:
    """Gives back what the next row may need, where it is much: to look for it takes as long as a row."""
    if torch.cuda.memory_reserved(device) > torch.cuda.get_device_properties(device).total_memory / 8:
        # Models and what was compiled of them hold each other in circles, and memory with them.
        gc.collect()
        torch.cuda.empty_cache()
