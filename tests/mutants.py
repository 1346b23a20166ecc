"""Asks which small changes of torchgraft's own kernels no sample tells from the original: `make mutants`.

As `graft check --mutants`, and with `--emulated` of the CUDA kernels, which then run on the emulator of CUDA; with
`--races` of their barriers, while it watches for accesses that no barrier orders. Written is a table of all that is
known so far, by folder and by kind of change, docs/fragments/mutants-*.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/emulation"))

import emulate  # noqa: E402  it lies below this file

from torchgraft.benchmarking.table import Table  # noqa: E402
from torchgraft.building import BuildError  # noqa: E402
from torchgraft.checking.mutants import (  # noqa: E402
    FILLED,
    ON_CPU,
    Outcome,
    Place,
    count,
    find_folders,
    share_killed,
)
from torchgraft.checking.mutating import Mutant  # noqa: E402
from torchgraft.checking.subject import find_subjects  # noqa: E402
from torchgraft.cli.mutants import STATES, check_mutants  # noqa: E402
from torchgraft.cli.shared import make_console  # noqa: E402

ORDERS = (0, 1, 2)


def emulated(sanitizer: str, order: int) -> Place:
    """Where CUDA kernels run on the emulator, with an order in which threads run."""

    def build(namespace: str, sources: Path, directory: Path) -> Path:
        log = directory / "build.log"
        try:
            with log.open("w") as said:
                return emulate.build([sources], sanitizer=sanitizer, work=directory, said=said)
        except subprocess.CalledProcessError:
            raise BuildError(f"{namespace} does not build on the emulator (all of it: {log})") from None

    def environment() -> dict[str, str]:
        watched = emulate.sanitizer_variables() if sanitizer == "address" else {"ASAN_OPTIONS": ""}
        watched["ASAN_OPTIONS"] += FILLED
        return watched | emulate.environment(Path(), order=order, multiprocessors=16)

    kinds = ("barrier",) if sanitizer == "races" else ()
    return Place(f"emulated-{sanitizer}-{order}", ".cu", build, environment, kinds)


def table(found: list[tuple[str, Outcome]]) -> str:
    """The table, in markdown."""
    by_folder: dict[str, list[tuple[str, Outcome]]] = {}
    for name, outcome in found:
        by_folder.setdefault(name, []).append((name, outcome))
    rows = {f"`{name}`": count(own)["all"] for name, own in sorted(by_folder.items())} | count(found, by_kind=True)
    cells = [[name, *(f"{each[state]:,}" for state in STATES), share_killed(each)] for name, each in rows.items()]
    return Table("", ["of", *STATES, "share killed"], cells).markdown()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="None: all of torchgraft's.")
    parser.add_argument("--count", type=int, default=1000, help="Of mutants.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--emulated", action="store_true", help="CUDA kernels, on the emulator.")
    parser.add_argument("--races", action="store_true", help="Their barriers, in several orders of threads.")
    given = parser.parse_args()
    if given.races:
        places = [emulated("races", order) for order in ORDERS]
    else:
        places = [emulated("address", 0) if given.emulated else ON_CPU]
    # What is told apart in one order of threads is told apart.
    best: dict[tuple[str, Mutant], Outcome] = {}
    for place in places:
        check_mutants(
            given.operators,
            given.count,
            seed=given.seed,
            workers=given.workers,
            console=make_console(None),
            json_file=None,
            place=place,
        )
        for folder in find_folders([subject.operator for subject in find_subjects([])], place):
            for mutant, outcome in folder.known().items():
                if outcome.status == "killed" or (folder.path.name, mutant) not in best:
                    best[folder.path.name, mutant] = outcome
    found = [(name, outcome) for (name, _), outcome in best.items()]
    kind = "races" if given.races else "emulated" if given.emulated else "cpu"
    (ROOT / f"docs/fragments/mutants-{kind}.md").write_text(table(found))
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
