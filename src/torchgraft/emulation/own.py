"""Finds and builds the CUDA kernels of torchgraft's own operators for the emulator, and checks them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchgraft.emulation.library import PACKAGE, build_once
from torchgraft.operator import Operator

NAMESPACE = "torchgraft"


def find_folders(names: Sequence[str] = ()) -> list[Path]:
    """The folders of operators that have CUDA kernels: those of some names, or all.

    Raises:
        LookupError: there is none of a name.
    """
    found = {path.parent.name: path.parent for path in sorted((PACKAGE / "operators").glob("*/cuda.cu"))}
    if strangers := set(names) - set(found):
        raise LookupError(f"there are CUDA kernels in {', '.join(found)}, and none in {', '.join(sorted(strangers))}")
    return [found[name] for name in names or found]


def sources_in(folders: Sequence[Path]) -> list[Path]:
    """The `.cu` files of some folders and of those below them."""
    return [path for folder in folders for path in sorted(folder.rglob("*.cu"))]


def build(folders: Sequence[Path], **options: Any) -> Path:
    """The folder of a library with the CUDA kernels of some folders, by `library.build_once`, which has the options."""
    return build_once(NAMESPACE, sources_in(folders), **options)


def find_operators(folder: Path) -> list[str]:
    """The names of all that a folder of operators declares."""
    module = f"torchgraft.operators.{folder.name}."
    return [each.name for each in Operator.registered.values() if each.module.startswith(module)]


def check_command(folders: Sequence[Path], options: Sequence[str]) -> list[str]:
    """The command that checks all that some folders of operators declare."""
    names = [name for folder in folders for name in find_operators(folder)]
    return [sys.executable, "-m", "torchgraft", "check", *names, "--device", "cpu", *options]
