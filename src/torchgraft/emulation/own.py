"""Finds and builds the CUDA kernels of torchgraft's own operators for the emulator, and checks them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchgraft.emulation.library import PACKAGE, build_once
from torchgraft.emulation.translate import find_included
from torchgraft.finding.sources import kernel_folder_of
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
    """The `.cu` files of some folders and of those below them, and what these need to be linked.

    A folder needs the sources of the folder beside it whose cuda/kernels.h it includes.
    """
    found: dict[Path, list[Path]] = {}
    waiting = [path.resolve() for path in folders]
    while waiting:
        folder = waiting.pop(0)
        if folder not in found:
            found[folder] = sorted(folder.rglob("*.cu"))
            declaring = (path for path in find_included(found[folder]) if path.parts[-2:] == ("cuda", "kernels.h"))
            waiting += [path.parents[1] for path in declaring]
    return list(dict.fromkeys(path for sources in found.values() for path in sources))


def build(folders: Sequence[Path], **options: Any) -> Path:
    """The folder of a library with the CUDA kernels of some folders, by `library.build_once`, which has the options."""
    return build_once(NAMESPACE, sources_in(folders), **options)


def find_operators(folder: Path, device: str = "cuda") -> list[Operator]:
    """The operators whose kernels for a kind of device lie in a folder, declared there or elsewhere."""
    own = (each for each in Operator.registered.values() if each.namespace == NAMESPACE)
    return [each for each in own if kernel_folder_of(each, device) == folder]


def check_command(folders: Sequence[Path], options: Sequence[str]) -> list[str]:
    """The command that checks the operators whose CUDA kernels lie in some folders."""
    names = [each.name for folder in folders for each in find_operators(folder)]
    return [sys.executable, "-m", "torchgraft", "check", *names, "--device", "cpu", *options]
