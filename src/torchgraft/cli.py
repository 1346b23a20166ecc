"""The command line: `graft`.

Heavier packages than PyTorch are imported by the command that needs them.
"""

import importlib
import json
import math
import os
import pkgutil
import platform
import sys
import time
import traceback
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table as RichTable

from torchgraft import native, operators
from torchgraft.benchmarking import Subject, Table, measure_overhead
from torchgraft.operator import Operator
from torchgraft.version import __version__

if TYPE_CHECKING:
    from torchgraft.benchmarking.results import BenchReport
    from torchgraft.benchmarking.suite import Planned, Wanted
    from torchgraft.checking.running import Job

app = typer.Typer(
    help="torchgraft: operators for PyTorch, and the tool that makes them.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON; - is standard output.")
]
MarkdownOption = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Write the table as markdown; - is standard output.")
]

_STANDARD_OUTPUT = Path("-")
_PIPED_WIDTH = 120


class Device(str, Enum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Devices(str, Enum):
    """On which devices to check."""

    all = "all"
    cpu = "cpu"
    cuda = "cuda"


def main() -> None:
    """Runs the command line."""
    app(prog_name="graft")


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    console = _make_console()
    console.print(f"torchgraft {__version__}")
    console.print(f"PyTorch {torch.__version__}")
    console.print(f"Python {platform.python_version()}")
    for library in native.libraries():
        state = f"loaded from {library.path}" if library.loaded else f"not loaded: {library.problem}"
        console.print(f"{library.device} kernels {state}", soft_wrap=True, markup=False)
    raise typer.Exit


@app.callback()
def _graft(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Show the versions of torchgraft, PyTorch and Python, and which kernels are loaded.",
        ),
    ] = False,
) -> None:
    """torchgraft: operators for PyTorch, and the tool that makes them."""


@app.command()
def demo(
    device: Annotated[Device, typer.Option(help="Where to train; auto takes a GPU where there is one.")] = Device.auto,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the training data.")] = None,
    seed: Annotated[int, typer.Option(help="Of the network and of the order of the examples.")] = 0,
    plot_file: Annotated[
        Path, typer.Option("--plot", metavar="FILE", help="Where to write the picture of the loss curves, a PNG.")
    ] = Path("torchgraft-demo.png"),
    json_file: JsonOption = None,
    markdown_file: MarkdownOption = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write demo.png, demo.json and demo.md there, instead of the three above."),
    ] = None,
) -> None:
    """Train a small ConvNeXt twice, as PyTorch has it and grafted, and compare: about a minute on two CPU cores.

    The exit status is 1 where the two loss curves differ by more than rounding explains, or where a network learns less
    than it should.
    """
    try:
        from torchgraft.demo import DIGITS, compare
        from torchgraft.demo.plot import save_plot
        from torchgraft.demo.progress import LiveProgress
        from torchgraft.demo.report import as_dict, make_table, make_verdict
    except ModuleNotFoundError as missing:
        _explain_missing(missing, "demo")
        raise

    if output is not None:
        plot_file, json_file, markdown_file = (output / f"demo.{kind}" for kind in ("png", "json", "md"))
    for path in (plot_file, json_file, markdown_file):
        if path not in (None, _STANDARD_OUTPUT):
            path.parent.mkdir(parents=True, exist_ok=True)

    found = _find_device(device)
    console = _make_console(json_file, markdown_file)
    with LiveProgress(console) as progress:
        comparison = compare(DIGITS, found, progress, epochs, seed)
    table = make_table(comparison)
    _print_table(console, table)
    console.print(make_verdict(comparison), style="red" if comparison.problems else "green")
    save_plot(comparison, plot_file)
    console.print(f"Loss curves: {plot_file}", soft_wrap=True, markup=False)
    _write_json(as_dict(comparison), json_file)
    _write(table.markdown(), markdown_file)
    if comparison.problems:
        raise typer.Exit(1)


@app.command()
def check(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATOR",
            help="A name of torchgraft's, package.module:operator, or a folder that declares operators. "
            "None: all of torchgraft.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[Devices, typer.Option(help="Where to check; all: the CPU, and a GPU if there is one.")] = (
        Devices.all
    ),
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", metavar="NAME", help="This property only; may be given again. None: all."),
    ] = None,
    dtypes: Annotated[
        list[str] | None,
        typer.Option("--dtype", metavar="NAME", help="In this dtype only, as float32; may be given again."),
    ] = None,
    sample: Annotated[str | None, typer.Option(metavar="NAME", help="On this sample only.")] = None,
    sanitize: Annotated[
        bool,
        typer.Option(
            "--sanitize",
            help="Run the kernels under sanitizers too: the CPU's, built anew, under AddressSanitizer with "
            "UndefinedBehaviorSanitizer and under ThreadSanitizer; a GPU's under the tools of compute-sanitizer.",
        ),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out what takes long: Inductor, most inputs that are drawn.")
    ] = False,
    json_file: JsonOption = None,
    seed: Annotated[int, typer.Option(help="Of all inputs; the same seed gives the same inputs.")] = 0,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Processes at a time; 0: all in this one, where a crash is the end. None: one a core. A GPU is one "
            "process's at a time.",
            show_default=False,
        ),
    ] = None,
    list_properties: Annotated[bool, typer.Option("--list", help="List the properties, and check nothing.")] = False,
) -> None:
    """Prove operators against their references, property by property.

    The exit status is 1 where a property does not hold.
    """
    try:
        import hypothesis  # noqa: F401  draws the inputs
    except ModuleNotFoundError as missing:
        _explain_missing(missing, "check")
        raise
    from torchgraft.benchmarking.environment import describe_environment
    from torchgraft.checking import PROPERTIES, CheckReport, find_devices
    from torchgraft.checking.live import LiveCheck, print_report
    from torchgraft.checking.running import run_everywhere
    from torchgraft.checking.sanitizing import run_sanitized, sanitized

    console = _make_console(json_file)
    if list_properties:
        _print_properties(console, {name: each.summary for name, each in PROPERTIES.items()})
        return

    try:
        devices = find_devices(device.value)
        jobs = _make_jobs(targets or [], devices, properties, dtypes, sample, seed, quick)
        again = sanitized(jobs) if sanitize else []
    except LookupError as mistake:
        typer.echo(mistake.args[0], err=True)
        raise typer.Exit(2) from None
    except Exception:
        # Of a module that declares operators: its author wants the whole of it.
        traceback.print_exc()
        raise typer.Exit(2) from None

    count = os.cpu_count() or 1 if workers is None else workers
    started = time.monotonic()
    with LiveCheck(console, [*jobs, *again]) as live:
        results = run_everywhere(jobs, workers=count, on_start=live.start, on_result=live.finish)
        results += run_sanitized(again, workers=count, on_start=live.start, on_result=live.finish, on_step=live.say)
    report = CheckReport(tuple(results), {each: describe_environment(each) for each in devices}, seed, quick)
    print_report(console, live.board, report, time.monotonic() - started)
    _write_json(report.as_dict(), json_file)
    if not report.passed:
        raise typer.Exit(1)


def _make_jobs(
    targets: list[str],
    devices: list[str],
    properties: list[str] | None,
    dtypes: list[str] | None,
    sample: str | None,
    seed: int,
    quick: bool,
) -> "list[Job]":
    """What is asked for; LookupError where there is no such thing."""
    from torchgraft.checking.running import make_jobs
    from torchgraft.checking.subject import find_subjects

    subjects = find_subjects(targets)
    named = [each.name for subject in subjects for each in subject.samples.table]
    if sample is not None and sample not in named:
        shown = ", ".join(repr(name) for name in dict.fromkeys(named))
        raise LookupError(f"there is no sample {sample!r}; there are {shown}")
    chosen = []
    for name in dtypes or ():
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise LookupError(f"there is no dtype {name!r}; give one as float32")
        chosen.append(dtype)
    jobs = make_jobs(
        subjects,
        devices=devices,
        properties=properties or None,
        dtypes=chosen or None,
        seed=seed,
        quick=quick,
        only=sample,
    )
    if not jobs:
        raise LookupError("there is nothing to check: no property asks for this device and dtype")
    return jobs


def _print_properties(console: Console, summaries: dict[str, str]) -> None:
    table = RichTable(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name, summary in summaries.items():
        table.add_row(name, summary)
    console.print(table)


@app.command()
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
            help="Rivals: those that an operator names, as pytorch; its reference; compile, that under torch.compile. "
            "None: all that it names, or else its reference.",
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
            help="Measure nothing: show what was measured before; given again, several runs on one machine as one.",
            show_default=False,
        ),
    ] = None,
    overhead: Annotated[
        bool, typer.Option("--overhead", help="What calling each operator costs beyond its kernel, in microseconds.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure with --overhead, about.")] = 15.0,
) -> None:
    """Measure operators: against what else computes the same, and against the least time that the device allows.

    The exit status is 1 where an operator's own result or time is refused, and where --compare finds a row that is
    slower beyond noise.
    """
    if compare is not None:
        _compare(*compare)
        return
    if overhead:
        _bench_overhead(seconds, json_file, markdown_file)
        return
    from torchgraft.benchmarking.live import LiveBench, print_suite
    from torchgraft.benchmarking.suite import Wanted, run

    if html_file is not None or output is not None:
        try:
            # Before a measurement of minutes, whose report could then not be written.
            import torchgraft.benchmarking.page  # noqa: F401
        except ModuleNotFoundError as missing:
            _explain_missing(missing, "bench")
            raise
    for path in (json_file, html_file, markdown_file, output and output / "bench.json"):
        if path not in (None, _STANDARD_OUTPUT):
            path.parent.mkdir(parents=True, exist_ok=True)

    console = _make_console(json_file, markdown_file)
    if measured:
        report = _join(measured)
        for rows in report.suites.values():
            print_suite(console, rows)
        _finish_bench(console, report, json_file, html_file, markdown_file, output)
        return
    wanted = Wanted(
        device=_find_device(device),
        dtypes=_find_dtypes(dtypes),
        layouts=_split(layouts),
        directions=_split(directions),
        against=_split(against) if against else None,
        suites=_split(suites) if suites else None,
        sample=sample,
        quick=quick,
    )
    planned = _make_plan(targets or [], wanted, models=models)
    with LiveBench(console, planned) as live:
        report = run(planned, wanted, on_start=live.start, on_row=live.finish)
    _finish_bench(console, report, json_file, html_file, markdown_file, output)


def _finish_bench(
    console: Console,
    report: "BenchReport",
    json_file: Path | None,
    html_file: Path | None,
    markdown_file: Path | None,
    output: Path | None,
) -> None:
    """Says what all rows come to, writes the files, and ends with 1 where one of ours is refused."""
    from torchgraft.benchmarking.live import print_report
    from torchgraft.benchmarking.summary import as_markdown

    print_report(console, report)
    if output is not None:
        json_file, html_file, markdown_file = (output / f"bench{kind}" for kind in (".json", ".html", "-rows.md"))
        _write_summary(report, output)
    _write_json(report.as_dict(), json_file)
    _write(as_markdown(report), markdown_file)
    if html_file is not None:
        from torchgraft.benchmarking.page import render_page

        _write(render_page(report), html_file)
        console.print(f"Report: {html_file}", soft_wrap=True, markup=False)
    if any(row.problem for row in report.rows):
        raise typer.Exit(1)


def _make_plan(targets: list[str], wanted: "Wanted", *, models: bool) -> "list[Planned]":
    """The rows that are asked for; ends with one line where there are none."""
    from torchgraft.benchmarking.models import MODELS, plan_models
    from torchgraft.benchmarking.suite import plan, select
    from torchgraft.checking.subject import find_subjects

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
        typer.echo(mistake.args[0], err=True)
        raise typer.Exit(2) from None
    except ModuleNotFoundError as missing:
        if missing.name not in {model.package for model in MODELS.values()}:
            raise
        typer.echo(f"{missing.name} is not installed; pip install {missing.name} brings it", err=True)
        raise typer.Exit(1) from None


def _compare(old_file: Path, new_file: Path) -> None:
    """Prints what became of each row; ends with 1 where one is slower, with 2 where the runs cannot be compared."""
    from torchgraft.benchmarking.live import print_changes
    from torchgraft.benchmarking.results import compare, regressions, why_not_comparable

    old, new = _read_report(old_file), _read_report(new_file)
    if problem := why_not_comparable(old, new):
        typer.echo(problem, err=True)
        raise typer.Exit(2)
    changes = compare(old, new)
    print_changes(_make_console(), old, new, changes)
    if regressions(changes):
        raise typer.Exit(1)


def _join(files: list[Path]) -> "BenchReport":
    """What several runs on one machine found; ends with one line where they are of different ones."""
    from torchgraft.benchmarking.results import join, why_not_comparable

    reports = [_read_report(path) for path in files]
    for report in reports[1:]:
        if problem := why_not_comparable(reports[0], report):
            typer.echo(problem, err=True)
            raise typer.Exit(2)
    return join(reports)


def _read_report(path: Path) -> "BenchReport":
    """A report that was written with --json; ends with one line where it is none."""
    from torchgraft.benchmarking.results import report_from_dict

    try:
        return report_from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        typer.echo(f"{path} is not a report of `graft bench --json`: {type(error).__name__}: {error}", err=True)
        raise typer.Exit(2) from None


def _write_summary(report: "BenchReport", folder: Path) -> None:
    """What README shows: a line a suite, and a picture."""
    from torchgraft.benchmarking.page import render_picture
    from torchgraft.benchmarking.summary import summary_table

    _write(summary_table(report).markdown(), folder / "bench.md")
    _write(render_picture(report), folder / "bench.svg")


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _find_dtypes(names: str | None) -> tuple[torch.dtype, ...] | None:
    if names is None:
        return None
    dtypes = []
    for name in _split(names):
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise typer.BadParameter(f"there is no dtype {name!r}; give one as float32", param_hint="--dtype")
        dtypes.append(dtype)
    return tuple(dtypes)


def _bench_overhead(seconds: float, json_file: Path | None, markdown_file: Path | None) -> None:
    console = _make_console(json_file, markdown_file)
    with console.status("timing calls"):
        result = measure_overhead(_find_subjects(), seconds)
    table = result.table()
    _print_table(console, table)
    _write_json(result.as_dict(), json_file)
    _write(table.markdown(), markdown_file)


def _find_subjects() -> list[Subject]:
    """Every operator of torchgraft with the smallest of its samples."""
    subjects = []
    for folder in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
        module = importlib.import_module(f"{folder.name}.samples")
        for name, samples in module.samples.items():
            operator = Operator.registered[f"torchgraft::{name}"]
            subjects.append(Subject(name, operator, samples.smallest.make("cpu", torch.float32)))
    return subjects


def _find_device(device: Device) -> torch.device:
    available = torch.cuda.is_available()
    if device is Device.auto:
        return torch.device("cuda" if available else "cpu")
    if device is Device.cuda and not available:
        raise typer.BadParameter("PyTorch finds no CUDA device here", param_hint="--device")
    return torch.device(device.value)


def _explain_missing(missing: ModuleNotFoundError, extra: str) -> None:
    """Ends with one line where a package is missing that an extra brings."""
    package = (missing.name or "").partition(".")[0]
    if package in ("sklearn", "matplotlib", "hypothesis", "jinja2"):
        typer.echo(f"{package} is not installed; pip install 'torchgraft[{extra}]' brings it", err=True)
        raise typer.Exit(1)


def _make_console(*files: Path | None) -> Console:
    """For what a person reads: standard error where standard output is for a machine."""
    console = Console(stderr=_STANDARD_OUTPUT in files, highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


def _print_table(console: Console, table: Table) -> None:
    name, *figures = table.header
    shown = RichTable(title=table.title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    shown.add_column(name)
    for figure in figures:
        shown.add_column(figure, justify="right")
    for row in table.rows:
        shown.add_row(*row)
    console.print(shown)
    for note in table.notes:
        console.print(note, style="dim", markup=False)


def _write_json(figures: dict[str, Any], path: Path | None) -> None:
    _write(json.dumps(_without_nan(figures), indent=2, allow_nan=False) + "\n", path)


def _without_nan(value: Any) -> Any:
    """Figures with null in place of nan and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(text: str, path: Path | None) -> None:
    if path == _STANDARD_OUTPUT:
        sys.stdout.write(text)
    elif path is not None:
        path.write_text(text)
