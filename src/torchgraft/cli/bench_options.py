"""The options of `graft bench` and its subcommands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchgraft.cli.shared import Device

BenchDeviceOption = Annotated[
    Device, typer.Option(help="Where to measure. auto: on the GPU if there is one, otherwise on the CPU.")
]
SuitesOption = Annotated[str | None, typer.Option("--suite", metavar="NAME,...", help="Use only these suites.")]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a report for the browser to this file.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write bench.json, bench.html, bench.md, bench-rows.md and bench.svg to this folder. Replaces --json, "
        "--html and --markdown.",
    ),
]

TargetsOption = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OPERATOR",
        help="What to measure: the name of a torchgraft operator, package.module:operator, a folder that declares "
        "operators, or a model of --models. Default: all operators of torchgraft.",
        show_default=False,
    ),
]

AgainstOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,...",
        help="What to compare with: rivals that the operator names, for example pytorch; reference; compile, "
        "the reference under torch.compile; cuda_graph, the reference as a CUDA graph. Default: all that the "
        "operator names, or its reference if it names none.",
    ),
]

MeasuredDtypesOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="NAME,...",
        help="Measure only in these dtypes. Default: float32, and on a GPU also bfloat16.",
        show_default=False,
    ),
]

LayoutsOption = Annotated[str, typer.Option("--layout", metavar="NAME,...", help="Memory layouts of images.")]

PassesOption = Annotated[
    str | None,
    typer.Option(
        "--pass",
        metavar="NAME,...",
        help="What to time: forward, or backward (the gradients of all tensor arguments). With --draw: some of the "
        "passes that an operator declares, for example forward,input_grad. Default: forward; with --draw all.",
        show_default=False,
    ),
]

ModelsOption = Annotated[
    bool,
    typer.Option(
        "--models",
        help="Also measure training steps of the named models, or of all models: models of timm, transformers, monai, "
        "pytorchvideo and torchaudio on a GPU, small models of transformers on a CPU.",
    ),
]

QuickBenchOption = Annotated[bool, typer.Option("--quick", help="Time only a few rows, each briefly: within a minute.")]

ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Show for each row which kernels ran, the operator's and the rivals', and their times.",
    ),
]

DeviceLikeOption = Annotated[
    str | None,
    typer.Option(
        "--device-like",
        metavar="CAPABILITYxCOUNT",
        help="With --explain: time nothing, and show which kernels torchgraft would choose on a GPU of this "
        "compute capability with so many multiprocessors, for example 9.0x132, an H200. No GPU is needed. Also for the "
        "rows of --draw and --replay.",
        show_default=False,
    ),
]

EveryKernelOption = Annotated[
    bool,
    typer.Option(
        "--every-kernel",
        help="Also time each kernel that an operator can choose, as a rival of its forward pass, in the rows that "
        "the kernel supports.",
    ),
]

DrawOption = Annotated[
    int | None,
    typer.Option(
        "--draw",
        min=1,
        metavar="N",
        help="Instead of the suites, time N calls of each operator that are drawn at random from what networks "
        "use, each in a drawn dtype and layout and in every pass. On a GPU, CUDA graphs are timed.",
        show_default=False,
    ),
]

ReplayBenchOption = Annotated[
    Path | None,
    typer.Option(
        "--replay",
        metavar="FOLDER",
        help="Instead of the suites, time the calls that torchgraft.capture wrote to this folder, each in the dtype "
        "that it had, beside the operator's rivals and its reference. Default operators: those with calls in the "
        "folder.",
        show_default=False,
    ),
]

MeasuredOption = Annotated[
    bool,
    typer.Option(
        "--measured",
        help="With --draw: choose kernels by timing them, not by policy.",
    ),
]

WaitOption = Annotated[
    float | None,
    typer.Option(
        "--wait",
        min=0,
        metavar="SECONDS",
        help="How long to wait in total for other programs that keep the processors busy. After that, the report "
        "says how many rows were timed beside them. Default: 30, with --quick 5.",
        show_default=False,
    ),
]
