"""The options of the commands that check, and those that several commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer


def expect_seed(seed: int) -> int:
    """Returns a seed that PyTorch takes; ends with one line if it takes no such seed. The callback of such options."""
    if not -(2**63) <= seed < 2**63:
        raise typer.BadParameter(f"a seed must be from -2**63 to 2**63 - 1, got {seed}")
    return seed


class Devices(str, Enum):
    """The devices on which to check."""

    all = "all"
    cpu = "cpu"
    cuda = "cuda"


# The options of all commands that check.
DevicesOption = Annotated[
    Devices, typer.Option(help="Where to check. all: on the CPU, and on the GPU if there is one.")
]
PropertiesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--property", metavar="NAME", help="Check only this property. May be repeated. Default: all properties."
    ),
]
DtypesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dtype",
        metavar="NAME",
        help="Check only in this dtype, for example float32. May be repeated. Default: all dtypes.",
    ),
]
SampleOption = Annotated[str | None, typer.Option(metavar="NAME", help="Use only this sample.")]
QuickOption = Annotated[
    bool,
    typer.Option("--quick", help="Skip what takes long: code generation by Inductor, and most random inputs."),
]
SeedOption = Annotated[
    int, typer.Option(callback=expect_seed, help="Seed of all inputs. The same seed gives the same inputs.")
]

JsonOption = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        help="Write all results to this file as JSON; - is standard output. A missing folder is created.",
    ),
]

JUnitOption = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        metavar="FILE",
        help="Write all results to this file as JUnit XML, which services for continuous integration show as tests.",
    ),
]
SarifOption = Annotated[
    Path | None,
    typer.Option(
        "--sarif",
        metavar="FILE",
        help="Write the failures to this file as SARIF 2.1.0, which code hosts show at the lines of the source.",
    ),
]

MarkdownOption = Annotated[
    Path | None,
    typer.Option(
        "--markdown",
        metavar="FILE",
        help="Write the table to this file as Markdown; - is standard output. A missing folder is created.",
    ),
]

# The options of `graft check` alone.
TargetsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="OPERATOR",
        help="What to check: the name of a torchgraft operator, package.module:operator, a folder or a file that "
        "declares operators, or folder:operator. If an operator and a folder have the same name, the name means "
        "the operator, and ./name the folder. Default: all operators of torchgraft.",
        show_default=False,
    ),
]
EveryKernelOption = Annotated[
    bool,
    typer.Option(
        "--every-kernel",
        help="Check the properties that call kernels, or those given by --property, once for each kernel of the "
        "library. Each time, that kernel runs for every input that it supports, even where another kernel is "
        "faster. A kernel that no sample reaches is a failure.",
    ),
]
KernelsOption = Annotated[
    list[str] | None,
    typer.Option("--kernel", metavar="NAME", help="Like --every-kernel, for this kernel only. May be repeated."),
]
SanitizeOption = Annotated[
    bool,
    typer.Option(
        "--sanitize",
        help="Also run the kernels under sanitizers. CPU kernels are rebuilt and run under AddressSanitizer with "
        "UndefinedBehaviorSanitizer, and under ThreadSanitizer. GPU kernels run under the tools of "
        "compute-sanitizer.",
    ),
]
EmulateOption = Annotated[
    bool,
    typer.Option(
        "--emulate",
        help="Also run the CUDA kernels on the CPU, in an emulator of CUDA, which needs a C++ compiler and no CUDA "
        "toolkit: `value`, `gradient` and eight others, or those given by --property. Without --quick also finds data "
        "races. With --device cuda, nothing else is checked. `python -m torchgraft.emulation --help` lists more "
        "options.",
    ),
]
CompileCudaOption = Annotated[
    bool,
    typer.Option(
        "--compile-cuda",
        help="Also compile the CUDA kernels with nvcc, for the GPU that is present, or else for compute capability "
        "9.0. With --device cuda on a machine without a GPU, nothing else is checked.",
    ),
]
ReplayOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="The samples are the calls that torchgraft.capture wrote to this folder. Properties that draw their own "
        "inputs are left out. Default operators: those with calls in the folder.",
        show_default=False,
    ),
]
StressOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Instead of all properties, check N random calls of each operator on each device. The calls take the "
        "dtypes in turn. They have any strides and any gradients, and sizes around the limits at which code "
        "makes a choice. On a GPU some calls run on two streams at once, and some from CUDA graphs.",
        show_default=False,
    ),
]
MutantsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Instead of all properties, check the samples: make N small changes to the sources of the CPU "
        "kernels, spread evenly over the files, and list the changes that no sample detects. A second run "
        "continues from the first.",
        show_default=False,
    ),
]
CheckWorkersOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of processes at a time. 0: check in this process, where a crash ends the whole run. Default: "
        "one process per core. Only one process at a time uses a GPU; with --stress up to eight do, and under "
        "CUDA's Multi-Process Service (CUDA_MPS_PIPE_DIRECTORY) all do.",
        show_default=False,
    ),
]
DistrustOption = Annotated[
    str | None,
    typer.Option(
        metavar="KERNEL",
        help="Judge a kernel that is not trusted, in place of the operator's own, by the operator's "
        "reference and samples: FILE.py:NAME, FOLDER:NAME or MODULE:NAME, a function or an Operator. Only another "
        "process imports it. The inputs are new at each run, and --seed repeats them.",
        show_default=False,
    ),
]
ListOption = Annotated[
    bool, typer.Option("--list", help="List the properties, with --json as JSON, and check nothing.")
]

# The options of `graft adopt` alone.
AdoptedArgument = Annotated[
    str,
    typer.Argument(
        metavar="OPERATOR",
        help="The operator: torch.ops.namespace.name, or torch.ops.namespace.name.overload.",
        show_default=False,
    ),
]
ReferenceOption = Annotated[
    str,
    typer.Option(
        metavar="MODULE:FUNCTION",
        help="The definition of the operator, a function in plain PyTorch that takes the arguments of the "
        "schema. FILE.py:FUNCTION also works.",
    ),
]
SamplesOption = Annotated[
    str,
    typer.Option(
        metavar="MODULE",
        help="A module or a file that defines `samples`, a torchgraft.sampling.Samples. Default: random calls "
        "that fit the schema; those that both the reference and the operator accept become the samples.",
        show_default=False,
    ),
]
ImportsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="MODULE", help="A module to import, which registers the operator. May be repeated."
    ),
]
WithoutGradientOption = Annotated[
    list[str] | None,
    typer.Option(
        "--no-gradient",
        metavar="NAME",
        help="An argument without a gradient, although the reference has one for it. May be repeated.",
    ),
]
AdoptWorkersOption = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of processes at a time. 0: check in this process. Default: one process per core.",
        show_default=False,
    ),
]
