"""Lists the results of benchmarks/results that were measured at an earlier commit, and measures them again here.

`make results` runs it. With `--check` it only says which, within seconds, and exits with 1 where there are any. What
another machine has measured is left as it is: CHIP= names the folder for a machine that has none yet. A run that is
stopped keeps what it came to; the next goes on from there. `make docs` then writes the pages.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from torchgraft.benchmarking.live import LiveBench
from torchgraft.benchmarking.provenance import provenance_of_calls, provenance_of_module, sources_of_memory
from torchgraft.benchmarking.renewing import Renewal, here, judge, plan_again, plan_new, without
from torchgraft.benchmarking.results import BenchReport, join, report_from_dict
from torchgraft.benchmarking.standing import by_suite, standing
from torchgraft.benchmarking.suite import Wanted, run
from torchgraft.cli.shared import interrupt_when_told_to_end, make_console
from torchgraft.demo import PARTS
from torchgraft.machine.environment import describe_environment

RESULTS = Path(__file__).parent / "results"


def read(folder: Path) -> BenchReport | None:
    """The results of a folder; None where it is new."""
    path = folder / "bench.json"
    return report_from_dict(json.loads(path.read_text())) if path.is_file() else None


def _figures(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}


def stale_parts(folder: Path, device: str) -> list[str]:
    """Names the results beside the rows that were measured at an earlier commit, or never."""
    return [name for name, now, then in _parts(folder, device) if now != then]


def _parts(folder: Path, device: str) -> Iterator[tuple[str, str, str]]:
    """The facts beside the rows: its name, the hash of its sources now, and as it was measured."""
    demo = {part["name"]: part["provenance"] for part in _figures(folder / "demo.json").get("parts", ())}
    for part in PARTS:
        now = provenance_of_module(part.module, device).sources
        yield f"demo, {part.name}", now, demo.get(part.name, {}).get("sources", "")
    overhead = _figures(folder / "overhead.json").get("provenance", {})
    yield "overhead", provenance_of_calls().sources, overhead.get("sources", "")
    calls = _figures(folder / "cpp.json").get("provenance", {})
    yield "cpp", provenance_of_calls().sources, calls.get("sources", "")
    for path in _drawn(folder):
        stale = standing(report_from_dict(_figures(path)).rows, device).stale
        yield path.stem, "", by_suite(stale)
    memory = _figures(folder / "lltm-memory.json").get("provenance", {})
    for name, provenance in memory.items() or {"lltm": {}}.items():
        yield f"memory, {name}", sources_of_memory(name, device), provenance.get("sources", "")


def _drawn(folder: Path) -> list[Path]:
    """Returns the files of random samples: one for each seed."""
    return sorted(folder.glob("draw*.json"))


def why_not_here(report: BenchReport) -> str:
    """Why this machine cannot measure a report again; empty where it can."""
    then = report.environment
    if then.device == "cuda" and not torch.cuda.is_available():
        return f"to measure them takes a GPU, {then.chip}, and this machine has none"
    chip = describe_environment(then.device).chip
    if chip == then.chip:
        return ""
    return f"to measure them takes {then.chip}; this machine has {chip}, on which --anew measures all rows instead"


def say(folder: Path, report: BenchReport, renewal: Renewal, parts: list[str], why: str) -> None:
    """Says what is stale in a folder, and why this machine cannot measure it."""
    print(f"{folder.name} ({report.environment.chip}): {len(renewal.stale)} of {len(report.rows)} rows are stale")
    for what, rows in (
        ("", renewal.stale),
        ("no longer measured: ", renewal.gone),
        ("by another compiler or PyTorch, which --tools measures again: ", () if why else renewal.by_other_tools),
    ):
        if rows:
            print(f"  {what}{by_suite(rows)}")
    if parts:
        print(f"  and {'; '.join(parts)}")
    if why and (renewal.stale or parts):
        print(f"  {why}")


def write(report: BenchReport, folder: Path) -> None:
    """Writes all rows, beside the file first: whoever ends the run, the file is whole."""
    beside = folder / "bench.json.new"
    beside.write_text(report.as_json())
    beside.replace(folder / "bench.json")


def measure_rows(folder: Path, report: BenchReport | None, rows: Any, device: torch.device, *, new: bool) -> bool:
    """Measures rows again, and new ones; whether none is refused."""
    again = plan_again(rows, device)
    keys = {each.key for each in again}
    if gone := [row for row in rows if row.key not in keys]:
        print(f"  no longer measured: {by_suite(gone)}")
    if report is not None:
        report = without(report, gone)
    planned = [*again, *(each for each in (plan_new(report, device) if new else ()) if each.key not in keys)]
    folder.mkdir(parents=True, exist_ok=True)
    interrupt_when_told_to_end()
    problems = False
    # An operator at a time: what is measured is kept, whatever ends the run.
    for operator in dict.fromkeys(each.operator for each in planned):
        own = [each for each in planned if each.operator == operator]
        with LiveBench(make_console(), own) as live:
            fresh = run(own, Wanted(device), on_start=live.start, on_row=live.finish, on_wait=live.wait)
        report = join([report, fresh]) if report is not None else fresh
        write(report, folder)
        problems |= any(row.problem for row in fresh.rows)
        if fresh.unmeasured:
            raise KeyboardInterrupt
    if gone and not planned and report is not None:
        write(report, folder)
    return not problems


def measure_parts(folder: Path, device: str, parts: list[str]) -> bool:
    """Measures what stands beside the rows, by the commands that a person would give; whether all end well."""
    graft = [sys.executable, "-m", "torchgraft"]
    commands = {
        "demo": ["demo", "--device", device, "--output", str(folder)],
        "overhead": ["bench", "overhead", *_files(folder / "overhead")],
        "cpp": ["bench", "cpp", *_files(folder / "cpp")],
        "memory": ["bench", "memory", "lltm", "--device", device, *_files(folder / "lltm-memory")],
    }
    wanted = dict.fromkeys(part.partition(",")[0] for part in parts)
    for path in _drawn(folder):
        if path.stem in wanted:
            # With the same operators and seed; `make docs` writes the tables from the JSON.
            report = report_from_dict(_figures(path))
            count, seed = report.drawn or (0, 0)
            operators = dict.fromkeys(row.operator for row in report.rows)
            draw = [*operators, "--draw", str(count), "--seed", str(seed)]
            commands[path.stem] = ["bench", "run", *draw, "--device", device, "--json", str(path)]
    # Each, whatever becomes of the others.
    failed = [part for part in wanted if not succeeds([*graft, *commands[part]])]
    return not failed


def succeeds(command: list[str]) -> bool:
    """Runs a command; whether it ends with 0."""
    return subprocess.run(command, check=False).returncode == 0


def _files(stem: Path) -> list[str]:
    return ["--json", f"{stem}.json", "--markdown", f"{stem}.md"]


def main() -> int:
    """Says what is stale, and measures what this machine can."""
    try:
        return _measure()
    except KeyboardInterrupt:
        print("stopped: what was measured is kept; run it again for the rest", file=sys.stderr)
        return 130
    except ModuleNotFoundError as missing:
        # Before anything is measured: of models that cannot be made no row may be lost.
        print(f"{missing.name} is not installed; pip install {missing.name} brings it", file=sys.stderr)
        return 1


def _measure() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("operators", nargs="*", help="rows of these operators and models alone")
    parser.add_argument("--check", action="store_true", help="only say which are stale; 1 where there are any")
    parser.add_argument("--chip", help="the folder of benchmarks/results; all where left out")
    parser.add_argument("--tools", action="store_true", help="also what another compiler or PyTorch measured")
    parser.add_argument("--anew", action="store_true", help="every row of --chip, whatever machine measured it before")
    parser.add_argument("--no-new", action="store_true", help="no rows that were never measured")
    options = parser.parse_args()
    if options.anew and not options.chip:
        parser.error("--anew is for one folder: name it with --chip, or CHIP= of make")
    folders = [RESULTS / options.chip] if options.chip else sorted(path.parent for path in RESULTS.glob("*/bench.json"))
    return max([renew(folder, options) for folder in folders], default=0)


def renew(folder: Path, options: argparse.Namespace) -> int:
    """Says what is stale in a folder, and measures it where that is asked for and possible; the exit status."""
    report = read(folder)
    if report is None or options.anew:
        return _measure_all(folder, report, options)
    device = report.environment.device
    renewal = judge(report, here(device))
    parts = [] if options.operators else stale_parts(folder, device)
    why = why_not_here(report)
    say(folder, report, renewal, parts, why)
    again = [*renewal.stale, *(renewal.by_other_tools if options.tools else ())]
    if options.operators:
        again = [row for row in again if row.operator in options.operators]
    if options.check:
        return int(bool(again or parts))
    if why:
        return 0
    new = not (options.no_new or options.operators)
    passed = measure_rows(folder, without(report, renewal.gone), again, torch.device(device), new=new)
    return int(not (measure_parts(folder, device, parts) and passed))


def _measure_all(folder: Path, before: BenchReport | None, options: argparse.Namespace) -> int:
    """Measures a folder that is new, or one whose rows another machine measured; the exit status."""
    device = before.environment.device if before else "cuda" if torch.cuda.is_available() else "cpu"
    print(f"{folder.name}: every row is measured on this machine")
    if device == "cuda" and not torch.cuda.is_available():
        print("  that takes a GPU, and this machine has none")
        return 1
    if options.check:
        return 1
    rows = before.rows if before else ()
    passed = measure_rows(folder, None, rows, torch.device(device), new=not options.no_new)
    return int(not (measure_parts(folder, device, ["demo", "overhead", "cpp", "memory"]) and passed))


if __name__ == "__main__":
    sys.exit(main())
