"""A new operator as its author's schema tells it: its arguments, and its results.

Nobody knows yet what the operator computes. Until its author says so, results are copies of its tensors, and what is
written to becomes zero: in the reference and in the kernels alike, so that the package passes every check.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import NamedTuple

from torchgraft.authoring import sizes
from torchgraft.authoring.sizes import Words
from torchgraft.declaration.schema import Argument, Schema

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
IN_PYTHON = {
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

# Numbers that are others in each call, by parts of their names.
CHANGING = r"(?:\w*_)?(?:seed|counter|position)(?:_\w*)?"


def with_symbolic_numbers(schema: str) -> str:
    """The schema with `SymInt` for `int` where a name says that the number is another one in each call, as a seed.

    Code that torch.compile made is compiled again for each new value of an `int`.
    """
    return re.sub(rf"\bint(?=\??\s+{CHANGING}\b)", "SymInt", schema)


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
        if argument.kind not in IN_PYTHON:
            known = ", ".join(IN_PYTHON)
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


def multiplied(number: int, text: str, division: str, source: sizes.Source | None) -> str:
    """A number times a size, which is divided first if its tensor has a multiple of it."""
    if source is not None and source.divisor > 1:
        text = f"{text} {division} {source.divisor}"
        return text if number == 1 else f"{number} * ({text})"
    return text if number == 1 else f"{number} * {text}"


def source_of(stub: Stub, word: str) -> tuple[int, str, sizes.Source | None]:
    """Splits a size in words: a number, a name, and where the name's size is; None if an argument has its value."""
    assert stub.words is not None
    times, name, alone = re.fullmatch(r"(?:(\d+)\*)?([A-Za-z]\w*)|(\d+)", word).groups()  # type: ignore[union-attr]
    if any(argument.name == name for argument in stub.arguments):
        return int(times or 1), name, None
    return int(alone or times or 1), name or "", sizes.source_of(stub.words, name, _required(stub)) if name else None


def _required(stub: Stub) -> list[str]:
    """The names of the tensors that no call leaves out."""
    return [each.name for each in stub.arguments if each.is_tensor and not each.optional]


def rest_of(stub: Stub) -> tuple[str, int, int]:
    """The tensor whose dimensions `...` stands for, and how many others it has before and behind them."""
    assert stub.words is not None
    found = sizes.rest_of(stub.words, _required(stub))
    assert found is not None
    return found
