"""Shows which small changes of torchgraft's own kernels no sample detects: `make mutants`.

Without an option it changes the CPU kernels, as `graft check --mutants` does. `--emulated` changes the CUDA kernels,
which then run on the emulator of CUDA. `--races` takes out their barriers, and the emulator looks for accesses that no
barrier orders. Each writes a table of all that is known so far, by folder and by kind of change, to
docs/fragments/mutants-*.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchgraft.benchmarking.table import Table
from torchgraft.checking.mutants.folders import (
    FILLED,
    ON_CPU,
    Build,
    MutantPlace,
    Outcome,
    find_folders,
    random_mutants,
)
from torchgraft.checking.mutants.outcomes import count, share_killed
from torchgraft.checking.subject import find_subjects
from torchgraft.cli.mutants import STATES, check_mutants
from torchgraft.cli.shared import make_console
from torchgraft.emulation import library, own
from torchgraft.emulation.library import Sanitizer

ROOT = Path(__file__).parents[1]

# The orders in which threads run, if barriers are taken out.
ORDERS = (0, 1, 2)


def emulated(sanitizer: Sanitizer, order: int = 0) -> Build:
    """The build of CUDA kernels for the emulator, where threads run in an order that a seed gives."""

    def compile(namespace: str, sources: Path, directory: Path) -> Path:
        return library.build(namespace, own.sources_in([sources]), directory, sanitizer=sanitizer)

    def environment() -> dict[str, str]:
        watched = library.sanitizer_variables() if sanitizer == "address" else {"ASAN_OPTIONS": ""}
        watched["ASAN_OPTIONS"] += FILLED
        return watched | library.environment(Path(), own.NAMESPACE, order=order, multiprocessors=16)

    return Build(compile, environment)


PLACES = {
    "cpu": ON_CPU,
    "emulated": MutantPlace("emulated", ".cu", {"address": emulated("address")}),
    "races": MutantPlace("races", ".cu", {f"order-{each}": emulated("races", each) for each in ORDERS}, ("barrier",)),
}


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
    parser.add_argument("--emulated", action="store_const", dest="kind", const="emulated", default="cpu")
    parser.add_argument("--races", action="store_const", dest="kind", const="races")
    given = parser.parse_args()
    place = PLACES[given.kind]
    options = {"seed": given.seed, "workers": given.workers, "console": make_console(None), "json_file": None}
    check_mutants(given.operators, given.count, place=place, **options)
    # As many of all operators as were asked for: of more only some may be known, and most of those were detected.
    folders = find_folders([subject.operator for subject in find_subjects([])], place)
    found = []
    for folder, chosen in zip(folders, random_mutants(folders, given.count, given.seed), strict=True):
        known = folder.known()
        found += [(folder.path.name, known[mutant]) for mutant in chosen if mutant in known]
    (ROOT / f"docs/fragments/mutants-{given.kind}.md").write_text(table(found))
    print(table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
