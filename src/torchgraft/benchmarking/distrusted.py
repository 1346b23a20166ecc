"""Times of a kernel that is not trusted, by the judge's clock.

A call is timed from before its arguments are sent until its last result has come, as nothing that the kernel's process
says about time is believed. The arguments are new at each call, and every timed result is compared with the reference
after the clock has stopped. The same call of a process that computes nothing shows what the transport takes, and one
that runs the reference, what there is to compare with. All take turns, and those that wait are stopped.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor

from torchgraft.benchmarking.passes import Candidate
from torchgraft.benchmarking.summary import short_dtype
from torchgraft.benchmarking.table import Table
from torchgraft.benchmarking.timing import Ratio, Time, in_turn, outside
from torchgraft.checking.call import Call
from torchgraft.checking.distrust.judge import (
    Answer,
    KernelDied,
    KernelProcess,
    KernelRaised,
    Secret,
    expected_sizes,
    started,
    verify,
)
from torchgraft.checking.distrust.kernel_process import NOTHING, REFERENCE_OF
from torchgraft.checking.subject import target_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.kernels.precision import exact_reductions, true_precision
from torchgraft.machine.environment import Environment, describe_environment

_WARM_UPS = 2
# The transport varies more than a call does, so that more rounds are needed than without it.
_LEAST_ROUNDS, _MOST_ROUNDS = 16, 100
_KERNEL, _REFERENCE, _TRANSPORT = "kernel", "reference", "transport"


@dataclass(frozen=True)
class DistrustedRow:
    """The times of one call, in seconds.

    Attributes:
        kernel: of the kernel, less the transport of the same round: the median, and where it lies in 95 of 100; None if
            a result was wrong.
        reference: of the reference, likewise.
        transport: what it takes to send the arguments and to receive results of these sizes.
        problem: why there is no time.
    """

    operator: str
    suite: str
    sample: str
    dtype: str
    kernel: Time | None = None
    reference: Time | None = None
    transport: Time | None = None
    problem: str = ""

    @property
    def ratio(self) -> Ratio | None:
        """How many times as long as the reference the kernel takes; None if either is lost in the transport."""
        ours, theirs = self.kernel, self.reference
        if ours is None or theirs is None or min(ours.low, theirs.low) <= 0:
            return None
        return Ratio(ours.median / theirs.median, ours.low / theirs.high, ours.high / theirs.low)


@dataclass(frozen=True)
class DistrustedReport:
    """All rows, the seed of the inputs, and the machine."""

    target: str
    rows: tuple[DistrustedRow, ...]
    seed: int
    environment: Environment

    @property
    def passed(self) -> bool:
        """Whether every result was right."""
        return not any(row.problem for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {"passed": self.passed, **asdict(self)}

    def tables(self) -> tuple[Table, ...]:
        """One table: a line a call."""
        lines = [
            [f"{row.operator}, {row.sample}, {short_dtype(row.dtype)}", *_cells(row)]
            for row in self.rows
            if not row.problem
        ]
        notes = [f"{row.operator}, {row.sample}, {row.dtype}: {row.problem}" for row in self.rows if row.problem]
        notes += [
            "By the judge's clock, from sending arguments to receiving results, less what the transport takes: medians,"
            " and where they lie in 95 of 100. Every timed result was compared with the reference.",
            f"seed {self.seed}",
            str(self.environment),
        ]
        header = ["operator, sample", _KERNEL, _REFERENCE, "kernel / reference", _TRANSPORT]
        return (Table(f"Times of {self.target}, which is not trusted", header, lines, notes),)


def _cells(row: DistrustedRow) -> list[str]:
    ratio = row.ratio
    compared = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})" if ratio else ""
    return [_shown(row.kernel), _shown(row.reference), compared, _shown(row.transport)]


def _shown(taken: Time | None) -> str:
    if taken is None:
        return ""
    median, low, high = (f"{each * 1e6:,.0f}" for each in (taken.median, taken.low, taken.high))
    return f"{median} µs ({low} to {high})" if taken.low > 0 else f"at most {high} µs"


def _median(rounds: Sequence[float]) -> Time:
    """The median of all rounds, and where it lies in 95 of 100, by order statistics."""
    found, left_out = sorted(rounds), outside(len(rounds))
    return Time(statistics.median(found), found[left_out], found[-1 - left_out])


def measure_distrusted(
    kernel: str,
    candidates: Sequence[Candidate],
    secret: Secret,
    seconds: float,
    *,
    on_step: Callable[[str], None] = lambda doing: None,
) -> DistrustedReport:
    """Times a kernel that is not trusted.

    Args:
        kernel: as `judge.judge` takes it.
        candidates: calls of one operator, on one device, forward.
        secret: of all inputs.
        seconds: how long to time one contender in one row, about.
        on_step: called with what is done next.

    Raises:
        KernelDied: the kernel cannot be imported.
    """
    first = candidates[0]
    targets = (REFERENCE_OF + target_of(first.operator), NOTHING, kernel)
    rows = []
    on_step("importing the kernel")
    with started(*targets, device=first.device) as found, true_precision(), exact_reductions():
        processes = dict(zip((_REFERENCE, _TRANSPORT, _KERNEL), found, strict=True))
        for each in candidates:
            name, suite = each.operator.short_name, each.benchmark.suite
            row = DistrustedRow(name, suite, each.benchmark.sample.name, each.dtype_name)
            on_step(f"{row.operator}, {row.sample}, {row.dtype}")
            try:
                times = _time(each.call, processes, secret, seconds)
                rows.append(DistrustedRow(row.operator, row.suite, row.sample, row.dtype, *times))
            except (Mismatch, KernelRaised, KernelDied) as error:
                rows.append(DistrustedRow(row.operator, row.suite, row.sample, row.dtype, problem=str(error)))
                if isinstance(error, KernelDied):
                    break
    return DistrustedReport(kernel, tuple(rows), secret.seed, describe_environment(first.device))


def _time(call: Call, processes: dict[str, KernelProcess], secret: Secret, seconds: float) -> tuple[Time, Time, Time]:
    """The times of a kernel, of the reference and of the transport.

    Raises:
        Mismatch: a result of the kernel is wrong.
    """
    sizes = expected_sizes(call)
    taken: dict[str, list[float]] = {name: [] for name in processes}
    for process in processes.values():
        process.pause()
    number, ends = 0, 0.0
    while number < _WARM_UPS + _LEAST_ROUNDS or (number < _WARM_UPS + _MOST_ROUNDS and time.monotonic() < ends):
        if number == _WARM_UPS:
            ends = time.monotonic() + seconds * len(processes)
        once = replace(call, seed=secret.of(call.sample.name, call.dtype, number))
        arguments = once.make("cpu")
        for name in in_turn(list(processes), number):
            answer = _ask(once, processes[name], arguments, sizes)
            if name == _KERNEL:
                verify(once, answer, sizes)
            if number >= _WARM_UPS:
                taken[name].append(answer.seconds)
        number += 1
    sent = taken[_TRANSPORT]
    kernel, reference = (
        [one - other for one, other in zip(taken[name], sent, strict=True)] for name in (_KERNEL, _REFERENCE)
    )
    return _median(kernel), _median(reference), _median(sent)


def _ask(call: Call, process: KernelProcess, arguments: Sequence[Any], sizes: Sequence[Tensor]) -> Answer:
    """Makes a call while the other processes are stopped."""
    process.go_on()
    try:
        return process.ask(call, arguments, sizes)
    finally:
        process.pause()
