"""The reference: what `<!-- reference: ... -->` in a page becomes.

What is named is a function or class of Python (`torchgraft.shift`), all that is public in a module (`module
torchgraft.sampling`), a C++ header (`torchgraft/checks.h`) or a command (`graft check`).
"""

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

import typer.main
from sphinx.application import Sphinx

import contents
import headers
from torchgraft.cli import app as commands

_REGION = re.compile(r"^<!-- reference: (?P<what>.+?) -->$", re.MULTILINE)
# What is documented where a module is; elsewhere it is shown a second time and not listed in the index.
_MODULE = "module "


def insert(text: str) -> str:
    """A page with all references in their places."""
    return _REGION.sub(lambda region: _fenced("\n".join(_reference(region["what"]))), text)


def _fenced(rst: str) -> str:
    return f"````{{eval-rst}}\n{rst}\n````"


def _reference(what: str) -> Iterator[str]:
    if what.startswith(_MODULE):
        for name, members in public_names(what.removeprefix(_MODULE)).items():
            yield from _python(name, members)
    elif what.endswith((".h", ".cuh")):
        yield from _header(headers.read_header(what.removeprefix("torchgraft/")))
    elif what.startswith("graft "):
        yield from _command(what.removeprefix("graft "))
    else:
        module, _, _ = what.rpartition(".")
        yield from _python(what, public_names(module)[what], is_second=True)


@cache
def public_names(module: str) -> dict[str, list[str]]:
    """The public names of a module, each class with its public members."""
    listed = (contents.ROOT / "tests/public.txt").read_text().partition("# Commands")[0]
    found: dict[str, list[str]] = {}
    for line in dict.fromkeys(re.match(r"[\w.]*", line)[0] for line in listed.splitlines()):  # type: ignore[index]
        owner, _, name = line.rpartition(".")
        if owner == module and not inspect.ismodule(_value(line)) and not name.startswith("__"):
            found[line] = []
        elif owner in found:
            found[owner].append(name)
    return found


def _value(name: str) -> Any:
    """The value that has a full name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            value = getattr(value, part)
        return value
    raise LookupError(f"there is nothing named {name}")


def _python(name: str, members: list[str], is_second: bool = False) -> Iterator[str]:
    value = _value(name)
    if not callable(value):
        yield f".. py:data:: {name}\n"
        return
    kind = "class" if inspect.isclass(value) else "function"
    if inspect.isclass(value) and issubclass(value, BaseException):
        kind = "exception"
    yield f".. auto{kind}:: {name}"
    if is_second:
        yield "   :no-index:"
    if inspect.isclass(value) and value.__base__ not in (object, tuple):
        yield "   :show-inheritance:"
    if members and not is_second:
        yield f"   :members: {', '.join(members)}"
    yield ""


def _header(header: headers.Header) -> Iterator[str]:
    if missing := headers.undocumented(header):
        raise ValueError(f"torchgraft/{header.name}: no comment says what these do: {', '.join(missing)}")
    yield _escaped(header.comment)
    yield ""
    for each in header.declarations:
        yield f".. cpp:namespace:: {each.namespace or 'nullptr'}"
        yield ""
        if each.kind == "macro":
            yield f".. c:macro:: {each.signatures[0]}"
        else:
            first, *more = each.signatures
            yield f".. cpp:{each.kind}:: {first}"
            yield from (f"{' ' * (len(each.kind) + 10)}{signature}" for signature in more)
        if each.name in _DECLARED_TWICE:
            yield "   :no-index-entry:"
        yield ""
        yield textwrap.indent(_escaped(each.comment), "   ")
        yield ""
        if each.body:
            yield "   .. code-block:: cpp\n"
            yield textwrap.indent(each.body, "      ")
            yield ""


# A vector of a CPU and one of CUDA: no file includes both.
_DECLARED_TWICE = frozenset({"Vector"})


def _escaped(comment: str) -> str:
    """A comment as text of reStructuredText: what stands in backticks is code, all else means itself."""
    paragraphs = []
    for paragraph in comment.split("\n\n"):
        if paragraph.startswith("  "):
            paragraphs.append(".. code-block:: cpp\n\n" + textwrap.indent(textwrap.dedent(paragraph), "   "))
            continue
        parts = re.split(r"`([^`]+)`", paragraph)
        parts[::2] = (re.sub(r"([\\*_|])", r"\\\1", part) for part in parts[::2])
        # An option is code too: elsewhere its hyphens would become a dash.
        parts[::2] = (re.sub(r"(?<!\S)--[a-z][a-z-]*", r"\\ ``\g<0>``\\ ", part) for part in parts[::2])
        parts[1::2] = (f"\\ ``{part}``\\ " for part in parts[1::2])
        paragraphs.append("".join(parts))
    return "\n\n".join(paragraphs)


def _command(name: str) -> Iterator[str]:
    command: Any = typer.main.get_command(commands)
    for word in name.split():
        command = command.commands[word]
    if subcommands := getattr(command, "commands", None):
        yield _escaped(inspect.cleandoc(command.help or ""))
        yield ""
        for each in subcommands:
            yield f".. rubric:: graft {name} {each}\n"
            yield from _command(f"{name} {each}")
        return
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    words = (f"{each.name.upper()}{'...' if each.nargs != 1 else ''}" for each in arguments)
    usage = (word if each.required else f"[{word}]" for each, word in zip(arguments, words, strict=True))
    yield ".. code-block:: text\n"
    yield f"   {' '.join(['graft', name, *usage])} [OPTIONS]"
    yield ""
    yield _escaped(inspect.cleandoc(command.help or ""))
    yield ""
    for each in command.params:
        names = [each.name.upper()] if each in arguments else each.opts
        yield ", ".join(f"``{name}``" for name in names)
        yield textwrap.indent(_escaped(each.help or ""), "   ")
    yield ""


def tidy(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Makes a docstring of ours one that Sphinx reads: its source is a paragraph, whose lines are not indented."""
    text, heading, source = "\n".join(lines).partition("\nSource: ")
    lines[:] = (text + heading + re.sub(r"\n +", "\n", source)).split("\n")


def tidy_signature(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Makes the signature of a dataclass one that Sphinx reads: Python shows what a factory makes as <factory>."""
    return signature and signature.replace("<factory>", "..."), returned
