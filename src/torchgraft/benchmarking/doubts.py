"""Why the figures of a report may not be trusted, each with what its reader should do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torchgraft.benchmarking.load import Load
from torchgraft.benchmarking.rows import Row

# Half the distance between the quartiles of a time may be this share of it. This share of the rows may have more.
NOISY = 0.1
_FEW = 0.1

# A slice of a scheduler takes at least this long, in seconds.
_LEAST_SLICE = 0.001
# Times within the first factor are alike; amounts of work that are the second factor apart are not.
_ALIKE, _DIFFERENT = 1.1, 2.0
_LEAST_ROWS = 3


def doubts(rows: Sequence[Row], device: str, load: Load | None, unmeasured: int) -> list[str]:
    """Why figures may not be trusted; of a few rows that are noisy nothing is said, their intervals show it.

    Args:
        rows: those of a report.
        device: the kind on which they were timed.
        load: what was known of other programs.
        unmeasured: how many rows more were planned.
    """
    lines = []
    if unmeasured:
        which = "1 row was" if unmeasured == 1 else f"{unmeasured} rows were"
        lines.append(f"{which} not measured: the run was stopped. Run it again, or ask for fewer.")
    if busy := _timed_beside_others(rows, load):
        lines.append(busy)
    if device == "cpu":
        lines += _quantised(rows)
    noisy = [row for row in rows if row.time and row.time.spread > NOISY]
    # Other programs explain noise, and the reader knows of them by now.
    if len(noisy) > _FEW * len(rows) and not busy:
        lines.append(
            f"{_rows(len(noisy), 'is', 'are')} noisy: the quartiles are more than {2 * NOISY:.0%} of the time apart. "
            "Run it again on a machine that does nothing else."
        )
    return lines


def _timed_beside_others(rows: Sequence[Row], load: Load | None) -> str:
    others = [row.others for row in rows if load and load.is_too_much(row.others)]
    return load.doubt(f"{_rows(len(others), 'was', 'were')} timed", others) if load else ""


def _quantised(rows: Sequence[Row]) -> Iterator[str]:
    """Names each contender whose calls take the same time although the amounts of work differ."""
    for (operator, contender), timed in _times(rows).items():
        longest: list[tuple[float, float]] = []
        timed.sort()
        for place, (seconds, _) in enumerate(timed):
            alike = [each for each in timed[place:] if each[0] <= _ALIKE * seconds]
            longest = max(longest, alike, key=len)
        if len(longest) < max(_LEAST_ROWS, len(timed) / 2):
            continue
        floors = [floor for _, floor in longest]
        if max(floors) >= _DIFFERENT * min(floors):
            yield (
                f"{operator}: {contender} took {longest[0][0] * 1e3:.1f} to {longest[-1][0] * 1e3:.1f} ms in each of "
                f"{len(longest)} rows, although one is {max(floors) / min(floors):.1f} times as much work as another. "
                "These look like slices of the system's scheduler, not like times of a kernel. Run it again when other "
                "programs have ended, or with fewer threads, as OMP_NUM_THREADS=1."
            )


def _times(rows: Iterable[Row]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """The seconds and floors of all times that are long enough to be slices, by operator and dtype and by contender."""
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows:
        contenders = {"our kernel": row.time}
        contenders |= {name: each.time for name, each in (*row.rivals.items(), *row.yardsticks.items())}
        for name, time in contenders.items():
            if time and time.median >= _LEAST_SLICE and row.floor > 0:
                key = f"{row.operator}, {row.dtype}, {row.direction}", name
                times.setdefault(key, []).append((time.median, row.floor))
    return times


def _rows(count: int, one: str, many: str) -> str:
    return f"1 row {one}" if count == 1 else f"{count} rows {many}"
