"""The plots of a report: where each line, dot and letter goes, in pixels. How they look is the style sheet's affair."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from torchgraft.benchmarking.results import BenchReport
from torchgraft.benchmarking.rows import Row
from torchgraft.benchmarking.summary import (
    format_ratio,
    format_share,
    format_time,
    rivals_of,
    short_dtype,
    sign_of,
    summarise_rows,
)

# Narrower plots are a phone's: labels go above what they name.
_PHONE = 600


@dataclass(frozen=True)
class Axis:
    """A logarithmic scale: values from low to high, on pixels from start to end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value is."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * share

    def ticks(self, apart: float) -> list[float]:
        """Round values that are at least so many pixels apart."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for digits in ((1, 2, 5), (1, 3), (1,)):
            ticks = [digit * 10.0**power for power in range(first, last + 1) for digit in digits]
            ticks = [tick for tick in ticks if self.low <= tick <= self.high]
            places = [self.at(tick) for tick in ticks]
            if all(abs(one - other) >= apart for one, other in itertools.pairwise(places)):
                return ticks
        return ticks[:: max(1, math.ceil(apart / max(1.0, abs(self.at(10 * self.low) - self.at(self.low)))))]


@dataclass(frozen=True)
class Tick:
    """A line of the grid, and its label."""

    at: float
    label: str


@dataclass(frozen=True)
class Line:
    """A straight line with a label at a place of its own."""

    x1: float
    y1: float
    x2: float
    y2: float
    kind: str
    label: str
    label_x: float
    label_y: float
    angle: float = 0.0


@dataclass(frozen=True)
class Dot:
    """A row, and what is said when it is pointed at."""

    x: float
    y: float
    dtype: str
    layout: str
    text: str
    loses: bool


@dataclass(frozen=True)
class Strip:
    """A suite against one rival: a dot a row, and the geometric mean."""

    top: float
    height: float
    label_x: float
    label_y: float
    operator: str
    suite: str
    mean_x: float
    mean: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Plot:
    """The parts that every plot has.

    Attributes:
        one: where a ratio of 1 lies, in pixels from the left.
        rival: what the ratios are against, for the label of the axis.
        path: a curve, as the `d` of an SVG path.
        rows: the rows that are shown, for the legend.
    """

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...] = ()
    lines: tuple[Line, ...] = ()
    dots: tuple[Dot, ...] = ()
    strips: tuple[Strip, ...] = ()
    one: float = 0.0
    rival: str = ""
    path: str = ""
    rows: Sequence[Row] = ()

    @property
    def narrow(self) -> bool:
        """Whether it is for a phone."""
        return self.width < _PHONE

    @property
    def dtypes(self) -> list[str]:
        """Those of its rows, for a legend."""
        return list(dict.fromkeys(row.dtype for row in self.rows))

    @property
    def layouts(self) -> list[str]:
        """Those of its rows, for a legend."""
        return list(dict.fromkeys(row.layout for row in self.rows))


def draw_ratios(report: BenchReport, width: int) -> Plot:
    """How many times as fast, on one scale: a strip for each suite and rival, a dot a row."""
    narrow = width < _PHONE
    left, right = (12.0, width - 12.0) if narrow else (250.0, width - 24.0)
    only = len(rivals_of(report.rows)) == 1
    chosen = []
    for (operator, suite), rows in report.suites.items():
        for name in rivals_of(rows):
            ratios = [(row, ratio) for row in rows if name in row.rivals and (ratio := row.rivals[name].ratio)]
            if ratios:
                chosen.append((operator, suite if only else f"{suite}, {name}", rows, name, ratios))
    medians = [ratio.median for *_, ratios in chosen for _, ratio in ratios]
    axis = Axis(min([0.7, *medians]) * 0.9, max([2.0, *medians]) * 1.15, left, right)
    radius, top = (4.0 if narrow else 5.0), 34.0
    strips = []
    for operator, suite, rows, name, ratios in chosen:
        offsets = _swarm([axis.at(ratio.median) for _, ratio in ratios], 2 * radius + 1)
        # Room above the dots: for the name of the strip on a phone, and for the label of the mean.
        above = 38.0 if narrow else 18.0
        height = max(30.0, 2 * max(abs(offset) for offset in offsets) + 2 * radius + 4)
        middle = top + above + height / 2
        dots = tuple(
            _dot(row, axis.at(ratio.median), middle + offset, loses=ratio.high < 1)
            for (row, ratio), offset in zip(ratios, offsets, strict=True)
        )
        mean = summarise_rows(rows).against[name].ratio
        strips.append(
            Strip(
                top + above,
                height,
                left if narrow else 4.0,
                top + 15 if narrow else middle - 5,
                operator,
                suite,
                axis.at(mean),
                format_ratio(mean),
                dots,
            )
        )
        top += above + height + 10
    return Plot(
        width,
        top + 26,
        left,
        right,
        34.0,
        top,
        tuple(Tick(axis.at(value), f"{value:g}x") for value in axis.ticks(40)),
        strips=tuple(strips),
        one=axis.at(1.0),
        rival=rivals_of(report.rows)[0] if only else "the rival",
        rows=[row for *_, ratios in chosen for row, _ in ratios],
    )


def draw_roofline(report: BenchReport, width: int) -> Plot:
    """Plots what rows reach, over the operations that they do for each byte, under the measured roofs."""
    narrow = width < _PHONE
    height = 420.0 if narrow else 500.0
    points = [
        (row, row.operations / row.moved, row.operations / row.time.median)
        for row in report.rows
        if row.operations and row.time
    ]
    rows, roofs = [row for row, *_ in points], report.roofs
    peaks = _merged({row.dtype: roofs.peak(row.dtype) for row in rows if roofs.peak(row.dtype)})
    sizes = sorted(roofs.bandwidth)
    memory, best = roofs.bandwidth[sizes[-1]], max(roofs.bandwidth.values())
    reached, intensities = [rate for *_, rate in points], [intensity for _, intensity, _ in points]
    ridges = [peak / memory for peak in peaks.values()]
    x_axis = Axis(
        min([0.1, *intensities]) / 2, max([10.0, *intensities, *ridges]) * 4, 46 if narrow else 64, width - 14.0
    )
    highest = max([memory, *peaks.values(), *reached]) * 2
    lowest = min([memory * x_axis.low * 2, *reached]) / 3
    y_axis = Axis(lowest, highest, height - 46, 30)

    lines = []
    slopes = [("copy", memory, sizes[-1])]
    if best > 1.2 * memory:
        slopes.append(("cache", best, max(roofs.bandwidth, key=lambda size: roofs.bandwidth[size])))
    highest_peak = max(peaks.values(), default=highest / 2)
    for kind, bandwidth, size in slopes:
        begin = max(x_axis.low, lowest / bandwidth)
        end = min(highest_peak / bandwidth, x_axis.high)
        ends = x_axis.at(begin), y_axis.at(begin * bandwidth), x_axis.at(end), y_axis.at(end * bandwidth)
        angle = math.degrees(math.atan2(ends[3] - ends[1], ends[2] - ends[0]))
        # Near the upper end: dots crowd at the lower.
        share = 0.62 if kind == "copy" else 0.5
        label = f"{'' if narrow else 'copy of '}{_bytes(size)}: {short_rate(bandwidth, 'B/s')}"
        x, y = ends[0] + share * (ends[2] - ends[0]), ends[1] + share * (ends[3] - ends[1])
        lines.append(Line(*ends, kind, label, x, y, angle))
    for names, peak in peaks.items():
        label = f"{', '.join(short_dtype(name) for name in names)}: {short_rate(peak)}"
        y = y_axis.at(peak)
        begin = x_axis.at(max(x_axis.low, peak / best))
        lines.append(Line(begin, y, x_axis.end, y, names[0], label, x_axis.end, y - 6))
    dots = tuple(
        _dot(row, x_axis.at(intensity), y_axis.at(rate), loses=bool(row.loses_to)) for row, intensity, rate in points
    )
    return Plot(
        width,
        height,
        x_axis.start,
        x_axis.end,
        30.0,
        height - 46,
        tuple(Tick(x_axis.at(value), f"{value:g}") for value in x_axis.ticks(34)),
        tuple(Tick(y_axis.at(value), short_rate(value, "")) for value in y_axis.ticks(24)),
        lines=tuple(lines),
        dots=dots,
        rows=rows,
    )


def draw_bandwidth(report: BenchReport, width: int) -> Plot:
    """How fast a copy is, by the bytes that it moves."""
    bandwidth = report.roofs.bandwidth
    sizes, height = sorted(bandwidth), 220.0
    x_axis = Axis(sizes[0] / 1.5, sizes[-1] * 1.5, 68, width - 10.0)
    y_axis = Axis(min(bandwidth.values()) / 1.6, max(bandwidth.values()) * 1.6, height - 40, 10)
    points = [(x_axis.at(size), y_axis.at(bandwidth[size])) for size in sizes]
    return Plot(
        width,
        height,
        x_axis.start,
        x_axis.end,
        10.0,
        height - 40,
        tuple(Tick(x_axis.at(size), _bytes(size)) for size in sizes[:: math.ceil(len(sizes) / 5)]),
        tuple(Tick(y_axis.at(value), short_rate(value, "B/s")) for value in y_axis.ticks(22)),
        dots=tuple(
            Dot(x, y, "copy", "contiguous", f"{_bytes(size)}: {short_rate(bandwidth[size], 'B/s')}", loses=False)
            for size, (x, y) in zip(sizes, points, strict=True)
        ),
        path="M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points),
    )


def short_rate(value: float, unit: str = "FLOP/s") -> str:
    """A rate with a prefix, in three digits at the most."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale * 0.9995:
            scaled = value / scale
            digits = 0 if scaled >= 99.95 else 1 if scaled >= 9.995 else 2
            shown = f"{scaled:.{digits}f}"
            return f"{shown.rstrip('0').rstrip('.') if digits else shown} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def _bytes(size: int) -> str:
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:g} {unit}"
    return f"{size} B"


def _dot(row: Row, x: float, y: float, *, loses: bool) -> Dot:
    name = ", ".join([row.operator, row.sample, short_dtype(row.dtype), row.layout])
    facts = [format_time(row.time)]
    if not math.isnan(row.share):
        facts.append(f"{format_share(row.share)} of the floor ({row.bound})")
    facts += [
        f"{format_ratio(each.ratio.median)}{sign_of(each.ratio)} against {rival}"
        for rival, each in row.rivals.items()
        if each.ratio
    ]
    return Dot(x, y, row.dtype, row.layout, f"{name}\n{', '.join(facts)}", loses)


def _swarm(places: Sequence[float], apart: float) -> list[float]:
    """How far each dot goes up or down so that none hides another."""
    offsets = [0.0] * len(places)
    put: list[tuple[float, float]] = []
    for index in sorted(range(len(places)), key=lambda index: places[index]):
        # 0, up, down, twice up, twice down
        ways = ((step + 1) // 2 * apart * (1 if step % 2 else -1) for step in itertools.count())
        x = places[index]
        offsets[index] = next(way for way in ways if all(math.hypot(x - other, way - y) >= apart for other, y in put))
        put.append((x, offsets[index]))
    return offsets


def _merged(peaks: dict[str, float]) -> dict[tuple[str, ...], float]:
    """Peaks by dtype, in which those that lie on each other are one."""
    merged: dict[tuple[str, ...], float] = {}
    for name, peak in peaks.items():
        near = next((names for names, other in merged.items() if abs(math.log(peak / other)) < 0.1), None)
        if near is None:
            merged[(name,)] = peak
        else:
            merged[(*near, name)] = max(peak, merged.pop(near))
    return merged
