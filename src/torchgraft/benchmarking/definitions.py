"""C++ and CUDA sources as definitions: what a compiler is given, without comments, line breaks and places of files.

A definition is a function, a type, a constant, a macro: what stands at the level of a namespace, and a function that is
the member of a class. Each is kept as its tokens, with the names that it introduces and those that it mentions. No
compiler is asked and no macro is expanded, so that every machine reads the same. What is not understood introduces no
name, and counts wherever its file is used.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

_TOKEN = re.compile(
    r"""
      (?P<comment> //(?:[^\\\n]|\\(?:\r?\n|.))* | /\*.*?\*/ )
    | (?P<raw> (?:u8|[uUL])?R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)" )
    | (?P<text> (?:u8|[uUL])?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*') )
    | (?P<number> \.?\d(?:[eEpP][+-]|'\w|[\w.])* )
    | (?P<name> [^\W\d]\w* )
    | (?P<splice> \\\r?\n )
    | (?P<line> \n )
    | (?P<space> \s )
    | (?P<sign> \+\+ | -- | && | :: | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        """
        alignas auto bool char class concept const consteval constexpr constinit decltype double enum explicit extern
        float inline int long mutable namespace noexcept register requires short signed static static_assert struct
        template thread_local typedef typename union unsigned using void volatile __align__ __attribute__
        __cluster_dims__ __constant__ __device__ __forceinline__ __global__ __host__ __launch_bounds__ __noinline__
        __restrict__ __shared__
        """,
    )
)
_TYPES = frozenset({"struct", "class", "union", "enum"})
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
# Functions that a loop calls without their names.
_UNNAMED_CALLS = frozenset({"begin", "end"})
_ACCESS = frozenset({"public", "private", "protected"})
# The conditions under which a definition is compiled, as far as they lie outside of it.
_CONDITIONS = frozenset({"if", "ifdef", "ifndef", "elif", "else"})


@dataclass(frozen=True, eq=False)
class Definition:
    """Something at the level of a namespace, or a member function.

    Attributes:
        tokens: its text, and before it the conditions of the preprocessor that it stands under.
        names: that it introduces; none where it is not understood.
        owner: the class, of a member that is defined outside of it.
        has_body: whether it defines, and does not only declare.
        is_local: whether other files cannot see it.
        is_kernel: whether it is a kernel that a host function launches on a GPU.
        is_function: whether it is a function.
    """

    tokens: tuple[str, ...]
    names: frozenset[str]
    owner: str = ""
    has_body: bool = True
    is_local: bool = False
    is_kernel: bool = False
    is_function: bool = False

    @cached_property
    def mentioned(self) -> frozenset[str]:
        """Every word in it."""
        return frozenset(filter(_is_name, self.tokens))

    @cached_property
    def text(self) -> str:
        """What it is, the same wherever it stands and however its lines are broken."""
        return " ".join(self.tokens)

    @property
    def is_exported(self) -> bool:
        """Whether others than sources call it by its name: Python, say."""
        return self.has_body and self.tokens[:2] == ("extern", '"C"')

    @property
    def registers(self) -> tuple[str, str] | None:
        """The kind of device and the name of the operator that it registers by TORCHGRAFT_KERNEL, if it does."""
        if self.tokens[:1] not in _REGISTERING or len(self.tokens) < 7 or self.tokens[1] != "(":
            return None
        return self.tokens[4].lower(), self.tokens[6]


_REGISTERING = (("TORCHGRAFT_KERNEL",), ("TORCHGRAFT_KERNEL_BESIDE",))


@dataclass(frozen=True)
class SourceFile:
    """A file: its own definitions, and what it includes, as it is written there."""

    definitions: tuple[Definition, ...]
    includes: tuple[str, ...]


def read_source(text: str) -> SourceFile:
    """The definitions and includes of a source."""
    reader = _Reader()
    for line, tokens in _lines(text):
        reader.directive(tokens) if line == "directive" else reader.code(tokens)
    return reader.finish()


def _lines(text: str) -> Iterator[tuple[str, list[str]]]:
    """Stretches of code, and directives of the preprocessor between them, without comments and spaces."""
    tokens: list[str] = []
    at_start, directive = True, False
    for found in _TOKEN.finditer(text):
        kind = found.lastgroup
        if kind == "line":
            if directive:
                yield "directive", tokens
                tokens, directive = [], False
            at_start = True
        elif kind not in ("comment", "space", "splice"):
            if at_start and found[0] == "#":
                if tokens:
                    yield "code", tokens
                tokens, directive = [], True
            else:
                tokens.append(found[0])
            at_start = False
    if tokens:
        yield "directive" if directive else "code", tokens


class _Reader:
    """Cuts tokens into definitions."""

    def __init__(self) -> None:
        self.definitions: list[Definition] = []
        self.includes: list[str] = []
        self._tokens: list[str] = []
        self._depth = 0
        # Of each namespace that is open, whether it has no name.
        self._namespaces: list[bool] = []
        self._conditions: list[list[str]] = []

    def directive(self, tokens: list[str]) -> None:
        kind, rest = (tokens[0], tokens[1:]) if tokens else ("", [])
        if kind == "include":
            self.includes.append("".join(rest))
        elif self._tokens:
            # In the middle of a definition it is a part of it.
            self._tokens += ["\n#", *tokens, "\n"]
        elif kind == "define" and rest:
            self._add(Definition(("#define", *rest), frozenset(rest[:1])))
        elif kind == "endif":
            del self._conditions[-1:]
        elif kind in ("elif", "else") and self._conditions:
            self._conditions[-1] += ["\n#", *tokens]
        elif kind in _CONDITIONS:
            self._conditions.append(["\n#", *tokens])
        elif kind not in ("undef", "") and tokens != ["pragma", "once"]:
            self._add(Definition(("#", *tokens), frozenset()))

    def code(self, tokens: Sequence[str]) -> None:
        for place, token in enumerate(tokens):
            if self._depth == 0 and not self._tokens and token in ("}", ";"):
                if token == "}":
                    del self._namespaces[-1:]
                continue
            self._tokens.append(token)
            if token in _OPENING:
                if self._depth == 0 and token == "{" and self._opens_namespace():
                    continue
                self._depth += 1
            elif token in _CLOSING:
                self._depth -= 1
            following = tokens[place + 1] if place + 1 < len(tokens) else ""
            if self._depth == 0 and self._is_whole(following):
                for definition in _define(tuple(self._tokens), local=any(self._namespaces)):
                    self._add(definition)
                self._tokens = []

    def _opens_namespace(self) -> bool:
        words = [token for token in self._tokens[:-1] if token != "inline"]
        if words[:1] == ["namespace"] or (words[:1] == ["extern"] and len(words) == 2):
            self._namespaces.append(words == ["namespace"])
            self._tokens = []
            return True
        return False

    def _is_whole(self, following: str) -> bool:
        tokens = self._tokens
        if tokens[-1] == ";":
            return True
        if tokens[-1] == "}":
            head = _head(tokens)
            return following != ";" and "=" not in head and not (_is_type(head) or tokens[0] == "typedef")
        # A macro that stands alone. What follows an attribute of a function is not told from it, and counts by itself.
        return tokens[-1] == ")" and _is_call(tokens) and following not in ("{", ";")

    def _add(self, definition: Definition) -> None:
        if definition.tokens[:1] == ("static_assert",):
            return
        conditions = tuple(token for condition in self._conditions for token in condition)
        if conditions:
            definition = replace(definition, tokens=(*conditions, "\n", *definition.tokens))
        self.definitions.append(definition)

    def finish(self) -> SourceFile:
        """Ends the last definition; one that never ended is not understood, and counts as it is."""
        if self._tokens:
            self._add(Definition(tuple(self._tokens), frozenset()))
        return SourceFile(tuple(self.definitions), tuple(self.includes))


def _is_name(token: str) -> bool:
    return token.isidentifier() and token not in _KEYWORDS


def _is_call(tokens: Sequence[str]) -> bool:
    return len(tokens) > 1 and _is_name(tokens[0]) and tokens[1] == "("


def _head(tokens: Sequence[str]) -> list[str]:
    """What stands before the body: without the parameters of a template, and of what is in brackets only the ends."""
    head: list[str] = []
    depth = angle = 0
    for token in tokens:
        if angle or (token == "<" and head[-1:] == ["template"]):
            depth += (token in _OPENING) - (token in _CLOSING)
            angle += ((token == "<") - (token == ">")) if depth == 0 else 0
            continue
        depth -= token in _CLOSING
        if depth == 0:
            head.append(token)
            if token in ("{", ";", "="):
                break
        depth += token in _OPENING
    return head


def _is_type(head: Sequence[str]) -> bool:
    """Whether a type is declared: its keyword comes before any parameters of a function."""
    return not _TYPES.isdisjoint(itertools.takewhile("(".__ne__, head))


def _define(tokens: tuple[str, ...], *, local: bool) -> Iterator[Definition]:
    """What tokens define: one thing, and of a class the functions in it, each for itself."""
    whole = _define_one(tokens, local=local)
    members: list[Definition] = []
    head = _head(tokens)
    if _is_type(head) and head[-1] == "{" and "enum" not in head and "\n#" not in tokens:
        opening = tokens.index("{")
        closing = len(tokens) - 1 - tokens[::-1].index("}")
        reader = _Reader()
        reader.code(tokens[opening + 1 : closing])
        kept: list[str] = []
        for each in reader.finish().definitions:
            while each.tokens[0] in _ACCESS:
                each = _define_one(each.tokens[2:], local=local)
            apart = each.has_body and each.is_function and not each.names & (whole.names | _UNNAMED_CALLS)
            if apart:
                members.append(replace(each, tokens=(*sorted(whole.names), "::", *each.tokens), is_local=local))
            else:
                kept += each.tokens
        whole = replace(whole, tokens=(*tokens[: opening + 1], *kept, *tokens[closing:]))
    yield whole
    yield from members


def _define_one(tokens: tuple[str, ...], *, local: bool) -> Definition:
    head = _head(tokens)
    local = local or "static" in head
    if _is_call(tokens) or "operator" in head or head[:2] == ["using", "namespace"] or head[:1] == ["namespace"]:
        return Definition(tokens, frozenset(), is_local=local)
    words = list(filter(_is_name, head))
    if head[:1] == ["using"]:
        return Definition(tokens, frozenset(words[-1:] if "=" not in head else words[:1]), is_local=local)
    if head[:1] == ["typedef"]:
        return Definition(tokens, frozenset(words), is_local=local)
    if _is_type(head):
        own = head[: head.index(":")] if ":" in head else head
        names = frozenset(word for word in words if word in own) | _enumerators(tokens, head)
        return Definition(tokens, names, has_body="{" in head, is_local=local)
    functions: set[str] = set()
    owner = ""
    for place in (place for place, token in enumerate(head) if token == "("):
        before = _before_arguments(head, place)
        if before >= 0 and _is_name(head[before]):
            functions.add(head[before])
            if before > 1 and head[before - 1] == "::":
                owner = head[before - 2]
    if functions:
        return Definition(tokens, frozenset(functions), owner, "{" in head, local, "__global__" in head, True)
    variables = frozenset(
        token
        for token, after in zip(head, [*head[1:], ""], strict=True)
        if _is_name(token) and after in ("=", "[", "{", ";", ",")
    )
    return Definition(tokens, variables, has_body="extern" not in head, is_local=local)


def _before_arguments(head: Sequence[str], place: int) -> int:
    """Where the name stands that `(` follows, be it with arguments of a template between them."""
    before, angle = place - 1, 0
    while before >= 0 and (head[before] == ">" or angle):
        angle += (head[before] == ">") - (head[before] == "<")
        before -= 1
    return before


def _enumerators(tokens: Sequence[str], head: Sequence[str]) -> frozenset[str]:
    if "enum" not in head or "{" not in tokens:
        return frozenset()
    return frozenset(token for token in tokens[tokens.index("{") :] if token.isidentifier())
