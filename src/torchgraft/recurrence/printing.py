"""Prints a cell as C++: one operation a line, on a type of numbers that CPU and CUDA kernels choose."""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from torchgraft.recurrence.graph import Graph, Node
from torchgraft.recurrence.operations import INPUT, NUMBER, OPERATIONS, SAME

_LINE = 110
_ATEN = {ours: theirs for theirs, ours in SAME.items() if not theirs.startswith("bitwise")} | {
    "clamp_min": "clamp",
    "clamp_max": "clamp",
    "to_number": "_to_copy",
    "tanh_slope": "tanh_backward",
    "sigmoid_slope": "sigmoid_backward",
}
# Names that a variable cannot have: words of C++ that Python allows as names, and what the printed code uses.
_TAKEN = frozenset(
    re.findall(
        r"\w+",
        "alignas alignof and and_eq asm auto bitand bitor bool case catch char compl const constexpr decltype default"
        " delete do double enum explicit export extern false float friend goto inline int long mutable namespace new"
        " noexcept not not_eq nullptr operator or or_eq private protected public register short signed sizeof static"
        " struct switch template this throw true typedef typeid typename union unsigned using virtual void volatile"
        " wchar_t xor xor_eq T M read written concept requires char8_t char16_t char32_t consteval constinit const_cast"
        " dynamic_cast reinterpret_cast static_cast static_assert thread_local co_await co_return co_yield linux unix"
        " INFINITY NAN",
    )
)


def print_cell(name: str, constants: Mapping[str, object], passes: Mapping[str, tuple[Graph, str]]) -> str:
    """Prints a struct `Cell` with its counts and passes.

    Args:
        name: of the cell.
        constants: their values, by type and name.
        passes: the graph of each, and what it computes, by the name of the struct that is printed.
    """
    lines = [f"// The cell {name}, printed by torchgraft from its definition in PyTorch.", "struct Cell {"]
    lines += [f"  static constexpr {each} = {value};" for each, value in constants.items()]
    for title, (graph, said) in passes.items():
        lines += ["", *_wrapped(said), f"  struct {title} {{", *_pass(graph), "  };"]
    return "\n".join([*lines, "};", ""])


def _pass(graph: Graph) -> list[str]:
    names: list[str] = []
    used = Counter(_variable(each) for each in graph.inputs)
    lines = []
    for node in graph.nodes:
        if node.operation == INPUT:
            place = int(node.number)
            names.append(_variable(graph.inputs[place]))
            lines.append(f"const T {names[-1]} = read[{place}];")
        elif node.operation == NUMBER:
            names.append(_number(node.number))
        else:
            text = _text(node, [names[place] for place in node.arguments], graph)
            names.append(_fresh(node.operation, used))
            lines.append(
                f"const {'bool' if node.is_bool else 'T'} {names[-1]} = {text};"
                f"  // aten.{_ATEN.get(node.operation, node.operation)}"
            )
    lines += [f"written[{number}] = {names[place]};" for number, place in enumerate(graph.outputs)]
    return [
        f"    static constexpr int kReads = {len(graph.inputs)};",
        f"    static constexpr int kWrites = {len(graph.outputs)};",
        "    template <typename M, typename T>",
        "    static TORCHGRAFT_CELL_FUNCTION void unit(const T* read, T* written) {",
        *(f"      {line}" for line in lines),
        "    }",
    ]


def _text(node: Node, names: Sequence[str], graph: Graph) -> str:
    if node.operation == "pow":
        exponent = graph.nodes[node.arguments[1]]
        if exponent.operation == NUMBER and (text := _POWERS.get(exponent.number)) is not None:
            return text.format(names[0])
    return OPERATIONS[node.operation].text.format(*names)


# Quicker than a power of two numbers, and vectorized.
_POWERS = {
    0.0: "T(1)",
    2.0: "{0} * {0}",
    3.0: "{0} * {0} * {0}",
    4.0: "({0} * {0}) * ({0} * {0})",
    0.5: "M::sqrt({0})",
    -1.0: "T(1) / {0}",
    -2.0: "T(1) / ({0} * {0})",
}


def _number(value: float) -> str:
    if math.isnan(value):
        return "T(NAN)"
    if math.isinf(value):
        return f"T({'-' * (value < 0)}INFINITY)"
    return f"T({value!r})"


def _variable(name: str) -> str:
    """A name of Python as one of C++, which has other words of its own, and no other letters than ASCII's."""
    plain = re.sub(r"\W", lambda letter: f"u{ord(letter.group()):x}", name, flags=re.ASCII)
    return f"{plain}_" if plain in _TAKEN or keyword.iskeyword(plain) or plain.startswith("_") else plain


def _fresh(operation: str, used: Counter[str]) -> str:
    """A name that no other value of the pass has."""
    stem = name = f"{operation}_" if operation in _TAKEN else operation
    while used[name]:
        used[stem] += 1
        name = f"{stem}_{used[stem]}".replace("__", "_")
    used[name] += 1
    return name


def _wrapped(text: str) -> list[str]:
    lines, line = [], "  //"
    for word in text.split():
        if len(line) + len(word) >= _LINE:
            lines.append(line)
            line = "  //"
        line += f" {word}"
    return [*lines, line]
