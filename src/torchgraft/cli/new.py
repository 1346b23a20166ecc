"""`graft new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchgraft.cli.shared import end_with, make_console


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the package, folder and namespace.")],
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Of the operator, as '(Tensor input, float eps=1e-5) -> Tensor', with or without a name before it. "
            "Its kernels copy until you write what they compute. None: an operator that is complete.",
            show_default=False,
        ),
    ] = None,
    shapes: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Of its tensors, as '... d, d -> ... d': the declaration and the samples have them.",
            show_default=False,
        ),
    ] = None,
    cuda: Annotated[bool, typer.Option("--cuda", help="With a kernel in CUDA C++, too.")] = False,
    triton: Annotated[bool, typer.Option("--triton", help="With a kernel in Triton, too.")] = False,
    backward: Annotated[
        bool, typer.Option("--backward", help="With a second operator, whose kernels compute the gradient.")
    ] = False,
) -> None:
    """Make a package with an operator, in a folder here: kernels, declaration, samples, a test, and what builds it.

    It passes its test at once. The exit status is 2 where the name, the schema or the shapes cannot be had.
    """
    from torchgraft.authoring.new import make_package

    try:
        folder = make_package(
            name, Path.cwd(), schema=schema, shapes=shapes, cuda=cuda, triton=triton, backward=backward
        )
    except (ValueError, OSError) as mistake:
        end_with(str(mistake))
    console = make_console()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        console.print(str(path.relative_to(folder.parent)), soft_wrap=True, markup=False)
    console.print(f"\nNext: cd {name} && make test", soft_wrap=True, markup=False)
