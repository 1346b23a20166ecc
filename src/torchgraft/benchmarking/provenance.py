"""Records what a result was measured with: the hash of its sources, the compiler and the version of PyTorch.

A commit alone does not tell whether a row is stale: a commit that only moves a file, or changes another operator, does
not change its time. So a row holds the hash of the sources that decide its time (sources.py); standing.py compares it
with the hash of the sources as they are now.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from torchgraft import native
from torchgraft.benchmarking.sources import PACKAGE, Sources
from torchgraft.operator import Operator

# What decides the time of a model's training step: which layers are grafted, these layers, and their operators.
OF_MODELS = "torchgraft.nn.grafting.layers"
# As torchgraft/registration.h writes it into every library.
_COMPILED_BY = re.compile(rb"torchgraft: compiled by ([^\0]+)\0")


@dataclass(frozen=True)
class Provenance:
    """The tools with which a result was measured.

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
    """Returns what a call of an operator is measured with, here and now.

    Args:
        operator: is measured.
        device: 'cpu' or 'cuda'.
        gradients: whether autograd takes a part in it.
        launched: the names of all kernels that it launched.
    """
    sources = sources_of(operator.module)
    ran = sources.kernels_among(launched) if launched else ()
    hashed = sources.of_operator(operator.name, device, gradients=gradients, ran=ran)
    compiler = "" if operator.declaration.kernels == "reference" else _compiler(operator.namespace, device)
    return Provenance(hashed, compiler, torch.__version__, ran)


def provenance_of_module(name: str, device: str, *, launched: Iterable[str] = ()) -> Provenance:
    """Returns what a module of torchgraft is measured with: all that it imports, and the kernels below.

    Args:
        name: of the module, as it is imported.
        device: 'cpu' or 'cuda'.
        launched: the names of all kernels that it launched.
    """
    sources = sources_of()
    ran = sources.kernels_among(launched) if launched else ()
    return Provenance(sources.of_module(name, device, ran=ran), _compiler("torchgraft", device), torch.__version__, ran)


def provenance_of_models(device: str, launched: Iterable[str] = ()) -> Provenance:
    """Returns what the training step of a grafted model is measured with."""
    return provenance_of_module(OF_MODELS, device, launched=launched)


def provenance_of_calls() -> Provenance:
    """Returns what the cost of calling torchgraft's operators is measured with."""
    return Provenance(sources_of().of_calls("cpu"), _compiler("torchgraft", "cpu"), torch.__version__)


def _compiler(namespace: str, device: str) -> str:
    paths = [each.path for each in native.libraries_of(namespace, device)]
    return compiler_of(paths[0]) if paths else ""


@cache
def compiler_of(library: Path) -> str:
    """Returns the compiler that a library names as its own; empty if it names none."""
    found = _COMPILED_BY.search(library.read_bytes()) if library.is_file() else None
    return found[1].decode() if found else ""


_sources = cache(Sources)


def sources_of(module: str = "torchgraft") -> Sources:
    """Returns the sources of the package, or of the folder, that declares an operator."""
    if module.split(".")[0] == "torchgraft":
        return _sources(PACKAGE)
    file = getattr(sys.modules.get(module), "__file__", None)
    return _sources(Path(file).resolve().parent if file else Path("/nowhere"))


def sources_of_memory(operator: str, device: str) -> str:
    """Returns the hash of what decides the memory of an operator of torchgraft, forward and backward."""
    return sources_of().of_operator(operator, device, gradients=True)
