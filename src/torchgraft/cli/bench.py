"""`graft bench`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import torch
import typer
from rich.console import Console

from torchgraft.benchmarking import Overhead, Subject, measure_overhead
from torchgraft.cli.shared import (
    Device,
    JsonOption,
    MarkdownOption,
    as_json,
    end_with,
    explain_missing,
    find_device,
    find_dtypes,
    find_subjects,
    interrupt_when_told_to_end,
    make_console,
    prepare_files,
    print_table,
    write_files,
)

if TYPE_CHECKING:
    from torchgraft.benchmarking.memory import MemoryReport
    from torchgraft.benchmarking.results import BenchReport
    from torchgraft.benchmarking.suite import Planned, Wanted


def bench(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPERATOR]...",
            help="A name of torchgraft's, package.module:operator, a folder that declares operators, or a model of "
            "--models. None: all of torchgraft.",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Rivals: those that an operator names, as pytorch; its reference; compile, that under torch.compile; "
            "cuda_graph, that as a CUDA graph. None: all that it names, or else its reference.",
        ),
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to measure; auto takes a GPU where there is one.")] = (
        Device.auto
    ),
    dtypes: Annotated[
        str | None,
        typer.Option("--dtype", metavar="NAME,...", help="None: float32, and bfloat16 on a GPU.", show_default=False),
    ] = None,
    layouts: Annotated[str, typer.Option("--layout", metavar="NAME,...", help="Of images.")] = (
        "contiguous,channels_last"
    ),
    directions: Annotated[
        str,
        typer.Option(
            "--pass", metavar="NAME,...", help="forward; or backward, the gradients of all of an operator's tensors."
        ),
    ] = "forward",
    suites: Annotated[str | None, typer.Option("--suite", metavar="NAME,...", help="These suites only.")] = None,
    sample: Annotated[str | None, typer.Option(metavar="NAME", help="On this sample only.")] = None,
    models: Annotated[
        bool,
        typer.Option(
            "--models",
            help="Training steps too, of the models that are named, or of all: on a GPU timm's, on a CPU small ones of "
            "transformers.",
        ),
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Few rows, timed briefly: within a minute.")] = False,
    explained: Annotated[
        bool,
        typer.Option("--explain", help="Say of each row which kernels served it, ours and the rivals', and how long."),
    ] = False,
    every_kernel: Annotated[
        bool,
        typer.Option(
            "--every-kernel",
            help="Each kernel between which an operator chooses is a rival of its forward pass too, in the rows that "
            "the kernel supports.",
        ),
    ] = False,
    json_file: JsonOption = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report to open in a browser, one file.")
    ] = None,
    markdown_file: MarkdownOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write bench.json, bench.html, bench.md, bench-rows.md and bench.svg there, instead of the three "
            "above.",
        ),
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="OLD.json NEW.json",
            help="Measure nothing: say what became faster or slower between two runs on one machine.",
            show_default=False,
        ),
    ] = None,
    measured: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE.json",
            help="Measure nothing: show what was measured before, or of it the operators, --dtype, --suite and "
            "--sample that are named; given again, several runs on one machine as one.",
            show_default=False,
        ),
    ] = None,
    overhead: Annotated[
        bool, typer.Option("--overhead", help="What calling each operator costs beyond its kernel, in microseconds.")
    ] = False,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="The most memory that forward and backward hold at once, beside the rivals'."),
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure with --overhead, about.")] = 15.0,
) -> None:
    """Measure operators: against what else computes the same, and against the least time that the device allows.

    The exit status is 1 where an operator's own result or time is refused, and where --compare finds a row that is
    slower beyond noise; it is 2 where a file cannot be written.
    """
    if compare is not None:
        _compare(*compare)
        return
    if overhead or memory:
        prepare_files(("--json", json_file), ("--markdown", markdown_file))
        console = make_console(json_file, markdown_file)
        figures = (
            _measure_overhead(console, seconds)
            if overhead
            else _measure_memory(console, targets or [], find_device(device), _find_dtypes(dtypes))
        )
        table = figures.table()
        print_table(console, table)
        write_files((json_file, lambda: as_json(figures.as_dict())), (markdown_file, table.markdown))
        return
    from torchgraft.benchmarking.live import LiveBench, print_suite
    from torchgraft.benchmarking.suite import Wanted, run

    if html_file is not None or output is not None:
        try:
            # Before a measurement of minutes, whose report could then not be written.
            import torchgraft.benchmarking.page  # noqa: F401
        except ModuleNotFoundError as missing:
            explain_missing(missing, "bench")
            raise
    options = ("--json", "--html", "--markdown") if output is None else ("--output",) * 5
    files = _Files(json_file, html_file, markdown_file)
    if output is not None:
        files = _Files(*(output / f"bench{kind}" for kind in (".json", ".html", "-rows.md", ".md", ".svg")))
    prepare_files(*zip(options, files, strict=False))
    console = make_console(files.json, files.html, files.markdown)
    if measured:
        report = _narrow(_join(measured), targets or [], _find_dtypes(dtypes), _split(suites or ""), sample)
        for rows in report.suites.values():
            print_suite(console, rows)
        _finish_bench(console, report, files)
        return
    wanted = Wanted(
        device=find_device(device),
        dtypes=_find_dtypes(dtypes),
        layouts=_split(layouts),
        directions=_split(directions),
        against=_split(against) if against else None,
        suites=_split(suites) if suites else None,
        sample=sample,
        quick=quick,
        explained=explained,
        every_kernel=every_kernel,
    )
    planned = _make_plan(targets or [], wanted, models=models)
    interrupt_when_told_to_end()
    with LiveBench(console, planned) as live:
        report = run(planned, wanted, on_start=live.start, on_row=live.finish)
    _finish_bench(console, report, files)


class _Files(NamedTuple):
    """Where a report goes; None: nowhere."""

    json: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    summary: Path | None = None
    picture: Path | None = None


def _finish_bench(console: Console, report: BenchReport, files: _Files) -> None:
    """Says what all rows come to, writes the files, and ends with 1 where one of ours is refused."""
    from torchgraft.benchmarking.live import print_report
    from torchgraft.benchmarking.summary import as_markdown, summary_table

    if files.html is not None or files.picture is not None:
        from torchgraft.benchmarking.page import render_page, render_picture
    try:
        print_report(console, report)
    finally:
        write_files(
            (files.json, lambda: as_json(report.as_dict())),
            (files.markdown, lambda: as_markdown(report)),
            (files.summary, lambda: summary_table(report).markdown()),
            (files.html, lambda: render_page(report)),
            (files.picture, lambda: render_picture(report)),
        )
    if files.html is not None:
        console.print(f"Report: {files.html}", soft_wrap=True, markup=False)
    if report.unmeasured or any(row.problem for row in report.rows):
        raise typer.Exit(1)


def _make_plan(targets: list[str], wanted: Wanted, *, models: bool) -> list[Planned]:
    """The rows that are asked for; ends with one line where there are none."""
    from torchgraft.benchmarking.models import MODELS, plan_models
    from torchgraft.benchmarking.suite import plan, select

    named = [target for target in targets if target in MODELS]
    others = [target for target in targets if target not in MODELS]
    planned = []
    try:
        if others or not named:
            planned += plan(find_subjects(others), wanted)
        if models or named:
            planned += plan_models(named, wanted)
        return select(planned, wanted)
    except LookupError as mistake:
        end_with(mistake.args[0])
    except ModuleNotFoundError as missing:
        if missing.name not in {model.package for model in MODELS.values()}:
            raise
        end_with(f"{missing.name} is not installed; pip install {missing.name} brings it", 1)


def _compare(old_file: Path, new_file: Path) -> None:
    """Prints what became of each row; ends with 1 where one is slower, with 2 where the runs cannot be compared."""
    from torchgraft.benchmarking.live import print_changes
    from torchgraft.benchmarking.results import compare, regressions, why_not_comparable

    old, new = _read_report(old_file), _read_report(new_file)
    if problem := why_not_comparable(old, new):
        end_with(problem)
    changes = compare(old, new)
    print_changes(make_console(), old, new, changes)
    if regressions(changes):
        raise typer.Exit(1)


def _join(files: list[Path]) -> BenchReport:
    """What several runs on one machine found; ends with one line where they are of different ones."""
    from torchgraft.benchmarking.results import join, why_not_comparable

    reports = [_read_report(path) for path in files]
    for report in reports[1:]:
        if problem := why_not_comparable(reports[0], report):
            end_with(problem)
    return join(reports)


def _narrow(
    report: BenchReport,
    operators: list[str],
    dtypes: tuple[torch.dtype, ...] | None,
    suites: tuple[str, ...],
    sample: str | None,
) -> BenchReport:
    """The rows that are asked for; ends with one line where there are none."""
    names = {str(dtype).removeprefix("torch.") for dtype in dtypes or ()}
    if "float32" in names:
        # As where they are measured.
        names.add("tf32")
    rows = tuple(
        row
        for row in report.rows
        if (not operators or row.operator in operators)
        and (not names or row.dtype in names)
        and (not suites or row.suite in suites)
        and sample in (None, row.sample)
    )
    if not rows:
        end_with("what was measured has no such row; without operators, --dtype, --suite and --sample it shows all")
    return replace(report, rows=rows)


def _read_report(path: Path) -> BenchReport:
    """A report that was written with --json; ends with one line where it is none."""
    from torchgraft.benchmarking.results import report_from_dict

    try:
        return report_from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        end_with(f"{path} is not a report of `graft bench --json`: {type(error).__name__}: {error}")


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _find_dtypes(names: str | None) -> tuple[torch.dtype, ...] | None:
    if names is None:
        return None
    try:
        return find_dtypes(_split(names))
    except LookupError as mistake:
        raise typer.BadParameter(mistake.args[0], param_hint="--dtype") from None


def _measure_overhead(console: Console, seconds: float) -> Overhead:
    """Of every operator of torchgraft, on the smallest of its samples."""
    subjects = [
        Subject(each.name, each.operator, each.samples.smallest.make("cpu", torch.float32))
        for each in find_subjects([])
    ]
    with console.status("timing calls"):
        return measure_overhead(subjects, seconds)


def _measure_memory(
    console: Console, targets: list[str], device: torch.device, dtypes: tuple[torch.dtype, ...] | None
) -> MemoryReport:
    from torchgraft.benchmarking.memory import measure_memory

    try:
        subjects = find_subjects(targets)
    except LookupError as mistake:
        end_with(mistake.args[0])
    with console.status("") as status:
        return measure_memory(subjects, device, (dtypes or (torch.float32,))[0], status.update)
