"""Summaries of rows, and the figures of one, in the words that terminal, markdown and page share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchgraft.benchmarking.results import BenchReport, geometric_mean
from torchgraft.benchmarking.rows import RivalResult, Row
from torchgraft.benchmarking.standing import standing, tools
from torchgraft.benchmarking.table import Table
from torchgraft.benchmarking.timing import Ratio, Time

# As the field writes them.
_DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Against:
    """How rows stand against one rival.

    Attributes:
        ratio: the geometric mean of how many times as fast ours is; nan of no rows.
        won: rows that are faster, beyond noise.
        lost: rows that are slower, beyond noise.
        even: rows that are neither.
        refused: rows without a ratio; they are not in the mean.
    """

    ratio: float
    won: int
    lost: int
    even: int
    refused: int

    def __str__(self) -> str:
        parts = [
            (self.won, "faster"),
            (self.lost, "slower"),
            (self.even, "within noise"),
            (self.refused, "refused and not counted"),
        ]
        return ", ".join(f"{count} {what}" for count, what in parts if count)


@dataclass(frozen=True)
class Summary:
    """A summary of rows: how many, the geometric mean of the share of the floor, and each rival."""

    count: int
    share: float
    against: dict[str, Against]


def summarise_rows(rows: Sequence[Row]) -> Summary:
    """Summarises rows."""
    return Summary(
        len(rows),
        geometric_mean(row.share for row in rows if not math.isnan(row.share)),
        {name: _against(name, rows) for name in rivals_of(rows)},
    )


def rivals_of(rows: Iterable[Row]) -> list[str]:
    """The names of all rivals, in their order."""
    return list(dict.fromkeys(name for row in rows for name in row.rivals))


def yardsticks_of(rows: Iterable[Row]) -> list[str]:
    """The names of all yardsticks, in their order."""
    return list(dict.fromkeys(name for row in rows for name in row.yardsticks))


def marked(yardstick: str) -> str:
    """The name of a yardstick as it is shown: with a sign that `UNVERIFIED` explains."""
    return f"{yardstick}*"


UNVERIFIED = "* computes something else at the same sizes: a yardstick, not a rival. Its result is not verified."


def _against(name: str, rows: Sequence[Row]) -> Against:
    results = [row.rivals[name] for row in rows if name in row.rivals]
    ratios = [result.ratio for result in results if result.ratio]
    won, lost = sum(ratio.low > 1 for ratio in ratios), sum(ratio.high < 1 for ratio in ratios)
    return Against(
        geometric_mean(ratio.median for ratio in ratios),
        won,
        lost,
        len(ratios) - won - lost,
        len(results) - len(ratios),
    )


def parts_of(rows: Sequence[Row]) -> list[tuple[str, str, list[Row]]]:
    """Rows of one suite by dtype and layout, of those names that not all of them share."""
    parts: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        parts.setdefault((row.dtype, row.layout), []).append(row)
    return [(dtype, layout, each) for (dtype, layout), each in parts.items()]


def summary_table(report: BenchReport) -> Table:
    """A line for each suite and rival, a column for each dtype and layout."""
    parts = list(dict.fromkeys((row.dtype, row.layout) for row in report.rows))
    lines = []
    for (operator, suite), rows in report.suites.items():
        summaries = {(dtype, layout): summarise_rows(part) for dtype, layout, part in parts_of(rows)}
        for name in rivals_of(rows):
            cells = [_mean_cell(summaries[part], name) if part in summaries else "" for part in parts]
            lines.append([f"{operator}, {suite}", name, *cells])
    quick = ["A quick run: few rows, timed briefly."] if report.quick else []
    return Table(
        "Times as fast",
        ["operator, suite", "against", *(f"{short_dtype(dtype)} {layout}" for dtype, layout in parts)],
        lines,
        [
            "Geometric means: how many times as fast as the rival (▼ counts the rows where we are slower, beyond "
            "noise), and the share of the floor, the least time that the device's measured bandwidth and arithmetic "
            "allow.",
            *quick,
            *report.doubts,
            *origin(report),
            str(report.environment),
        ],
    )


def _mean_cell(summary: Summary, name: str) -> str:
    against = summary.against.get(name)
    if against is None:
        return ""
    lost = f" ▼{against.lost}" if against.lost else ""
    share = format_share(summary.share)
    return f"{format_ratio(against.ratio) or 'refused'}{lost}{', ' if share else ''}{share}"


# The kernels that a library of today would choose for rows, by the key of a row.
KernelsToday = Mapping[tuple[str, ...], Sequence[str]]


def row_tables(report: BenchReport, today: KernelsToday | None = None) -> list[Table]:
    """A table for each suite, with a line for each row, and the geometric means at its foot.

    Args:
        report: the rows.
        today: the kernels that are chosen today, for rows that do not say which kernels ran.
    """
    return [_suite_table(*key, rows, today or {}) for key, rows in report.suites.items()]


def _kernel_columns(rows: Sequence[Row], today: KernelsToday) -> dict[str, list[str]]:
    """The kernels that ran, and for rows that do not say it those that are chosen today, if any are known."""
    ran = [", ".join(row.chosen) for row in rows]
    now = ["" if row.chosen else ", ".join(today.get(row.key, ())) for row in rows]
    return {name: cells for name, cells in (("kernel", ran), ("kernel today", now)) if any(cells)}


NAME_IS_PATH = (
    "A kernel's name is its path: `slide_correlate_mma` is in `cuda/slide/correlate_mma.*` of the operator's folder. "
    "Words and numbers behind the path name a variant or a shape in that file."
)
CHOSEN_TODAY = (
    "kernel today: these rows were measured before rows recorded their kernel. It is the kernel that the choice of "
    "today takes on such a GPU, as `graft bench --explain --device-like` says."
)


def _suite_table(operator: str, suite: str, rows: Sequence[Row], today: KernelsToday) -> Table:
    rivals, yardsticks = rivals_of(rows), yardsticks_of(rows)
    on_gpu = any(row.warm for row in rows)
    header = ["sample", "dtype", "layout", "time", "spread", "of the floor", "bound"]
    header += [*(["warm", "host"] if on_gpu else []), *(f"times {name}'s speed" for name in rivals)]
    header += [f"times {marked(name)}'s speed" for name in yardsticks]
    kernels = _kernel_columns(rows, today)
    header += kernels
    cells = []
    for place, row in enumerate(rows):
        line = [name_of(row), short_dtype(row.dtype), row.layout, format_time(row.time), format_spread(row.time)]
        line += [format_share(row.share), row.bound]
        if on_gpu:
            line += [format_time(row.warm), "" if row.host is None else format_seconds(row.host)]
        line += [_rival_cell(row.rivals.get(name)) for name in rivals]
        line += [_rival_cell(row.yardsticks.get(name)) for name in yardsticks]
        cells.append([*line, *(column[place] for column in kernels.values())])
    summary = summarise_rows(rows)
    foot = ["geometric mean", "", "", "", "", format_share(summary.share), "", *(["", ""] if on_gpu else [])]
    foot += [f"{format_ratio(summary.against[name].ratio)}" for name in rivals]
    foot += [format_ratio(mean_of_yardstick(rows, name)) for name in yardsticks]
    foot += [""] * len(kernels)
    notes = [*refusals(rows), *([UNVERIFIED] if yardsticks else [])]
    return Table(f"{operator}: {suite}", header, [*cells, foot], notes)


def name_of(row: Row) -> str:
    """A row's sample, and its direction where that is not the usual one."""
    return row.sample if row.direction in ("forward", "training") else f"{row.sample}, {row.direction}"


def mean_of_yardstick(rows: Sequence[Row], name: str) -> float:
    """How many times our time a yardstick takes, geometric mean."""
    results = [row.yardsticks[name].ratio for row in rows if name in row.yardsticks]
    return geometric_mean(ratio.median for ratio in results if ratio)


def _rival_cell(result: RivalResult | None) -> str:
    if result is None:
        return ""
    return f"{format_ratio(result.ratio.median)} {sign_of(result.ratio)}".strip() if result.ratio else "refused"


def sign_of(ratio: Ratio) -> str:
    """A word where ours is not faster."""
    if ratio.is_noise:
        return "~"
    return "▼" if ratio.high < 1 else ""


def refusals(rows: Iterable[Row]) -> list[str]:
    """Why rows or rivals have no time, and which rows no kernel ran."""
    lines = []
    for row in rows:
        name = f"{name_of(row)}, {short_dtype(row.dtype)}, {row.layout}"
        if row.problem:
            lines.append(f"refused: {name}: {row.problem}")
            continue
        lines += [f"refused: {rival} on {name}: {each.problem}" for rival, each in row.rivals.items() if each.problem]
        lines += [f"no kernel ran: {name}: {reason}" for reason in row.fallbacks]
    return lines


def origin(report: BenchReport) -> list[str]:
    """Says which rows were measured at an earlier commit, and what compiled them; empty if neither is known."""
    said = str(standing(report.rows, report.environment.device))
    with_tools = tools(report.rows)
    return [*([said] if said else []), *([f"Rows were {with_tools}."] if "compiled" in with_tools else [])]


def how_measured(report: BenchReport) -> list[str]:
    """How the figures were made, a sentence each: for whoever reads them and was not there."""
    gpu = report.environment.device == "cuda"
    lines = [
        "A ratio is how many times as fast we are: 2.4x means that the rival takes 2.4 times as long. The contenders "
        "of a row run interleaved, and which one starts rotates each round. Each round gives one ratio. The interval "
        "comes from the order statistics of the rounds and holds the true median in at least 95 of 100 cases.",
        "Each row times our own kernel twice, and the difference between the two is noise. A ratio whose interval "
        "holds 1 is noise too: it is marked ~, and counts as neither faster nor slower. ▼ marks a row where we are "
        "slower.",
        "The floor is the least time that the device allows, the longest of three: the time to read and write the "
        "bytes at the bandwidth of a copy of as many bytes, the time of the operations at the best arithmetic rate, "
        "and the time of the smallest kernel. All were measured in the same run, with PyTorch's copy, matrix product "
        "and a kernel of multiply-adds.",
        "After the timing each contender is called once more on new values in the same tensors, and its result is "
        "compared with the reference in float64. A wrong result, a result kept from an earlier call, and a time more "
        "than a tenth below the floor are refused.",
    ]
    if load := report.load:
        lines.append(
            "The load of other programs is read before the first row and during each row. They may keep "
            f"{load.permitted:.1f} of {load.processors} processors busy. Above that the run waits, "
            f"{load.waited:.0f} s in this run, and measures a row again."
        )
    if gpu:
        lines += [
            "Times on the GPU are measured on the device, between events on the stream. The work is queued behind a "
            "wait, so that launches do not count. Before each call the second-level cache is overwritten; the warm "
            "time is measured without that. The host time is the time until a call returns to Python.",
            "torch.backends.cudnn.benchmark is on. tf32 is off, except in rows called tf32, so that PyTorch runs at "
            "its best for the same precision.",
        ]
    else:
        lines.append("On a CPU the caches hold what earlier calls left in them.")
    if any(row.direction == "training" for row in report.rows):
        lines.append(
            "A training step of a model is forward, backward and the update of the weights, timed by the host's clock; "
            "it has no floor. PyTorch's model and its grafted copy start from the same weights and must agree in the "
            "first step."
        )
    return lines


def as_markdown(report: BenchReport, today: KernelsToday | None = None) -> str:
    """The summary, every suite, and how they were measured.

    Args:
        report: the rows.
        today: the kernels that are chosen today, for rows that do not say which kernels ran.
    """
    tables = [summary_table(report), *row_tables(report, today)]
    named = [NAME_IS_PATH] if today or any(row.chosen for row in report.rows) else []
    lines = [*how_measured(report), *named, *([CHOSEN_TODAY] if today else [])]
    return "\n".join([*(table.markdown() for table in tables), *(f"- {line}" for line in lines), ""])


def short_dtype(name: str) -> str:
    """The name of a dtype as the field writes it: fp32."""
    return _DTYPES.get(name, name)


def format_seconds(seconds: float) -> str:
    """With a unit, in three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            value = seconds / scale
            return f"{value:.{max(0, 2 - math.floor(math.log10(max(value, 0.1))))}f} {unit}"
    raise AssertionError


def format_time(time: Time | None) -> str:
    """The median; empty where there is none."""
    return format_seconds(time.median) if time else ""


def format_spread(time: Time | None) -> str:
    """Half of what lies between the quartiles, as a share of the median."""
    return f"±{time.spread:.0%}" if time else ""


def format_share(share: float) -> str:
    """In per cent; empty for nan."""
    return "" if math.isnan(share) else f"{share:.0%}"


def format_ratio(ratio: float) -> str:
    """With two digits at the least: 0.92x, 2.4x, 31x."""
    if math.isnan(ratio):
        return ""
    digits = 2 if ratio < 1.995 else 1 if ratio < 9.95 else 0
    return f"{ratio:.{digits}f}x"
