"""`graft watch`."""

from typing import Annotated

import typer

from torchgraft.cli.check import expect_hypothesis
from torchgraft.cli.shared import (
    Devices,
    DevicesOption,
    PropertiesOption,
    end_with,
    interrupt_when_told_to_end,
    make_console,
)


def watch(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATOR",
            help="As for `graft check`: a folder or a file that declares operators, folder:operator, "
            "package.module:operator, or a name of torchgraft's. None: this folder.",
            show_default=False,
        ),
    ] = None,
    device: DevicesOption = Devices.all,
    properties: PropertiesOption = None,
) -> None:
    """Build and check operators whenever one of their files is saved, until Ctrl-C.

    What failed last is asked first, and once that holds, all that `graft check --quick` asks. Kernels are built apart
    from your own libraries, which stay as they are.
    """
    expect_hypothesis()
    from torchgraft.authoring.watch import Watch
    from torchgraft.checking import PROPERTIES

    if unknown := [name for name in properties or () if name not in PROPERTIES]:
        end_with(f"there is no property {unknown[0]!r}; `graft check --list` lists them")
    interrupt_when_told_to_end()
    try:
        Watch(targets or ["."], device.value, properties or [], make_console()).run()
    except LookupError as mistake:
        end_with(mistake.args[0])
    except KeyboardInterrupt:
        raise typer.Exit from None
