"""The folders in which an operator and its kernels are written."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from torchgraft import native


class Located(Protocol):
    """An Operator, or the part of one that says where its sources lie.

    Attributes:
        module: that declares it.
    """

    module: str

    @property
    def namespace(self) -> str:
        """The first part of its name."""

    @property
    def qualified_name(self) -> str:
        """The name with its namespace."""


# The suffixes of files that a kernel is built from.
_SOURCE_SUFFIXES = (".cpp", ".h", ".hpp", ".inl", ".cmake")


def folder_of(operator: Located) -> Path:
    """The folder in which an operator is declared; the sources of its kernels lie there and below."""
    file = getattr(sys.modules.get(operator.module), "__file__", None)
    return Path(file).resolve().parent if file else Path.cwd()


def kernel_folder_of(operator: Located, device: str) -> Path:
    """The folder with the sources of an operator's kernels for a kind of device.

    That is the operator's own, or the folder beside it in its package that registers its kernels: operators that share
    kernels are built in one.
    """
    own, suffix = folder_of(operator), native.SUFFIXES[device]
    if sources_in(own, (suffix,)) or not (own.parent / "__init__.py").is_file():
        return own
    _, _, name = operator.qualified_name.partition("::")
    key = device.upper()
    registers = re.compile(rf"TORCHGRAFT_KERNEL\w*\(\s*{operator.namespace}\s*,\s*{key}\s*,\s*{name}\s*,")
    beside = (path.parent for path in sorted(own.parent.glob(f"*/*{suffix}")) if registers.search(path.read_text()))
    return next(beside, own)


def sources_in(folder: Path, suffixes: Sequence[str] = _SOURCE_SUFFIXES) -> list[Path]:
    """Finds the sources of kernels in a folder and below; leaves out folders of builds and of environments."""
    foreign = {mark.parent for name in ("CMakeCache.txt", "pyvenv.cfg") for mark in folder.rglob(name)}
    found = (path for path in folder.rglob("*") if path.suffix in suffixes)
    return sorted(path for path in found if foreign.isdisjoint(path.parents))
