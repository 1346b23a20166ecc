"""What the commands share: options, the console, and how files are written."""

import json
import math
import signal
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table as RichTable

from torchgraft.benchmarking import Table

JsonOption = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write all figures as JSON; - is standard output.")
]


MarkdownOption = Annotated[
    Path | None, typer.Option("--markdown", metavar="FILE", help="Write the table as markdown; - is standard output.")
]


STANDARD_OUTPUT = Path("-")


_PIPED_WIDTH = 120


class Device(str, Enum):
    """Where to compute."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


def find_device(device: Device) -> torch.device:
    """The device that is meant; ends with one line where this machine has none of the kind."""
    available = torch.cuda.is_available()
    if device is Device.auto:
        return torch.device("cuda" if available else "cpu")
    if device is Device.cuda and not available:
        raise typer.BadParameter("PyTorch finds no CUDA device here", param_hint="--device")
    return torch.device(device.value)


def explain_missing(missing: ModuleNotFoundError, extra: str) -> None:
    """Ends with one line where a package is missing that an extra brings."""
    package = (missing.name or "").partition(".")[0]
    if package in ("sklearn", "matplotlib", "hypothesis", "jinja2"):
        typer.echo(f"{package} is not installed; pip install 'torchgraft[{extra}]' brings it", err=True)
        raise typer.Exit(1)


def make_console(*files: Path | None) -> Console:
    """For what a person reads: standard error where standard output is for a machine."""
    console = Console(stderr=STANDARD_OUTPUT in files, highlight=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


def interrupt_when_told_to_end() -> None:
    """Has what ends the process, `timeout` too, raise a KeyboardInterrupt: a long command shows what it has."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def print_table(console: Console, table: Table) -> None:
    """Prints a table of figures."""
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


def write_json(figures: dict[str, Any], path: Path | None) -> None:
    """Writes figures as JSON to a file, to standard output, or, where path is None, nowhere."""
    write(json.dumps(_without_nan(figures), indent=2, allow_nan=False) + "\n", path)


def _without_nan(value: Any) -> Any:
    """Figures with null in place of nan and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write(text: str, path: Path | None) -> None:
    """Writes text to a file, to standard output, or, where path is None, nowhere."""
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
    elif path is not None:
        path.write_text(text)
