"""load_inline: an operator whose kernels are text, as in a notebook."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchgraft import building, native
from torchgraft.building import BuildError
from torchgraft.declaration.dtypes import dtypes_of
from torchgraft.declaration.schema import read_schema
from torchgraft.kernels.signatures import problem_of
from torchgraft.operator import FLOATING, Operator

# The headers that the text of a kernel may use without including them.
_HEADERS = {"cpu": "torchgraft/detail/inline_cpu.h", "cuda": "torchgraft/detail/inline_cuda.cuh"}

_SOURCE = """\
#include <{header}>
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

    Text that was compiled before, in any process, is loaded in milliseconds (`torchgraft.building.cache`). If an
    operator of that name is declared already, that Operator gets the new declaration and kernels, and is returned:
    variables that hold it call the new one from then on. If anything fails, the earlier declaration stays.

    Args:
        schema: as for `Operator`.
        reference: as for `Operator`.
        cpu: C++ with a function `<name>_cpu` that takes and returns the types of the schema; or the path of such a
            file. The headers of torchgraft are included already, and its namespace is in use.
        cuda: CUDA C++ with a function `<name>_cuda`, likewise. It is compiled if PyTorch finds a GPU.
        declared: the other parameters of `Operator`. By default, `kernels` has the devices for which there is a text,
            with the dtypes of `dtypes`.

    Returns:
        The Operator.

    Raises:
        MissingToolError: there is no CMake, Ninja or compiler. It is a BuildError.
        BuildError: the first error of the compiler, with the line of the text.
        TypeError: the function takes or returns other types than the schema.
        ValueError: as for `Operator`.
    """
    qualified_name = schema.partition("(")[0].strip()
    namespace, _, name = qualified_name.partition("::")
    if not (namespace.isidentifier() and name.isidentifier()):
        raise ValueError(
            f"schema must begin with 'namespace::name(', and name must not begin with an underscore, got {schema!r}"
        )
    read = read_schema(schema)
    texts = _of_this_machine(cpu, cuda)
    # Compiled first: if that fails, an earlier declaration stays.
    if native.emulates(namespace):
        libraries = _load_emulated(qualified_name)
    else:
        compiled = _compile_side_by_side([(qualified_name, *each) for each in texts.items()])
        libraries = {
            device: native.load_for(qualified_name, device, library.result())
            for device, library in zip(texts, compiled, strict=True)
        }
    lists = [result.is_list for result in read.results]
    for library in libraries.values():
        if problem := problem_of(qualified_name, read.arguments, lists, native.signatures_of(library)[name]):
            raise TypeError(problem)
    if "kernels" not in declared:
        found, primary = dtypes_of(qualified_name, read.arguments, declared.get("dtypes", FLOATING))
        given = [device for device, text in (("cpu", cpu), ("cuda", cuda)) if text is not None]
        declared["kernels"] = dict.fromkeys(given, found.get(read.arguments[primary].name, FLOATING))

    previous = Operator.registered.get(qualified_name)
    with ExitStack() as undo:
        if previous is None:
            operator = Operator(schema, reference=reference, **declared)
            undo.callback(operator.undeclare)
        else:
            operator = previous
            for device in ("cpu", "cuda"):
                undo.callback(native.tell, qualified_name, device, native.told(qualified_name, device))
                native.tell(qualified_name, device, None)
            undo.callback(operator._redefine(schema, reference=reference, **declared))
        for device, library in libraries.items():
            native.tell(qualified_name, device, library)
        undo.pop_all()
    caller = sys._getframe(1)
    operator.module = caller.f_globals.get("__name__", "__main__")
    for device, text in (("cpu", cpu), ("cuda", cuda)):
        _texts.pop((qualified_name, device), None)
        if text is not None:
            _texts[qualified_name, device] = GivenText(text, caller.f_code.co_filename, caller.f_lineno)
    return operator


def compile_ahead(texts: Mapping[str, Mapping[str, str | Path]]) -> None:
    """Compiles the texts of several operators side by side, so that `load_inline` finds them in the cache.

    Nothing is said of what does not compile: `load_inline` raises its error.

    Args:
        texts: `cpu` and `cuda` as `load_inline` takes them, by the qualified names of the operators.
    """
    if not any(native.emulates(name.partition("::")[0]) for name in texts):
        _compile_side_by_side(
            [(name, *each) for name, given in texts.items() for each in _of_this_machine(**given).items()]
        )


def _compile_side_by_side(texts: Sequence[tuple[str, str, str | Path]]) -> list[Future[Path]]:
    """Compiles texts, each with the name of an operator and a kind of device, and waits for all."""
    with ThreadPoolExecutor(max(1, len(texts))) as pool:
        return [pool.submit(_compile, *each) for each in texts]


def _of_this_machine(cpu: str | Path | None = None, cuda: str | Path | None = None) -> dict[str, str | Path]:
    """The texts that are compiled on this machine, by the kind of device."""
    given = {"cpu": cpu, "cuda": cuda if torch.cuda.is_available() else None}
    return {device: text for device, text in given.items() if text is not None}


class GivenText(NamedTuple):
    """The text of a kernel, and where it was given to `load_inline`.

    Attributes:
        text: of the kernel, or the path of its file.
        file: the caller's.
        line: of the call in that file.
    """

    text: str | Path
    file: str
    line: int


# By the operator's qualified name and the kind of device. CUDA kernels without a GPU are here too: a check compiles or
# emulates them.
_texts: dict[tuple[str, str], GivenText] = {}


def text_of(qualified_name: str, device: str) -> GivenText | None:
    """The text of an operator's kernel for a kind of device; None if `load_inline` got none."""
    return _texts.get((qualified_name, device))


def cuda_text(qualified_name: str) -> str | Path | None:
    """The text of an operator's CUDA kernel, or the path of its file; None if `load_inline` got none."""
    given = text_of(qualified_name, "cuda")
    return given and given.text


def stem_of(qualified_name: str) -> str:
    """The stem of the names of an operator's libraries."""
    return qualified_name.replace("::", "__")


def write_source(qualified_name: str, device: str, text: str | Path, folder: Path) -> Path:
    """Writes the source of a text's library to a folder, and the text beside it. Returns the path of the source."""
    namespace, _, name = qualified_name.partition("::")
    if isinstance(text, Path):
        included = str(text.resolve())
    else:
        included = f"{name}_{device}{native.SUFFIXES[device]}"
        (folder / included).write_text(text)
    source = folder / f"inline{native.SUFFIXES[device]}"
    source.write_text(
        _SOURCE.format(
            header=_HEADERS[device],
            text=included,
            namespace=namespace,
            key=device.upper(),
            name=name,
            device=device,
        )
    )
    return source


def _compile(qualified_name: str, device: str, text: str | Path) -> Path:
    """Compiles a text, or finds it in the cache. Returns the path of the library."""
    stem = stem_of(qualified_name)
    with tempfile.TemporaryDirectory(prefix="torchgraft-inline-") as folder:
        source = write_source(qualified_name, device, text, Path(folder))
        try:
            built = building.build_once(stem, [source], cuda=device == "cuda", header=_HEADERS[device])
            return built / f"{stem}_{device}.so"
        except BuildError as error:
            raise type(error)(str(error).replace(f"{os.path.realpath(folder)}/", "")) from None


def _load_emulated(qualified_name: str) -> dict[str, native.NativeLibrary]:
    """Loads the library with the CUDA kernel on the emulator, if it was built. `load_inline` then compiles nothing."""
    path = Path(os.environ.get("TORCHGRAFT_LIBRARIES", ""), f"{stem_of(qualified_name)}_cpu.so")
    return {"cpu": native.load_for(qualified_name, "cpu", path)} if path.is_file() else {}
