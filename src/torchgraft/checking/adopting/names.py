"""Finds the operator, the modules and the reference by the names that `graft adopt` takes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from torchgraft._private import pytorch
from torchgraft.finding.places import make_importable


def find_overload(target: str) -> Any:
    """Finds the overload that is named `torch.ops.namespace.name` or `namespace::name`, with `.overload` or without.

    Raises:
        LookupError: there is none, or several.
    """
    words = target.removeprefix("torch.ops.").replace("::", ".").split(".")
    if len(words) not in (2, 3) or not all(words):
        raise LookupError(
            f"{target!r} is not an operator: give torch.ops.namespace.name or torch.ops.namespace.name.overload"
        )
    namespace, name, *overload = words
    packet = getattr(getattr(torch.ops, namespace), name, None)
    if packet is None:
        raise LookupError(f"there is no operator {namespace}::{name}: name the module that registers it with --import")
    # Some overloads take no tensors: `aten::add` of two numbers belongs to TorchScript.
    known = [each for each in packet.overloads() if _takes_tensors(getattr(packet, each))]
    chosen = overload[0] if overload else "default" if "default" in known else known[0] if len(known) == 1 else ""
    if chosen not in packet.overloads():
        raise LookupError(f"give one of the overloads of {namespace}::{name}: {', '.join(known)}")
    return getattr(packet, chosen)


def _takes_tensors(overload: Any) -> bool:
    return any("Tensor" in str(argument.type) for argument in pytorch.schema_of(overload).arguments)


def import_named(name: str) -> Any:
    """Imports a module of Python's path or of the working directory, or a file.

    Raises:
        LookupError: there is none.
    """
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise LookupError(f"there is no file {name}")
        return importlib.import_module(make_importable(Path(name).resolve()))
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{name}.".startswith(f"{missing.name}."):
            raise
        raise LookupError(f"there is no module {name!r} on Python's path or in this directory") from None


def find_reference(reference: str) -> tuple[str, Callable[..., Any]]:
    """Finds the function that is named `module:function` or `file.py:function`; returns its module's name and it.

    Raises:
        LookupError: there is none.
    """
    place, colon, attribute = reference.rpartition(":")
    if not colon or not place:
        raise LookupError(f"--reference must be module:function or file.py:function, got {reference!r}")
    module = import_named(place)
    function: Any = module
    for part in attribute.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise LookupError(f"{place} has no function {attribute!r}")
    return module.__name__, function
