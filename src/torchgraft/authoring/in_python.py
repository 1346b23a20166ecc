"""The parts of a new operator's files that are written in Python, as text."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import torch

from torchgraft.authoring import sizes
from torchgraft.authoring.stubs import CHANGING, IN_PYTHON, Copy, Stub, multiplied, rest_of, rising_of, source_of
from torchgraft.declaration.schema import REQUIRED, Argument

_WIDTH = 120

_IN_ENGLISH = {
    "Tensor": "a tensor of any shape, float64, float32, float16 or bfloat16",
    "int": "a whole number",
    "SymInt": "a whole number",
    "float": "a number",
    "bool": "yes or no",
    "str": "a text",
    "ScalarType": "a dtype",
    "Layout": "a layout of memory",
    "MemoryFormat": "a memory format",
    "Device": "a device",
}


def joined(before: str, items: Sequence[str], after: str, indent: int = 0) -> str:
    """A list of items as formatters of Python want it: on one line where it fits, else a line each."""
    line = f"{before}{', '.join(items)}{after}"
    if indent + len(line) <= _WIDTH:
        return line
    lines = "".join(f"{' ' * (indent + 4)}{item}{',' if item != '*' or len(items) > 1 else ''}\n" for item in items)
    return f"{before}\n{lines}{' ' * indent}{after}"


def quoted(text: str, indent: int) -> str:
    """A text as Python's formatters want it: in several pieces where it is long."""
    pieces = textwrap.wrap(text, _WIDTH - indent - 3, drop_whitespace=False, break_long_words=False)
    return f"\n{' ' * indent}".join(repr(piece) if '"' in piece else json.dumps(piece) for piece in pieces)


def parameters(stub: Stub, *, defaults: bool = False, typed: bool = True) -> list[str]:
    """The parameters of a function of Python that takes the arguments.

    Args:
        stub: the operator.
        defaults: whether they have the defaults of the schema.
        typed: whether their types are said.
    """
    found: list[str] = []
    for argument in stub.arguments:
        if argument.keyword_only and "*" not in found:
            found.append("*")
        text = f"{argument.name}: {_annotation(argument)}" if typed else argument.name
        if defaults and argument.default is not REQUIRED:
            text += f" = {_literal(argument.default)}"
        found.append(text)
    return found


def values(stub: Stub) -> list[str]:
    """The arguments as a call in Python passes them on."""
    return [f"{each.name}={each.name}" if each.keyword_only else each.name for each in stub.arguments]


def described(stub: Stub) -> str:
    """The lines of a docstring about the arguments."""
    found = []
    for argument in stub.arguments:
        kind = _IN_ENGLISH[argument.kind]
        if argument.name in stub.integers:
            kind = kind.replace("float64, float32, float16 or bfloat16", "int64")
        if stub.words is not None and argument.holds_tensors:
            kind = kind.replace("a tensor of any shape", sizes.bracketed(stub.words.arguments[argument.name]))
        text = f"some, each {kind}" if argument.is_list else kind
        text += "; it is written to" if argument.mutated else ""
        text += "; or None" if argument.optional else ""
        found.append(f"        {argument.name}: {text}.")
    return "\n".join(found)


def result_annotation(stub: Stub, *, written: bool = False) -> str:
    """The type in Python of what an operator returns.

    Args:
        stub: the operator.
        written: whether what is written to comes first, as a reference returns it.
    """
    types = [_annotation(argument) for argument in stub.mutated] if written else []
    types += ["list[Tensor]" if copy.to_list else "Tensor" for copy in stub.copies]
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]" if types else "None"


def reference_body(stub: Stub) -> str:
    """The expression that the reference returns, in Python."""
    if stub.formula:
        return stub.formula
    written = [_applied(argument, "torch.zeros_like") for argument in stub.mutated]
    return ", ".join([*written, *(_zeros(stub, copy) or _copied(copy, "") for copy in stub.copies)])


def _zeros(stub: Stub, copy: Copy) -> str:
    """A result that is zero, in Python; an empty text for a copy."""
    if copy.depends_on:
        sizes_of = [f"*{copy.argument}.shape"] if copy.words is None else sizes_in_python(stub, copy.words)
        return f"_zeros({', '.join((copy.depends_on, *sizes_of))})"
    return _copied(copy, "zeros_like") if copy.zero else ""


def sizes_in_python(stub: Stub, shape: Sequence[str]) -> list[str]:
    """The sizes of a result in Python, each from the arguments of the call."""
    found = []
    for word in shape:
        if word == "...":
            tensor, front, back = rest_of(stub)
            found.append(f"*{tensor}.shape[{front or ''}:{-back or ''}]")
            continue
        number, name, source = source_of(stub, word)
        text = name if source is None else f"{source.tensor}.shape[{source.place}]"
        found.append(multiplied(number, text, "//", source) if name else str(number))
    return found


def output_body(stub: Stub) -> str:
    """The empty results, in Python; an empty text where there are none."""
    return ", ".join(_copied(copy, "empty_like") for copy in stub.copies)


def sample_values(stub: Stub, *, without_optional: bool = False) -> list[str]:
    """Arguments of a sample, in Python.

    Args:
        stub: the operator.
        without_optional: whether None stands for what may be left out.
    """
    found = []
    for argument in stub.arguments:
        text = IN_PYTHON[argument.kind][1]
        if argument.kind == "SymInt" and re.fullmatch(CHANGING, argument.name):
            # PyTorch makes constants of 0 and 1.
            text = "7"
        if argument.name in stub.integers:
            ordered = ", ordered=True" if argument.name in rising_of(stub) else ""
            text = f"Drawn(shape, dtype=torch.int64, high=2{ordered})"
        if stub.words is not None:
            if argument.holds_tensors:
                text = text.replace("shape", sizes.expression(stub.words.arguments[argument.name]))
            elif argument.name in stub.words.names and not argument.is_list:
                found.append(argument.name)
                continue
        if argument.optional and without_optional:
            text = "None"
        elif argument.default not in (REQUIRED, None) and argument.kind in ("int", "SymInt", "float", "bool", "str"):
            text = _literal(argument.default)
        elif argument.is_list:
            several = [text] * (argument.length or 2)
            if argument.optional_elements and without_optional:
                several[-1] = "None"
            text = f"[{', '.join(several)}]"
        found.append(text)
    return found


def _annotation(argument: Argument) -> str:
    text = IN_PYTHON[argument.kind][0]
    if argument.is_list:
        text = f"Sequence[{text}{' | None' if argument.optional_elements else ''}]"
    return f"{text} | None" if argument.optional else text


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and repr(value) in ("inf", "-inf", "nan"):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _applied(argument: Argument, function: str) -> str:
    """A function of all tensors of an argument, in Python."""
    if argument.is_list:
        none = "each if each is None else " if argument.optional_elements else ""
        text = f"[{none}{function}(each) for each in {argument.name}]"
    else:
        text = f"{function}({argument.name})"
    return f"None if {argument.name} is None else {text}" if argument.optional else text


def _copied(copy: Copy, function: str) -> str:
    def of(tensor: str) -> str:
        return f"torch.{function}({tensor})" if function else f"{tensor}.clone()"

    if copy.from_list:
        return f"[{of('each')} for each in {copy.argument}]" if copy.to_list else of(f"{copy.argument}[0]")
    return f"[{of(copy.argument)}]" if copy.to_list else of(copy.argument)


def triton_body(stub: Stub) -> list[str]:
    """The lines of a kernel in Python that launches kernels in Triton, without indentation."""
    results = [
        f"{copy.argument}.new_zeros({sizes.bracketed(sizes_in_python(stub, copy.words))})"
        if copy.words is not None
        # They are contiguous if shapes are declared.
        else f"{copy.argument}.new_zeros({copy.argument}.shape)"
        if copy.zero and stub.words is not None
        else f"torch.zeros_like({copy.argument})"
        if copy.zero
        else _copied(copy, "").replace(".clone()", "")
        for copy in stub.copies
    ]
    copied = [text if copy.zero else _in_triton(copy, text) for copy, text in zip(stub.copies, results, strict=True)]
    lines = [f"copies = {', '.join(copied)}"] if copied and stub.mutated else []
    for argument in stub.mutated:
        prefix = f"if {argument.name} is not None:\n    " if argument.optional and not argument.is_list else ""
        if argument.is_list:
            lines.append(f"for each in {argument.name}{' or ()' if argument.optional else ''}:")
            lines.append(
                "    if each is not None:\n        each.zero_()" if argument.optional_elements else "    each.zero_()"
            )
        else:
            lines.extend(f"{prefix}{argument.name}.zero_()".splitlines())
    if copied:
        lines.append("return copies" if stub.mutated else f"return {', '.join(copied)}")
    return lines


def _in_triton(copy: Copy, text: str) -> str:
    if copy.from_list:
        return f"[_copied(each) for each in {copy.argument}]" if copy.to_list else f"_copied({copy.argument}[0])"
    return f"[_copied({copy.argument})]" if copy.to_list else f"_copied({copy.argument})"
