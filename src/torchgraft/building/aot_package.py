"""Makes a package of AOTInductor that a C++ program without Python loads: see torchgraft/package.h and docs/cpp.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchgraft import native
from torchgraft.kernels.signatures import word_of
from torchgraft.operator import Operator


def package(
    program: torch.export.ExportedProgram, path: Path | str, *, options: Mapping[str, Any] | None = None
) -> Path:
    """Compiles an exported program ahead of time, into a file that a C++ program runs without Python.

    `torch._inductor.aoti_compile_and_package` makes the file. Its metadata lists the inputs of the program, and the
    operators that it calls, torchgraft's and those of packages made with it. `torchgraft::Package` in C++ compares the
    lists with the tensors and libraries that it has, and names what is missing.

    Args:
        program: a model that torch.export has exported, on the device on which it is to run.
        path: of the file, which ends in `.pt2`.
        options: for Inductor, as `{"max_autotune": True}`.

    Returns:
        The path of the file.

    Raises:
        ValueError: the path has another ending, or an operator has no compiled kernel, which C++ could call.
        RuntimeError: the C++ compiler has no shared libstdc++.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"path must end in .pt2, got {path}")
    from torch._inductor import config

    _expect_shared_standard_library(os.environ.get("CXX") or "g++")
    said = "\n".join((*_operators(program), *_inputs(program)))
    # If nothing else is known, torch.export assumes sizes of 2 and more, and AOTInductor would refuse a batch of one
    # image. The compiled code computes such a batch correctly; `torchgraft::Package` checks the exported range instead.
    lower = "aot_inductor.check_lowerbound"
    given = {**({lower: False} if lower in config.get_config_copy() else {}), **(options or {})}
    metadata = {**given.pop("aot_inductor.metadata", {}), "torchgraft": said}
    made = torch._inductor.aoti_compile_and_package(
        program, package_path=str(path), inductor_configs={**given, "aot_inductor.metadata": metadata}
    )
    return Path(made)


def _expect_shared_standard_library(compiler: str) -> None:
    """Raises an error if a compiler would link libstdc++ into a package, which crashes the process that loads it."""
    try:
        asked = [*compiler.split(), "-print-file-name=libstdc++.so"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        # The compiler does not run, and Inductor reports that.
        return
    # A compiler prints the bare name of a file that it does not find.
    if said == "libstdc++.so" and sys.platform == "linux":
        raise RuntimeError(
            f"{compiler} has no libstdc++.so. It would link libstdc++ statically into the package, and the process that"
            " loads the package would crash, as PyTorch has another copy. Set the environment variable CXX to another"
            " compiler"
        )


def _operators(program: torch.export.ExportedProgram) -> Iterator[str]:
    """A line for each of our operators that a program calls: its name, and the types of its arguments and results."""
    names = {node.target.name(): node for node in program.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}
    for name, operator in Operator.registered.items():
        if name not in names:
            continue
        device = next(value.device.type for value in _values(names[name].args))
        if operator.name not in native.signatures(operator.namespace, device):
            raise ValueError(
                f"{name} has no compiled kernel for {device}, which a C++ program could call:"
                f" {native.why_no_kernel(operator.namespace, device)}"
            )
        arguments = ", ".join(map(word_of, operator.declaration.arguments))
        results = ", ".join("Tensor[]" if is_list else "Tensor" for is_list in operator.declaration.lists)
        yield f"operator\t{name}\t{arguments}\t{results}"


def _values(arguments: Any) -> Iterator[Tensor]:
    """The tensors that nodes among the arguments of a node stand for."""
    for node in torch.utils._pytree.tree_leaves(arguments):
        if isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), Tensor):
            yield node.meta["val"]


def _inputs(program: torch.export.ExportedProgram) -> Iterator[str]:
    """A line for each input of a program that is a tensor: its name, dtype, device, layout and sizes."""
    wanted = set(program.graph_signature.user_inputs)
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and node.name in wanted and isinstance(value, Tensor):
            dtype, sizes = str(value.dtype).removeprefix("torch."), [_size(program, size) for size in value.shape]
            yield "\t".join(("input", node.name, dtype, value.device.type, _layout(value), *sizes))


def _layout(value: Tensor) -> str:
    """The layout that an input must have, because the compiled code relies on the strides of the example."""
    if value.is_contiguous():
        return "contiguous"
    return "channels_last" if value.is_contiguous(memory_format=torch.channels_last) else "any"


def _size(program: torch.export.ExportedProgram, size: Any) -> str:
    """A size as text: 8, a range such as 1..64, or 1.. without an upper limit."""
    if isinstance(size, int):
        return str(size)
    known = program.range_constraints.get(size.node.expr)
    if known is None:
        return "0.."
    lower, upper = (int(each) if each.is_Integer and abs(each) < 2**62 else None for each in (known.lower, known.upper))
    return f"{lower or 0}..{'' if upper is None else upper}"
