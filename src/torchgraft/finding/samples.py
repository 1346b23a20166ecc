"""The samples of an operator, found beside its declaration."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Protocol

from torchgraft.finding.places import make_importable
from torchgraft.sampling import Samples


class Sampled(Protocol):
    """An Operator, or the part of one that says where its samples lie.

    Attributes:
        module: that declares it.
    """

    module: str

    @property
    def name(self) -> str:
        """The name without its namespace."""

    @property
    def qualified_name(self) -> str:
        """The name with its namespace."""


def samples_in(module: ModuleType | None, name: str) -> Samples | None:
    """Reads `samples` of a module: samples, or a dict of them by the operator's name; None if there are none."""
    found = getattr(module, "samples", None)
    if isinstance(found, dict):
        found = found.get(name)
    return found if isinstance(found, Samples) else None


def samples_of(operator: Sampled) -> Samples:
    """Finds the samples of an operator: its own attribute `samples`, or else those beside its declaration.

    Those are `samples` in the module of the declaration, or in a module `samples` of the same package: a `Samples`, or
    a dict of them by the operator's name.

    Raises:
        LookupError: there are none.
    """
    # An operator that is adopted brings its own samples.
    if isinstance(own := getattr(operator, "samples", None), Samples):
        return own
    module = sys.modules.get(operator.module) or importlib.import_module(operator.module)
    holder: ModuleType | None = module
    if not hasattr(module, "samples") or isinstance(module.samples, ModuleType):
        # The samples of a package that declares the operator in its __init__.py are one of its own modules.
        beside = operator.module if hasattr(module, "__path__") else operator.module.rpartition(".")[0]
        name = f"{beside}.samples" if beside else "samples"
        file = Path(getattr(module, "__file__", None) or ".").with_name("samples.py")
        if not beside and file.is_file():
            make_importable(file)
        try:
            holder = importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name not in (name, beside):
                raise
            holder = None
    found = samples_in(holder, operator.name)
    if found is None:
        raise LookupError(
            f"{operator.qualified_name} has no samples: put `samples = {{{operator.name!r}: torchgraft.sampling.Samples"
            f"(...)}}` into the file that declares it or into samples.py beside that, or pass samples= to "
            "torchgraft.check"
        )
    return found
