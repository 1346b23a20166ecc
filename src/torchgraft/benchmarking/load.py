"""Load: how busy other programs keep the machine while something is timed.

The threads of a call wait for each other. Where another program holds the processor of one of them, all of them wait
until the operating system gives it back: the call takes a slice of the scheduler, some milliseconds, whatever it
computes. Such times look steady, and ratios of them mean nothing.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

# The most seconds that a run waits for other programs to end, without and with --quick.
PATIENCE, QUICK_PATIENCE = 30.0, 5.0
# Seconds between two readings while nothing is timed.
_INTERVAL = 0.5
# The system counts in ticks of ten milliseconds. Over less time than this, in seconds, a few of them decide the result.
_LEAST_SECONDS = 0.1
# Linux counts the ticks of each processor here, a column for each state. In two of these states it does not work: when
# it is idle, and when it is idle because a disk is slow.
_STATE, _IDLE = Path("/proc/stat"), (3, 4)


@dataclass(frozen=True)
class LoadReading:
    """Counters of the operating system at a moment, in seconds.

    Attributes:
        moment: the time.
        busy: what the processors of this process have worked, with what other virtual machines took of them; nan
            where the system does not tell.
        own: what this process has worked, in all its threads.
        load: how many threads wanted a processor, on an average over the last minute.
    """

    moment: float
    busy: float
    own: float
    load: float


def take_reading() -> LoadReading:
    """Reads the counters of the operating system."""
    return LoadReading(time.monotonic(), _busy_seconds(), time.process_time(), os.getloadavg()[0])


def others_between(before: LoadReading, after: LoadReading) -> float | None:
    """How many processors other programs kept busy between two readings; None if too little time lies between them.

    Where the system does not count what processors do, the load average stands for it, which follows within a minute.
    """
    seconds = after.moment - before.moment
    if seconds < _LEAST_SECONDS:
        return None
    busy = after.load if math.isnan(after.busy) else (after.busy - before.busy) / seconds
    return max(0.0, busy - (after.own - before.own) / seconds)


def processors() -> set[int]:
    """The processors that this process may use."""
    # macOS has no such function.
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _busy_seconds() -> float:
    try:
        lines = [line.split() for line in _STATE.read_text().splitlines()]
    except OSError:
        return math.nan
    names = {f"cpu{number}" for number in processors()}
    # The first eight columns are all: the work of guests, which follows, is part of them.
    counted = [[int(ticks) for ticks in line[1:9]] for line in lines if line[0] in names]
    ticks = sum(ticks for states in counted for state, ticks in enumerate(states) if state not in _IDLE)
    return ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Load:
    """The load by other programs in a run, as far as it is known.

    Attributes:
        processors: how many this process may use.
        permitted: how many of them others may keep busy before a time is doubted.
        waited: seconds that the run has waited for others to end.
    """

    processors: int
    permitted: float
    waited: float = 0.0

    def is_too_much(self, others: float | None) -> bool:
        """Whether other programs kept so many processors busy that a time, measured meanwhile, means nothing."""
        return others is not None and others > self.permitted

    def doubt(self, what: str, others: Iterable[float | None]) -> str:
        """Says why figures may not be trusted: others kept too many processors busy meanwhile. Empty if they did not.

        Args:
            what: begins the sentence, as "3 rows were timed".
            others: how many processors, for each figure.
        """
        found = [each for each in others if each is not None and self.is_too_much(each)]
        if not found:
            return ""
        waited = f", although the run had waited {self.waited:.0f} s for them" if self.waited else ""
        return (
            f"{what} while other programs kept up to {max(found):.1f} of {self.processors} processors busy{waited}. "
            "Run it again when they have ended."
        )


@dataclass
class LoadWatch:
    """Waits for other programs to end before something is timed, for so long in all and no longer.

    Attributes:
        device: where it is timed: on a GPU others only disturb where they leave no processor free.
        patience: seconds that may be waited.
        look: takes a reading.
        sleep: lets time pass.
        load: what is known of other programs so far.
        last: how many processors they kept busy when they were last waited for; None before that.
    """

    device: torch.device
    patience: float
    look: Callable[[], LoadReading] = take_reading
    sleep: Callable[[float], None] = time.sleep
    load: Load = field(init=False)
    last: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Counts the processors."""
        count = len(processors())
        self.load = Load(count, max(count / 10, count - 1 if self.device.type == "cuda" else 0))

    def wait(self, tell: Callable[[str], None]) -> bool:
        """Waits until others leave the processors alone; returns whether they do. False at once if patience is used up.

        Args:
            tell: is told why it takes so long, again and again.
        """
        while (left := self.patience - self.load.waited) > 0:
            before = self.look()
            self.sleep(_INTERVAL)
            others = self.last = others_between(before, self.look())
            if not self.load.is_too_much(others):
                return True
            self.load = Load(self.load.processors, self.load.permitted, self.load.waited + _INTERVAL)
            tell(
                f"waiting, {left:.0f} s at most: other programs keep {others:.1f} of {self.load.processors} "
                "processors busy"
            )
        return False
