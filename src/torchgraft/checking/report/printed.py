"""The report of a check, printed for a person."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Column
from rich.text import Text

from torchgraft.checking.report.board import Board, make_table
from torchgraft.checking.report.check_report import PLACE_LINE, CheckReport, describe, group_alike


def print_report(console: Console, board: Board, report: CheckReport, seconds: float) -> None:
    """Prints the table, the failures, the properties without a meaning, the measurements and the verdict."""
    for table in board.tables(console.width):
        console.print(table)
        console.print()
    console.print(board.legend())
    _print_failures(console, report)
    _print_reasons(console, report)
    _print_facts(console, report)
    _print_called(console, report)
    _print_left_out(console, report)
    _print_unreached(console, report)
    _print_not_asked(console, report)
    _print_verdict(console, report, seconds)


def _print_failures(console: Console, report: CheckReport) -> None:
    """Prints each failure of a property of an operator on a device; failures that are alike share one."""
    for alike in group_alike(report.failures):
        console.print()
        title, *lines = describe(*alike).splitlines()
        console.print(Text(title, "bold red"), soft_wrap=True)
        for line in lines:
            style = "dim" if line.startswith("  |") else "bold" if line.startswith("  again") else ""
            text = Text(line, style)
            if line.startswith(PLACE_LINE):
                # A terminal that knows links opens the file.
                file = line.removeprefix(PLACE_LINE).rpartition(":")[0]
                text.stylize(f"link {Path(file).as_uri()}", len(PLACE_LINE))
            console.print(text, soft_wrap=True)


def _print_reasons(console: Console, report: CheckReport) -> None:
    """Prints why properties were not applicable, each reason once; of forced kernels only those that served no call."""
    reached = {
        (result.operator, result.device, result.kernel)
        for result in report.results
        if result.kernel and result.status != "not applicable"
    }
    operators: dict[tuple[str, str], dict[str, None]] = {}
    for result in report.results:
        if result.status == "not applicable" and (result.operator, result.device, result.kernel) not in reached:
            row = result.kernel or result.property.partition(": ")[0]
            operators.setdefault((row, result.reason), {})[result.operator] = None
    if not operators:
        return
    checked = {result.operator for result in report.results}
    table = make_table(Column(no_wrap=True), Column(), show_header=False, style="dim")
    for (row, reason), names in operators.items():
        of = "" if set(names) == checked else f" ({', '.join(names)})"
        table.add_row(Text(row), Text(f"{reason}{of}"))
    console.print()
    console.print(Text("not applicable", "dim"))
    console.print(table)


def _print_facts(console: Console, report: CheckReport) -> None:
    """Prints what properties measured on the way."""
    measured = [result for result in report.results if result.facts]
    if not measured:
        return
    console.print()
    console.print(Text("measured", "dim"))
    for result in measured:
        facts = ", ".join(f"{name} {value:,.6g}" for name, value in result.facts.items())
        line = f"{result.property} of {result.operator} on {result.device} in {result.dtype}: {facts}"
        console.print(Text(line, "dim"), soft_wrap=True)


def _print_called(console: Console, report: CheckReport) -> None:
    """Prints the number of random calls of each operator, if nothing else was checked."""
    if not report.called or not all(result.called or result.kernel for result in report.results):
        return
    names: dict[tuple[str, int], list[str]] = {}
    for (name, device), count in report.called.items():
        names.setdefault((device, count), []).append(name)
    console.print()
    for (device, count), alike in names.items():
        each = "each of " if len(alike) > 1 else ""
        console.print(Text(f"{count:,} calls of {each}{', '.join(alike)} on {device}", "dim"), soft_wrap=True)


def _print_left_out(console: Console, report: CheckReport) -> None:
    """Prints which kernels did not run where their users run them."""
    if report.left_out:
        console.print()
    for each in report.left_out:
        console.print(Text(str(each), "yellow"), soft_wrap=True)


def _print_unreached(console: Console, report: CheckReport) -> None:
    """Prints which lines of kernels in Python no property has run."""
    if report.unreached:
        console.print()
    for each in report.unreached:
        console.print(Text(str(each), "yellow"), soft_wrap=True)


def _print_not_asked(console: Console, report: CheckReport) -> None:
    """Prints which properties the chosen dtypes left out."""
    if report.not_asked:
        console.print()
        console.print(Text(report.left_out_by_dtypes, "yellow"), soft_wrap=True)


def _print_verdict(console: Console, report: CheckReport, seconds: float) -> None:
    failed, passed, left_out = (report.count(status) for status in ("fail", "pass", "not applicable"))
    if failed:
        rows = len({(result.operator, result.device, result.property, result.kernel) for result in report.failures})
        verdict = Text("one property does not hold" if rows == 1 else f"{rows} properties do not hold", "bold red")
    elif report.unfinished:
        verdict = Text("the check was stopped", "bold yellow")
    elif passed:
        verdict = Text(report.verdict, "bold green")
    else:
        verdict = Text("no property was applicable", "bold yellow")
    minutes, rest = divmod(round(seconds), 60)
    duration = f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"
    counts = f"{passed} passed, {failed} failed, {left_out} not applicable, in {duration}"
    if report.unfinished:
        counts += f"; {report.unfinished} not run to the end, as the check was stopped"
    console.print()
    console.print(Text.assemble(verdict, f": {counts}"))
    if report.stopped_in:
        console.print(Text(f"it was stopped in {', '.join(report.stopped_in)}", "bold yellow"), soft_wrap=True)
