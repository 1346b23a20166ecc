"""Which sources decide how long an operator takes, as a short hash: of a row it says what the row was measured on.

Sources are read as definitions (definitions.py), and joined by name: from the registration of an operator on a kind of
device to all that it can reach, across files. Where it is known which kernels ran on a GPU, what only leads to others
is left out: what remains is those kernels, with all that they use, and what chose and launched them. The hash is that
of the definitions, sorted: comments, places of files and the order in them do not count.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

from torchgraft.benchmarking.definitions import Definition, SourceFile, read_source

PACKAGE = Path(__file__).parents[1]
_SUFFIXES = {"cpu": ".cpp", "cuda": ".cu"}
_DIGITS = 16
# Beside an operator: what is measured, and not how.
_INPUTS = frozenset({"samples", "benchmarks", "case"})
_BUILD = "cmake/TorchgraftKernels.cmake"
# Options of a compiler that decide what code it makes: all but those about warnings and how it works.
_FLAG = re.compile(r"(?<![\w-])-(?:O|f|m|use_fast_math|-use_fast_math|-fmad|-maxrregcount)\S*")


class Unit:
    """A source that is compiled by itself, and all of ours that it includes."""

    def __init__(self, own: Collection[Definition], included: Collection[Definition]) -> None:
        self.own = frozenset(own)
        self.definitions = dict.fromkeys((*own, *included))
        self.named = _grouped((name, each) for each in self.definitions for name in each.names)

    def offers(self, name: str) -> list[Definition]:
        """What other files mean by a name."""
        return [each for each in self.named.get(name, ()) if each.has_body and not each.is_local]


# A definition, as one source that is compiled sees it.
_Node = tuple[int, Definition]


class Kernels:
    """The kernels in a folder for one kind of device, and how they hang together.

    Args:
        folder: holds the operators' sources, at any depth where it is a package: another may be anything's home.
        device: 'cpu' or 'cuda'.
        include: where shared headers lie.
    """

    def __init__(self, folder: Path, device: str, include: Path) -> None:
        self._device, self._include = device, include
        depth = "**/" if (folder / "__init__.py").is_file() else ""
        paths = sorted(folder.glob(f"{depth}*{_SUFFIXES[device]}")) if device in _SUFFIXES else []
        self._units = [self._unit(path.resolve()) for path in paths]

    def _unit(self, path: Path) -> Unit:
        own, *others = (self._read(file) for file in _reached([path], self._includes))
        return Unit(own.definitions, [each for file in others for each in file.definitions])

    @cache  # noqa: B019  as long as the kernels
    def _read(self, path: Path) -> SourceFile:
        # By its text: a file may change while a process runs, and most are read for both kinds of device.
        return _read_text(path.read_text())

    def _includes(self, path: Path) -> Iterator[Path]:
        """The files that a file includes; of others' headers nothing is known: a compiler and a PyTorch bring them."""
        for name in self._read(path).includes:
            beside = (path.parent,) if name.startswith('"') else ()
            places = ((place / name.strip('"<>')).resolve() for place in (*beside, self._include))
            if found := next(filter(Path.is_file, places), None):
                yield found

    @cached_property
    def operators(self) -> dict[str, list[_Node]]:
        """Where each operator is registered."""
        own = ((number, each) for number, unit in enumerate(self._units) for each in unit.own)
        registered = ((node[1].registers, node) for node in own)
        return dict(_grouped((what[1], node) for what, node in registered if what and what[0] == self._device))

    def texts(self, operators: Collection[str], ran: Collection[str] = ()) -> set[str]:
        """The definitions that decide how long operators take, and the compiler's options.

        Args:
            operators: by the names that they are registered under; of one that is not found everything counts.
            ran: names of the kernels that ran on a GPU; without, all of which may.
        """
        known = self.operators
        if not all(name in known for name in operators):
            return self._flags | {each.text for unit in self._units for each in unit.definitions}
        barred: set[_Node] = set()
        if ran := set(ran) & self.kernel_names:
            barred = self._leading_to(self.kernel_names) - self._leading_to(ran)
        starts = {node for name in operators for node in known[name]}
        reached = _reached(starts - barred, lambda node: {*self._mentioned(node), *self._nameless[node[0]]} - barred)
        return self._flags | {definition.text for _, definition in reached}

    @cached_property
    def _flags(self) -> set[str]:
        build = self._include.parent / _BUILD
        options = re.escape("target_compile_options(${namespace}_" + self._device) + r"\s([^)]*)"
        found = re.findall(options, build.read_text()) if build.is_file() else []
        return {f"option {flag}" for each in found for flag in _FLAG.findall(each)}

    @cached_property
    def kernel_names(self) -> frozenset[str]:
        """Every kernel that a host function launches."""
        return frozenset(name for _, each in self._nodes for name in each.names if each.is_kernel)

    @cached_property
    def _nodes(self) -> list[_Node]:
        return [(number, each) for number, unit in enumerate(self._units) for each in unit.definitions]

    @cached_property
    def _above(self) -> defaultdict[_Node, list[_Node]]:
        return _grouped((each, node) for node in self._nodes for each in self._mentioned(node))

    def _leading_to(self, kernels: Collection[str]) -> set[_Node]:
        """Whatever launches one of these kernels, be it through others."""
        starts = [node for node in self._nodes if node[1].is_kernel and node[1].names & set(kernels)]
        return set(_reached(starts, self._above.__getitem__))

    @cached_property
    def _nameless(self) -> defaultdict[int, list[_Node]]:
        """Of each unit what counts with all that is used of it: what has no name, or is called from outside."""
        return _grouped(
            (node[0], node)
            for node in self._nodes
            if node[1].is_exported or (not node[1].names and node[1].registers is None)
        )

    @cache  # noqa: B019  as long as the kernels
    def _mentioned(self, node: _Node) -> tuple[_Node, ...]:
        """What a definition mentions, and of a class the members that are defined outside of it."""
        number, definition = node
        found: list[_Node] = []
        for name in definition.mentioned:
            here = self._units[number].named.get(name, [])
            found += ((number, each) for each in here)
            # As a linker does, where the name is only declared here; a macro may declare what it mentions, or is given.
            is_only_in_macro = not here and definition.tokens[0] == "#define"
            if is_only_in_macro or any(not each.has_body or each.tokens[0] == "#define" for each in here):
                found += self._elsewhere(name)
        for name in definition.names:
            found += self._members.get(name, ())
        return tuple(dict.fromkeys(found))

    @cache  # noqa: B019  as long as the kernels
    def _elsewhere(self, name: str) -> tuple[_Node, ...]:
        """What a name means in other sources: in those that mention it themselves, or else in all."""
        offers = [(number, each) for number, unit in enumerate(self._units) for each in unit.offers(name)]
        own = [node for node in offers if any(name in each.mentioned for each in self._units[node[0]].own)]
        return tuple(own or offers)

    @cached_property
    def _members(self) -> dict[str, list[_Node]]:
        """Of each class the members that are defined outside of it."""
        return _grouped((node[1].owner, node) for node in self._nodes if node[1].owner)


_read_text = cache(read_source)
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")


def _grouped(pairs: Iterable[tuple[_Key, _Value]]) -> defaultdict[_Key, list[_Value]]:
    groups = defaultdict[_Key, list[_Value]](list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def _reached(starts: Iterable[_Key], further: Callable[[_Key], Iterable[_Key]]) -> list[_Key]:
    """Starts and all that they lead to, be it through others; of a single start, that first."""
    found: dict[_Key, None] = {}
    waiting = list(starts)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = None
            waiting += further(each)
    return list(found)


class Sources:
    """The sources of a package of operators, as they are when they are asked about first.

    Args:
        package: its folder. An operator of torchgraft lies in a folder of `operators` there; in a package of another's
            all sources belong together.
    """

    def __init__(self, package: Path = PACKAGE) -> None:
        self._package = package
        self._include = package / "include"
        if not self._include.is_dir():
            self._include = PACKAGE / "include"
        self._rooms = [path for path in package.glob("operators/*") if (path / "__init__.py").is_file()] or [package]
        if len(self._rooms) > 1 and 2 * sum(map(_has_kernels, self._rooms)) < len(self._rooms):
            # A wheel holds all declarations, and the kernels of one operator alone, to be read.
            self._rooms = []

    # A thousand rows ask some thirty questions.
    @cache  # noqa: B019  as long as the sources
    def of_operator(self, name: str, device: str, *, gradients: bool = False, ran: tuple[str, ...] = ()) -> str:
        """The hash of what decides how long an operator takes.

        Args:
            name: as in its schema, without the namespace.
            device: 'cpu' or 'cuda'.
            gradients: whether autograd's part counts: the declaration, and the other operators of its folder.
            ran: names of the kernels that ran, as far as they are known.

        Returns:
            Sixteen digits; empty where the sources are not there, as in a wheel.
        """
        room = self._room_of(name)
        if room is None:
            return ""
        kernels = self._kernels_of(room, device)
        if name not in kernels.operators:
            return _hash([*kernels.texts([name]), *self._python(room)] if kernels.operators else self._python(room))
        if not gradients:
            return _hash(kernels.texts([name], ran))
        return _hash([*kernels.texts(list(kernels.operators), ran), *self._python(room)])

    @cache  # noqa: B019  as long as the sources
    def of_module(self, name: str, device: str, *, ran: tuple[str, ...] = ()) -> str:
        """The hash of a module, of all that it imports from `nn` and `operators`, and of the kernels of these.

        Args:
            name: of the module, as it is imported.
            device: 'cpu' or 'cuda'.
            ran: names of the kernels that ran, as far as they are known.

        Returns:
            Sixteen digits; empty where there is no such module in the package.
        """
        package, *parts = name.split(".")
        start = self._package.joinpath(*parts).with_suffix(".py")
        if package != self._package.name or not start.is_file() or not self._rooms:
            return ""
        return self._of_modules(_reached([start], self._imports_of), device, ran)

    def of_calls(self, device: str) -> str:
        """The hash of all that a call of any operator goes through: the package's own modules, and every operator."""
        if not self._rooms:
            return ""
        declared = (room / "operator.py" for room in self._rooms)
        imported = _reached(filter(Path.is_file, declared), self._imports_of)
        return self._of_modules([*self._package.glob("*.py"), *imported], device)

    def _of_modules(self, modules: Collection[Path], device: str, ran: Collection[str] = ()) -> str:
        texts = [_python_text(module) for module in modules]
        for room in self._rooms:
            if any(room in module.parents for module in modules):
                kernels = self._kernels_of(room, device)
                texts += kernels.texts(list(kernels.operators), ran)
        return _hash(texts)

    def kernels_among(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the names of kernels that are ours."""
        ours = frozenset[str]().union(*(self._kernels_of(room, "cuda").kernel_names for room in self._rooms))
        return tuple(sorted({name.partition("<")[0] for name in names} & ours))

    def _room_of(self, name: str) -> Path | None:
        """The folder of the operator's declaration, whose schema begins with its name."""
        if len(self._rooms) == 1:
            return self._rooms[0]
        declared = re.compile(rf"""["']\w+::{re.escape(name)}\(""")
        return next(
            (room for room in self._rooms if any(declared.search(path.read_text()) for path in room.glob("*.py"))), None
        )

    @cache  # noqa: B019  as long as the sources
    def _kernels_of(self, room: Path, device: str) -> Kernels:
        return Kernels(room, device, self._include)

    def _python(self, room: Path) -> list[str]:
        start = room / "operator.py"
        modules = _reached([start], self._imports_of) if start.is_file() else room.glob("*.py")
        return [_python_text(path) for path in modules if path.stem not in _INPUTS]

    def _imports_of(self, path: Path) -> Iterator[Path]:
        """The package's layers and operators that a module imports."""
        for node in ast.walk(_parse(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    yield from self._find(node.module, alias.name)

    def _find(self, module: str, name: str) -> Iterator[Path]:
        """The file that a name is imported from, as far as it tells how layers and operators work."""
        parts = module.split(".")
        if parts[0] != self._package.name or parts[1:2] not in (["nn"], ["operators"], ["grafting"]):
            return
        place = self._package.joinpath(*parts[1:])
        if (submodule := place / f"{name}.py").is_file():
            yield submodule
        elif (module_file := place.with_suffix(".py")).is_file():
            yield module_file
        elif (opening := place / "__init__.py").is_file():
            # Of a package only the module that this name comes from.
            for node in _parse(opening).body:
                if isinstance(node, ast.ImportFrom) and node.module and node.module != module:
                    for alias in node.names:
                        if (alias.asname or alias.name) == name:
                            yield from self._find(node.module, alias.name)


def _has_kernels(room: Path) -> bool:
    return any(path.suffix in _SUFFIXES.values() for path in room.rglob("*.c*"))


def _hash(texts: Iterable[str]) -> str:
    joined = "\0".join(sorted(set(texts)))
    return hashlib.sha256(joined.encode()).hexdigest()[:_DIGITS]


def _parse(path: Path) -> ast.Module:
    return _parse_text(path.read_text())


_parse_text = cache(ast.parse)


def _python_text(path: Path) -> str:
    return repr(_shape(_parse(path)))


def _shape(node: object) -> object:
    """A syntax tree without what takes no time: places, comments, docstrings, types; the same by any Python."""
    if isinstance(node, ast.AST):
        parts = []
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(value, list) and _is_docstring(value[:1]):
                value = value[1:]
            if value not in (None, []) and name not in ("annotation", "returns", "type_comment", "type_params", "kind"):
                parts.append((name, _shape(value)))
        return type(node).__name__, *parts
    return [_shape(each) for each in node] if isinstance(node, list) else node


def _is_docstring(body: list[ast.stmt]) -> bool:
    return any(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) and isinstance(each.value.value, str)
        for each in body
    )
