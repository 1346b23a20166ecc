"""`graft wheel`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from torchgraft.cli.options import JsonOption
from torchgraft.cli.shared import end_with, make_console, prepare_files, write_files
from torchgraft.machine.documents import as_document

if TYPE_CHECKING:
    from torchgraft.authoring.proving import Proof
    from torchgraft.authoring.wheel import Wheel

_SHOWN_SYMBOLS = 4


def wheel(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of the package, with its pyproject.toml.")
    ] = Path(),
    directory: Annotated[Path, typer.Option("--directory", "-d", help="Folder to write the wheel to.")] = Path("dist"),
    cuda: Annotated[
        bool, typer.Option("--cuda", help="Require the CUDA library. Default: what pyproject.toml says.")
    ] = False,
    prove: Annotated[
        str,
        typer.Option(
            metavar="VERSION,...",
            help="Install the wheel with each of these versions of PyTorch, in environments without a compiler, scan "
            "its libraries for symbols outside PyTorch's stable ABI, and run `graft check --quick` there. The "
            "environments stay in the cache folder as long as they are used each month; some builds of PyTorch take "
            "five gigabytes.",
            show_default=False,
        ),
    ] = "",
    hub: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also write the package to this folder, in the layout of Hugging Face's `kernels`.",
            show_default=False,
        ),
    ] = None,
    torchgraft: Annotated[
        str | None,
        typer.Option(
            metavar="WHEEL|URL",
            help="A wheel of torchgraft, or a URL that pip installs it from, as it is on no package index: also write "
            "the requirements with which others install the wheel. Default: a wheel of torchgraft in the folder of "
            "--directory.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonOption = None,
) -> None:
    """Build a wheel of a package with kernels, for every Python and every PyTorch from 2.11, and show its contents.

    The exit status is 1 if a property fails with one of the versions of --prove, and 2 if the wheel or an environment
    to check it in cannot be made.
    """
    from torchgraft.authoring.hub import lay_out
    from torchgraft.authoring.proving import make_environment
    from torchgraft.authoring.proving import prove as prove_wheel
    from torchgraft.authoring.wheel import make_wheel, write_requirements
    from torchgraft.building import BuildError

    prepare_files(("--json", json_file))
    console = make_console(json_file)
    proofs = []
    try:
        with console.status(f"building {folder.resolve().name}"):
            made = make_wheel(folder, directory, cuda=cuda)
        requirements = write_requirements(made, torchgraft)
        _print_wheel(console, made)
        if hub is not None:
            for place in lay_out(made, hub, cuda=_cuda_version()):
                console.print(f"for Hugging Face's kernels: {place}", soft_wrap=True, markup=False)
        for version in filter(None, map(str.strip, prove.split(","))):
            with console.status(f"making an environment with PyTorch {version}"):
                python = make_environment(version)
            with console.status(f"checking with PyTorch {version}"):
                proofs.append(prove_wheel(made.path, python))
            _print_proof(console, proofs[-1])
        _print_installation(console, made, requirements)
    except (BuildError, ValueError) as error:
        end_with(str(error))
    write_files((json_file, lambda: as_document("wheel", _as_dict(made, requirements, proofs))))
    if any(proof.failed for proof in proofs):
        raise typer.Exit(1)


def _print_wheel(console: Console, made: Wheel) -> None:
    console.print(f"{made.path}: {_size(made.size)}, {made.seconds:.0f} s", soft_wrap=True, markup=False)
    if not made.libraries:
        console.print("it holds no libraries, so it is for any machine")
        return
    table = RichTable("library", "size", "compiled for", box=None, pad_edge=False, header_style="bold")
    for library in made.libraries:
        table.add_row(
            library.name, _size(library.size), ", ".join(library.architectures) or "unknown: cuobjdump is not installed"
        )
    console.print(table)
    if made.too_new:
        console.print(f"its tag is {made.tag}, not manylinux_2_28, as it needs newer system libraries:", markup=False)
        for name, newer in made.too_new.items():
            needed = ", ".join(_with_symbols(version, symbols) for version, symbols in newer.items())
            console.print(f"  {name} needs {needed}", soft_wrap=True, markup=False)
        console.print("to get manylinux_2_28, build it in PyPA's image of that name", markup=False)


def _print_installation(console: Console, made: Wheel, requirements: Path | None) -> None:
    """Prints the line by which others install the wheel, alone on the last line; or why there is none yet."""
    from torchgraft.authoring.wheel import installation_of

    folder = made.path.parent
    if (line := installation_of(made, requirements)) is not None:
        console.print(f"to install it on another machine, copy {folder} there and run", soft_wrap=True, markup=False)
        console.print(line, soft_wrap=True, markup=False)
    else:
        console.print(
            "it requires torchgraft, which is on no package index, so pip alone cannot install it. Run "
            f"`pip wheel --no-deps --wheel-dir {folder} ./torchgraft`, with the folder of torchgraft's sources in the "
            "last place (pip takes a bare name for a package of its index), and then run this command again; "
            "or name a wheel or a URL of torchgraft: `graft wheel --torchgraft WHEEL|URL`",
            soft_wrap=True,
            markup=False,
        )


def _with_symbols(version: str, symbols: Sequence[str]) -> str:
    # The symbols of C++ are written so that only its tools read them.
    readable = [symbol for symbol in symbols if not symbol.startswith("_Z")]
    return f"{version} ({', '.join(readable[:_SHOWN_SYMBOLS])})" if readable else version


def _print_proof(console: Console, proof: Proof) -> None:
    console.print(
        f"PyTorch {proof.torch}: {proof.passed} properties hold, {len(proof.failed)} fail; "
        f"{proof.on_kernels} {'operator runs' if proof.on_kernels == 1 else 'operators run'} on kernels; "
        f"{proof.libraries} libraries scanned for symbols outside the stable ABI; {proof.seconds:.0f} s",
        soft_wrap=True,
    )
    for failure in proof.failed:
        console.print(f"  {failure}", style="red", soft_wrap=True, markup=False)


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def _cuda_version() -> str:
    """The version of nvcc, as 13.0; empty if there is none."""
    from torchgraft import building

    found = re.search(r"release (\d+\.\d+)", building.version_of(os.environ.get("CUDACXX") or "nvcc"))
    return found[1] if found else ""


def _as_dict(made: Wheel, requirements: Path | None, proofs: list[Proof]) -> dict[str, Any]:
    from torchgraft.authoring.wheel import installation_of

    return {
        **asdict(made),
        "path": str(made.path),
        "tag": made.tag,
        "requirements": requirements and str(requirements),
        "installation": installation_of(made, requirements),
        "proofs": [asdict(proof) for proof in proofs],
    }
