"""Whether a library's kernels are those that are declared: their names, and what they take and return.

PyTorch passes every argument as 64 bits and asks no types: a kernel that takes another type computes garbage, or ends
the process. What `TORCHGRAFT_KERNEL` found of a function is compared here when a library is loaded, or else when an
operator of it is declared, and a kernel that does not fit is never called.

Names are compared later, where a kernel is missed: a library may be loaded before its operators are declared, or after.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from torchgraft import native
from torchgraft._private import pytorch
from torchgraft.declaration import Declaration
from torchgraft.declaration.schema import Argument
from torchgraft.kernels.names import Names

# What stands in C++ for a word of a schema.
_IN_CPP = {
    "int": "int64_t",
    "float": "double",
    "bool": "bool",
    "str": "Text",
    "Device": "torch::stable::Device",
    # In the namespace of this package a Layout is that of images.
    "Layout": "torch::headeronly::Layout",
    "MemoryFormat": "torch::headeronly::MemoryFormat",
}


_declared: list[tuple[Names, torch.library.Library]] = []


def expect_fitting(names: Names, library: torch.library.Library) -> None:
    """Raises where a loaded library has a kernel of an operator that does not fit its schema; so will one later.

    Args:
        names: of the operator that is declared.
        library: defines them; through it a kernel that does not fit is replaced by one that raises, too.

    Raises:
        TypeError: with what to write in C++.
    """
    if problems := _refuse_misfits(names, library):
        raise TypeError(problems[0])
    _declared.append((names, library))


def forget(qualified_name: str) -> None:
    """Forgets an operator: libraries that are loaded from now on are not asked about it."""
    _declared[:] = [each for each in _declared if each[0].declaration.qualified_name != qualified_name]


def _expect_all_fitting(namespace: str, device: str) -> None:
    """Asks of a library that was loaded what is declared of its operators."""
    problems = [
        problem
        for names, library in _declared
        if names.declaration.namespace == namespace
        for problem in _refuse_misfits(names, library)
    ]
    if problems:
        raise TypeError("\n".join(problems))


native.tell_of_libraries(_expect_all_fitting)


def _refuse_misfits(names: Names, library: torch.library.Library) -> list[str]:
    """The messages about loaded kernels that do not fit; calls of these raise them from now on."""
    declaration, problems = names.declaration, []
    for device, key in pytorch.DEVICE_KEYS.items():
        found = native.signatures(declaration.namespace, device).get(declaration.name)
        problem = found and problem_of(declaration.qualified_name, declaration.arguments, declaration.lists, found)
        if problem:

            def refuse(*arguments: Any, problem: str = problem, **named: Any) -> NoReturn:
                raise TypeError(problem)

            for overload in (names.public, names.raw):
                pytorch.override(library, overload, refuse, key)
            problems.append(problem)
    return problems


def why_no_kernel(declaration: Declaration, device: str) -> str:
    """Why an operator runs without a compiled kernel, with what is implemented and what is declared.

    Args:
        declaration: of an operator that has none.
        device: the kind of device, 'cpu' or 'cuda'.
    """
    namespace, name, key = declaration.namespace, declaration.name, device.upper()
    implemented = native.signatures(namespace, device)
    if not implemented:
        return native.why_no_kernel(namespace, device)
    libraries = ", ".join(str(each.path) for each in native.libraries_of(namespace, device) if each.loaded)
    reason = f"{namespace} has no {key} kernel {name}"
    if name in implemented:
        # A library does not list under which namespace and device it registers a name.
        words = f"{namespace}, {key}"
        return f"{reason}: the TORCHGRAFT_KERNEL that names it in {libraries} must begin with ({words}, ...)"
    declared = [each.name for each in _declared_in(namespace)]
    reason += f"; {libraries} implements: {', '.join(implemented)}; declared: {', '.join(declared)}"
    for similar in difflib.get_close_matches(name, undeclared(namespace, device), 1):
        written = f"TORCHGRAFT_KERNEL({namespace}, {key}, {name}, {implemented[similar].function})"
        reason += f". No operator {similar} is declared; if you mean {name}, write {written}"
    return reason


def _declared_in(namespace: str) -> list[Declaration]:
    """The declarations of a namespace."""
    return [each.declaration for each, _ in _declared if each.declaration.namespace == namespace]


def undeclared(namespace: str, device: str) -> list[str]:
    """The names that loaded libraries implement and that no operator has: typos, or operators not imported yet."""
    declared = {each.name for each in _declared_in(namespace)}
    return [name for name in native.signatures(namespace, device) if name not in declared]


def problem_of(name: str, arguments: Sequence[Argument], lists: Sequence[bool], found: native.Signature) -> str:
    """Says why a kernel does not fit, and what to write; empty if it fits.

    Args:
        name: of the operator.
        arguments: of its schema.
        lists: of each result, whether it is a list.
        found: what the kernel takes and returns.
    """
    expected = [word_of(argument) for argument in arguments]
    if len(found.arguments) != len(expected):
        taken = ", ".join(map(_in_cpp, expected))
        return (
            f"{name}: the schema has {len(expected)} arguments, but {found.function} takes"
            f" {len(found.arguments)}: write {found.function}({taken})"
        )
    for argument, word, taken in zip(arguments, expected, found.arguments, strict=True):
        if word != taken:
            return (
                f"{name}: the schema says {word} {argument.name}, but {found.function} takes"
                f" {_in_cpp(taken)}: write {_in_cpp(word)}"
            )
    results = ["Tensor[]" if is_list else "Tensor" for is_list in lists]
    if results != list(found.results):
        said, given = (", ".join(each) or "nothing" for each in (results, found.results))
        return f"{name}: the schema returns {said}, but {found.function} returns {given}"
    return ""


def cpp_type(argument: Argument) -> str:
    """The type of C++ in which a kernel takes an argument, as names of the namespace `torchgraft`."""
    return _in_cpp(word_of(argument))


def word_of(argument: Argument) -> str:
    """The type of an argument, as a library says it."""
    word = "int" if argument.kind == "SymInt" else argument.kind
    if argument.is_list:
        word += "?[]" if argument.optional_elements else "[]"
    return f"{word}?" if argument.optional else word


def _in_cpp(word: str) -> str:
    """The type of C++ for a word of a schema."""
    if word.endswith("?"):
        return f"std::optional<{_in_cpp(word[:-1])}>"
    if word.endswith("[]"):
        return f"std::vector<{_in_cpp(word[:-2])}>"
    return _IN_CPP.get(word, word)
