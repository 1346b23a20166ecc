"""How long calls take, side by side: all contenders in turn, in rounds, so that whatever drifts meets all alike.

On the CPU a round is a block of calls. On a GPU it is a few calls between CUDA events, queued behind a wait so that the
host keeps ahead of the device: what is timed is the device's work on the current stream, with a cold second-level cache
before each call, or warm, call after call.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.benchmark import Timer

from torchgraft._private import pytorch
from torchgraft.benchmarking.load import LoadReading, others_between, take_reading

# With six rounds the smallest and the largest ratio enclose the true median in 96.9 % of cases, with five in 93.8 %.
LEAST_ROUNDS = 6
# A GPU's times hardly vary.
_MOST_ROUNDS = {"cpu": 25, "cuda": 12}
_CALLS_A_ROUND = 6
# In a call as long as this, what it takes to fill a GPU's cache, or to launch, is lost.
_LONG_SECONDS = 0.005
# Of a block of calls on the CPU: long against the clock and against an interruption of the scheduler.
_BLOCK_SECONDS = 0.002


@dataclass(frozen=True)
class Time:
    """How long a call takes, in seconds: the median of all rounds, and the quartiles."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Half of what lies between the quartiles, as a share of the median."""
        return (self.high - self.low) / 2 / self.median


@dataclass(frozen=True)
class Ratio:
    """How many times as long one call takes as another, round by round: the median, and where it lies in 95 of 100."""

    median: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether the two may take the same time."""
        return self.low <= 1.0 <= self.high


@dataclass(frozen=True)
class Timing:
    """The times of one contender.

    Attributes:
        rounds: seconds a call, a value a round.
        warm: the same with what it reads still in the cache of a GPU; empty on the CPU, or where nobody asked.
        host: seconds until a call returns to Python, its work on a GPU still to come; nan on the CPU.
        others: how many processors other programs kept busy meanwhile; None where that is not known.
    """

    rounds: Sequence[float]
    warm: Sequence[float] = ()
    host: float = math.nan
    others: float | None = None

    @property
    def time(self) -> Time:
        """Median and quartiles of all rounds."""
        return summarise(self.rounds)


def summarise(rounds: Sequence[float]) -> Time:
    """Median and quartiles."""
    low, _, high = statistics.quantiles(rounds, n=4, method="inclusive")
    return Time(statistics.median(rounds), low, high)


def ratio_of(rounds: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """How many times as long as a baseline, from rounds that were taken in turn.

    The interval is that of order statistics, which asks nothing of how times are distributed: of n ratios the k-th
    smallest and k-th largest enclose the true median but for the chance that fewer than k of n fall on one side.
    """
    ratios = sorted(one / other for one, other in zip(rounds, baseline, strict=True))
    left_out = outside(len(ratios))
    return Ratio(statistics.median(ratios), ratios[left_out], ratios[-1 - left_out])


def outside(count: int) -> int:
    """How many ratios may be left out on either side of a 95 % interval."""
    tail, left_out = 0.0, 0
    for below in range(count // 2):
        tail += math.comb(count, below) / 2**count
        if tail > 0.025:
            break
        left_out = below
    return left_out


@dataclass
class Stopwatch:
    """Times contenders on a device.

    Attributes:
        device: where they run.
        seconds: how long to measure one contender, about.
        look: says what the machine does beside it.
        flush: what is written to empty a GPU's second-level cache; None on the CPU.
    """

    device: torch.device
    seconds: float = 0.25
    look: Callable[[], LoadReading] = take_reading
    flush: torch.Tensor | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Takes the memory that is written to flush a cache: four times the cache."""
        if self.device.type == "cuda":
            cache = torch.cuda.get_device_properties(self.device).L2_cache_size
            self.flush = torch.empty(max(4 * cache, 2**26), dtype=torch.uint8, device=self.device)

    def time(
        self, contenders: Mapping[str, Callable[[], Any]], *, warm: Collection[str] | None = None
    ) -> dict[str, Timing]:
        """Seconds a call of each contender, all in turn.

        Args:
            contenders: functions by name, each called once before for what it does only at first.
            warm: of which the time with a warm cache is wanted too, on a GPU; None: of all.
        """
        if self.device.type == "cuda":
            return self._time_on_gpu(contenders, contenders if warm is None else warm)
        return self.time_by_clock(contenders)

    def _rounds(self, slowest: float, calls: int) -> int:
        return max(
            LEAST_ROUNDS, min(_MOST_ROUNDS[self.device.type], math.ceil(self.seconds / max(slowest * calls, 1e-9)))
        )

    def time_by_clock(self, contenders: Mapping[str, Callable[[], Any]]) -> dict[str, Timing]:
        """The same by the host's clock: what a person waits for, on a GPU from an idle device to an idle one."""
        timers = {
            name: Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
            for name, call in contenders.items()
        }
        counts, slowest = {}, 0.0
        for name, timer in timers.items():
            timer.timeit(1)
            once = timer.timeit(2).median
            counts[name] = max(1, round(_BLOCK_SECONDS / once))
            slowest = max(slowest, once * counts[name])
        taken: dict[str, list[float]] = {name: [] for name in timers}
        before = self.look()
        for number in range(self._rounds(slowest, 1)):
            for name in in_turn(list(timers), number):
                taken[name].append(timers[name].timeit(counts[name]).median)
        others = others_between(before, self.look())
        return {name: Timing(rounds, others=others) for name, rounds in taken.items()}

    def _time_on_gpu(self, contenders: Mapping[str, Callable[[], Any]], warmed: Collection[str]) -> dict[str, Timing]:
        assert self.flush is not None
        for call in contenders.values():
            call()
        torch.cuda.synchronize(self.device)
        hosts = {name: self._host_seconds(call) for name, call in contenders.items()}
        slowest = max(self._cold(call, 1, hosts[name])[0] for name, call in contenders.items())
        calls = max(1, min(_CALLS_A_ROUND, int(self.seconds / LEAST_ROUNDS / max(slowest, 1e-9))))
        cold: dict[str, list[float]] = {name: [] for name in contenders}
        warm: dict[str, list[float]] = {name: [] for name in contenders}
        before = self.look()
        for number in range(self._rounds(slowest, 2 * calls)):
            for name in in_turn(list(contenders), number):
                cold[name].append(statistics.median(self._cold(contenders[name], calls, hosts[name])))
                if name in warmed:
                    is_long = cold[name][0] > _LONG_SECONDS
                    warm[name].append(cold[name][-1] if is_long else self._warm(contenders[name], calls, hosts[name]))
        others = others_between(before, self.look())
        return {name: Timing(cold[name], warm[name], hosts[name], others) for name in contenders}

    def _host_seconds(self, call: Callable[[], Any]) -> float:
        taken = []
        torch.cuda.synchronize(self.device)
        for _ in range(5):
            started = time.perf_counter()
            call()
            taken.append(time.perf_counter() - started)
            torch.cuda.synchronize(self.device)
            if time.perf_counter() - started > _LONG_SECONDS:
                break
        return statistics.median(taken)

    def _keep_ahead(self, calls: int, host: float) -> None:
        # Long enough for the host to queue everything that is timed: else its launches would be timed. A call that is
        # long for the host, a loop of many launches, is so each time alike.
        pytorch.wait_on_gpu(calls * (1.25 * host + 100e-6))

    def _cold(self, call: Callable[[], Any], calls: int, host: float) -> list[float]:
        assert self.flush is not None
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(calls)]
        self._keep_ahead(calls, host)
        for begin, end in events:
            self.flush.zero_()
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize(self.device)
        return [begin.elapsed_time(end) * 1e-3 for begin, end in events]

    def _warm(self, call: Callable[[], Any], calls: int, host: float) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self._keep_ahead(calls + 1, host)
        call()
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize(self.device)
        return begin.elapsed_time(end) * 1e-3 / calls


def in_turn(names: list[str], number: int) -> list[str]:
    """The names, another one first in each round."""
    first = number % len(names)
    return names[first:] + names[:first]
