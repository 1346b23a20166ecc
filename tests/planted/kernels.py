"""The kernels of the planted operators: compiled once for what their sources say, by whoever comes first."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from torchgraft import building

NAMESPACE = "planted"


def sources() -> list[Path]:
    """The kernels of all families."""
    return sorted(path for path in Path(__file__).parent.glob("*/*") if path.suffix in (".cpp", ".cu"))


@cache
def load() -> None:
    """Loads the libraries, and builds them where that was not done yet."""
    building.load(NAMESPACE, sources())
