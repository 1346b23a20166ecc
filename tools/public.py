"""Lists everything public: names and signatures in Python, commands and their options, schemas, and C++ headers.

`python tools/public.py` writes tests/public.txt, which a test compares. If a line changes there, add a line to
CHANGELOG.md. A released name may change or disappear only after a version that warns about it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import typer.main

import torchgraft
import torchgraft.arguments
import torchgraft.building
import torchgraft.capturing
import torchgraft.checking
import torchgraft.operator
import torchgraft.packaging
import torchgraft.parallel
import torchgraft.sampling
import torchgraft.shadowing
from torchgraft import Operator
from torchgraft.cli import app

_BRACKETS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_COMMENT_OR_TEXT = re.compile(r"//.*|\"(?:\\.|[^\"\\\n])*\"")
_DIRECTIVE = re.compile(r"^#(?: *define (\w+))?(?:.*\\\n)*.*", re.MULTILINE)
# clang-format begins a declaration at the margin, and indents all of it up to its closing brace.
_DECLARATION = re.compile(r"^(?!namespace|template <[^>]*>$)[\w\[].*\n(?: .*\n|\n)*(?:\}.*)?", re.MULTILINE)
_ATTRIBUTE = re.compile(
    rf"\b(?:alignas|decltype|requires|__attribute__|__launch_bounds__)\s*{_BRACKETS}|\[\[[^\]]*\]\]"
    r"|^template <(?:[^<>]|<[^<>]*>)*>\n"
)
_TYPE = re.compile(r"(?:template <> )?(enum class|struct|class|concept|using)\s+(\w+)")
_MEMBER = re.compile(r"^  (?:[\w:<>*&,\[\]]+ )+[*&]?(\w+)\(", re.MULTILINE)
LIST = Path(__file__).parents[1] / "tests/public.txt"
INCLUDE = Path(torchgraft.__file__).parent / "include/torchgraft"
MODULES = (
    torchgraft,
    torchgraft.nn,
    torchgraft.native,
    torchgraft.arguments,
    torchgraft.building,
    torchgraft.capturing,
    torchgraft.shadowing,
    torchgraft.sampling,
    torchgraft.checking,
    torchgraft.packaging,
    torchgraft.parallel,
)


def text() -> str:
    """The whole list."""
    parts = {"Python": python_names(), "Commands": commands(), "Schemas": schemas(), "C++": headers()}
    return "\n\n".join("\n".join([f"# {title}", "", *lines]) for title, lines in parts.items()) + "\n"


def python_names() -> Iterator[str]:
    """Functions and classes with their signatures, and the public members of classes."""
    # A constant that packages import.
    yield f"{torchgraft.operator.__name__}.FLOATING"
    for module in MODULES:
        for name in _names_of(module):
            value = getattr(module, name)
            yield f"{module.__name__}.{name}{_signature(value)}"
            if inspect.isclass(value) and value.__module__.startswith("torchgraft"):
                for member, found in sorted(vars(value).items()):
                    if not member.startswith("_") and member not in getattr(value, "__annotations__", ()):
                        yield f"{module.__name__}.{name}.{member}{_signature(found)}"


def _names_of(module: ModuleType) -> list[str]:
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return sorted(getattr(module, "__all__", own))


def _signature(value: Any) -> str:
    if isinstance(value, (property, ModuleType)) or not callable(value):
        return ""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    # Names, kinds and whether there is a default: what a call can see. Annotations differ between versions of Python.
    shown = [f"{each.name}=..." if each.default is not each.empty else each.name for each in parameters]
    kinds = [each.kind for each in parameters]
    marks = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"} if (each := next(iter(parameters), None)) else {}
    shown = [f"{marks.get(kind, '')}{name}" for kind, name in zip(kinds, shown, strict=True)]
    keyword = next((i for i, kind in enumerate(kinds) if kind is inspect.Parameter.KEYWORD_ONLY), None)
    if keyword is not None and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(keyword, "*")
    return f"({', '.join(shown)})"


def commands() -> Iterator[str]:
    """Each command of `graft` with what it takes."""
    return _subcommands("graft", typer.main.get_command(app))


def _subcommands(path: str, group: Any) -> Iterator[str]:
    for word, command in sorted(group.commands.items()):
        name = f"{path} {word}"
        yield name
        for parameter in command.params:
            yield f"{name} {' '.join(parameter.opts) if parameter.opts[0].startswith('-') else parameter.name}"
        if hasattr(command, "commands"):
            yield from _subcommands(name, command)


def schemas() -> Iterator[str]:
    """The schemas of `torch.ops.torchgraft`."""
    ours = (each for each in Operator.registered.values() if each.namespace == "torchgraft")
    return (str(each.public._schema) for each in sorted(ours, key=lambda each: each.name))


def headers() -> Iterator[str]:
    """The headers that authors include, and what each defines."""
    for path in sorted(each for each in INCLUDE.iterdir() if each.is_file()):
        source = re.sub(r"namespace internal \{.*?\n\}  // namespace internal", "", path.read_text(), flags=re.DOTALL)
        yield f"torchgraft/{path.name}: {', '.join(sorted(set(_names_in_header(source))))}"


def _names_in_header(text: str) -> Iterator[str]:
    """The names that a header defines: macros, functions, constants, types with their functions and enumerators."""
    text = _COMMENT_OR_TEXT.sub("", text)
    yield from filter(None, _DIRECTIVE.findall(text))
    for found in _DECLARATION.finditer(_DIRECTIVE.sub("", text)):
        head, _, body = _ATTRIBUTE.sub("", found[0]).partition("{")
        head = re.split(r";| = |\[\]", head)[0]
        if kind := _TYPE.match(head):
            yield re.findall(r"\w+", head)[-1] if kind[1] == "using" else kind[2]
            yield from re.findall(r"\w+", body) if kind[1].startswith("enum") else _MEMBER.findall(body)
        elif name := re.search(r"(\w+)\s*\(", head) or re.search(r"(\w+)\s*$", head):
            yield name[1]


if __name__ == "__main__":
    LIST.write_text(text())
