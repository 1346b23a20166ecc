"""The kernels of an operator: which ones it has for a device, and the files that they are made from."""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from torchgraft import native
from torchgraft._private import pytorch
from torchgraft.building import inline
from torchgraft.kernels import python_kernels
from torchgraft.operator import Operator


def claims_kernel(operator: Operator, device: torch.device | str, dtype: torch.dtype) -> bool:
    """Whether an operator declares that it has a kernel for a dtype on a device."""
    return operator.declaration.kernels != "reference" and dtype in operator.declaration.kernels.get(
        torch.device(device).type, ()
    )


def listed_kernels(operator: Operator, device: str) -> tuple[str, ...]:
    """The kernels between which an operator chooses on a device: those that its library lists, and those in Python."""
    kind = torch.device(device).type
    in_python = python_kernels.kernels_of(operator.qualified_name, kind)
    listed = native.kernels(operator.namespace, kind).get(operator.name, ())
    return listed if in_python is None else (*listed, *in_python.listed)


def expect_kernels(operators: Sequence[Operator], devices: Sequence[str]) -> list[str]:
    """Finds the names of all kernels that the libraries of operators list for devices.

    Raises:
        LookupError: there are none.
    """
    found = [kernel for operator in operators for device in devices for kernel in listed_kernels(operator, device)]
    if not found:
        names = ", ".join(dict.fromkeys(operator.short_name for operator in operators))
        raise LookupError(
            f"no kernels are listed for {names} on {', '.join(devices)}: a library lists them if it chooses with "
            "torchgraft/choice.h and TORCHGRAFT_KERNELS(operator, rules)"
        )
    return list(dict.fromkeys(found))


def claims_device(operator: Operator, device: str) -> bool:
    """Whether an operator may have kernels for a kind of device; an adopted operator may have any."""
    return operator.declaration.kernels != "reference" and (
        not operator.declaration.kernels or device in operator.declaration.kernels
    )


def sources_of(operator: Operator, device: str) -> list[Path]:
    """Finds the sources of an operator's compiled kernels for a kind of device.

    They are what the libraries of its namespace were built from, where that is known, or else the files beside the
    declaration; below it too if that is a package, as any other folder may be anything's home.
    """
    known = [source for each in native.libraries_of(operator.namespace, device) for source in each.sources]
    if present := [path for path in dict.fromkeys(known) if path.is_file()]:
        return present
    file = getattr(sys.modules.get(operator.module), "__file__", None)
    if file is None or operator.namespace not in {each.namespace for each in native.libraries()}:
        return []
    folder = Path(file).resolve().parent
    depth = "**/" if (folder / "__init__.py").is_file() else ""
    return sorted(folder.glob(f"{depth}*{native.SUFFIXES[device]}"))


def is_compiled_there(operator: Operator, device: str) -> bool:
    """Whether a compiled kernel of an operator for a kind of device is registered, and not only one in Python."""
    in_python = python_kernels.kernels_of(operator.qualified_name, device)
    is_registered = pytorch.has_kernel(operator.raw, torch.device(device))
    return is_registered and (in_python is None or in_python.compiled is not None)


def compiled_kernels(operator: Operator, device: str) -> list[str] | None:
    """Finds the names of the files of an operator's compiled kernels for a kind of device.

    Returns:
        The names; empty where there are kernels and nothing is known of their sources. None where there are none.
    """
    if not claims_device(operator, device):
        return None
    if device == "cuda" and (text := inline.cuda_text(operator.qualified_name)):
        return [text.name if isinstance(text, Path) else "the text given to load_inline"]
    if sources := sources_of(operator, device):
        return [path.name for path in sources]
    if is_compiled_there(operator, device):
        return []
    # The libraries of an adopted operator are not known.
    files = native.libraries_of(operator.namespace, device) if operator.declaration.kernels else ()
    return [] if any(each.path.is_file() for each in files) else None
