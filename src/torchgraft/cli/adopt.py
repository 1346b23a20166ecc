"""`graft adopt`."""

from __future__ import annotations

import os

from torchgraft.cli.check import expect_hypothesis, run_and_report
from torchgraft.cli.options import (
    AdoptedArgument,
    AdoptWorkersOption,
    Devices,
    DevicesOption,
    DtypesOption,
    ImportsOption,
    JsonOption,
    PropertiesOption,
    QuickOption,
    ReferenceOption,
    SampleOption,
    SamplesOption,
    SeedOption,
    WithoutGradientOption,
)
from torchgraft.cli.plan import Selection, make_plan, mistakes_end_the_command
from torchgraft.cli.shared import make_console, prepare_files


def adopt(
    target: AdoptedArgument,
    reference: ReferenceOption,
    samples: SamplesOption = "",
    imports: ImportsOption = None,
    without_gradient: WithoutGradientOption = None,
    device: DevicesOption = Devices.cpu,
    properties: PropertiesOption = None,
    dtypes: DtypesOption = None,
    sample: SampleOption = None,
    quick: QuickOption = False,
    json_file: JsonOption = None,
    seed: SeedOption = 0,
    workers: AdoptWorkersOption = None,
) -> None:
    """Check an installed operator of any package against a reference that you write.

    The properties are those of `graft check`. The operator needs no declaration: `graft adopt` uses its own schema,
    fake kernel and gradient. The exit status is 1 if a property fails, and 2 if the command line is wrong.
    """
    expect_hypothesis()
    from torchgraft.checking import find_devices
    from torchgraft.checking.adopting.adopted import adopt as adopt_operator
    from torchgraft.checking.adopting.adoption import Adoption
    from torchgraft.checking.subject import subject_of

    prepare_files(("--json", json_file))
    console = make_console(json_file)
    selection = Selection(properties or (), dtypes or (), sample, quick, seed)
    with mistakes_end_the_command():
        devices = find_devices(device.value)
        adoption = Adoption(
            target, reference, samples, tuple(imports or ()), devices[-1], tuple(without_gradient or ())
        )
        with console.status("trying the operator"):
            operator = adopt_operator(adoption)
        plan = make_plan([subject_of(operator)], devices, selection)
    console.print(repr(operator), markup=False, soft_wrap=True)
    for note in operator.notes:
        console.print(f"  {note}", markup=False, soft_wrap=True)
    console.print()
    count = os.cpu_count() or 1 if workers is None else workers
    run_and_report(console, plan, workers=count, seed=seed, quick=quick, json_file=json_file)
