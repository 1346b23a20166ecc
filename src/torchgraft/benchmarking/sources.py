"""Hashes the sources that decide how long an operator takes; a row with another hash was measured at another commit.

The hash covers whole files: the sources that serve an operator on a kind of device, all headers of ours that they
include, and the compiler's options. Comments, white space and the places of files do not count. If it is known which
kernels ran on a GPU, sources that only hold other kernels are left out.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
_SUFFIXES = {"cpu": ".cpp", "cuda": ".cu"}
_BUILD = "cmake/TorchgraftKernels.cmake"
# The compiler options that decide what code it makes; the others are about warnings and about how the compiler works.
_OPTION = re.compile(r"(?<![\w-])-(?:O|f|m|use_fast_math|-use_fast_math|-fmad|-maxrregcount)\S*")
# Parts of the package whose Python decides how long a layer takes. What a call costs is measured by itself.
_LAYERS = frozenset({"nn", "operators"})
# Modules beside a declaration that say on what inputs an operator is measured.
_INPUTS = frozenset({"samples", "benchmarks", "case"})
_STRING = r"""R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"|"(?:[^"\\\n]|\\.)*"|(?<!\w)'(?:[^'\\\n]|\\.)+'"""
_COMMENT = re.compile(
    rf"(?P<string>{_STRING})|//(?:[^\\\n]|\\.)*|/\*.*?\*/|\\\r?\n|^[ \t]*#[ \t]*include[^\n]*", re.DOTALL | re.MULTILINE
)
# A space between two words or two signs separates them: `+ +i` is not `++i`.
_SPACE = re.compile(r"(?P<needed>(?<=[\w+-])\s+(?=[\w+-]))|\s+")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">]+)', re.MULTILINE)
_BRACKETS = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_KERNEL = re.compile(rf"\b__global__\b(?:\s|\bvoid\b|\bstatic\b|__launch_bounds__\s*{_BRACKETS})*(\w+)\s*\(")
_REGISTERED = re.compile(r"^TORCHGRAFT_KERNEL(?:_BESIDE)?\(\s*\w+,\s*(\w+),\s*(\w+)", re.MULTILINE)


class Sources:
    """The sources of a package of operators, as they are when they are first asked for.

    Args:
        package: its folder. Each operator of torchgraft lies in a folder of `operators` there; in another package all
            sources belong together.
    """

    def __init__(self, package: Path = PACKAGE) -> None:
        self._package = package
        self._folders = [path.parent for path in sorted(package.glob("operators/*/__init__.py"))] or [package]
        if len(self._folders) > 1 and 2 * sum(bool(_compiled(folder, "cpu")) for folder in self._folders) < len(
            self._folders
        ):
            # A wheel holds every declaration, and the kernels of one operator as an example to read.
            self._folders = []

    # A thousand rows ask some thirty questions.
    @cache  # noqa: B019  as long as the sources
    def of_operator(self, name: str, device: str, *, gradients: bool = False, ran: tuple[str, ...] = ()) -> str:
        """Returns the hash of what decides how long an operator takes: sixteen digits; empty if there are no sources.

        Args:
            name: as in its schema, without the namespace.
            device: 'cpu' or 'cuda'.
            gradients: whether autograd takes part, so that the Python code of the declaration counts.
            ran: names of the kernels that ran, if they are known.
        """
        schema = re.compile(rf"""["']\w+::{re.escape(name)}\(""")
        for folder in self._folders:
            modules = sorted(folder.glob("*.py"))
            if len(self._folders) == 1 or any(schema.search(_text(path)) for path in modules):
                has_kernel = (device.upper(), name) in _registered(_compiled(folder, device))
                declaration = [path for path in modules if _declares(path)]
                modules = self._layers(declaration or modules) if gradients or not has_kernel else []
                return self._hash((path for path in modules if path.stem not in _INPUTS), [folder], device, ran)
        return ""

    @cache  # noqa: B019  as long as the sources
    def of_module(self, name: str, device: str, *, ran: tuple[str, ...] = ()) -> str:
        """Returns the hash of a module, of the layers and operators that it imports, and of their kernels."""
        package, *parts = name.split(".")
        start = self._package.joinpath(*parts).with_suffix(".py")
        is_there = package == self._package.name and start.is_file() and self._folders
        return self._hash(self._layers([start]), None, device, ran) if is_there else ""

    def of_calls(self, device: str) -> str:
        """Returns the hash of all that a call of any operator runs: the declarations and whatever they import."""
        declared = [path for folder in self._folders for path in sorted(folder.glob("*.py")) if _declares(path)]
        return self._hash(_reached(declared, self._imported), None, device)

    def kernels_among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Returns those of the names of kernels that are ours."""
        sources = [source for folder in self._folders for source in _compiled(folder, "cuda")]
        ours = {kernel for file in _reached(sources, self._included) for kernel in _kernels_in(file)}
        return tuple(sorted({name.partition("<")[0] for name in names} & ours))

    def _hash(self, modules: Iterable[Path], folders: list[Path] | None, device: str, ran: tuple[str, ...] = ()) -> str:
        """Returns the hash of modules and of the kernels in folders; by default in those that hold a module."""
        modules = list(modules)
        if folders is None:
            folders = [folder for folder in self._folders if any(folder in module.parents for module in modules)]
        sources = [source for folder in folders for source in self._serving(folder, device, ran)]
        texts = {*map(_code, _reached(sources, self._included)), *(self._options(device) if sources else ())}
        joined = "\0".join(sorted({*texts, *(repr(_shape(_parsed(_text(each)))) for each in modules)}))
        return hashlib.sha256(joined.encode()).hexdigest()[:16] if joined else ""

    def _serving(self, folder: Path, device: str, ran: tuple[str, ...]) -> list[Path]:
        """Returns the sources in a folder without those that are only there for kernels that did not run."""
        kernels = {source: self._kernels_of(source) for source in _compiled(folder, device)}
        if not set(ran) & {name for names in kernels.values() for name in names}:
            return list(kernels)
        return [source for source, names in kernels.items() if not names or names & set(ran)]

    def _kernels_of(self, source: Path) -> set[str]:
        """Returns the kernels that a source is there for, in it or beside it; none if it also runs without them."""
        files = _reached([source], self._included)
        # A source that registers operators chooses between kernels; cuBLAS may take the place of a kernel.
        if _registered([source]) or any(file.name == "cublas.h" for file in files):
            return set()
        return {name for file in files if file.parent == source.parent for name in _kernels_in(file)}

    @cache  # noqa: B019  as long as the sources
    def _included(self, path: Path) -> list[Path]:
        """Returns the files of ours that a file includes; a compiler, a toolkit and PyTorch bring the others."""
        found = []
        for opening, name in _INCLUDE.findall(_text(path)):
            beside = [path.parent] if opening == '"' else []
            places = (folder / name for folder in (*beside, self._package / "include", PACKAGE / "include"))
            found += [place.resolve() for place in places if place.is_file()][:1]
        return found

    def _options(self, device: str) -> list[str]:
        build = next(path for path in (self._package / _BUILD, PACKAGE / _BUILD) if path.is_file())
        calls = re.findall(re.escape("target_compile_options(${namespace}_" + device) + r"\s([^)]*)", _text(build))
        return [f"option {flag}" for each in calls for flag in _OPTION.findall(each)]

    def _layers(self, starts: Iterable[Path]) -> list[Path]:
        """Returns modules with all layers and operators that they lead to."""

        def layers(path: Path) -> Iterator[Path]:
            found = self._imported(path)
            return (each for each in found if each.relative_to(self._package).with_suffix("").parts[0] in _LAYERS)

        return _reached(starts, layers)

    def _imported(self, path: Path) -> Iterator[Path]:
        """Yields the modules of the package that a module imports."""
        for node in ast.walk(_parsed(_text(path))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield from self._find(node.module, alias.name)

    def _find(self, module: str, name: str) -> Iterator[Path]:
        """Yields the file that a name comes from; of a package only the module that the name is imported from."""
        package, *parts = module.split(".")
        place = self._package.joinpath(*parts)
        files = (place / f"{name}.py", place.with_suffix(".py"), place / "__init__.py")
        found = next(filter(Path.is_file, files), None) if package == self._package.name else None
        if found is None or found.name != "__init__.py":
            yield from [found] if found else []
            return
        imports = [node for node in _parsed(_text(found)).body if isinstance(node, ast.ImportFrom)]
        modules = [node.module or "" for node in imports if name in (each.asname or each.name for each in node.names)]
        yield from self._find(modules[0], name) if modules and modules[0] not in (module, "") else [found]


def _reached(starts: Iterable[Path], further: Callable[[Path], Iterable[Path]]) -> list[Path]:
    """Returns the files at the start and all that they lead to."""
    found: dict[Path, None] = {}
    waiting = list(starts)
    while waiting:
        if (each := waiting.pop()) not in found:
            found[each] = None
            waiting += further(each)
    return list(found)


def _compiled(folder: Path, device: str) -> list[Path]:
    """Returns the sources in a folder for a kind of device; those below it too, if it is a package of Python."""
    depth = "**/" if (folder / "__init__.py").is_file() else ""
    suffix = _SUFFIXES.get(device)
    return sorted(path.resolve() for path in folder.glob(f"{depth}*{suffix}")) if suffix else []


def _declares(path: Path) -> bool:
    """Whether a module declares operators: operator.py, and each beside it that makes an `Operator`."""
    return path.stem == "operator" or (path.with_name("operator.py").is_file() and " = Operator(" in _text(path))


def _registered(sources: Iterable[Path]) -> set[tuple[str, str]]:
    """Returns the operators that sources register, each with its kind of device."""
    return {found for source in sources for found in _REGISTERED.findall(_text(source))}


def _text(path: Path) -> str:
    return path.read_text()


def _kernels_in(path: Path) -> list[str]:
    return _KERNEL.findall(_text(path))


def _code(path: Path) -> str:
    """Returns the text of a C++ file without comments, includes and needless white space."""
    return _code_of(_text(path))


@cache
def _code_of(text: str) -> str:
    bare = _COMMENT.sub(lambda found: found["string"] or " ", text)
    return _SPACE.sub(lambda found: " " if found["needed"] else "", bare)


_parsed = cache(ast.parse)


def _shape(node: object) -> object:
    """Returns a syntax tree without docstrings, imports and types, the same by any version of Python."""
    if isinstance(node, ast.AST):
        fields = ((name, _shape(value)) for name, value in ast.iter_fields(node))
        kept = (each for each in fields if each[1] not in (None, []) and each[0] not in _TYPES)
        return type(node).__name__, *kept
    return [_shape(each) for each in node if not _takes_no_time(each)] if isinstance(node, list) else node


_TYPES = frozenset({"annotation", "returns", "type_comment", "type_params", "kind"})


def _takes_no_time(node: object) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or isinstance(node, (ast.Import, ast.ImportFrom))
