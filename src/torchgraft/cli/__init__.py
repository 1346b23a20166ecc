"""The command line: `graft`, a file a command.

Heavier packages than PyTorch are imported by the command that needs them.
"""

import platform
from pathlib import Path
from typing import Annotated

import torch
import typer

from torchgraft import native
from torchgraft.cli.adopt import adopt
from torchgraft.cli.bench import bench
from torchgraft.cli.check import check
from torchgraft.cli.demo import demo
from torchgraft.cli.doctor import doctor
from torchgraft.cli.explain import explain
from torchgraft.cli.new import new
from torchgraft.cli.shard import shard
from torchgraft.cli.shared import make_console
from torchgraft.cli.watch import watch
from torchgraft.cli.wheel import wheel
from torchgraft.version import __version__

app = typer.Typer(
    help="torchgraft: operators for PyTorch, and a tool to write, check and measure your own.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    console = make_console()
    console.print(f"torchgraft {__version__}")
    console.print(f"PyTorch {torch.__version__}")
    console.print(f"Python {platform.python_version()}")
    ours = (library for library in native.libraries() if library.namespace == "torchgraft")
    for library in ours:
        state = f"loaded from {library.path}" if library.loaded else f"not loaded: {library.problem}"
        console.print(f"{library.device} kernels {state}", soft_wrap=True, markup=False)
    raise typer.Exit


def _print_cmake_path(wanted: bool) -> None:
    if not wanted:
        return
    # As it is: for another command.
    typer.echo(Path(__file__).parents[2])
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
    cmake_path: Annotated[
        bool,
        typer.Option(
            "--cmake-path",
            callback=_print_cmake_path,
            is_eager=True,
            help="Show the folder for CMAKE_PREFIX_PATH, in which find_package(torchgraft) of CMake looks.",
        ),
    ] = False,
) -> None:
    """torchgraft: operators for PyTorch, and a tool to write, check and measure your own."""


def main() -> None:
    """Runs the command line."""
    app(prog_name="graft")


for _command in (demo, new, watch, check, explain, shard, adopt, doctor, wheel):
    app.command()(_command)
app.add_typer(bench, name="bench")
