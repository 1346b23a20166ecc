"""load_inline: an operator whose kernels are text, as in a notebook."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from torchgraft import building, native
from torchgraft.building import BuildError
from torchgraft.operator import FLOATING, Operator
from torchgraft.schema import read_schema
from torchgraft.signatures import problem_of

# What the text of a kernel may use without including it.
_HEADERS_OF_BOTH = ("arguments.h", "dispatch.h", "empty.h", "layout.h", "registration.h", "rows.h", "text.h")
_HEADERS = {"cpu": (*_HEADERS_OF_BOTH, "cpu.h", "sums.h"), "cuda": (*_HEADERS_OF_BOTH, "cuda.cuh", "sums.cuh")}
_SUFFIXES = {"cpu": ".cpp", "cuda": ".cu"}

_SOURCE = """\
#define TORCHGRAFT_REGISTERED_WHEN_TOLD
{includes}
using namespace torchgraft;
#include "{text}"
TORCHGRAFT_KERNEL({namespace}, {key}, {name}, {name}_{device})
"""


def load_inline(
    schema: str,
    *,
    reference: Callable[..., Any],
    cpu: str | Path | None = None,
    cuda: str | Path | None = None,
    **declared: Any,
) -> Operator:
    """Declares an operator and compiles its kernels from text.

    What was compiled of the same text before, in any process, is loaded in milliseconds (`torchgraft.cache`). Where an
    operator of that name is declared already, that Operator gets the new declaration and kernels, and is returned:
    variables that hold it call the new one from then on. If anything fails, it stays what it was.

    Args:
        schema: as of `Operator`.
        reference: as of `Operator`.
        cpu: C++ with a function `<name>_cpu` that takes and returns what the schema says; or the path of such a file.
            The headers of torchgraft are included already, and its namespace is in use.
        cuda: CUDA C++ with a function `<name>_cuda`, likewise. It is compiled where PyTorch finds a GPU.
        declared: what else `Operator` takes. `kernels` are, where nothing else is said, those of the devices for which
            there is a text, in `dtypes`.

    Returns:
        The Operator.

    Raises:
        MissingToolError: there is no CMake, Ninja or compiler; a BuildError too.
        BuildError: the first error of the compiler, with the line of the text.
        TypeError: the function takes or returns other types than the schema says.
        ValueError: the declaration cannot be served.
    """
    qualified_name = schema.partition("(")[0].strip()
    namespace, _, name = qualified_name.partition("::")
    if not (namespace.isidentifier() and name.isidentifier()):
        raise ValueError(f"schema must begin with 'namespace::name(', got {schema!r}")
    read = read_schema(schema)
    texts = {"cpu": cpu, "cuda": cuda if torch.cuda.is_available() else None}
    # Compiled first: where that fails, what is declared already stays.
    libraries = {
        device: native.load_for(qualified_name, device, _compile(namespace, name, device, text))
        for device, text in texts.items()
        if text is not None
    }
    lists = [result.is_list for result in read.results]
    for library in libraries.values():
        if problem := problem_of(qualified_name, read.arguments, lists, native.signatures_of(library)[name]):
            raise TypeError(problem)
    if "kernels" not in declared:
        dtypes = declared.get("dtypes", FLOATING)
        declared["kernels"] = dict.fromkeys(libraries, dtypes if isinstance(dtypes, tuple) else FLOATING)

    previous = Operator.registered.get(qualified_name)
    with ExitStack() as undo:
        if previous is None:
            operator = Operator(schema, reference=reference, **declared)
            undo.callback(operator.undeclare)
        else:
            operator = previous
            for device in texts:
                undo.callback(native.tell, qualified_name, device, native.told(qualified_name, device))
                native.tell(qualified_name, device, None)
            undo.callback(operator._redefine(schema, reference=reference, **declared))
        for device, library in libraries.items():
            native.tell(qualified_name, device, library)
        undo.pop_all()
    operator.module = sys._getframe(1).f_globals.get("__name__", "__main__")
    return operator


def _compile(namespace: str, name: str, device: str, text: str | Path) -> Path:
    """The library of a text."""
    stem = f"{namespace}__{name}"
    with tempfile.TemporaryDirectory(prefix="torchgraft-inline-") as folder:
        if isinstance(text, Path):
            included = text.resolve()
        else:
            included = Path(folder, f"{name}_{device}{_SUFFIXES[device]}")
            included.write_text(text)
        source = Path(folder, f"inline{_SUFFIXES[device]}")
        source.write_text(
            _SOURCE.format(
                includes="\n".join(f"#include <torchgraft/{header}>" for header in _HEADERS[device]),
                text=included if isinstance(text, Path) else included.name,
                namespace=namespace,
                key=device.upper(),
                name=name,
                device=device,
            )
        )
        try:
            return building.build_once(stem, [source], cuda=device == "cuda") / f"{stem}_{device}.so"
        except BuildError as error:
            raise type(error)(str(error).replace(f"{os.path.realpath(folder)}/", "")) from None
