"""The command line: `graft`.

Heavier packages than PyTorch are imported by the command that needs them.
"""

import importlib
import json
import math
import pkgutil
import platform
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table as RichTable

from torchgraft import native, operators
from torchgraft.benchmarking import Subject, Table, measure_overhead
from torchgraft.operator import Operator
from torchgraft.version import __version__

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
def bench(
    overhead: Annotated[
        bool, typer.Option("--overhead", help="What calling each operator costs beyond its kernel, in microseconds.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure, about.")] = 15.0,
    json_file: JsonOption = None,
    markdown_file: MarkdownOption = None,
) -> None:
    """Measure operators."""
    if not overhead:
        raise typer.BadParameter("choose what to measure: --overhead")
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
    if package in ("sklearn", "matplotlib"):
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
