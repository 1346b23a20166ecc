"""`graft demo`."""

from pathlib import Path
from typing import Annotated

import typer

from torchgraft.cli.shared import (
    STANDARD_OUTPUT,
    Device,
    JsonOption,
    MarkdownOption,
    explain_missing,
    find_device,
    make_console,
    print_table,
    write,
    write_json,
)


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
        explain_missing(missing, "demo")
        raise

    if output is not None:
        plot_file, json_file, markdown_file = (output / f"demo.{kind}" for kind in ("png", "json", "md"))
    for path in (plot_file, json_file, markdown_file):
        if path not in (None, STANDARD_OUTPUT):
            path.parent.mkdir(parents=True, exist_ok=True)

    found = find_device(device)
    console = make_console(json_file, markdown_file)
    with LiveProgress(console) as progress:
        comparison = compare(DIGITS, found, progress, epochs, seed)
    table = make_table(comparison)
    print_table(console, table)
    console.print(make_verdict(comparison), style="red" if comparison.problems else "green")
    save_plot(comparison, plot_file)
    console.print(f"Loss curves: {plot_file}", soft_wrap=True, markup=False)
    write_json(as_dict(comparison), json_file)
    write(table.markdown(), markdown_file)
    if comparison.problems:
        raise typer.Exit(1)
