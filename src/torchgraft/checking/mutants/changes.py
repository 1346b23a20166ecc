"""Changes of one place in a kernel's source, found in its syntax tree, and the source that holds many of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_HEADER = Path(__file__).with_name("mutant.h")
_COMMENT_OR_STRING = re.compile(rb'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
# The grammar of C++ lacks these: attributes by macros, and the configuration of a launch.
_FOREIGN = re.compile(
    rb"\b(?:[A-Z][A-Z0-9_]{3,}|__\w+__)(?:\([\w\s,*/:]*\))?(?=\s+[a-zA-Z_(])(?!\s*\()"
    rb"|__attribute__\(\(.*?\)\)|<<<.*?>>>",
    re.DOTALL,
)
_BARRIER = re.compile(
    rb"\w*(?:sync(?:threads|warp|_)|barrier|fence|wait|arrive|commit)\w*(?:<[^<>]*>)?$", re.IGNORECASE
)
# The third argument of these says from how much work on another thread joins in, which changes no result.
_PARALLEL = re.compile(rb"(?:torchgraft::)?(?:parallel_for|sum_rows(?:<.*>)?)")
_BOUND = re.compile(rb"(?:std::)?(min|max|clamp)\b")
# These give the same for their two arguments in either order.
_SYMMETRIC = re.compile(rb"(?:torchgraft::)?same_device|(?:std::)?f(?:max|min)f?")
# Nodes that must hold constants or types, or that only a preprocessor or an assembler reads.
_NOT_THERE = re.compile(
    r"preproc_(?!if|ifdef|else|elif)|template_(?:argument|parameter)_list|static_assert|sizeof|alignof|alignas|decltype"
    r"|gnu_asm|enumerator|requires|concept|attribute|noexcept|using_|alias_|type_definition|type_descriptor|ERROR"
)
_BOUNDARIES = {b"<": b"<=", b"<=": b"<", b">": b">=", b">=": b">"}
# Two arguments are swapped if they are nodes of one of these kinds: those are mostly of one type.
_SIMPLE = {"identifier", "field_expression", "binary_expression", "subscript_expression"}
_NUMBER = re.compile(rb"(?:std::)?(?:u?int\d*(?:_t)?|size_t|bool|char|float|double|unsigned|long|short)(?: |$)")

# The sample that would tell a mutant from the original, by the kind of the change.
ADVICE = {
    "boundary": "a sample in which both sides of this comparison are equal",
    "condition": "a sample whose result depends on this condition alone, with all around it true",
    "term": "a sample in which the term that is left out is not zero and reaches a result",
    "index": "a sample in which the neighbouring element holds another value, or does not belong to this tensor",
    "swap": "a sample in which the two arguments have different values",
    "bound": "a sample beyond this bound",
    "barrier": "a sample in which one thread reads what another one writes on the other side of this barrier",
}


@dataclass(frozen=True)
class Mutant:
    """One change of one place.

    Attributes:
        file: the source, relative to its folder.
        line: the number of the first line that it changes.
        kind: of `ADVICE`.
        start: of the first byte that is replaced.
        end: behind the last one.
        after: what stands there instead; nothing where a statement is taken out.
        shown: the lines that it changes, and what becomes of them, without spaces around.
    """

    file: str
    line: int
    kind: str
    start: int
    end: int
    after: bytes
    shown: tuple[str, str]

    @property
    def words(self) -> tuple[str, str, str]:
        """Its file, and its lines before and after the change, by which a list of equivalent mutants names it."""
        return self.file, *self.shown


def find_mutants(file: str, source: bytes) -> list[Mutant]:
    """Finds every change of a source, in the order of their places.

    Args:
        file: its name, relative to its folder.
        source: C++ or CUDA.

    Raises:
        ModuleNotFoundError: tree-sitter is not installed.
    """
    import tree_sitter_cpp
    from tree_sitter import Language, Parser

    code = _COMMENT_OR_STRING.sub(lambda found: found[0] if found[0][:1] == b'"' else _blank(found), source)
    tree = Parser(Language(tree_sitter_cpp.language())).parse(_FOREIGN.sub(_blank, code))
    found, types, grains = [], _declared_types(tree.root_node), _grains(tree.root_node)
    for kind, node, after in _changes(tree.root_node, types, inside=False):
        if _is_in_declaration_of(node, grains):
            continue
        start, end = node.start_byte, node.end_byte
        first, last = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", end)
        replaced = re.sub(rb"\s*\n\s*", b" ", after)
        shown = (source[first:last], source[first:start] + replaced + source[end:last])
        lines = tuple("\n".join(line.strip() for line in text.decode().splitlines()) for text in shown)
        found.append(Mutant(file, node.start_point[0] + 1, kind, start, end, replaced, (lines[0], lines[1])))
    return sorted(found, key=lambda mutant: (mutant.start, -mutant.end))


def rewrite(source: bytes, mutants: Mapping[int, Mutant], path: str) -> bytes:
    """Rewrites a source so that it computes what the mutant does whose number is chosen (mutant.h).

    For the compiler a mutant stands in a file `mutants`, at the line of its number, and all else where it stood.

    Args:
        source: as `find_mutants` had it.
        mutants: of this source, by number.
        path: of the source.
    """
    places: dict[tuple[int, int], list[int]] = {}
    for number, mutant in mutants.items():
        places.setdefault((mutant.start, -mutant.end), []).append(number)
    ordered = [(start, -end, numbers) for (start, end), numbers in sorted(places.items())]
    head = f'#include "{_HEADER}"\n#line 1 "{path}"\n'.encode()
    return head + _rewritten(source, 0, len(source), ordered, mutants, path)


def _rewritten(
    source: bytes,
    begin: int,
    end: int,
    places: list[tuple[int, int, list[int]]],
    mutants: Mapping[int, Mutant],
    path: str,
) -> bytes:
    parts, at = [], begin
    while places:
        start, stop, numbers = places[0]
        inner = [place for place in places[1:] if place[0] < stop]
        original = _rewritten(source, start, stop, inner, mutants, path)
        for number in numbers:
            mutant = mutants[number]
            # A mutant without text leaves out a statement; all others replace an expression.
            text = "(TORCHGRAFT_MUTANT({}) ? ({}) : (" if mutant.after else "if (TORCHGRAFT_MUTANT({})) {{{}}} else "
            if mutant.after in (b"true", b"false"):
                # A condition may be an optional value, which becomes a bool only if it stands alone.
                text = text.removesuffix("(") + "static_cast<bool>("
            chosen = text.format(number, mutant.after.decode())
            marked = f'\n#line {number + 1} "mutants"\n{chosen}\n#line {mutant.line} "{path}"\n'
            original = marked.encode() + original + (b"))" if mutant.after else b"")
        parts += [source[at:start], original]
        places, at = places[1 + len(inner) :], stop
    return b"".join((*parts, source[at:end]))


def _blank(found: re.Match[bytes]) -> bytes:
    return re.sub(rb"[^\n]", b" ", found[0])


# The kind of a change, the node that is replaced, and the text in its place.
_Change = tuple[str, "Node", bytes]


def _declared_types(root: Node) -> dict[bytes, bytes]:
    """Finds the type of each name that a source declares; empty if the name has several types.

    Numbers are one type, which `_type_of` calls `number`; a pointer's type ends with a star.
    """
    types: dict[bytes, bytes] = {}
    for node in _nodes(root):
        text = _text_of(node.child_by_field_name("type"))
        for declarator in node.children_by_field_name("declarator") if text else ():
            stars, inner = b"", declarator
            while inner.type not in ("identifier", "field_identifier", "function_declarator") and inner.named_children:
                stars += b"*" * (inner.type in ("pointer_declarator", "array_declarator"))
                # The grammar has no field name for the declarator inside that of a reference.
                inner = inner.child_by_field_name("declarator") or inner.named_children[-1]
            if inner.text and inner.type != "function_declarator":
                found = b"" if text == b"auto" else (b"number" if _NUMBER.match(text) else text) + stars
                types[inner.text] = found if types.get(inner.text, found) == found else b""
    return types


def _type_of(node: Node | None, types: Mapping[bytes, bytes]) -> bytes:
    """Finds the type of an expression; empty if it is not known."""
    if node is not None and node.type == "binary_expression":
        if _text_of(node.child_by_field_name("operator")) not in (b"+", b"-"):
            return b""
        left, right = (_type_of(node.child_by_field_name(side), types) for side in ("left", "right"))
        return left if left.endswith(b"*") or left == right else right if right.endswith(b"*") else b""
    if node is not None and node.type == "field_expression":
        node = node.child_by_field_name("field")
    return b"number" if node is not None and node.type == "number_literal" else types.get(_text_of(node), b"")


def _text_of(node: Node | None) -> bytes:
    return (node.text if node else None) or b""


def _nodes(root: Node) -> Iterator[Node]:
    waiting = [root]
    while waiting:
        yield (node := waiting.pop())
        waiting += node.children


def _grain_of(arguments: Node) -> Node | None:
    """The argument that says from how much work on another thread joins in; None if no such function is called."""
    called = arguments.parent and arguments.type == "argument_list" and arguments.parent.child_by_field_name("function")
    is_parallel = called and _PARALLEL.fullmatch(called.text or b"") and len(arguments.named_children) > 3
    return arguments.named_children[2] if is_parallel else None


def _grains(root: Node) -> set[bytes]:
    """Finds the names of variables that hold nothing but such an argument."""
    found: set[bytes] = set()
    others: set[bytes] = set()
    for node in _nodes(root):
        above = node.parent if node.type == "identifier" else None
        if above is not None and node == _grain_of(above):
            found.add(_text_of(node))
        elif above is not None and not (
            above.type == "init_declarator" and node == above.child_by_field_name("declarator")
        ):
            others.add(_text_of(node))
    return found - others


def _is_in_declaration_of(node: Node, names: set[bytes]) -> bool:
    """Whether a node stands in the value that a variable of one of these names begins with."""
    above = node.parent
    while above is not None and above.type != "compound_statement":
        if above.type == "init_declarator":
            return _text_of(above.child_by_field_name("declarator")) in names
        above = above.parent
    return False


def _changes(node: Node, types: Mapping[bytes, bytes], *, inside: bool) -> Iterator[_Change]:
    """Yields the changes of a node and of all below; `inside` says whether it stands in a function."""
    if _NOT_THERE.match(node.type) or (node.type == "declaration" and _has(node, b"constexpr")):
        return
    inside = inside or node.type in ("compound_statement", "field_initializer_list")
    constant = {"case_statement": "value", "array_declarator": "size"}.get(node.type)
    if node.type == "if_statement" and _has(node, b"constexpr"):
        constant = "condition"
    elif inside:
        yield from (change for change in _changes_of(node, types) if _is_plain(change[1]))
    skipped = constant and node.child_by_field_name(constant)
    skipped = skipped or _grain_of(node)
    for child in node.children:
        if child != skipped:
            yield from _changes(child, types, inside=inside)


def _has(node: Node, word: bytes) -> bool:
    return any(child.text == word for child in node.children)


def _is_plain(node: Node) -> bool:
    """Whether a node holds neither a lambda, which would have another type in each copy, nor a string."""
    if node.has_error or node.type in ("lambda_expression", "string_literal"):
        return False
    return all(_is_plain(child) for child in node.children)


def _changes_of(node: Node, types: Mapping[bytes, bytes]) -> Iterator[_Change]:
    """Yields the changes of a node itself."""

    def text(name: str) -> bytes:
        return _text_of(node.child_by_field_name(name))

    named = node.named_children
    if node.type == "binary_expression":
        left, operator, right = text("left"), text("operator"), text("right")
        if operator in _BOUNDARIES:
            yield "boundary", node, b" ".join((left, _BOUNDARIES[operator], right))
        elif operator in (b"&&", b"||"):
            yield from (("condition", node, side) for side in (left, right))
        elif operator in (b"+", b"-"):
            yield "term", node, left
            # Without the pointer, a sum of a pointer and a number would be no pointer.
            if operator == b"+" and not _type_of(node.child_by_field_name("left"), types).endswith(b"*"):
                yield "term", node, right
    elif node.type == "conditional_expression":
        yield from (("condition", node, text(name)) for name in ("consequence", "alternative"))
    elif node.type == "condition_clause" and node.parent and node.parent.type == "if_statement":
        if (value := node.child_by_field_name("value")) and value.type != "declaration":
            yield from (("condition", value, each) for each in (b"true", b"false"))
    elif node.type == "subscript_argument_list" and len(named) == 1:
        steps = (b"+ 1",) if named[0].type == "number_literal" else (b"+ 1", b"- 1")
        yield from (("index", named[0], b"(%s) %s" % (named[0].text or b"", step)) for step in steps)
    elif node.type == "call_expression" and (arguments := node.child_by_field_name("arguments")):
        yield from _changes_of_call(node, text("function"), arguments.named_children, types)
    elif node.type == "expression_statement" and named:
        function = named[0].child_by_field_name("function")
        if named[0].type == "assignment_expression" and (_has(named[0], b"+=") or _has(named[0], b"-=")):
            yield "term", node, b""
        elif function is not None and _BARRIER.search(function.text or b""):
            yield "barrier", node, b""


def _changes_of_call(
    node: Node, function: bytes, values: list[Node], types: Mapping[bytes, bytes]
) -> Iterator[_Change]:
    bounded = _BOUND.match(function)
    if bounded and len(values) == (3 if bounded[1] == b"clamp" else 2):
        yield from (("bound", node, value.text or b"") for value in values[: 1 if bounded[1] == b"clamp" else 2])
        return
    if _SYMMETRIC.fullmatch(function) and len(values) == 2:
        return
    # The arguments of a macro may be anything.
    for one, other in pairwise(values if re.search(rb"[a-z]", function) else ()):
        known = {_type_of(one, types), _type_of(other, types)} - {b""}
        if one.type == other.type in _SIMPLE and one.text != other.text and len(known) < 2:
            whole, start = node.text or b"", node.start_byte
            places = (one.start_byte - start, one.end_byte - start, other.start_byte - start, other.end_byte - start)
            first, second = whole[places[0] : places[1]], whole[places[2] : places[3]]
            between = whole[places[1] : places[2]]
            yield "swap", node, b"".join((whole[: places[0]], second, between, first, whole[places[3] :]))
