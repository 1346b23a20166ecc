"""What is checked: an operator and its samples, found by the names that a person has for them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from torchgraft.operator import Operator
from torchgraft.sampling import Samples


@dataclass(frozen=True)
class Subject:
    """An operator and what it is checked on.

    Attributes:
        beside: whether the samples are those beside the declaration, so that another process finds them too.
    """

    operator: Operator
    samples: Samples
    beside: bool = True

    @property
    def name(self) -> str:
        """As a person writes it: without the namespace for an operator of torchgraft."""
        return self.operator.short_name


def subject_of(operator: Operator, samples: Samples | None = None) -> Subject:
    """An operator with its samples: those that are given, or else those that lie beside its declaration.

    That is `samples` in the module of the declaration, or in a module `samples` of the same package: a `Samples`, or a
    dict of them by the operator's name.

    Raises:
        LookupError: there are none.
    """
    if samples is not None:
        return Subject(operator, samples, beside=False)
    return Subject(operator, _find_samples(operator))


def _find_samples(operator: Operator) -> Samples:
    module = sys.modules.get(operator.module) or importlib.import_module(operator.module)
    holder: ModuleType | None = module
    if not hasattr(module, "samples") or isinstance(module.samples, ModuleType):
        beside = operator.module.rpartition(".")[0]
        name = f"{beside}.samples" if beside else "samples"
        try:
            holder = importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name not in (name, beside):
                raise
            holder = None
    found = getattr(holder, "samples", None)
    if isinstance(found, dict):
        found = found.get(operator.name)
    if not isinstance(found, Samples):
        raise LookupError(
            f"{operator.qualified_name} has no samples: put `samples = {{{operator.name!r}: torchgraft.sampling.Samples"
            f"(...)}}` into samples.py beside {operator.module}, or pass samples="
        )
    return found


def find_subjects(targets: Sequence[str]) -> list[Subject]:
    """The operators that a person means.

    Args:
        targets: each the name of an operator of torchgraft, `namespace::name` of one that is declared,
            `package.module:operator`, or a folder that holds the declaration; none means all of torchgraft.

    Raises:
        LookupError: there is no such operator, or it has no samples.
    """
    if not targets:
        return [
            subject_of(operator)
            for name, operator in Operator.registered.items()
            if name.startswith("torchgraft::") and operator.module.startswith("torchgraft.")
        ]
    subjects = [subject for target in targets for subject in _find(target)]
    return list({subject.operator.qualified_name: subject for subject in subjects}.values())


def _find(target: str) -> list[Subject]:
    qualified = target if "::" in target else f"torchgraft::{target}"
    if qualified in Operator.registered:
        return [subject_of(Operator.registered[qualified])]
    if Path(target).is_dir():
        return _find_in_folder(Path(target))
    if ":" in target and "::" not in target:
        return [subject_of(_find_in_module(*target.split(":", 1)))]
    ours = [name.removeprefix("torchgraft::") for name in Operator.registered if name.startswith("torchgraft::")]
    raise LookupError(
        f"there is no operator {target!r}: give one of {', '.join(ours)}; or package.module:operator; "
        "or a folder that declares one"
    )


def _find_in_module(module_name: str, attribute: str) -> Operator:
    _look_in_working_directory()
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module_name}.".startswith(f"{missing.name}."):
            raise
        raise LookupError(f"there is no module {module_name!r} on Python's path or in this directory") from None
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, Operator):
        declared = [name for name, each in vars(sys.modules[module_name]).items() if isinstance(each, Operator)]
        hint = f"; its operators: {', '.join(declared)}" if declared else ""
        raise LookupError(f"{module_name}:{attribute} is not a torchgraft.Operator{hint}")
    return value


def _look_in_working_directory() -> None:
    # A command does not have the working directory on Python's path, as `python -m` has.
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _find_in_folder(folder: Path) -> list[Subject]:
    """What the modules of a folder declare, imported under the name that the folder has in its package."""
    folder = folder.resolve()
    package, root = [folder.name], folder.parent
    while (root / "__init__.py").is_file():
        package.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    name = ".".join(package)
    for path in sorted(folder.glob("*.py")):
        # A test may ask for what this folder declares, while it is being imported.
        if path.stem.startswith("test_") or path.stem == "conftest":
            continue
        importlib.import_module(name if path.stem == "__init__" else f"{name}.{path.stem}")
    declared = [each for each in Operator.registered.values() if f"{each.module}.".startswith(f"{name}.")]
    if not declared:
        raise LookupError(f"no module of {folder} declares a torchgraft.Operator")
    return [subject_of(operator) for operator in declared]
