"""`graft watch`."""

from typing import Annotated

import typer

from torchgraft.cli.check import expect_hypothesis
from torchgraft.cli.options import Devices, DevicesOption, PropertiesOption
from torchgraft.cli.shared import end_with, interrupt_when_told_to_end, make_console


def watch(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPERATOR",
            help="What to check, as for `graft check`: a folder or a file that declares operators, folder:operator, "
            "package.module:operator, or the name of a torchgraft operator. Default: this folder.",
            show_default=False,
        ),
    ] = None,
    device: DevicesOption = Devices.all,
    properties: PropertiesOption = None,
) -> None:
    """Build and check operators whenever one of their files is saved, until Ctrl-C.

    The properties that failed last run first. Once they hold, all properties of `graft check --quick` run. The kernels
    are built in another place, so your own libraries stay as they are.
    """
    expect_hypothesis()
    from torchgraft.authoring.watch import FileWatch
    from torchgraft.checking import PROPERTIES

    if unknown := [name for name in properties or () if name not in PROPERTIES]:
        end_with(f"there is no property {unknown[0]!r}; `graft check --list` lists them")
    interrupt_when_told_to_end()
    try:
        FileWatch(targets or ["."], device.value, properties or [], make_console()).run()
    except LookupError as mistake:
        end_with(mistake.args[0])
    except KeyboardInterrupt:
        raise typer.Exit from None
