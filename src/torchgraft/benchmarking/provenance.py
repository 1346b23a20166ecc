"""What a result was measured on, and whether the sources are still the same.

A commit would say too much and too little: a moved file is another commit, and which of the files between two commits a
row depends on nobody sees. So a row holds the hash of the sources that decide its time (sources.py), what compiled
them, and the PyTorch beside them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torchgraft import native
from torchgraft.benchmarking.sources import PACKAGE, Sources
from torchgraft.operator import Operator

if TYPE_CHECKING:
    from torchgraft.benchmarking.results import Row

# What decides the time of a model's training step: which layers are grafted, these layers, and their operators.
_OF_MODELS = "torchgraft.grafting"
# As torchgraft/registration.h writes it into every library.
_COMPILED_BY = re.compile(rb"torchgraft: compiled by ([^\0]+)\0")


@dataclass(frozen=True)
class Provenance:
    """What a result was measured on.

    Attributes:
        sources: the hash of what decides its time; empty where the sources were not at hand, as of a wheel.
        compiler: what compiled the kernels; empty where their library does not say it, or there are none.
        torch: the version of PyTorch.
        kernels: which of the operator's own ran on a GPU; empty where that is not known.
    """

    sources: str = ""
    compiler: str = ""
    torch: str = ""
    kernels: tuple[str, ...] = ()


def provenance_of_operator(
    operator: Operator, device: str, *, gradients: bool = False, launched: Iterable[str] = ()
) -> Provenance:
    """What a call of an operator is measured on, here and now.

    Args:
        operator: is measured.
        device: 'cpu' or 'cuda'.
        gradients: whether autograd takes a part in it.
        launched: the names of all kernels that it launched.
    """
    sources = _sources_of(operator.module)
    ran = sources.kernels_among(launched) if launched else ()
    hashed = sources.of_operator(operator.name, device, gradients=gradients, ran=ran)
    compiler = "" if operator.kernels == "reference" else _compiler(operator.namespace, device)
    return Provenance(hashed, compiler, torch.__version__, ran)


def provenance_of_module(name: str, device: str, *, launched: Iterable[str] = ()) -> Provenance:
    """What a module of torchgraft is measured on: all that it imports, and the kernels below.

    Args:
        name: of the module, as it is imported.
        device: 'cpu' or 'cuda'.
        launched: the names of all kernels that it launched.
    """
    sources = _sources(PACKAGE)
    ran = sources.kernels_among(launched) if launched else ()
    return Provenance(sources.of_module(name, device, ran=ran), _compiler("torchgraft", device), torch.__version__, ran)


def provenance_of_models(device: str, launched: Iterable[str] = ()) -> Provenance:
    """What the training step of a grafted model is measured on."""
    return provenance_of_module(_OF_MODELS, device, launched=launched)


def provenance_of_calls() -> Provenance:
    """What the cost of calling torchgraft's operators is measured on."""
    return Provenance(_sources(PACKAGE).of_calls("cpu"), _compiler("torchgraft", "cpu"), torch.__version__)


def _compiler(namespace: str, device: str) -> str:
    paths = [each.path for each in native.libraries() if (each.namespace, each.device) == (namespace, device)]
    return compiler_of(paths[0]) if paths else ""


@cache
def compiler_of(library: Path) -> str:
    """What compiled a library, in its own words; empty where it does not say."""
    found = _COMPILED_BY.search(library.read_bytes()) if library.is_file() else None
    return found[1].decode() if found else ""


_sources = cache(Sources)


def _sources_of(module: str) -> Sources:
    """The sources of the package, or of the folder, that declares an operator."""
    if module.split(".")[0] == "torchgraft":
        return _sources(PACKAGE)
    file = getattr(sys.modules.get(module), "__file__", None)
    return _sources(Path(file).resolve().parent if file else Path("/nowhere"))


def sources_now(row: Row, device: str) -> str:
    """The hash that a row would have, were it measured here and now; empty where its sources are not at hand."""
    if row.direction == "training":
        return _sources(PACKAGE).of_module(_OF_MODELS, device, ran=row.provenance.kernels)
    namespace, _, name = row.operator.rpartition("::")
    if namespace:
        operator = Operator.registered.get(row.operator)
        if operator is None:
            return ""
        sources = _sources_of(operator.module)
    else:
        sources = _sources(PACKAGE)
    return sources.of_operator(name, device, gradients=row.direction == "backward", ran=row.provenance.kernels)


def sources_of_memory(operator: str, device: str) -> str:
    """The hash that the memory of an operator of torchgraft would be told with, forward and backward, here and now."""
    return _sources(PACKAGE).of_operator(operator, device, gradients=True)


@dataclass(frozen=True)
class Standing:
    """Rows by what became of their sources; of those in neither list nobody can tell."""

    current: tuple[Row, ...]
    stale: tuple[Row, ...]

    def __str__(self) -> str:
        if not self.stale:
            return "All rows were measured on these sources." if self.current else ""
        count, total = len(self.stale), len(self.stale) + len(self.current)
        which = f"{count} of {total} rows were" if total > 1 else "The row was"
        return f"{which} measured on earlier sources: {by_suite(self.stale)}. `make results` measures them again."


def standing(rows: Iterable[Row], device: str) -> Standing:
    """Which rows were measured on the sources that lie here, and which on others."""
    current: list[Row] = []
    stale: list[Row] = []
    for row in rows:
        if row.provenance.sources and (now := sources_now(row, device)):
            (current if now == row.provenance.sources else stale).append(row)
    return Standing(tuple(current), tuple(stale))


def by_suite(rows: Sequence[Row]) -> str:
    """Operators and suites, each with the number of its rows."""
    counts: dict[str, int] = {}
    for row in rows:
        name = f"{row.operator}, {row.suite}"
        counts[name] = counts.get(name, 0) + 1
    return "; ".join(f"{name} ({count})" for name, count in counts.items())


def other_tools(row: Row, compiler: str, torch_version: str) -> str:
    """With what else than this compiler and PyTorch a row was measured, as far as it says; empty where with these."""
    differ = [
        (what, then)
        for what, then, now in (
            ("PyTorch", row.provenance.torch, torch_version),
            ("", row.provenance.compiler, compiler),
        )
        if then and now and then != now
    ]
    return ", ".join(f"{what} {then}".strip() for what, then in differ)


def tools(rows: Iterable[Row]) -> str:
    """With what rows were compiled and measured, as far as they say, for a person to read."""
    versions: dict[str, int] = {}
    for row in rows:
        compiler = f"compiled by {row.provenance.compiler}" if row.provenance.compiler else ""
        beside = f"PyTorch {row.provenance.torch}" if row.provenance.torch else ""
        if said := ", ".join(filter(None, (compiler, beside))):
            versions[said] = versions.get(said, 0) + 1
    if len(versions) < 2:
        return "".join(versions)
    return "; ".join(f"{said} ({count} {'row' if count == 1 else 'rows'})" for said, count in versions.items())
