"""Subjects: an operator and its samples, found by the names that a person has for them."""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchgraft.capturing.folder import captured_samples, read_folder
from torchgraft.declaration import Declaration
from torchgraft.declaration.schema import REQUIRED
from torchgraft.finding.places import declaring_modules, make_importable, name_of
from torchgraft.finding.samples import samples_of
from torchgraft.operator import Operator
from torchgraft.sampling import Samples


@dataclass(frozen=True)
class Subject:
    """An operator and the samples on which it is checked.

    Attributes:
        beside: whether the samples are those beside the declaration, so that another process finds them too.
        replay: the folder of captured calls that the samples are, which another process reads too; empty: none.
    """

    operator: Operator
    samples: Samples
    beside: bool = True
    replay: str = ""

    @property
    def declaration(self) -> Declaration:
        """The declaration of the operator."""
        return self.operator.declaration

    @property
    def name(self) -> str:
        """The name for people: without the namespace if the operator is torchgraft's."""
        return self.operator.short_name


def subject_of(operator: Operator, samples: Samples | None = None, replay: str = "") -> Subject:
    """Pairs an operator with its samples: those that are given, or else those that lie beside its declaration.

    Args:
        operator: any.
        samples: None: those beside its declaration, or captured calls.
        replay: a folder of captured calls, which are the samples; empty: they are not.

    Raises:
        LookupError: there are none, or they are those of another operator.
        CapturedFileError: a file of the folder is damaged.
    """
    if replay:
        return Subject(operator, captured_samples(operator, replay), replay=replay)
    if samples is not None:
        return Subject(operator, samples, beside=False)
    found = samples_of(operator)
    needed = [argument.name for argument in operator.declaration.arguments if argument.default is REQUIRED]
    for sample in found.table:
        if len(sample.arguments) < len(needed):
            raise LookupError(
                f"{operator.qualified_name}: sample {sample.name!r} has {len(sample.arguments)} arguments, and the"
                f" operator needs {len(needed)}: {', '.join(needed)}. Samples of several operators of a file stand in a"
                f" dict: `samples = {{{operator.name!r}: torchgraft.sampling.Samples(...), ...}}`"
            )
    return Subject(operator, found)


def find_subjects(
    targets: Sequence[Operator | str], samples: Samples | None = None, replay: str | Path = ""
) -> list[Subject]:
    """Finds the operators that a person means.

    Args:
        targets: each an operator; or the name of an operator of torchgraft, `namespace::name` of one that is declared,
            `package.module:operator`, a folder or a file that declares operators, or `folder:operator` for one of them;
            none means all of torchgraft. The name of an operator goes before a folder of that name, which is then
            written `./name`. A package in a folder `src` is named without it; an installed one by its name.
        samples: for `subject_of`.
        replay: a folder of captured calls: the operators that it has calls of, with these as their samples, are found
            among the targets, or among all that are declared if none is named; empty: there is none.

    Raises:
        LookupError: there is no such operator, or it has no samples.
        CapturedFileError: a file of the folder is damaged.
    """
    if replay:
        return _find_captured([operator for target in targets for operator in _find(target)], Path(replay))
    if not targets:
        ours = (each for name, each in Operator.registered.items() if name.startswith("torchgraft::"))
        found = [each for each in ours if each.module.startswith("torchgraft.")]
    else:
        found = find_operators(targets)
    return [subject_of(operator, samples) for operator in dict.fromkeys(found)]


def find_operators(targets: Sequence[Operator | str]) -> list[Operator]:
    """Finds operators as `find_subjects` does, with samples or without.

    Raises:
        LookupError: there is no such operator.
    """
    return [each for target in targets for each in _find(target)]


def _find_captured(named: Sequence[Operator], folder: Path) -> list[Subject]:
    calls = read_folder(folder)
    captured = dict.fromkeys(call.operator for call in calls)
    operators = dict.fromkeys(named or (each for name, each in Operator.registered.items() if name in captured))
    found = [each for each in operators if each.qualified_name in captured]
    if not found:
        module = next(call.module for call in calls)
        raise LookupError(
            f"{folder} holds calls of {', '.join(captured)}, and of no operator that is named or declared here: name "
            f"what declares it, as in `graft check {module} --replay {folder}` with its folder or file for the module"
        )
    return [subject_of(operator, replay=str(folder.resolve())) for operator in found]


def say_which_is_meant(target: str) -> str:
    """Explains a name that both an operator and a folder here have; empty if only one of them has it."""
    if _registered(target) is None or not Path(target).is_dir():
        return ""
    return f"{target!r} means the operator; to check the folder of that name, write ./{target}"


def target_of(operator: Operator) -> str:
    """Returns the name under which `find_subjects` finds an operator, from any working directory if possible."""
    if operator.module.startswith("torchgraft."):
        return operator.short_name
    module = sys.modules.get(operator.module)
    file = getattr(module, "__file__", None)
    if file and not {"site-packages", "dist-packages"}.intersection(Path(file).parts):
        path = Path(file).resolve()
        if path in declaring_modules(path.parent) and operator.module == _name_in(path.parent, path):
            return f"{path.parent}:{operator.name}"
        if operator.module == name_of(path):
            return f"{path}:{operator.name}"
    attributes = (name for name, value in vars(module).items() if value is operator) if module else iter(())
    return f"{operator.module}:{next(attributes, operator.name)}"


def _find(target: Operator | str) -> list[Operator]:
    if isinstance(target, Operator):
        return [target]
    if not target.strip():
        raise LookupError("an operator cannot have an empty name; for this folder, write `.`")
    if (registered := _registered(target)) is not None:
        return [registered]
    if (place := _place_of(target)) is not None:
        return _find_in_place(place)
    before, _, name = target.rpartition(":")
    if before and "::" not in target:
        place = _place_of(before)
        return [_find_in_module(before, name) if place is None else _find_named(place, name)]
    ours = [name.removeprefix("torchgraft::") for name in Operator.registered if name.startswith("torchgraft::")]
    raise LookupError(
        f"there is no operator {target!r}: give one of {', '.join(ours)}; or package.module:operator; "
        "or a folder or a file that declares one"
    )


def _registered(target: str) -> Operator | None:
    return Operator.registered.get(target if "::" in target else f"torchgraft::{target}")


def _place_of(target: str) -> Path | None:
    """Finds the folder or file that a person means.

    A package may lie in `src`, of the named folder or of this one, or be installed.
    """
    path = Path(target)
    if path.suffix == ".py" and path.is_file():
        return path
    places = (path, path / "src" / path.resolve().name, Path("src") / path)
    found = next((each for each in places if each.is_dir() and declaring_modules(each)), None)
    if found is not None or path.is_dir():
        return found or path
    installed = importlib.util.find_spec(target) if target.isidentifier() else None
    folders = map(Path, (installed and installed.submodule_search_locations) or ())
    return next((each for each in folders if each.is_dir() and declaring_modules(each)), None)


def _find_in_module(module_name: str, attribute: str) -> Operator:
    # A command lacks the working directory on Python's path, which `python -m` has. It comes last, so that nothing that
    # lies there is imported in place of an installed module.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise
        raise LookupError(f"there is no module {module_name!r} on Python's path or in this directory") from None
    for part in attribute.split("."):
        value = getattr(value, part, None)
    value = _operator_of(value)
    if not isinstance(value, Operator):
        declared = [name for name, each in vars(sys.modules[module_name]).items() if isinstance(each, Operator)]
        hint = f"; its operators: {', '.join(declared)}" if declared else ""
        raise LookupError(f"{module_name}:{attribute} is not a torchgraft.Operator{hint}")
    return value


def _operator_of(value: Any) -> Any:
    """Returns an operator itself, and of a recurrence its operator, which calls that of its gradients."""
    return value if isinstance(value, Operator) else getattr(value, "operator", value)


def _find_in_place(place: Path) -> list[Operator]:
    """Imports a folder's modules, or a file, and returns the operators that they declare."""
    place = place.resolve()
    if place.name == "operator.py":
        # It declares the operator of its folder. Alone its name would be that of a module of Python, `operator`.
        place = place.parent
    # This raises if the name cannot be imported, before any module runs.
    name = make_importable(place)
    for path in declaring_modules(place) if place.is_dir() else [place]:
        module = importlib.import_module(_name_in(place, path) if place.is_dir() else name)
        if Path(module.__file__ or "").resolve() != path:
            raise LookupError(f"Python imports {module.__name__} from {module.__file__}, not from {path}")
    declared = [each for each in Operator.registered.values() if f"{each.module}.".startswith(f"{name}.")]
    if not declared:
        raise LookupError(f"{place} declares no torchgraft.Operator")
    return declared


def _find_named(place: Path, name: str) -> Operator:
    """Finds the operator of a folder or file by its own name, or by the name of a variable that holds it."""
    declared = _find_in_place(place)
    module = sys.modules.get(name_of(place.resolve()))
    found = [each for each in declared if each.name == name] or [
        each for each in declared if each is _operator_of(getattr(module, name, None))
    ]
    if not found:
        raise LookupError(
            f"{place} declares no operator {name!r}; it declares {', '.join(each.name for each in declared)}"
        )
    return found[0]


def _name_in(folder: Path, path: Path) -> str:
    """The name of a module in a folder."""
    return name_of(folder) if path.stem == "__init__" else f"{name_of(folder)}.{path.stem}"
