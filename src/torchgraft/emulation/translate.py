"""Translates CUDA C++ to C++ for the emulator, as far as macros cannot do it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from torchgraft.building import BuildError

# The suffixes of a source, and of its translation, which is compiled.
SOURCE, COMPILED = ".cu", ".cu.cpp"
# Translations by the paths that they get in a folder.
Tree = dict[Path, str]

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include(?:_next)?\b[ \t]*(.*)$", re.MULTILINE)
_QUOTED = re.compile(r'"([^"]+)"')
# Texts that are replaced everywhere: names of PyTorch's CUDA, and names that no macro may have.
_REPLACED = (
    ("torch::stable::accelerator::DeviceGuard", "::emulation::DeviceGuard"),
    ("aoti_torch_get_current_cuda_stream", "::emulation::get_current_stream"),
    ("aoti_torch_device_type_cuda", "aoti_torch_device_type_cpu"),
    ("torch_call_dispatcher(", "::emulation::call_dispatcher("),
    ("&aoti_torch_empty_strided", "&::emulation::empty_strided"),
    # libstdc++ writes __attribute__((__noinline__)).
    ("__noinline__", "__attribute__((noinline))"),
    # PyTorch's headers test them too.
    ("__CUDA_ARCH__", "EMULATED_CUDA_ARCH"),
    ("__CUDACC__", "EMULATED_CUDA_ARCH"),
)
_OF_TORCH = re.compile(r"#include <torch/csrc/inductor/aoti_torch/c/shim\.h>")
_REGISTRATION = re.compile(r"((?:TORCHGRAFT_KERNEL(?:_BESIDE)?\(\s*\w+\s*,|TORCHGRAFT_RECORDED\()\s*)CUDA\b")
_ALIGNED = r"(?:(?:__align__|alignas)\(\w+\)\s+)?"
_DYNAMIC_SHARED = re.compile(rf"\bextern\s+__shared__\s+{_ALIGNED}([\w:\s]+?)\s+(\w+)\s*\[\s*\]\s*;")
_STATIC_SHARED = re.compile(rf"\b__shared__\s+({_ALIGNED})([^;{{}}]+);")
# A type and the first name behind it; a name: each perhaps an array.
_FIRST = re.compile(r"\s*(?P<kind>[\w:<>,\s]*[\w>])\s+(?P<name>\w+)\s*(?P<extents>(?:\[.*\])?)\s*", re.DOTALL)
_OTHER = re.compile(r"\s*(?P<name>\w+)\s*(?P<extents>(?:\[.*\])?)\s*", re.DOTALL)
_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_BOUNDS = re.compile(r"__global__\s+void\s+__launch_bounds__\s*\(")
_EXTENDED_LAUNCH = re.compile(r"\bcudaLaunchKernelEx\s*\(")


class TranslationError(BuildError):
    """A source is written in a way that the translation does not know."""


def translate(path: Path) -> str:
    """The text of a file in C++. Lines keep their numbers, so that the compiler's errors name the right place."""
    text = path.read_text()
    for old, new in _REPLACED:
        text = text.replace(old, new)
    text = _OF_TORCH.sub("#include <emulated_torch.h>", text)
    text = _REGISTRATION.sub(r"\1CPU", text)
    text = _DYNAMIC_SHARED.sub(r"\1* const \2 = static_cast<\1*>(::emulation::dynamic_shared());", text)
    for found in reversed(list(_STATIC_SHARED.finditer(_without_comments(text)))):
        before = text[found.start() : found.end()]
        if declared := _static_shared(found):
            text = text[: found.start()] + declared + "\n" * before.count("\n") + text[found.end() :]
    if "__shared__" in _without_comments(text):
        raise TranslationError(f"{path}: a declaration of shared memory that is not of variables and arrays alone")
    text = _EXTENDED_LAUNCH.sub(lambda found: f'::emulation::launch_extended("{_place(path, text, found)}", ', text)
    return f'#line 1 "{path}"\n' + _launches(path, _bounds(text))


def find_included(sources: Sequence[Path]) -> list[Path]:
    """The files that some files include by quotes, and those that these include, beside the files themselves."""
    found: dict[Path, None] = {}
    waiting = [path.resolve() for path in sources]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            # The compiler looks for files that do not lie beside the one that includes them.
            continue
        found[path] = None
        for name in _INCLUDE.findall(path.read_text()):
            quoted = _QUOTED.match(name)
            # A macro may name any header beside the file.
            beside = [path.parent / quoted[1]] if quoted else sorted(path.parent.rglob("*.*h*"))
            waiting += [each.resolve() for each in beside if not name.startswith("<")]
    return sorted(found)


def read_tree(sources: Sequence[Path], root: Path) -> Tree:
    """Translates some files, and all that they include by quotes.

    Args:
        sources: the files.
        root: a folder around all of them.

    Returns:
        The texts in C++, each by the path that it gets below the folder's own name. Those of `.cu` files that were
        given, which are to be compiled, end in `.cu.cpp`.

    Raises:
        TranslationError: a source is written as the translation does not know it.
    """
    given = {path.resolve() for path in sources}
    tree: Tree = {}
    for path in find_included(sources):
        place = Path(root.name, path.relative_to(root.resolve()))
        tree[place] = translate(path)
        if path in given and path.suffix == SOURCE:
            # Another source may include it, too.
            tree[place.with_suffix(COMPILED)] = tree[place]
    return tree


def write_tree(tree: Tree, folder: Path) -> list[Path]:
    """Writes translations to a folder; the paths of those that are to be compiled.

    What stays the same is not written again.
    """
    for place, text in tree.items():
        path = folder / place
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return [folder / place for place in tree if place.name.endswith(COMPILED)]


def _static_shared(found: re.Match[str]) -> str:
    """A declaration of shared memory in C++, on one line; empty if it is not of variables and arrays alone."""
    alignment, declared = found.groups()
    first, *others = _split(declared)
    variables = [_FIRST.fullmatch(first), *map(_OTHER.fullmatch, others)]
    if None in variables:
        return ""
    kind = " ".join(variables[0]["kind"].split())  # type: ignore[index]
    align = re.search(r"\((\w+)\)", alignment)[1] if alignment else f"alignof({kind})"  # type: ignore[index]
    texts = []
    for name, extents in (each.group("name", "extents") for each in variables if each is not None):
        whole = f"std::type_identity_t<{kind}{extents}>"
        # Each instantiation of a function has a static of its own, whose address tells variables from each other.
        texts.append(
            f"static const char {name}_key = 0; {whole}& {name} = *static_cast<{whole}*>("
            f"::emulation::static_shared(&{name}_key, sizeof({whole}), {align}));"
        )
    return " ".join(" ".join(texts).split())


def _split(declared: str) -> list[str]:
    """The declarators of a declaration: what commas part that are in no template arguments and no extents."""
    parts, depth, is_extent = [""], 0, False
    for letter in declared:
        is_extent = letter == "[" or (is_extent and letter != "]")
        depth += 0 if is_extent else {"<": 1, ">": -1}.get(letter, 0)
        if letter == "," and not depth and not is_extent:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _without_comments(text: str) -> str:
    return _COMMENT_OR_STRING.sub(lambda found: " " * len(found[0]), text)


def _place(path: Path, text: str, found: re.Match[str]) -> str:
    return f"{path.parent.name}/{path.name}:{text.count(chr(10), 0, found.start()) + 1}"


def _bounds(text: str) -> str:
    """The text with a call at the beginning of each kernel that gives its launch bounds."""
    at = 0
    while found := _BOUNDS.search(text, at):
        at = _closing(text, found.end())
        body = re.compile(r"\s*\{").match(text, _closing(text, text.index("(", at) + 1) + 1)
        if body is not None:
            text = f"{text[: body.end()]} ::emulation::expect_bounds({text[found.end() : at]});{text[body.end() :]}"
    return text


def _launches(path: Path, text: str) -> str:
    """The text with `launch("kernel", kernel, Configuration{a, b}, c)` for `kernel<<<a, b>>>(c)`."""
    while (at := _without_comments(text).find("<<<")) >= 0:
        plain = _without_comments(text)
        begin = _begin_of_kernel(plain, at)
        end = plain.find(">>>", at)
        opened = re.compile(r"\s*\(").match(plain, end + 3)
        if end < 0 or opened is None:
            raise TranslationError(f"{path}: a launch without its arguments")
        closed = _closing(plain, opened.end())
        kernel, configuration = text[begin:at], text[at + 3 : end]
        arguments = text[opened.end() : closed]
        name = " ".join(kernel.split())
        comma = "," if arguments.strip() else ""
        function = "launch"
        if _is_template(plain, name):
            function, kernel = "launch_deduced", f"[](auto... arguments) {{ {kernel}(arguments...); }}"
        new = (
            f'::emulation::{function}("{name} at {path.parent.name}/{path.name}", {kernel}, '
            f"::emulation::Configuration{{{configuration}}}{comma} {arguments})"
        )
        text = text[:begin] + new + text[closed + 1 :]
    return text


def _is_template(text: str, name: str) -> bool:
    """Whether a name without template arguments names a template."""
    return name.isidentifier() and bool(
        re.search(rf"\btemplate\s*<[^;{{}}]*>\s*(?:static\s+)?__global__[^;{{}}]*\b{name}\s*\(", text)
    )


def _begin_of_kernel(text: str, end: int) -> int:
    """The position where the name in front of `<<<` begins, with its namespaces and template arguments."""
    at = len(text[:end].rstrip())
    while True:
        if text[at - 1] == ">":
            depth = 0
            while True:
                at -= 1
                depth += {">": 1, "<": -1}.get(text[at], 0)
                if depth == 0:
                    break
        while at > 0 and (text[at - 1].isalnum() or text[at - 1] == "_"):
            at -= 1
        if text[at - 2 : at] != "::":
            return at
        at -= 2


def _closing(text: str, at: int) -> int:
    """The position of the parenthesis that closes the one that was opened in front of `at`."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at - 1
