"""`graft bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import torch
import typer
from rich.console import Console
from typer.core import TyperGroup

from torchgraft.benchmarking import CalledOperator, Table, measure_overhead
from torchgraft.building import BuildError
from torchgraft.cli.bench_options import (
    AgainstOption,
    BenchDeviceOption,
    DeviceLikeOption,
    DrawOption,
    EveryKernelOption,
    ExplainOption,
    HtmlOption,
    LayoutsOption,
    MeasuredDtypesOption,
    MeasuredOption,
    ModelsOption,
    OutputOption,
    PassesOption,
    QuickBenchOption,
    ReplayBenchOption,
    SuitesOption,
    TargetsOption,
    WaitOption,
)
from torchgraft.cli.distrust import bench_distrusted
from torchgraft.cli.draw import draw_rows, draw_without_device
from torchgraft.cli.options import DistrustOption, JsonOption, MarkdownOption, SampleOption, SeedOption
from torchgraft.cli.plan import mistakes_end_the_command
from torchgraft.cli.shared import (
    MISSING_EXTRA,
    Device,
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
from torchgraft.machine.documents import as_document
from torchgraft.machine.figures import as_json

if TYPE_CHECKING:
    from torchgraft.benchmarking.passes import Candidate
    from torchgraft.benchmarking.results import BenchReport
    from torchgraft.benchmarking.suite import Planned, Wanted


class _Bench(TyperGroup):
    """The subcommands; what begins with none of them is `run`'s."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts `run` in front where no subcommand stands; ends with one line at an option that became one."""
        if not args or args[0] not in (*self.commands, "--help"):
            args = ["run", *args]
        if args[0] == "run":
            for option in (word.partition("=")[0] for word in args):
                if successor := _SUCCESSORS.get(option):
                    end_with(f"{option} is now `graft bench {successor}`")
        return super().parse_args(ctx, args)


# Options of before there were subcommands.
_SUCCESSORS = {
    "--compare": "compare OLD.json NEW.json",
    "--from": "show FILE.json...",
    "--overhead": "overhead",
    "--memory": "memory [OPERATOR]...",
    "--seconds": "overhead --seconds SECONDS",
}

bench = typer.Typer(
    cls=_Bench,
    subcommand_metavar="[run] [OPERATOR]... | COMMAND",
    help="""Measure operators, and compare them with rivals and with the shortest time that the device allows.

    `graft bench NAME...` is short for `graft bench run NAME...`. `graft bench run --help` lists its options.
    """,
)


@bench.command()
def run(
    targets: TargetsOption = None,
    against: AgainstOption = None,
    device: BenchDeviceOption = Device.auto,
    dtypes: MeasuredDtypesOption = None,
    layouts: LayoutsOption = "contiguous,channels_last",
    directions: PassesOption = None,
    suites: SuitesOption = None,
    sample: SampleOption = None,
    models: ModelsOption = False,
    quick: QuickBenchOption = False,
    explained: ExplainOption = False,
    device_like: DeviceLikeOption = None,
    every_kernel: EveryKernelOption = False,
    draw: DrawOption = None,
    replay: ReplayBenchOption = None,
    seed: SeedOption = 0,
    distrust: DistrustOption = None,
    measured: MeasuredOption = False,
    patience: WaitOption = None,
    json_file: JsonOption = None,
    html_file: HtmlOption = None,
    markdown_file: MarkdownOption = None,
    output: OutputOption = None,
) -> None:
    """Time operators, and compare them with rivals and with the shortest time that the device allows.

    The exit status is 1 if the result or the time of an operator itself is refused, and 2 if a file cannot be written.
    """
    from torchgraft.benchmarking import suite
    from torchgraft.benchmarking.live import LiveBench

    is_like = device_like is not None
    if is_like and (not explained or models or measured or html_file or output or every_kernel or device is Device.cpu):
        end_with(
            "--device-like says which kernels would be chosen on a GPU: add --explain, and leave out --models,"
            " --measured, --html, --output, --every-kernel and --device cpu"
        )
    wanted = suite.Wanted(
        device=torch.device("cuda") if is_like else find_device(device),
        dtypes=_find_dtypes(dtypes),
        layouts=_split(layouts),
        directions=_split(directions or "" if draw else directions or "forward"),
        against=_split(against) if against else None,
        suites=_split(suites) if suites else None,
        sample=sample,
        quick=quick,
        explained=explained,
        every_kernel=every_kernel,
        patience=patience,
        measured=measured,
    )
    if distrust is not None:
        if is_like or against or directions or models or explained or every_kernel or draw or html_file or output:
            end_with(
                "--distrust can be combined only with --device, --dtype, --layout, --suite, --sample, --quick, --seed,"
                " --json and --markdown"
            )
        prepare_files(("--json", json_file), ("--markdown", markdown_file))
        console = make_console(json_file, markdown_file)
        return bench_distrusted(console, targets or [], distrust, wanted, seed, json_file, markdown_file)
    if replay is not None and (models or draw or suites):
        end_with("--replay has rows of its own: leave out --models, --draw and --suite")
    if draw is not None and (models or quick or suites or sample or html_file or output):
        end_with("--draw has rows of its own: leave out --models, --quick, --suite, --sample, --html and --output")
    if device_like is not None:
        if draw is not None:
            candidates = draw_without_device(targets or [], wanted, draw, seed)
        else:
            planned = _make_plan(targets or [], wanted, models=False, replay=replay)
            candidates = [each.candidate for each in planned if each.candidate is not None]
        return _explain_like(device_like, candidates, json_file, markdown_file)
    files = _prepare_report(json_file, html_file, markdown_file, output)
    console = make_console(files.json, files.html, files.markdown)
    if measured and draw is None:
        end_with("--measured is for rows that are drawn: add --draw N")
    if draw is not None:
        return draw_rows(console, targets or [], wanted, draw, seed, json_file, markdown_file)
    planned = _make_plan(targets or [], wanted, models=models, replay=replay)
    interrupt_when_told_to_end()
    with LiveBench(console, planned) as live:
        report = suite.run(planned, wanted, on_start=live.start, on_row=live.finish, on_wait=live.wait)
    _finish_report(console, report, files)


@bench.command()
def show(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE.json",
            help="Files that earlier runs wrote with --json. Several runs on one machine are shown as one run, with "
            "the last measurement of each row.",
            show_default=False,
        ),
    ],
    operators: Annotated[
        str | None, typer.Option("--operator", metavar="NAME,...", help="Show only these operators.")
    ] = (None),
    dtypes: Annotated[str | None, typer.Option("--dtype", metavar="NAME,...", help="Show only these dtypes.")] = None,
    suites: SuitesOption = None,
    sample: SampleOption = None,
    json_file: JsonOption = None,
    html_file: HtmlOption = None,
    markdown_file: MarkdownOption = None,
    output: OutputOption = None,
) -> None:
    """Show earlier measurements, or a part of them, without measuring again.

    The exit status is the same as that of the run.
    """
    from torchgraft.benchmarking.live import print_suite

    written = _prepare_report(json_file, html_file, markdown_file, output)
    console = make_console(written.json, written.html, written.markdown)
    report = _narrow(_join(files), _split(operators or ""), _find_dtypes(dtypes), _split(suites or ""), sample)
    for rows in report.suites.values():
        print_suite(console, rows)
    _finish_report(console, report, written)


@bench.command()
def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD.json", help="File that an earlier run wrote with --json.")],
    new: Annotated[Path, typer.Argument(metavar="NEW.json", help="File of a later run on that machine.")],
) -> None:
    """Show what became faster or slower between two runs on one machine, without measuring again.

    The exit status is 1 if a row became slower by more than the noise or no longer has a time, and 2 if the runs cannot
    be compared.
    """
    from torchgraft.benchmarking import results
    from torchgraft.benchmarking.live import print_changes

    before, after = _read_report(old), _read_report(new)
    if problem := results.why_not_comparable(before, after):
        end_with(problem)
    changes = results.compare(before, after)
    print_changes(make_console(), before, after, changes)
    if results.regressions(changes):
        raise typer.Exit(1)


@bench.command()
def overhead(
    seconds: Annotated[float, typer.Option(min=0.1, help="Roughly how long to measure.")] = 20.0,
    device: Annotated[
        Device, typer.Option(help="Where tensors are. On a GPU, only the host's part of each call is measured.")
    ] = Device.cpu,
    json_file: JsonOption = None,
    markdown_file: MarkdownOption = None,
) -> None:
    """Measure what calls cost, in microseconds: each operator without its kernel, and layers beside PyTorch's."""
    console = _prepare_table(json_file, markdown_file)
    where = find_device(device).type
    subjects = [
        CalledOperator(
            each.name, each.operator, each.samples.smallest.make(where, torch.float32), each.samples.replaced
        )
        for each in find_subjects([])
    ]
    with console.status("timing calls") as status:
        found = measure_overhead(subjects, seconds, where, on_wait=status.update)
    _finish_tables(console, "bench-overhead", found, json_file, markdown_file)


@bench.command()
def cpp(
    seconds: Annotated[float, typer.Option(min=0.1, help="Roughly how long to measure, in each language.")] = 10.0,
    json_file: JsonOption = None,
    markdown_file: MarkdownOption = None,
) -> None:
    """Measure what a call of each operator costs from C++ and from Python, in microseconds."""
    from torchgraft.benchmarking.cpp_calls import measure_cpp_calls

    console = _prepare_table(json_file, markdown_file)
    subjects = [
        CalledOperator(each.name, each.operator, each.samples.smallest.make("cpu", torch.float32))
        for each in find_subjects([])
    ]
    try:
        with console.status("building the program and timing calls") as status:
            found = measure_cpp_calls(subjects, seconds, status.update)
    except (BuildError, RuntimeError) as error:
        end_with(str(error))
    _finish_tables(console, "bench-cpp", found, json_file, markdown_file)


@bench.command()
def memory(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATOR",
            help="What to measure: the name of a torchgraft operator, package.module:operator, or a folder that "
            "declares operators. Default: all operators of torchgraft.",
            show_default=False,
        ),
    ] = None,
    device: BenchDeviceOption = Device.auto,
    dtype: Annotated[str, typer.Option(metavar="NAME", help="Dtype of the arguments.")] = "float32",
    json_file: JsonOption = None,
    markdown_file: MarkdownOption = None,
) -> None:
    """Measure the peak memory of operators and of their rivals, in forward and backward."""
    from torchgraft.benchmarking.memory import measure_memory

    console = _prepare_table(json_file, markdown_file)
    where = find_device(device)
    with mistakes_end_the_command():
        [wanted] = find_dtypes([dtype])
        subjects = find_subjects(targets or [])
    with console.status("") as status:
        found = measure_memory(subjects, where, wanted, status.update)
    _finish_tables(console, "bench-memory", found, json_file, markdown_file)


def _explain_like(
    device: str, candidates: Sequence[Candidate], json_file: Path | None, markdown_file: Path | None
) -> None:
    """Shows the kernels that would be chosen for rows, and writes the files; ends with one line if it is not known."""
    from torchgraft.benchmarking.predicting import gpu_like, predict_rows

    console = _prepare_table(json_file, markdown_file)
    try:
        found = predict_rows(candidates, gpu_like(device))
    except ValueError as mistake:
        raise typer.BadParameter(str(mistake), param_hint="--device-like") from None
    except LookupError as missing:
        end_with(missing.args[0])
    _finish_tables(console, "bench-device-like", found, json_file, markdown_file)


class _Files(NamedTuple):
    """Where a report goes; None: nowhere."""

    json: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    summary: Path | None = None
    picture: Path | None = None


def _prepare_report(json: Path | None, html: Path | None, markdown: Path | None, output: Path | None) -> _Files:
    """The files of a report, which can be written: asked before the measurement of minutes that they are to hold."""
    if html is not None or output is not None:
        try:
            import torchgraft.benchmarking.page  # noqa: F401
        except ModuleNotFoundError as missing:
            explain_missing(missing, "bench")
            raise
    if output is None:
        files = _Files(json, html, markdown)
        prepare_files(("--json", json), ("--html", html), ("--markdown", markdown))
    else:
        files = _Files(*(output / f"bench{kind}" for kind in (".json", ".html", "-rows.md", ".md", ".svg")))
        prepare_files(*(("--output", file) for file in files))
    return files


def _finish_report(console: Console, report: BenchReport, files: _Files) -> None:
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


def _make_plan(targets: list[str], wanted: Wanted, *, models: bool, replay: Path | None = None) -> list[Planned]:
    """The rows that are asked for; ends with one line where there are none."""
    from torchgraft.benchmarking.models import MODELS, plan_models
    from torchgraft.benchmarking.suite import plan, select

    named = [target for target in targets if target in MODELS]
    others = [target for target in targets if target not in MODELS]
    planned = []
    with mistakes_end_the_command():
        try:
            if others or not named:
                planned += plan(find_subjects(others, replay), wanted)
            if models or named:
                planned += plan_models(named, wanted)
            return select(planned, wanted)
        except ModuleNotFoundError as missing:
            if missing.name not in {model.package for model in MODELS.values()}:
                raise
            end_with(f"{missing.name} is not installed: run pip install {missing.name}", MISSING_EXTRA)


def _join(files: list[Path]) -> BenchReport:
    """Merges the results of several runs on one machine; ends the program if they are of different ones."""
    from torchgraft.benchmarking.results import join, why_not_comparable

    reports = [_read_report(path) for path in files]
    for report in reports[1:]:
        if problem := why_not_comparable(reports[0], report):
            end_with(problem)
    return join(reports)


def _narrow(
    report: BenchReport,
    operators: tuple[str, ...],
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
        end_with("no measured row matches; leave out --operator, --dtype, --suite and --sample to see all rows")
    return replace(report, rows=rows)


def _read_report(path: Path) -> BenchReport:
    """A report that was written with --json; ends with one line where it is none."""
    from torchgraft.benchmarking.results import report_from_dict

    try:
        return report_from_dict(json.loads(path.read_text()))
    except OSError as error:
        end_with(f"{path} cannot be read: {error.strerror}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
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


class _Figures(Protocol):
    """The results as tables, and for JSON."""

    def as_dict(self) -> dict[str, Any]: ...

    def tables(self) -> Sequence[Table]: ...


def _prepare_table(json_file: Path | None, markdown_file: Path | None) -> Console:
    """Where a table is shown; ends with one line where its files cannot be written."""
    prepare_files(("--json", json_file), ("--markdown", markdown_file))
    return make_console(json_file, markdown_file)


def _finish_tables(
    console: Console, document: str, figures: _Figures, json_file: Path | None, markdown_file: Path | None
) -> None:
    """Shows tables, and writes their files."""
    tables = figures.tables()
    for table in tables:
        print_table(console, table)
    write_files(
        (json_file, lambda: as_document(document, figures.as_dict())),
        (markdown_file, lambda: "\n".join(table.markdown() for table in tables)),
    )
