"""Modules found by where they lie, without a change to Python's path.

A folder that a person names is imported as a package of its own, and nothing that lies beside it can be imported in
place of an installed module. Another process finds the same modules once it is told the `places` of this one.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType


class _Finder(MetaPathFinder):
    """Finds the packages and modules that were named, if Python's path has none of the name."""

    def __init__(self) -> None:
        self.places: dict[str, Path] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        place = self.places.get(fullname)
        if place is None:
            return None
        installed = PathFinder.find_spec(fullname, path)
        if installed is not None and not _is_folder_around(installed, place):
            return None
        file = place / "__init__.py" if place.is_dir() else place
        if file.is_file():
            return importlib.util.spec_from_file_location(fullname, file)
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = [str(place)]
        return spec


_finder = _Finder()


def places() -> dict[str, Path]:
    """The places of packages and modules that were made known, by name."""
    return dict(_finder.places)


def remember(known: Mapping[str, Path]) -> None:
    """Makes packages and modules known, by the places that another process has for them."""
    if _finder not in sys.meta_path:
        # It comes first, but lets an installed module of the same name go before it.
        sys.meta_path.insert(0, _finder)
    _finder.places.update(known)


def name_of(path: Path) -> str:
    """The name under which a folder or a file is imported, with those of the packages around it."""
    return ".".join(_outermost(path)[1])


def _outermost(path: Path) -> tuple[Path, list[str]]:
    """The outermost package around a folder or a file, or else that itself; and the names from there on."""
    place = path.parent if path.name == "__init__.py" else path
    names = [place.name if place.is_dir() else place.stem]
    while (place.parent / "__init__.py").is_file():
        place = place.parent
        names.insert(0, place.name)
    return place, names


def make_importable(path: Path) -> str:
    """Makes a folder or a file importable, and returns its name.

    Raises:
        LookupError: something else has that name, or no module can have it.
    """
    place, names = _outermost(path.resolve())
    top, name = names[0], ".".join(names)
    if not all(names) or len(name.split(".")) > len(names):
        raise LookupError(f"{path.resolve()} cannot be imported, as its name is not a Python name: rename it")
    try:
        found = importlib.util.find_spec(top)
    except ValueError:
        # Python raises this for a module that has no spec, such as `__main__`.
        found = ModuleSpec(top, None)
    if found is None or _is_folder_around(found, place):
        remember({top: place})
    elif place not in _locations(found):
        there = ", ".join(map(str, _locations(found))) or "Python itself"
        raise LookupError(
            f"{place} has the same name as another module, {top!r} from {there}: rename the folder or file"
        )
    importlib.invalidate_caches()
    return name


def _is_folder_around(spec: ModuleSpec, place: Path) -> bool:
    """Whether a module is only a folder that holds another, such as a project around its package."""
    locations = _locations(spec)
    return spec.origin is None and bool(locations) and all(each in place.parents for each in locations)


def _locations(spec: ModuleSpec) -> list[Path]:
    if spec.submodule_search_locations is not None:
        return [Path(each).resolve() for each in spec.submodule_search_locations]
    return [Path(spec.origin).resolve()] if spec.has_location and spec.origin else []


def declaring_modules(folder: Path) -> list[Path]:
    """Finds the files of a folder that declare operators: operator.py, and each that calls one of `_DECLARE`.

    Nothing else is imported, as it may be a script that does something.
    """
    # Test files are left out: they may use the folder's operators while they are imported.
    files = sorted({*folder.glob("*.py")} - {*folder.glob("test_*.py"), folder / "conftest.py"})
    return [path for path in files if path.name in ("__init__.py", "operator.py") or _declares(path)]


# The functions that declare an operator.
_DECLARE = {"Operator", "Recurrence", "load_inline"}


def _declares(path: Path) -> bool:
    text = path.read_text(errors="replace")
    try:
        nodes = ast.walk(ast.parse(text))
    except (SyntaxError, ValueError):
        # It is imported all the same, so that its author sees the error.
        return any(f"{each}(" in text for each in _DECLARE)
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    # The called function is a name, with an id, or an attribute of a module.
    return any(_DECLARE & {getattr(each, "id", None), getattr(each, "attr", None)} for each in called)
