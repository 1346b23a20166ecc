"""Reads what the C++ headers declare for authors, each declaration with the comment in front of it.

Headers are read as they are written here: clang-format has put them into shape, declarations begin at the start of a
line, and a comment stands directly in front of what it explains. `namespace internal`, and what a library exports for
tools (`extern "C"`), is not for authors and left out.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

INCLUDE = Path(__file__).parents[2] / "src/torchgraft/include/torchgraft"
# What other headers are made of, and no author includes or calls.
HIDDEN_HEADERS = frozenset(
    {
        "calling.h",
        "given.h",
        "last_error.h",
        "measured.h",
        "quiet_allocation.h",
        "registered_when_told.h",
        "schemas.h",
        "shapes.h",
        "signature.h",
    }
)
HIDDEN = frozenset(
    re.findall(
        r"\w+",
        """
        Allocate allocate allocate_from_pytorch fail_to_allocate what_pytorch_says compiled_by compiled_as_this_file
        TORCHGRAFT_QUOTED TORCHGRAFT_QUOTED_ TORCHGRAFT_COMPILER TORCHGRAFT_MEASURED TORCHGRAFT_HAS_TARGETS
        TORCHGRAFT_TARGET TORCHGRAFT_VECTOR_CLONE VectorOf kConverts reinterpret interleave transpose_matrices
        pad_channels launch_transpose kRelayoutTile kRelayoutThreads checked_inputs first_line read_metadata
        why_not_loaded
        """,
    )
)
# What says how a function is compiled or linked, and nothing to whoever calls it.
_NOISE = re.compile(
    r"\b(?:inline|static|__forceinline__|TORCHGRAFT_INLINE|__launch_bounds__\(\w+\))\s"
    r"|__attribute__\(\(.*?\)\)\s|\[\[\w+\]\]\s|/\*|\*/"
)
_CONDITION = re.compile(r"#\s*(?:if|else|elif|endif|undef|error|include|pragma)")
_CONCEPT = re.compile(r"concept\s+(?P<name>\w+)\s*=")
_TYPE = re.compile(r"(?P<kind>enum class|struct|class)\s+(?P<align>alignas\([^{]*?\)\s+)?(?P<name>\w+)")
_USING = re.compile(r"using (?:(?P<name>\w+) = )?(?P<target>.+);$", re.DOTALL)
_MACRO = re.compile(r"#define (?P<signature>(?P<name>\w+)(?:\([^)]*\))?)")


@dataclass
class Declaration:
    """Something that a header declares, with the overloads that share its comment.

    Attributes:
        kind: as a directive of Sphinx: function, type, var, concept, struct, class, enum-class or macro.
        signatures: of functions without their bodies.
        comment: what stands in front of it; empty where nothing does.
        body: of a class, its public part as it is written.
    """

    kind: str
    name: str
    signatures: list[str]
    comment: str
    body: str = ""
    namespace: str = ""

    @property
    def same_for_a_compiler(self) -> tuple[str, str, list[str]]:
        """Equal for what can only be declared once: under one condition of the preprocessor or another."""
        return self.kind, self.name, [] if self.kind in ("macro", "var") else self.signatures


@dataclass
class Header:
    """A header: the comment that it opens with, and what it declares for authors."""

    name: str
    comment: str = ""
    declarations: list[Declaration] = field(default_factory=list)


def read_header(name: str) -> Header:
    """The declarations of a header for authors."""
    return parse_header(name, (INCLUDE / name).read_text())


def parse_header(name: str, text: str) -> Header:
    """The same of the text of a header."""
    header = Header(name)
    namespace = comment = ""
    # The declaration before, and whether an empty line or a comment stands between.
    before: Declaration | None = None
    is_apart = False
    for chunk in _chunks(text):
        if not chunk:
            comment, is_apart = "", True
        elif chunk.startswith("//"):
            comment, is_apart = re.sub(r"^// ?", "", chunk, flags=re.MULTILINE).strip(), True
            if not header.comment:
                header.comment, comment = comment, ""
        elif chunk.startswith("namespace"):
            found = re.match(r"namespace ([\w:]+) \{", chunk)
            namespace = found[1] if found else namespace
        elif declared := _declaration(chunk):
            if declared.name in HIDDEN:
                continue
            declared.comment, comment = comment, ""
            declared.namespace = "" if declared.kind == "macro" else namespace
            if declared.kind == "macro" or re.match(r"torchgraft(?!::internal)", namespace):
                before = _add(header, declared, before, is_apart)
                is_apart = False
    return header


def _add(header: Header, declared: Declaration, before: Declaration | None, is_apart: bool) -> Declaration:
    """Puts a declaration in its place, and gives what the next one comes after."""
    for each in header.declarations:
        if each.same_for_a_compiler == declared.same_for_a_compiler:
            each.signatures, each.comment = declared.signatures, declared.comment or each.comment
            return each
    if before is not None and not declared.comment:
        # Overloads of one name share a comment; so does what stands on the next line.
        if (before.kind, before.name) == (declared.kind, declared.name):
            before.signatures += declared.signatures
            return before
        declared.comment = "" if is_apart else before.comment
    header.declarations.append(declared)
    return declared


def undocumented(header: Header) -> list[str]:
    """The names that no comment explains."""
    return [each.name for each in header.declarations if not each.comment]


def _chunks(text: str) -> Iterator[str]:
    """Comments, empty lines and declarations, each as one text."""
    text = re.sub(r"^namespace internal \{.*?^\}  // namespace internal$\n?", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = text.splitlines()
    while lines:
        chunk = [lines.pop(0)]
        if chunk[0].startswith("//"):
            while lines and lines[0].startswith("//"):
                chunk.append(lines.pop(0))
        elif chunk[0].startswith("#"):
            while chunk[-1].endswith("\\"):
                chunk.append(lines.pop(0))
        elif chunk[0] and not chunk[0].startswith(("namespace", "}")):
            while lines and not _is_complete("\n".join(chunk)):
                chunk.append(lines.pop(0))
        if not chunk[0].startswith("}") and not _CONDITION.match(chunk[0]):
            yield "\n".join(chunk)


def _is_complete(text: str) -> bool:
    """Whether this is a whole declaration: it ends with a semicolon or a brace, and all brackets are closed."""
    bare = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'|//[^\n]*', "", text)
    depth = sum(bare.count(opening) - bare.count(closing) for opening, closing in ("()", "[]", "{}"))
    return depth == 0 and bare.rstrip().endswith((";", "}"))


def _declaration(text: str) -> Declaration | None:
    if macro := _MACRO.match(text):
        return Declaration("macro", macro["name"], [macro["signature"]], "")
    if text.startswith(('extern "C"', "template <>")):
        return None
    template, rest = _split_template(text)
    if found := _CONCEPT.match(rest):
        return Declaration("concept", found["name"], [_one_line(template + found["name"])], "", text)
    if found := _TYPE.match(rest):
        head = rest.partition("{")[0].removeprefix(found["kind"]).replace(found["align"] or "", "", 1).rstrip(" ;")
        public = re.split(r"^ private:$", text, flags=re.MULTILINE)[0].rstrip()
        body = "" if "{" not in text else public if public == text else f"{public}\n}};"
        kind = found["kind"].replace(" ", "-")
        return Declaration(kind, found["name"], [_one_line(template + head)], "", body)
    if using := _USING.match(rest):
        name = using["name"] or using["target"].rpartition("::")[2]
        return Declaration("type", name, [_one_line(f"{template}{name} = {using['target']}")], "")
    signature = _one_line(_NOISE.sub("", _without_body(rest)))
    if call := re.search(r"\b(?!decltype)(\w+)\(", signature.partition(" = ")[0]):
        return Declaration("function", call[1], [_one_line(template + signature)], "")
    variable = re.search(r"(\w+)(?:\[\])? = ", signature)
    if variable is None:
        raise ValueError(f"a declaration that is not understood:\n{text}")
    return Declaration("var", variable[1], [_one_line(template + signature)], "")


def _split_template(text: str) -> tuple[str, str]:
    """The `template <...>` in front of a declaration, and the declaration, which begins on a line of its own."""
    if not text.startswith("template"):
        return "", text
    template, rest = text.split(">\n", 1)
    # A line of its own, too.
    condition = re.match(r"\s*(requires\(.*\))\n", rest)
    if condition is None:
        return f"{template}> ", rest
    return f"{template}> {condition[1]} ", rest[condition.end() :]


def _without_body(text: str) -> str:
    depth = 0
    for place, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter in "{;" and depth == 0:
            return text[:place]
    return text


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()
