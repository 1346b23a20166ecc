"""Writes the schemas of operators for C++ programs without Python, and a C++ function for each operator.

Both are written from the declarations. The schemas are the source of a library that such a program loads, and that
Python never does: a schema that is defined twice raises. The functions are a header, `<namespace>/operators.h`.

Torchgraft's own two files are committed, as its libraries are built where it may not be possible to import it, as in
an isolated build without PyTorch; `make schemas` writes them, and a test compares them with the declarations. Those of
another package are written as its wheel is made.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from torchgraft import building
from torchgraft._private import pytorch
from torchgraft.declaration.schema import REQUIRED, Argument
from torchgraft.kernels.signatures import cpp_type, word_of
from torchgraft.operator import Operator

_PACKAGE = Path(__file__).parents[1]
SOURCE = _PACKAGE / "schemas.cpp"
HEADER = _PACKAGE / "include/torchgraft/operators.h"

# What PyTorch's stable ABI carries; `bool[]` is no array in C++.
_KINDS = ("Tensor", "int", "float", "bool", "str", "ScalarType", "Layout", "MemoryFormat", "Device")
_KEYWORDS = frozenset(
    [
        "alignas",
        "alignof",
        "and",
        "and_eq",
        "asm",
        "auto",
        "bitand",
        "bitor",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "co_await",
        "co_return",
        "co_yield",
        "compl",
        "concept",
        "const",
        "const_cast",
        "consteval",
        "constexpr",
        "constinit",
        "continue",
        "decltype",
        "default",
        "delete",
        "do",
        "double",
        "dynamic_cast",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "long",
        "mutable",
        "namespace",
        "new",
        "noexcept",
        "not",
        "not_eq",
        "nullptr",
        "operator",
        "or",
        "or_eq",
        "private",
        "protected",
        "public",
        "register",
        "reinterpret_cast",
        "requires",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "static_assert",
        "static_cast",
        "struct",
        "switch",
        "template",
        "this",
        "thread_local",
        "throw",
        "true",
        "try",
        "typedef",
        "typeid",
        "typename",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "wchar_t",
        "while",
        "xor",
        "xor_eq",
    ]
)
_SCALAR_TYPES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.bool: "Bool",
}

_SOURCE = """\
// The schemas of {namespace}, for C++ programs without Python. {written}
// clang-format off
#include <torchgraft/schemas.h>

namespace {{

[[maybe_unused]] const bool defined = torchgraft::internal::define_schemas("{namespace}", {{
{schemas}
}});

}}  // namespace
"""

_HEADER = """\
// The operators of {namespace} as functions of C++. {written}
//
// A call that fails throws std::invalid_argument where an argument makes no sense, with the text of Python's
// TypeError or ValueError, and std::runtime_error for anything else, as a library that is not loaded.
// Nothing is recorded for autograd: gradients are Python's.
// clang-format off
#pragma once

#include <torchgraft/calling.h>

namespace {namespace} {{
{functions}
}}  // namespace {namespace}
"""

_FUNCTION = """
// {schema}
inline {result} {name}({parameters}) {{
  static constexpr ::torchgraft::internal::Declaration torchgraft_declared{{
      "{namespace}", "{operator}",
      "{arguments}",
      "{results}",
      "{names}",
      "{dtypes}",
      "{shapes}"}};
  [[maybe_unused]] static const bool torchgraft_fits = ::torchgraft::internal::check_version(torchgraft_declared);
  {call};
}}
"""


def operators_of(namespace: str) -> list[Operator]:
    """The operators of a namespace that are declared in this process, in the order of their names."""
    found = (each for name, each in sorted(Operator.registered.items()) if each.namespace == namespace)
    return list(found)


def schemas_source(namespace: str, operators: Iterable[Operator], written: str = "") -> str:
    """The source of the library that defines the schemas of operators.

    Args:
        namespace: theirs.
        operators: by both of their names they are defined.
        written: who has written it, in a sentence.

    Raises:
        ValueError: PyTorch prints a schema that it does not read again.
    """
    entries = []
    for operator in operators:
        schemas = [_schema(overload) for overload in (operator.public, operator.raw)]
        words = [", ".join(map(word_of, operator.declaration.arguments)), ", ".join(_result_words(operator))]
        entries.append(f"  {{{', '.join(map(_quoted, (operator.name, *schemas, *words)))}}},")
    return _SOURCE.format(namespace=namespace, written=written, schemas="\n".join(entries))


def header(namespace: str, operators: Iterable[Operator], written: str = "") -> str:
    """The header with a function of C++ for each operator.

    Args:
        namespace: theirs, and that of the functions.
        operators: those that cannot be called from C++ are named in a comment, with the reason.
        written: who has written it, in a sentence.
    """
    functions = []
    for operator in operators:
        reason = _why_not_callable(operator)
        functions.append(f"\n// {operator.name} is not here: {reason}.\n" if reason else _function(operator))
    if namespace != "torchgraft":
        functions.insert(0, "\nusing ::torchgraft::Tensor;\n")
    return _HEADER.format(namespace=namespace, written=written, functions="".join(functions))


def write_own() -> None:
    """Writes torchgraft's own two files."""
    operators, written = operators_of("torchgraft"), "`make schemas` has written this file."
    SOURCE.write_text(schemas_source("torchgraft", operators, written))
    HEADER.write_text(header("torchgraft", operators, written))


def write_for(package: str, namespace: str, folder: Path) -> None:
    """Writes the two files of another package: `schemas.cpp` and `include/<namespace>/operators.h`.

    The package is imported, and its kernels are not compiled for that.

    Args:
        package: its name, as it is imported.
        namespace: of its operators.
        folder: where the files are put.

    Raises:
        LookupError: it declares no operators in the namespace.
    """
    building.load = lambda *arguments, **named: None
    importlib.import_module(package)
    operators, written = operators_of(namespace), "torchgraft has written this file from the declarations."
    if not operators:
        raise LookupError(f"{package} declares no operators in the namespace {namespace}")
    (folder / "schemas.cpp").write_text(schemas_source(namespace, operators, written))
    path = folder / "include" / namespace / "operators.h"
    path.parent.mkdir(parents=True)
    path.write_text(header(namespace, operators, written))


def _schema(overload: Any) -> str:
    """The schema of a name of an operator, without the namespace."""
    schema = pytorch.schema_of(overload)
    text = str(schema)
    if pytorch.parse_schema(text) != schema:
        raise ValueError(f"PyTorch prints the schema of {overload.name()} in a form that it does not read: {text}")
    return text.partition("::")[2]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _result_words(operator: Operator) -> list[str]:
    return ["Tensor[]" if is_list else "Tensor" for is_list in operator.declaration.lists]


def is_callable(operator: Operator) -> bool:
    """Whether the header has a function for an operator."""
    return not _why_not_callable(operator)


def in_cpp(value: Any) -> str:
    """An argument of a call as C++ writes it.

    A tensor is a call of `tensor(sizes, dtype)`, which the program around it defines, or of `tensor(sizes, dtype,
    values)` where it has 32 or 64 bits of whole numbers: those may be places, and an operator refuses wrong ones.

    Args:
        value: a tensor, a number, a bool or None.
    """
    if value is None:
        return "std::nullopt"
    if isinstance(value, torch.Tensor):
        sizes = ", ".join(map(str, value.shape))
        values = ", ".join(map(str, value.flatten().tolist())) if value.dtype in (torch.int32, torch.int64) else ""
        return f"tensor({{{sizes}}}, ScalarType::{_SCALAR_TYPES[value.dtype]}{f', {{{values}}}' if values else ''})"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _why_not_callable(operator: Operator) -> str:
    """Why an operator has no function in C++; empty where it has one."""
    if operator.declaration.kernels == "reference":
        return "its best kernel is what PyTorch has, and a C++ program calls that"
    for argument in operator.declaration.arguments:
        kind = "int" if argument.kind == "SymInt" else argument.kind
        if kind not in _KINDS or (kind == "bool" and argument.is_list):
            return f"PyTorch's stable ABI does not carry {word_of(argument)} {argument.name}"
    return ""


def _function(operator: Operator) -> str:
    names = [_name(argument.name) for argument in operator.declaration.arguments]
    types = ["std::vector<Tensor>" if is_list else "Tensor" for is_list in operator.declaration.lists]
    visible = types[: operator.declaration.visible_outputs]
    call = (
        f"::torchgraft::internal::call<std::tuple<{', '.join(types)}>>(\n"
        f"      torchgraft_declared, {', '.join((_quoted(operator.qualified_name), *names))})"
    )
    if len(visible) == 1:
        call = f"return std::get<0>({call})"
    elif len(visible) < len(types):
        shown = ", ".join(f"std::move(std::get<{place}>(torchgraft_results))" for place in range(len(visible)))
        call = f"auto torchgraft_results = {call};\n  return {{{shown}}}"
    elif visible:
        call = f"return {call}"
    result = "void" if not visible else visible[0] if len(visible) == 1 else f"std::tuple<{', '.join(visible)}>"
    return _FUNCTION.format(
        schema=pytorch.schema_of(operator.public),
        result=result,
        name=_name(operator.name),
        parameters=", ".join(_parameters(operator.declaration.arguments)),
        namespace=operator.namespace,
        operator=operator.name,
        arguments=", ".join(map(word_of, operator.declaration.arguments)),
        results=", ".join(_result_words(operator)),
        names=" ".join(argument.name for argument in operator.declaration.arguments),
        dtypes=";".join(_dtypes(operator)),
        shapes=operator.declaration.shapes.text if operator.declaration.shapes else "",
        call=call,
    )


def _name(name: str) -> str:
    return f"{name}_" if name in _KEYWORDS else name


def _parameters(arguments: Sequence[Argument]) -> list[str]:
    """The parameters of a function; defaults as far as those behind have one too, as C++ wants it."""
    parameters: list[str] = []
    may_have_default = True
    for argument in reversed(arguments):
        taken = cpp_type(argument).replace("Text", "std::string")
        if argument.is_list or "Tensor" in taken or "std::string" in taken or "optional" in taken:
            taken = f"const {taken}&"
        default = _default(argument) if may_have_default else None
        may_have_default = default is not None
        parameters.append(f"{taken} {_name(argument.name)}" + (f" = {default}" if default is not None else ""))
    return parameters[::-1]


def _default(argument: Argument) -> str | None:
    """The default of an argument in C++; None where it has none, or C++ has no word for it."""
    value = argument.default
    if value is REQUIRED:
        return None
    if value is None:
        return "std::nullopt"
    if argument.is_list:
        elements = [value] * (argument.length or 1) if not isinstance(value, (list, tuple)) else value
        words = [_literal(argument.kind, each) for each in elements]
        text = ", ".join(each for each in words if each is not None)
        kind = cpp_type(argument._replace(optional=False)).replace("Text", "std::string")
        return None if None in words else f"{kind}{{{text}}}"
    return _literal(argument.kind, value)


def _literal(kind: str, value: Any) -> str | None:
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("int", "SymInt"):
        # The smallest of all is no literal of C++.
        return "INT64_MIN" if value == -(2**63) else str(value)
    if kind == "float":
        return repr(float(value))
    if kind == "str":
        return _quoted(value)
    return None


def _dtypes(operator: Operator) -> list[str]:
    """The dtypes that tensors must have, in the words of torchgraft/given.h."""
    return [
        " ".join(
            ("~" * (name in operator.declaration.mixed) + name, *(str(each).removeprefix("torch.") for each in allowed))
        )
        for name, allowed in operator.declaration.dtypes_of.items()
    ]


if __name__ == "__main__":
    # Of its own process: what is imported stays.
    write_for(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
