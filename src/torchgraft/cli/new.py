"""`graft new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from torchgraft.cli.shared import end_with, make_console


def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name of the package, its folder and its namespace; with --into, of the operator."
        ),
    ],
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Schema of the operator, for example '(Tensor input, float eps=1e-5) -> Tensor', with or without a "
            "name in front. Its kernels only copy until you write what they compute. Default: a complete operator.",
            show_default=False,
        ),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Shapes of its tensors, for example '... d, d -> ... d', for the declaration and the samples.",
            show_default=False,
        ),
    ] = None,
    integers: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Tensors of the schema that hold int64, separated by commas, for example 'index': they have no "
            "gradient. All others hold floating-point numbers.",
            show_default=False,
        ),
    ] = "",
    cuda: Annotated[bool, typer.Option("--cuda", help="Also write a kernel in CUDA C++.")] = False,
    triton: Annotated[bool, typer.Option("--triton", help="Also write a kernel in Triton.")] = False,
    backward: Annotated[
        bool, typer.Option("--backward", help="Also write a second operator, whose kernels compute the gradient.")
    ] = False,
    cell: Annotated[
        bool,
        typer.Option(
            "--cell",
            help="Make the operator a recurrence: a cell in PyTorch, one step of a recurrent network, which you edit, "
            "and kernels for CPU and CUDA that are written from it. No other option but --into goes with it.",
        ),
    ] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Add the operator to the package in this folder, which `graft new` made, instead of making another.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Create a package with an operator, in a new folder: kernels, declaration, samples, a test and the build files.

    The package passes its test at once. The exit status is 2 if the name, the schema or the shapes cannot be used, or
    if options do not go together.
    """
    from torchgraft.authoring.new import add_operator, make_package
    from torchgraft.authoring.stubs import with_symbolic_numbers

    options: dict[str, Any] = {
        "schema": schema,
        "shapes": shapes,
        "integers": tuple(filter(None, (each.strip() for each in integers.split(",")))),
        "cuda": cuda,
        "triton": triton,
        "backward": backward,
        "cell": cell,
    }
    try:
        if into is None:
            folder = make_package(name, Path.cwd(), **options)
            written = sorted(path.relative_to(folder.parent) for path in folder.rglob("*") if path.is_file())
        else:
            folder, written = into, add_operator(name, into, **options)
    except (ValueError, OSError) as mistake:
        end_with(str(mistake))
    console = make_console()
    for path in written:
        console.print(str(path), soft_wrap=True, markup=False)
    if schema is not None and with_symbolic_numbers(schema) != schema:
        told = "In the schema, numbers that change from call to call are SymInt: torch.compile takes every value then."
        console.print(f"\n{told}", soft_wrap=True, markup=False)
    console.print(f"\nNext: cd {name if into is None else folder} && make test", soft_wrap=True, markup=False)
    if cell:
        [file] = [path.relative_to(name if into is None else into) for path in written if path.name == "cell.py"]
        console.print(f"After an edit of {file}: python {file}", soft_wrap=True, markup=False)
