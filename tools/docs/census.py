"""Writes the tables of docs/results/census.md from what `python benchmarks/census.py` counted.

`python tools/docs/census.py` writes them; with `--check` it only says whether they are current, and exits with 1 if
they are not.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from generated import ROOT, write_or_check

RESULTS = ROOT / "benchmarks/results/census.json"
# How a layer is called, in the order of the tables.
CALLS = {
    "as a module": "the layer is called",
    "by a function": "a function gets the weight",
    "not called": "no forward pass here calls the layer",
    "not known": "not known: the forward passes failed before",
}
# Kinds with fewer layers share a row.
FEW = 20

Rows = list[dict[str, Any]]


def table(headings: str, rows: Iterable[Iterable[object]], words: int = 1) -> str:
    """A table: its first columns hold words, and the others numbers."""
    names = headings.split(" | ")
    rule = ["---" if place < words else "---:" for place in range(len(names))]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in (names, rule, *rows))


def share(part: int, whole: int) -> str:
    """A part in percent: 100% and 0% only of all and of none."""
    if not whole:
        return ""
    percent = 100 * part / whole
    return f"{percent:.0f}%" if part in (0, whole) else f"{min(max(percent, 0.1), 99.9):.1f}%"


def layers_and_reached(kinds: Rows) -> list[str]:
    """The cells of layers: how many, how many graft reaches, and the share of these."""
    layers, reached = (sum(kind[name] for kind in kinds) for name in ("layers", "reached"))
    return [f"{layers:,}", f"{reached:,}", share(reached, layers)]


def models_table(found: dict[str, Any]) -> str:
    """A row a library, and all of them."""
    counts = ("models", "built", "ran", "depthwise", "whole", "part", "none")
    rows = [[f"{row['library']} {row['version']}", *(row[name] for name in counts)] for row in found["libraries"]]
    total = ["all", *(sum(row[name] for row in found["libraries"]) for name in counts)]
    lines = ([name, *(f"{number:,}" for number in numbers)] for name, *numbers in (*rows, total))
    headings = "library | models | built | ran | have depthwise convolutions | reached whole | in part | not at all"
    environment = found["environment"]
    versions = f"torchgraft {environment['torchgraft']}, PyTorch {environment['torch']}, {environment['date'][:10]}"
    return table(headings, lines) + f"\n{versions}.\n"


def calls_table(found: dict[str, Any]) -> str:
    """A row for each way to call a layer, and all of them."""
    kinds = found["kinds"]
    rows = []
    for called, words in CALLS.items():
        these = [kind for kind in kinds if kind["called"] == called]
        causal = [kind for kind in these if kind["causal"]]
        rows += [[words, *layers_and_reached(these)]] if these else []
        what = "… of these, `causal_conv1d_fn` gets the weight where it is installed"
        rows += [[what, *layers_and_reached(causal)]] if causal else []
    return table("its convolution | layers | reached | share", [*rows, ["all", *layers_and_reached(kinds)]])


def short_name(owner: str) -> str:
    """The class, and the package unless that is PyTorch."""
    package, name = owner.partition(".")[0], owner.rpartition(".")[2]
    return f"`nn.{name}`" if package == "torch" else f"`{name}` of {package}"


def kinds_table(found: dict[str, Any]) -> str:
    """A row for each kind of layer in all libraries, the most frequent first; the rare ones share a row."""
    merged: dict[tuple[str, ...], Rows] = defaultdict(list)
    for kind in found["kinds"]:
        causal = ", or `causal_conv1d_fn`" if kind["causal"] else ""
        merged[short_name(kind["owner"]), kind["computes"], CALLS[kind["called"]] + causal].append(kind)
    size = {key: sum(kind["layers"] for kind in kinds) for key, kinds in merged.items()}
    keys = sorted(merged, key=lambda key: (-size[key], key))
    rows = [
        [*key, _libraries(merged[key]), _models(merged[key]), *layers_and_reached(merged[key])]
        for key in keys
        if size[key] >= FEW
    ]
    rare = [key for key in keys if size[key] < FEW]
    kinds = [kind for key in rare for kind in merged[key]]
    if rare:
        what = f"{len(rare)} kinds with fewer than {FEW} layers each"
        rows.append([what, "", "", _libraries(kinds), "", *layers_and_reached(kinds)])
    headings = "class | computes | its convolution | libraries | models | layers | reached | share"
    return table(headings, rows, words=4)


def _libraries(kinds: Rows) -> str:
    return ", ".join(dict.fromkeys(kind["library"] for kind in kinds))


def _models(kinds: Rows) -> str:
    return f"{sum(kind['models'] for kind in kinds):,}"


def left_table(found: dict[str, Any]) -> str:
    """Why layers are left, the most frequent reason first."""
    layers: dict[str, int] = defaultdict(int)
    for kind in found["kinds"]:
        for reason, number in kind["left"].items():
            layers[reason] += number
    rows = sorted(layers.items(), key=lambda each: (-each[1], each[0]))
    return table("reason | layers", ([reason, f"{number:,}"] for reason, number in rows)) if rows else "None is left.\n"


def not_built_table(found: dict[str, Any]) -> str:
    """Why models were not built, a row for each library and reason."""
    models: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in found["not_built"]:
        models[row["library"], row["reason"].replace("|", "/")].append(row["model"])

    def rows() -> Iterator[list[str]]:
        for (library, reason), names in sorted(models.items(), key=lambda each: (-len(each[1]), each[0])):
            yield [library, reason.replace("<", "\\<"), ", ".join(names), str(len(names))]

    return table("library | reason | models | number", rows(), words=3) if models else "All models were built.\n"


def main() -> int:
    """Writes, or checks, the tables."""
    found = json.loads(RESULTS.read_text())
    makers = {
        "models": models_table,
        "calls": calls_table,
        "kinds": kinds_table,
        "left": left_table,
        "not-built": not_built_table,
    }
    return write_or_check("census", {f"census-{name}": make(found) for name, make in makers.items()})


if __name__ == "__main__":
    sys.exit(main())
