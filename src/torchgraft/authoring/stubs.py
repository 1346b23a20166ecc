"""Writes a new package from a schema: declaration, reference and samples in Python, and host functions in C++.

Nobody knows yet what the operator computes. Until its author says so, results are copies of its tensors, and what is
written to becomes zero: in the reference and in the kernels alike, so that the package passes every check.
"""

from __future__ import annotations

import json
import keyword
import re
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from torchgraft.authoring import sizes
from torchgraft.authoring.sizes import Words
from torchgraft.declaration.schema import REQUIRED, Argument, Schema
from torchgraft.kernels.signatures import cpp_type

_WIDTH = 120
_CPP_WIDTH = 110

# What C++ keeps for itself and Python does not: such an argument gets an underscore in C++.
CPP_WORDS = re.compile(
    "alignas|alignof|and_eq|asm|auto|bitand|bitor|bool|case|catch|char|char16_t|char32_t|char8_t|co_await|co_return"
    "|co_yield|compl|concept|const|const_cast|consteval|constexpr|constinit|decltype|default|delete|do|double"
    "|dynamic_cast|enum|explicit|export|extern|false|float|friend|goto|inline|int|long|mutable|namespace|new|noexcept"
    "|not_eq|nullptr|operator|or_eq|private|protected|public|register|reinterpret_cast|requires|short|signed|sizeof"
    "|static|static_assert|static_cast|struct|switch|template|this|thread_local|throw|true|typedef|typeid|typename"
    "|union|unsigned|using|virtual|void|volatile|wchar_t|xor|xor_eq"
)

# The type in Python for a word of a schema, and a value to check the operator with.
_IN_PYTHON = {
    "Tensor": ("Tensor", "Drawn(shape)"),
    "int": ("int", "1"),
    "SymInt": ("int", "1"),
    "float": ("float", "0.5"),
    "bool": ("bool", "True"),
    "str": ("str", '"text"'),
    "ScalarType": ("torch.dtype", "torch.float32"),
    "Layout": ("torch.layout", "torch.strided"),
    "MemoryFormat": ("torch.memory_format", "torch.contiguous_format"),
    "Device": ("torch.device", 'torch.device("cpu")'),
}

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


class Copy(NamedTuple):
    """A result as it is until the author writes the operator.

    Attributes:
        argument: the name of what it is made from.
        from_list: whether that is a list of tensors.
        to_list: whether the result is one.
        zero: whether it is zero, and only its sizes are those of the argument.
    """

    argument: str
    from_list: bool = False
    to_list: bool = False
    zero: bool = False


class Stub(NamedTuple):
    """An operator of a new package.

    Attributes:
        name: of the operator.
        schema: all of it, with the namespace.
        arguments: of the schema.
        copies: what its results are, in order.
        formula: what the reference computes, in Python, where that is more than copies.
        summary: what it computes, for docstrings.
        words: the shapes of its tensors, where they are known: results are then contiguous.
    """

    name: str
    schema: str
    arguments: tuple[Argument, ...]
    copies: tuple[Copy, ...]
    formula: str = ""
    summary: str = ""
    words: Words | None = None

    @property
    def mutated(self) -> tuple[Argument, ...]:
        """The arguments that the operator writes to."""
        return tuple(argument for argument in self.arguments if argument.mutated)


def read_stub(name: str, schema: str, read: Schema, words: Words | None = None) -> Stub:
    """The stub of an operator whose schema is known, and perhaps its shapes.

    Args:
        name: of the operator.
        schema: its text.
        read: what it says.
        words: the shapes of its tensors.

    Raises:
        ValueError: no kernel can be written for the schema; the message says what to change.
    """
    for argument in read.arguments:
        if keyword.iskeyword(argument.name) or argument.name in ("torch", f"{name}_operator"):
            raise ValueError(f"{name}: a Python argument cannot be named {argument.name}: rename it in the schema")
        if argument.kind not in _IN_PYTHON:
            known = ", ".join(_IN_PYTHON)
            raise ValueError(
                f"{name}: {argument.name} is a {argument.kind}, which a C++ kernel cannot take: use one of {known}"
            )
    certain = [each for each in read.arguments if each.holds_tensors and not each.optional]
    # What is written to only where there is nothing else: it is zero afterwards.
    singles = sorted((each for each in certain if not each.is_list), key=lambda each: each.mutated)
    lists = [each for each in certain if each.is_list and not each.optional_elements]
    if not singles and not lists:
        raise ValueError(f"{name}: a kernel needs a required tensor: add an argument of type Tensor or Tensor[]")
    copies = []
    for number, result in enumerate(read.results):
        if words is not None:
            fitting = [each.name for each in singles if words.arguments[each.name] == words.results[number]]
            if not fitting or result.is_list:
                shape = " ".join(words.results[number]) or "()"
                raise ValueError(
                    f"{name}: the first version of a kernel copies an argument, and no tensor argument has the shape of"
                    f" the result, {shape}: leave --shapes out, and write shapes= in operator.py yourself"
                )
            copies.append(Copy(fitting[0]))
        elif lists and (result.is_list or not singles):
            copies.append(Copy(lists[0].name, from_list=True, to_list=result.is_list))
        else:
            copies.append(Copy(singles[min(number, len(singles) - 1)].name, to_list=result.is_list))
    return Stub(name, schema, read.arguments, tuple(copies), words=words)


def backward_of(stub: Stub, read: Schema) -> tuple[str, tuple[Copy, ...]]:
    """The arguments and results of the operator that computes a gradient, as a schema, and what they are.

    Args:
        stub: the operator.
        read: what its schema says.

    Raises:
        ValueError: it has lists, optional tensors, several results or writes to something.
    """
    tensors = [argument for argument in stub.arguments if argument.holds_tensors]
    plain = not any(argument.is_list or argument.optional or argument.mutated for argument in tensors)
    if not plain or len(read.results) != 1 or read.results[0].is_list:
        raise ValueError(
            f"{stub.name}: --backward needs a schema in which all tensors and the one result are of type Tensor, got"
            f" {stub.schema}: leave --backward out, and declare a second Operator for the gradient by hand"
        )
    before, _, _ = stub.schema[stub.schema.index("(") + 1 :].rpartition("->")
    results = ", ".join(f"Tensor {argument.name}_grad" for argument in tensors)
    copied = stub.copies[0].argument
    copies = (
        Copy("output_grad") if argument.name == copied else Copy(argument.name, zero=True) for argument in tensors
    )
    return f"(Tensor output_grad, {before.strip()} -> {f'({results})' if len(tensors) > 1 else 'Tensor'}", tuple(copies)


# Python


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
    return ", ".join([*written, *(_copied(copy, "zeros_like" if copy.zero else "") for copy in stub.copies)])


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
        text = _IN_PYTHON[argument.kind][1]
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
    text = _IN_PYTHON[argument.kind][0]
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
        f"torch.zeros_like({copy.argument}{_format_of(stub)})"
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


def _format_of(stub: Stub) -> str:
    return ", memory_format=torch.contiguous_format" if stub.words is not None else ""


def _in_triton(copy: Copy, text: str) -> str:
    if copy.from_list:
        return f"[_copied(each) for each in {copy.argument}]" if copy.to_list else f"_copied({copy.argument}[0])"
    return f"[_copied({copy.argument})]" if copy.to_list else f"_copied({copy.argument})"


# C++


def host_function(stub: Stub, device: str) -> str:
    """The function in C++ that is the kernel on a kind of device, with the types that the schema says.

    Args:
        stub: the operator.
        device: 'cpu' or 'cuda'.
    """
    used = {argument.name for argument in stub.arguments if argument.holds_tensors}
    taken = [
        f"{cpp_type(argument)} {_cpp_name(argument.name) if argument.name in used else f'/*{argument.name}*/'}"
        for argument in stub.arguments
    ]
    types = ["std::vector<Tensor>" if copy.to_list else "Tensor" for copy in stub.copies]
    returned = types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>" if types else "void"
    lines = [_filled(f"{returned} {stub.name}_{device}(", taken, ") {"), *_checks(stub)]
    copies = list(map(_cpp_copy, stub.copies))
    if stub.mutated:
        # Copied first: what is written to may be what is copied.
        if types:
            lines.append(_filled(f"  {returned} copies{{", copies, "};"))
        lines += map(_cpp_zero, stub.mutated)
        if types:
            lines.append("  return copies;")
    elif len(types) == 1:
        lines.append(f"  return {copies[0]};")
    else:
        lines.append(_filled("  return {", copies, "};"))
    return "\n".join([*lines, "}"])


def helpers_of(stubs: Sequence[Stub]) -> set[str]:
    """Which helpers the host functions of some operators call."""
    copies = [copy for stub in stubs for copy in stub.copies]
    found = {"copied" for copy in copies if not copy.zero}
    found |= {"set_to_zero" for stub in stubs if stub.mutated}
    found |= {"copied_list" for copy in copies if copy.from_list and copy.to_list}
    return found | {"zeros" for copy in copies if copy.zero}


def _checks(stub: Stub) -> list[str]:
    """The lines that check each tensor: all lie in memory, and have one dtype and one device."""
    tensors = [argument for argument in stub.arguments if argument.holds_tensors]
    first = next((each for each in tensors if not each.is_list and not each.optional), None)
    lines, pairs = [], []
    if first is None:
        first = next(each for each in tensors if not each.optional and not each.optional_elements)
        name = _cpp_name(first.name)
        lines.append(f'  TORCHGRAFT_CHECK(!{name}.empty(), "{first.name} must hold a tensor");')
        pairs.append(f'{name}[0], "{first.name}"')
    else:
        tensors.remove(first)
        tensors.insert(0, first)
    pairs += [f'{_cpp_name(argument.name)}, "{argument.name}"' for argument in tensors]
    words = ", ".join(pairs).split(", ")
    return [*lines, _filled("  check_alike(", words, ");")]


def _cpp_name(name: str) -> str:
    return f"{name}_" if CPP_WORDS.fullmatch(name) else name


def _cpp_copy(copy: Copy) -> str:
    name = _cpp_name(copy.argument)
    if copy.zero:
        return f'zeros({name}, "{copy.argument}")'
    if copy.from_list and not copy.to_list:
        name += "[0]"
    text = f'copied({name}, "{copy.argument}")'
    return f"std::vector<Tensor>{{{text}}}" if copy.to_list and not copy.from_list else text


def _cpp_zero(argument: Argument) -> str:
    name = _cpp_name(argument.name)
    if argument.is_list:
        each = "if (each) set_to_zero(*each)" if argument.optional_elements else "set_to_zero(each)"
        loop = f"for (auto& each : {f'*{name}' if argument.optional else name}) {each};"
        return f"  if ({name}) {loop}" if argument.optional else f"  {loop}"
    return f"  if ({name}) set_to_zero(*{name});" if argument.optional else f"  set_to_zero({name});"


def _filled(before: str, items: Sequence[str], after: str) -> str:
    """A list of items as clang-format wants it: as many on a line as fit, below the first, or else indented."""
    indented = " " * (len(before) - len(before.lstrip()) + 4)
    for lead, margin in ((before, " " * len(before)), (f"{before}\n{indented}", indented)):
        lines, line = [], lead.rpartition("\n")[2]
        for number, item in enumerate(items):
            text = item + (after if number == len(items) - 1 else ",")
            space = " " if number and line != margin else ""
            if number and len(line) + len(space) + len(text) > _CPP_WIDTH:
                lines.append(line)
                line, space = margin, ""
            line += space + text
        lines.append(line)
        if max(map(len, lines)) <= _CPP_WIDTH:
            break
    return lead.rpartition("\n")[0] + "\n" * ("\n" in lead) + "\n".join(lines)
