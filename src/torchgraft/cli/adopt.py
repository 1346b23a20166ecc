"""`graft adopt`."""

from __future__ import annotations

import os
import traceback
from typing import Annotated

import typer

from torchgraft.cli.check import expect_hypothesis, run_and_report
from torchgraft.cli.shared import (
    Devices,
    DevicesOption,
    DtypesOption,
    JsonOption,
    PropertiesOption,
    QuickOption,
    SampleOption,
    SeedOption,
    end_with,
    find_dtypes,
    make_console,
    prepare_files,
)


def adopt(
    target: Annotated[
        str,
        typer.Argument(
            metavar="OPERATOR",
            help="The operator: torch.ops.namespace.name, or torch.ops.namespace.name.overload.",
            show_default=False,
        ),
    ],
    reference: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="The definition of the operator, a function in plain PyTorch that takes the arguments of the "
            "schema. FILE.py:FUNCTION also works.",
        ),
    ],
    samples: Annotated[
        str,
        typer.Option(
            metavar="MODULE",
            help="A module or a file that defines `samples`, a torchgraft.sampling.Samples. Default: random calls "
            "that fit the schema; those that both the reference and the operator accept become the samples.",
            show_default=False,
        ),
    ] = "",
    imports: Annotated[
        list[str] | None,
        typer.Option(
            "--import", metavar="MODULE", help="A module to import, which registers the operator. May be repeated."
        ),
    ] = None,
    without_gradient: Annotated[
        list[str] | None,
        typer.Option(
            "--no-gradient",
            metavar="NAME",
            help="An argument without a gradient, although the reference has one for it. May be repeated.",
        ),
    ] = None,
    device: DevicesOption = Devices.cpu,
    properties: PropertiesOption = None,
    dtypes: DtypesOption = None,
    sample: SampleOption = None,
    quick: QuickOption = False,
    json_file: JsonOption = None,
    seed: SeedOption = 0,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of processes at a time. 0: check in this process. Default: one process per core.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Check an installed operator of any package against a reference that you write.

    The properties are those of `graft check`. The operator needs no declaration: `graft adopt` uses its own schema,
    fake kernel and gradient. The exit status is 1 if a property fails, and 2 if the command line is wrong.
    """
    expect_hypothesis()
    from torchgraft.checking import find_devices
    from torchgraft.checking.adopting.adopted import adopt as adopt_operator
    from torchgraft.checking.adopting.adoption import Adoption
    from torchgraft.checking.jobs import make_jobs
    from torchgraft.checking.subject import subject_of

    prepare_files(("--json", json_file))
    console = make_console(json_file)
    try:
        devices = find_devices(device.value)
        adoption = Adoption(
            target, reference, samples, tuple(imports or ()), devices[-1], tuple(without_gradient or ())
        )
        with console.status("trying the operator"):
            operator = adopt_operator(adoption)
        subject = subject_of(operator)
        named = [each.name for each in subject.samples.named]
        if sample is not None and sample not in named:
            raise LookupError(f"there is no sample {sample!r}; the samples are {', '.join(map(repr, named))}")
        jobs = make_jobs(
            [subject],
            devices=devices,
            properties=properties or None,
            dtypes=find_dtypes(dtypes or ()) or None,
            seed=seed,
            quick=quick,
            only=sample,
        )
        if not jobs:
            raise LookupError("there is nothing to check: no property applies to this device and dtype")
    except LookupError as mistake:
        end_with(mistake.args[0])
    except Exception:
        # Of a module of the author's, who wants the whole of it.
        traceback.print_exc()
        raise typer.Exit(2) from None
    console.print(repr(operator), markup=False, soft_wrap=True)
    for note in operator.notes:
        console.print(f"  {note}", markup=False, soft_wrap=True)
    console.print()
    count = os.cpu_count() or 1 if workers is None else workers
    run_and_report(console, jobs, workers=count, seed=seed, quick=quick, json_file=json_file)
