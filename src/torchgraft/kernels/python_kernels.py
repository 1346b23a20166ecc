"""Kernels that are written in Python, as those in Triton are.

An operator may have several of them for a kind of device, beside those of a compiled library; a policy function of its
author's says which one a call takes. Compilers see inside those that are made of Triton kernels.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from torchgraft import native
from torchgraft._private import helion as private_helion
from torchgraft._private import pytorch
from torchgraft._private import triton as private_triton
from torchgraft.declaration import Declaration
from torchgraft.declaration.autocast import no_autocast
from torchgraft.declaration.memory import expect_own_memory, traced_results, unkept
from torchgraft.declaration.schema import by_name, tensors_in
from torchgraft.kernels import triton_launches
from torchgraft.kernels.filling import current_device_of
from torchgraft.kernels.names import Names

Kernel = Callable[..., Any]
# Compiles for a GPU, on any machine, what a call would launch, and returns the code.
CompileForGpu = Callable[..., str | bytes]
_Policy = TypeVar("_Policy", bound=Callable[..., str])

# What stands for the kernels of a compiled library in a policy.
COMPILED = "compiled"


@dataclass(frozen=True)
class Traits:
    """The properties of a kernel in Python that a declaration states.

    Attributes:
        triton: whether it is made of Triton kernels, called through `wrap_triton`.
        language: that it is written in, if it is neither Python nor Triton; empty if it is.
        compile: compiles it on a machine without a GPU; None if nothing does.
    """

    triton: bool = False
    language: str = ""
    compile: CompileForGpu | None = None


# By language: the environment variables that have its kernels run on the CPU, in Python. The first is torchgraft's own:
# Helion refuses to be imported if both HELION_INTERPRET and TRITON_INTERPRET are set.
REFERENCE_MODES = {"Helion": ("TORCHGRAFT_HELION_INTERPRET", "HELION_INTERPRET")}
# What such a run shows nothing of.
UNSEEN_IN_REFERENCE_MODE = {
    "Helion": (
        "there a tile is as long as its dimension, an index that is out of range stands for the nearest element, and"
        " nothing is compiled"
    )
}


def runs_in_reference_mode(language: str) -> bool:
    """Whether kernels in a language run on the CPU, in Python, in this process."""
    return any(os.environ.get(name) == "1" for name in REFERENCE_MODES.get(language, ()))


@dataclass
class PythonKernels:
    """The kernels of an operator for a kind of device that are written in Python.

    Attributes:
        declaration: of the operator.
        device: the kind of device.
        kernels: by name.
        policy: takes the arguments of a call and returns the name of a kernel; None: the compiled library's, or else
            the first.
        compiled: the kernels of a compiled library, which these stand before; None where there are none.
        shown_to_compilers: the names of those that are made of Triton kernels.
        interpreted: the names of those that Triton's interpreter runs.
        traits: what else is known of each, by name.
        served: how many calls fell on the kernel that is forced.
    """

    declaration: Declaration
    device: str
    kernels: dict[str, Kernel] = field(default_factory=dict)
    policy: Callable[..., str] | None = None
    compiled: Kernel | None = None
    shown_to_compilers: set[str] = field(default_factory=set)
    interpreted: set[str] = field(default_factory=set)
    traits: dict[str, Traits] = field(default_factory=dict)
    served: int = 0

    @property
    def by_language(self) -> dict[str, tuple[str, ...]]:
        """The names of the kernels by the language that they are written in, as a report names it."""
        found: dict[str, list[str]] = {}
        for name in self.kernels:
            is_triton = name in self.interpreted | self.shown_to_compilers
            language = self.traits[name].language or ("Triton" if is_triton else "Python")
            found.setdefault(language, []).append(name)
        return {language: tuple(names) for language, names in found.items()}

    @property
    def in_reference_mode(self) -> str:
        """The language whose reference mode runs one of the kernels on the CPU; empty if there is none."""
        languages = (self.traits[name].language for name in self.kernels)
        return next((each for each in languages if self.device == "cpu" and runs_in_reference_mode(each)), "")

    @property
    def listed(self) -> dict[str, tuple[str, int]]:
        """The kernels that can be forced: each one, and each further configuration if `triton.autotune` tunes it.

        By the name of that: the name of the kernel, and the number of the configuration. Configurations are listed of
        kernels that the interpreter runs, where nothing else chooses between them.
        """
        found = {name: (name, 0) for name in self.kernels}
        for name in sorted(self.interpreted):
            for number, words in enumerate(_configurations(self.kernels[name])[1:], start=1):
                found[f"{name} ({words})"] = (name, number)
        return found

    def _forced_here(self) -> tuple[str, int] | None:
        """The kernel that is forced, and the number of its configuration; None if it is none of these."""
        return self.listed.get(forced_name()) if forced_name() else None

    def choose(self, arguments: Sequence[Any]) -> str:
        """The name of the kernel that a call takes."""
        return self._choose(arguments, self._forced_here())

    def _choose(self, arguments: Sequence[Any], forced: tuple[str, int] | None) -> str:
        if forced is not None:
            return forced[0]
        if self.policy is not None:
            name = self.policy(*arguments)
            if name not in self.kernels and (name != COMPILED or self.compiled is None):
                known = [*self.kernels, *([COMPILED] if self.compiled is not None else [])]
                raise ValueError(
                    f"{self.declaration.name}: the policy for {self.device} must return one of {known}, got {name!r}"
                )
            return name
        return COMPILED if self.compiled is not None else next(iter(self.kernels))

    def call(self, *arguments: Any) -> Any:
        """Runs the kernel that is chosen; PyTorch calls it for the kind of device.

        Compiled kernels check what protects memory; those in Python need not, as it is done here.
        """
        forced = self._forced_here()
        name = self._choose(arguments, forced)
        if name == COMPILED and self.compiled is not None:
            return self.compiled(*arguments)
        self.declaration.explain(*arguments)
        launches = None
        if private_triton.is_repaired():
            on_launch = triton_launches.recorder(self.declaration.qualified_name)
            launches = private_triton.Launches(forced[1] if forced else 0, on_launch=on_launch)
        is_wrapped = name in self.shown_to_compilers
        # Autocast has cast what the declaration says, and would cast all else that the kernel is made of.
        direct = pytorch.triton_called_directly() if is_wrapped else nullcontext()
        launching = private_triton.launching(launches) if launches else nullcontext()
        # Languages launch on the current device, whose stream they ask PyTorch for.
        current = current_device_of(arguments) if self.device == "cuda" else nullcontext()
        with direct, no_autocast(arguments), pytorch.below_no_mode(), launching, current:
            try:
                results = self.kernels[name](*arguments)
            except (ValueError, TypeError) as error:
                _name_operator(error, self.declaration.name)
                raise
        references = sys.getrefcount(results)
        self.served += forced is not None and not (launches and launches.left_out)
        expect_own_memory(self.declaration.name, f"the kernel {name!r}", results, arguments, of_kernel=True)
        return unkept(results, references)


def _name_operator(error: Exception, name: str) -> None:
    """Puts the name of the operator in front of a kernel's error, as those of compiled kernels have it."""
    if len(error.args) == 1 and isinstance(error.args[0], str) and name not in error.args[0]:
        error.args = (f"{name}: {error.args[0]}",)


_registered: dict[tuple[str, str], PythonKernels] = {}
_shown: set[str] = set()
_forced: list[str] = []


def forced_name() -> str:
    """The name of the kernel that is forced; empty where none is."""
    return _forced[-1] if _forced else ""


def _configurations(function: Kernel) -> list[str]:
    """The configurations of the kernels that a Python function launches: of the one that has the most."""
    found = (private_triton.configurations(each) for each in _named_in(function))
    return max(found, key=len, default=[])


def _cells_of(function: types.FunctionType) -> Iterator[Any]:
    """The values of the functions around a function that it names."""
    for cell in function.__closure__ or ():
        # One that is not set yet has no contents.
        with suppress(ValueError):
            yield cell.cell_contents


def _named_in(function: Any) -> Iterator[Any]:
    """The values that a function names, and those that functions of its module name which it calls."""
    waiting: list[Any] = [function]
    seen: set[Any] = set()
    while waiting:
        called = inspect.unwrap(waiting.pop())
        if not isinstance(called, types.FunctionType) or called in seen:
            continue
        seen.add(called)
        codes = [called.__code__]
        for code in codes:
            codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        names = {name for code in codes for name in code.co_names}
        for value in (*_cells_of(called), *(called.__globals__.get(name) for name in names)):
            yield value
            if isinstance(value, types.ModuleType):
                yield from (vars(value).get(name) for name in names)
            elif getattr(value, "__module__", None) == called.__module__:
                waiting.append(value)


class ForcedPythonKernel:
    """A scope in which every call of an operator falls on a kernel that is written in Python, in all threads.

    Attributes:
        served: how many calls have fallen on it; known at the end of the scope.
        is_ruled_out: whether none has, and some would have on another device.
    """

    def __init__(self, kernels: PythonKernels, name: str) -> None:
        self._kernels, self._name = kernels, name
        self.served, self.is_ruled_out = 0, False

    def __enter__(self) -> ForcedPythonKernel:
        self._kernels.served = 0
        _forced.append(self._name)
        return self

    def __exit__(self, *error: object) -> None:
        _forced.remove(self._name)
        self.served = self._kernels.served


def forced(
    declaration: Declaration, device: str, name: str, *, alone: bool = False
) -> native.ForcedKernel | ForcedPythonKernel:
    """A scope in which every call that a kernel supports falls on it.

    Args:
        declaration: of the operator.
        device: the kind of device, 'cpu' or 'cuda'.
        name: of the kernel.
        alone: whether other calls are refused, as native.ForcedKernel does it; one in Python supports all.

    Raises:
        LookupError: it is none in Python, and the library of the operator lists none.
    """
    kernels = kernels_of(declaration.qualified_name, device)
    if kernels is not None and name in kernels.listed:
        return ForcedPythonKernel(kernels, name)
    return native.ForcedKernel(declaration.namespace, device, name, alone=alone)


Registered = Mapping[str, PythonKernels]


def forget(qualified_name: str) -> Registered:
    """Forgets the kernels of an operator that is withdrawn, and returns them by kind of device."""
    _shown.discard(qualified_name)
    found = of_operator(qualified_name)
    for device in found:
        del _registered[qualified_name, device]
    return found


def of_operator(qualified_name: str) -> Registered:
    """The kernels of an operator that are written in Python, by kind of device."""
    pairs = ((device, kernels_of(qualified_name, device)) for device in pytorch.DEVICE_KEYS)
    return {device: kernels for device, kernels in pairs if kernels is not None}


def register_again(names: Names, library: torch.library.Library, kernels: Registered) -> None:
    """Registers what `forget` returned.

    Args:
        names: of the operator.
        library: that registers for it.
        kernels: by kind of device.
    """
    for device, found in kernels.items():
        policy, functions = found.policy, dict(found.kernels)
        for name, function in functions.items():
            register(names, library, device, name, function, found.traits[name])
        _registered[names.declaration.qualified_name, device].policy = policy


def seen_by_compilers(qualified_name: str) -> list[Any]:
    """The kernels of an operator that compilers see inside, with the policies that choose between them."""
    found = of_operator(qualified_name).values()
    return [
        (each.device, each.policy, each.kernels, each.shown_to_compilers) for each in found if each.shown_to_compilers
    ]


def kernels_of(qualified_name: str, device: str) -> PythonKernels | None:
    """The kernels of an operator for a kind of device that are written in Python."""
    return _registered.get((qualified_name, device))


def choose_by(declaration: Declaration, device: str, policy: _Policy) -> _Policy:
    """Has a policy choose between an operator's kernels for a kind of device, and returns it.

    Raises:
        ValueError: it has none that are written in Python.
    """
    found = kernels_of(declaration.qualified_name, device)
    if found is None:
        raise ValueError(
            f"{declaration.qualified_name} has no Python kernels for {device}: register them before the policy"
        )
    found.policy = by_name(policy, declaration.arguments)
    return policy


def register(
    names: Names, library: torch.library.Library, device: str, name: str, function: Kernel, traits: Traits
) -> None:
    """Makes a function one of an operator's kernels for a kind of device.

    Args:
        names: of the operator.
        library: that registers for it.
        device: the kind of device, 'cpu' or 'cuda'.
        name: of the kernel.
        function: takes all arguments and returns what the schema says.
        traits: what it is made of.

    Raises:
        ValueError: there is no such kind of device, or the name is taken.
    """
    declaration = names.declaration
    if device not in pytorch.DEVICE_KEYS:
        raise ValueError(
            f"{declaration.name}: device must be {' or '.join(map(repr, pytorch.DEVICE_KEYS))}, got {device!r}"
        )
    found = _registered.get((declaration.qualified_name, device))
    if found is None:
        compiled = pytorch.boxed_kernel_of(names.raw, pytorch.DEVICE_KEYS[device])
        # It knows compiled kernels only.
        names.recorders.pop(device, None)
        found = _registered[declaration.qualified_name, device] = PythonKernels(declaration, device, compiled=compiled)
        for overload in (names.public, names.raw):
            called = found.call if overload is names.raw else declaration.filled(found.call)
            pytorch.override(library, overload, called, pytorch.DEVICE_KEYS[device])
    if name in (*found.kernels, COMPILED):
        raise ValueError(
            f"{declaration.name}: {device} already has a kernel named {name!r}; give this one another name"
        )
    found.kernels[name], found.traits[name] = function, traits
    if runs_in_reference_mode(traits.language):
        for each in _named_in(function):
            private_helion.run_in_reference_mode(each)
    if traits.triton and is_interpreted():
        private_triton.repair()
        found.interpreted.add(name)
    # An interpreter reads the values of tensors, and a compiler's have none.
    elif traits.triton:
        found.shown_to_compilers.add(name)
        _show_to_compilers(names, library)


def _show_to_compilers(names: Names, library: torch.library.Library) -> None:
    """Lets compilers see what Triton kernels compute, in the place of an operator that they cannot see into."""
    qualified_name = names.declaration.qualified_name
    # Compilers see the reference of an operator that writes to its arguments and returns a list.
    if qualified_name in _shown or (names.declaration.mutates and any(names.declaration.lists)):
        return
    _shown.add(qualified_name)

    def see_inside(mode: Any, overload: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        kernels = kernels_of(qualified_name, next(tensors_in(arguments)).device.type)
        if kernels is None or kernels.choose(arguments) not in kernels.shown_to_compilers:
            return mode.__torch_dispatch__(overload, types, arguments, named)
        name = kernels.choose(arguments)
        with mode:
            results = kernels.kernels[name](*arguments)
            return traced_results(kernels.declaration.name, f"the kernel {name!r}", results, arguments)

    name = names.raw.name()
    torch.library.register_torch_dispatch(name, pytorch.functional_mode(), see_inside, lib=library)


def reference_mode_of(declaration: Declaration) -> str:
    """The language whose reference mode runs kernels of an operator in this process; empty if there is none."""
    kernels = kernels_of(declaration.qualified_name, "cpu")
    return kernels.in_reference_mode if kernels is not None else ""


def is_run_by_interpreter(declaration: Declaration) -> bool:
    """Whether an operator has kernels in Triton that the interpreter runs in this process."""
    kernels = kernels_of(declaration.qualified_name, "cpu")
    return kernels is not None and bool(kernels.interpreted)


class _ByRules:
    """A Triton kernel whose constants `triton.heuristics` computes, which PyTorch's `wrap_triton` does not take."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Kernel:
        def launch(*arguments: Any, **named: Any) -> Any:
            for name, rule in self.kernel.values.items():
                named[name] = rule({**dict(zip(self.kernel.arg_names, arguments, strict=False)), **named})
            return wrap_triton(self.kernel.fn)[grid](*arguments, **named)

        return launch


def wrap_triton(kernel: Any) -> Any:
    """A Triton kernel as a kernel of an Operator launches it: `wrap_triton(kernel)[grid](arguments)`.

    Compilers then see the launch. Under Triton's interpreter, as TRITON_INTERPRET=1 has it, one thread launches at a
    time.

    Args:
        kernel: what `triton.jit`, `triton.autotune` or `triton.heuristics` made.
    """
    if private_triton.is_interpreted(kernel):
        private_triton.repair()
        return kernel
    return _ByRules(kernel) if private_triton.has_rules(kernel) else torch.library.wrap_triton(kernel)


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the Triton kernels of this process, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"
