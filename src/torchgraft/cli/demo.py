"""`graft demo`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer

from torchgraft.cli.options import JsonOption, MarkdownOption, expect_seed
from torchgraft.cli.shared import (
    Device,
    explain_missing,
    find_device,
    make_console,
    prepare_files,
    print_table,
    write_files,
)
from torchgraft.machine.documents import as_document

# Of the small ConvNeXt.
CONVNEXT_BATCH = 32


def demo(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PART]...", help="Parts of the demo to run. Default: all parts.")
    ] = None,
    device: Annotated[
        Device, typer.Option(help="Where to train. auto: on the GPU if there is one, otherwise on the CPU.")
    ] = Device.auto,
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of passes over the training data.")] = None,
    seed: Annotated[
        int, typer.Option(callback=expect_seed, help="Seed of the network and of the order of the examples.")
    ] = 0,
    devices: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Train the small ConvNeXt on this many GPUs, or on this many processes of the CPU, and compare the "
            "losses with those of one device. Replaces the parts.",
            show_default=False,
        ),
    ] = None,
    plot_file: Annotated[
        Path, typer.Option("--plot", metavar="FILE", help="Write the plot of the loss curves to this file, as PNG.")
    ] = Path("torchgraft-demo.png"),
    json_file: JsonOption = None,
    markdown_file: MarkdownOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write demo.png, demo.json and demo.md to this folder. Replaces --plot, --json and --markdown.",
        ),
    ] = None,
) -> None:
    """Train networks with PyTorch's layers and with torchgraft's, and compare the results.

    Each part takes about a minute on two CPU cores. The exit status is 1 if two loss curves differ by more than
    rounding explains, or if a network learns less than it should, and 2 if a file cannot be written.
    """
    try:
        from torchgraft.demo import PARTS, compare
        from torchgraft.demo.plot import draw_plot
        from torchgraft.demo.progress import LiveProgress
        from torchgraft.demo.report import as_dict, make_table, make_verdict
    except ModuleNotFoundError as missing:
        explain_missing(missing, "demo")
        raise

    if devices is not None:
        raise typer.Exit(_on_devices(devices, epochs or 1, seed))
    if output is not None:
        plot_file, json_file, markdown_file = (output / f"demo.{kind}" for kind in ("png", "json", "md"))
    known = {part.name: part for part in PARTS}
    for name in names or ():
        if name not in known:
            raise typer.BadParameter(f"there is no part {name!r}; the parts are {', '.join(known)}", param_hint="PART")
    found = find_device(device)
    named = ("--plot", "--json", "--markdown") if output is None else ("--output",) * 3
    prepare_files(*zip(named, (plot_file, json_file, markdown_file), strict=True))
    console = make_console(plot_file, json_file, markdown_file)
    comparisons = []
    for name in names or known:
        with LiveProgress(console, known[name]) as progress:
            comparison = compare(known[name], found, progress, epochs, seed)
        print_table(console, make_table(comparison))
        console.print(make_verdict(comparison), style="red" if comparison.problems else "green")
        comparisons.append(comparison)
    write_files(
        (json_file, lambda: as_document("demo", as_dict(comparisons))),
        (markdown_file, lambda: "\n".join(make_table(each).markdown() for each in comparisons)),
        (plot_file, lambda: draw_plot(comparisons)),
    )
    console.print(f"Loss curves: {plot_file}", soft_wrap=True, markup=False)
    if any(each.problems for each in comparisons):
        raise typer.Exit(1)


def _on_devices(devices: int, epochs: int, seed: int) -> int:
    """Starts a process a device through torchrun; the exit status."""
    if torch.cuda.is_available() and torch.cuda.device_count() < devices:
        raise typer.BadParameter(f"there are {torch.cuda.device_count()} GPUs", param_hint="--devices")
    if CONVNEXT_BATCH % devices:
        raise typer.BadParameter(
            f"a batch of {CONVNEXT_BATCH} images has no {devices} equal parts", param_hint="--devices"
        )
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(devices), "-m"]
    command += ["torchgraft.demo.distributed", str(epochs), str(seed)]
    # torchrun gives each process one thread unless it is told otherwise, and says so.
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
    done = subprocess.run([sys.executable, *command], env={**os.environ, "OMP_NUM_THREADS": threads}, check=False)
    return done.returncode
