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


# Numbers that are others in each call, by parts of their names.
_CHANGING = r"(?:\w*_)?(?:seed|counter|position)(?:_\w*)?"


def with_symbolic_numbers(schema: str) -> str:
    """The schema with `SymInt` for `int` where a name says that the number is another one in each call, as a seed.

    Code that torch.compile made is compiled again for each new value of an `int`.
    """
    return re.sub(rf"\bint(?=\??\s+{_CHANGING}\b)", "SymInt", schema)


# Integers that rise, as they say where sequences begin.
_RISING = r"(?:\w*_)?(?:offsets|starts|borders|indptr|cu_seqlens)(?:_\w*)?"


def rising_of(stub: Stub) -> list[str]:
    """The integers whose names say that they are borders of sequences, which rise."""
    return [name for name in stub.integers if re.fullmatch(_RISING, name)]


def is_seed(argument: Argument) -> bool:
    """Whether the name of a number says that random values follow from it."""
    return argument.kind in ("int", "SymInt") and not argument.is_list and "seed" in argument.name.split("_")


class Copy(NamedTuple):
    """A result as it is until the author writes the operator.

    Attributes:
        argument: the name of what it is made from.
        from_list: whether that is a list of tensors.
        to_list: whether the result is one.
        zero: whether it is zero, and only its sizes are those of the argument.
        words: the shape of a result that is zero and has no argument's shape.
        depends_on: the name of a tensor that it depends on although it is zero, so that it has a gradient.
    """

    argument: str
    from_list: bool = False
    to_list: bool = False
    zero: bool = False
    words: tuple[str, ...] | None = None
    depends_on: str = ""


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
        integers: the names of the tensors that hold int64, as an index does; they have no gradient.
    """

    name: str
    schema: str
    arguments: tuple[Argument, ...]
    copies: tuple[Copy, ...]
    formula: str = ""
    summary: str = ""
    words: Words | None = None
    integers: tuple[str, ...] = ()

    @property
    def tensors(self) -> list[Argument]:
        """The arguments that hold tensors of floating-point numbers."""
        return [each for each in self.arguments if each.holds_tensors and each.name not in self.integers]

    @property
    def mutated(self) -> tuple[Argument, ...]:
        """The arguments that the operator writes to."""
        return tuple(argument for argument in self.arguments if argument.mutated)


def read_stub(name: str, schema: str, read: Schema, words: Words | None = None, integers: Sequence[str] = ()) -> Stub:
    """The stub of an operator whose schema is known, and perhaps its shapes.

    Args:
        name: of the operator.
        schema: its text.
        read: what it says.
        words: the shapes of its tensors.
        integers: the names of the tensors that hold int64.

    Raises:
        ValueError: no kernel can be written for the schema; the message says what to change.
    """
    plain = [each.name for each in read.arguments if each.is_tensor and not each.optional and not each.mutated]
    if strangers := [each for each in integers if each not in plain]:
        among = f"of {', '.join(plain)}" if plain else "and there are none"
        got = ", ".join(strangers)
        raise ValueError(f"{name}: --integers must name required tensors that are not written to, {among}, got {got}")
    for argument in read.arguments:
        if keyword.iskeyword(argument.name) or argument.name in ("torch", f"{name}_operator"):
            raise ValueError(f"{name}: a Python argument cannot be named {argument.name}: rename it in the schema")
        if argument.kind not in _IN_PYTHON:
            known = ", ".join(_IN_PYTHON)
            raise ValueError(
                f"{name}: {argument.name} is a {argument.kind}, which a C++ kernel cannot take: use one of {known}"
            )
    certain = [
        each for each in read.arguments if each.holds_tensors and not each.optional and each.name not in integers
    ]
    # What is written to only where there is nothing else: it is zero afterwards.
    singles = sorted((each for each in certain if not each.is_list), key=lambda each: each.mutated)
    lists = [each for each in certain if each.is_list and not each.optional_elements]
    if not singles and not lists:
        what = "a required tensor beside those of integers" if integers else "a required tensor"
        raise ValueError(f"{name}: a kernel needs {what}: add an argument of type Tensor or Tensor[]")
    copies = []
    for number, result in enumerate(read.results):
        if words is not None:
            shape = words.results[number]
            fitting = [each.name for each in singles if words.arguments[each.name] == shape]
            if fitting:
                copies.append(Copy(fitting[0]))
                continue
            if not singles or ("..." in shape and len(shape) > 1):
                raise ValueError(
                    f"{name}: the first version of a kernel cannot make the result, {' '.join(shape)}, as no tensor"
                    " argument has its shape: leave --shapes out, and write shapes= in operator.py yourself"
                )
            copies.append(Copy(singles[0].name, zero=True, words=shape, depends_on=singles[0].name))
        elif lists and (result.is_list or not singles):
            copies.append(Copy(lists[0].name, from_list=True, to_list=result.is_list))
        else:
            copies.append(Copy(singles[min(number, len(singles) - 1)].name, to_list=result.is_list))
    return Stub(name, schema, read.arguments, tuple(copies), words=words, integers=tuple(integers))


def with_copies_apart(stub: Stub) -> Stub:
    """The stub with at most one result that copies an argument; others of its shape are zero.

    A gradient is then that of one result, and its kernel copies it.
    """
    copies: list[Copy] = []
    for copy in stub.copies:
        is_copied = any(each.argument == copy.argument and not each.zero for each in copies)
        copies.append(copy._replace(zero=True, depends_on=copy.argument) if is_copied and not copy.zero else copy)
    return stub._replace(copies=tuple(copies))


def backward_of(stub: Stub, read: Schema) -> tuple[str, list[str], tuple[Copy, ...]]:
    """The operator that computes a gradient: its schema, the names of the incoming gradients, and what its results are.

    Args:
        stub: the operator, with at most one copy of each argument.
        read: what its schema says.

    Raises:
        ValueError: it has lists, optional tensors, no result, or writes to something.
    """
    tensors = stub.tensors
    plain = not any(argument.is_list or argument.optional or argument.mutated for argument in tensors)
    if not plain or not read.results or any(result.is_list for result in read.results):
        raise ValueError(
            f"{stub.name}: --backward needs a schema in which all tensors and results are of type Tensor, got"
            f" {stub.schema}: leave --backward out, and declare a second Operator for the gradient by hand"
        )
    before, _, _ = stub.schema[stub.schema.index("(") + 1 :].rpartition("->")
    results = ", ".join(f"Tensor {argument.name}_grad" for argument in tensors)
    grads = _grad_names(stub, read)

    def gradient_of(name: str) -> Copy:
        of_name = [(copy.zero, grad) for copy, grad in zip(stub.copies, grads, strict=True) if copy.argument == name]
        if not of_name:
            return Copy(name, zero=True)
        # The copy, if there is one. The gradient of a result that is zero is zero, too.
        is_zero, grad = min(of_name, key=lambda each: each[0])
        return Copy(name, zero=True, depends_on=grad) if is_zero else Copy(grad)

    copies = tuple(gradient_of(argument.name) for argument in tensors)
    taken = "".join(f"Tensor {grad}, " for grad in grads)
    return f"({taken}{before.strip()} -> {f'({results})' if len(tensors) > 1 else 'Tensor'}", grads, copies


def _grad_names(stub: Stub, read: Schema) -> list[str]:
    """The names of the gradients that come in, one for each result, unlike any of an argument or its gradient."""
    if len(read.results) == 1:
        return ["output_grad"]
    taken = {name for each in stub.arguments for name in (each.name, f"{each.name}_grad")}
    named = [f"{result.name}_grad" for result in read.results if result.name]
    if len(named) == len(read.results) and not taken & set(named):
        return named
    return [f"output_grad_{number}" for number in range(len(read.results))]


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
            tensor, front, back = _rest(stub)
            found.append(f"*{tensor}.shape[{front or ''}:{-back or ''}]")
            continue
        number, name, source = _source(stub, word)
        text = name if source is None else f"{source.tensor}.shape[{source.place}]"
        found.append(_multiplied(number, text, "//", source) if name else str(number))
    return found


def _multiplied(number: int, text: str, division: str, source: sizes.Source | None) -> str:
    """A number times a size, which is divided first if its tensor has a multiple of it."""
    if source is not None and source.divisor > 1:
        text = f"{text} {division} {source.divisor}"
        return text if number == 1 else f"{number} * ({text})"
    return text if number == 1 else f"{number} * {text}"


def _source(stub: Stub, word: str) -> tuple[int, str, sizes.Source | None]:
    """Splits a size in words: a number, a name, and where the name's size is; None if an argument has its value."""
    assert stub.words is not None
    times, name, alone = re.fullmatch(r"(?:(\d+)\*)?([A-Za-z]\w*)|(\d+)", word).groups()  # type: ignore[union-attr]
    if any(argument.name == name for argument in stub.arguments):
        return int(times or 1), name, None
    return int(alone or times or 1), name or "", sizes.source_of(stub.words, name, _required(stub)) if name else None


def _required(stub: Stub) -> list[str]:
    """The names of the tensors that no call leaves out."""
    return [each.name for each in stub.arguments if each.is_tensor and not each.optional]


def _rest(stub: Stub) -> tuple[str, int, int]:
    assert stub.words is not None
    found = sizes.rest_of(stub.words, _required(stub))
    assert found is not None
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
        text = _IN_PYTHON[argument.kind][1]
        if argument.kind == "SymInt" and re.fullmatch(_CHANGING, argument.name):
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


# C++


def host_function(stub: Stub, device: str) -> str:
    """The function in C++ that is the kernel on a kind of device, with the types that the schema says.

    Args:
        stub: the operator.
        device: 'cpu' or 'cuda'.
    """
    used = {argument.name for argument in stub.arguments if argument.holds_tensors}
    used |= {name for copy in stub.copies for _, name, source in _sources(stub, copy) if source is None}
    taken = [
        f"{cpp_type(argument)} {_cpp_name(argument.name) if argument.name in used else f'/*{argument.name}*/'}"
        for argument in stub.arguments
    ]
    types = ["std::vector<Tensor>" if copy.to_list else "Tensor" for copy in stub.copies]
    returned = types[0] if len(types) == 1 else f"std::tuple<{', '.join(types)}>" if types else "void"
    lines = [_filled(f"{returned} {stub.name}_{device}(", taken, ") {"), *_checks(stub)]
    copies = [_cpp_zeros(stub, copy) or _cpp_copy(copy) for copy in stub.copies]
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
    return found | {"zeros" if copy.words is None else "zeros_of" for copy in copies if copy.zero}


def _checks(stub: Stub) -> list[str]:
    """The lines that check each tensor: all lie in memory, and have one device and, without integers, one dtype."""
    tensors = stub.tensors
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
    lines.append(_filled("  check_alike(", words, ");"))
    for each in stub.integers:
        name, one = _cpp_name(each), pairs[-len(tensors)].partition(",")[0]
        lines.append(f'  check_elements<int64_t>({name}, "{each}");')
        lines.append(f'  check_memory({name}, "{each}");')
        lines.append(f'  TORCHGRAFT_CHECK(same_device({one}, {name}), "{each} must be on the device of {one}");')
    return [*lines, *_checks_of_dimensions(stub)]


def _checks_of_dimensions(stub: Stub) -> list[str]:
    """The lines that check the dimensions of tensors whose sizes the results have."""
    assert stub.words is not None or all(copy.words is None for copy in stub.copies)
    sources = (source for copy in stub.copies for _, _, source in _sources(stub, copy))
    tensors = [source.tensor for source in sources if source is not None]
    tensors += [_rest(stub)[0] for copy in stub.copies if "..." in (copy.words or ())]
    lines = []
    for name in dict.fromkeys(tensors):
        shape = stub.words.arguments[name] if stub.words is not None else ()
        count, said = len(shape) - 1, _cpp_name(name)
        if "..." not in shape:
            lines.append(f'  check_dim({said}, {len(shape)}, "{name}");')
        elif count:
            most = f"{name} must have at least {count} dimension{'s' * (count > 1)}"
            lines.append(f'  TORCHGRAFT_CHECK({said}.dim() >= {count}, "{most}");')
    return lines


def _sources(stub: Stub, copy: Copy) -> list[tuple[int, str, sizes.Source | None]]:
    """Where each size of a result that is zero comes from, as far as it has a name."""
    found = [_source(stub, word) for word in copy.words or () if word != "..."]
    return [each for each in found if each[1]]


def _cpp_zeros(stub: Stub, copy: Copy) -> str:
    """A result that is zero and has no argument's shape, in C++; an empty text for any other."""
    if copy.words is None:
        return ""
    like = _cpp_name(copy.argument)
    if "..." in copy.words:
        tensor, front, back = _rest(stub)
        begin, end = (f"{_cpp_name(tensor)}.sizes().{each}()" for each in ("begin", "end"))
        begin, end = begin + f" + {front}" * bool(front), end + f" - {back}" * bool(back)
        return f"zeros_of(std::vector<int64_t>({begin}, {end}), {like})"
    found = []
    for word in copy.words:
        number, name, source = _source(stub, word)
        text = _cpp_name(name) if source is None else f"{_cpp_name(source.tensor)}.size({source.place})"
        found.append(_multiplied(number, text, "/", source) if name else str(number))
    return f"zeros_of({{{', '.join(found)}}}, {like})"


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
