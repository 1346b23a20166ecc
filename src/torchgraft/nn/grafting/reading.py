"""Modules whose own forward pass calls PyTorch's convolution functions: found by reading its code, without a call.

Read are a class's forward pass, the methods and functions that it names, and those that these name, in every file but
PyTorch's and Python's. Not every call that is found runs, and not every one is depthwise: the method that serves them
looks at each, and gives up where none ever is.
"""

import dis
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from torchgraft.nn.grafting.functional import NAMES
from torchgraft.nn.grafting.methods import FunctionsForward, methods_of, names_of_forward

# Packages whose functions call no convolution, or are served otherwise.
_SKIPPED = {"torch", "torchgraft", "numpy", *sys.stdlib_module_names} - {"__main__"}
# A scope delays every function of PyTorch's that runs in it, by a microsecond or so.
_MOST_MODULES = 32
# The arguments of a convolution function up to `groups`.
_UP_TO_GROUPS = 7
# Tables of functions are small; what is larger holds something else.
_LARGEST_TABLE = 16


class _Code(NamedTuple):
    """The facts about a piece of code.

    Attributes:
        reads: variables that are no local ones, each with the attributes that are read of it.
        attributes: the names of all attributes that are read.
        imports: the names that it imports itself.
        names_groups: whether it may call a function with `groups`; a convolution without is not depthwise.
    """

    reads: frozenset[tuple[str, ...]]
    attributes: frozenset[str]
    imports: frozenset[str]
    names_groups: bool


@functools.lru_cache(maxsize=4096)
def _read(code: types.CodeType) -> _Code:
    """Reads the code of a function, and that of the functions inside it."""
    reads, attributes, imports = set[tuple[str, ...]](), set[str](), set[str]()
    names_groups = any(each == "groups" or (isinstance(each, tuple) and "groups" in each) for each in code.co_consts)
    path: tuple[str, ...] = ()
    for each in dis.get_instructions(code):
        operation = each.opname
        if operation in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            attributes.add(each.argval)
            path = (*path, each.argval) if path else ()
        elif operation in ("LOAD_GLOBAL", "LOAD_DEREF"):
            path = (each.argval,)
        else:
            path = ()
        if path:
            reads.add(path)
        if operation in ("IMPORT_NAME", "IMPORT_FROM"):
            imports.add(each.argval)
        elif operation.startswith("CALL"):
            names_groups |= operation == "CALL_FUNCTION_EX" or (each.arg or 0) >= _UP_TO_GROUPS
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = _read(constant)
            reads |= inner.reads
            attributes |= inner.attributes
            imports |= inner.imports
            names_groups |= inner.names_groups
    return _Code(frozenset(reads), frozenset(attributes), frozenset(imports), names_groups)


def _package(named: Any) -> str:
    """The package of a function or class."""
    return (getattr(named, "__module__", None) or "").partition(".")[0]


@dataclass
class _Reading:
    """The names and functions that a forward pass reads, as far as they concern convolutions.

    Attributes:
        kind: the class whose methods are followed.
        functions: the names of the convolution functions that it may call with `groups`.
        attributes: the names of attributes, of a module or of something else.
        grouped: those that are read where a call may have `groups`.
        computes_again: whether something in it is named for checkpoints, which compute again when a scope has ended.
    """

    kind: type
    functions: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    grouped: set[str] = field(default_factory=set)
    computes_again: bool = False
    _seen: set[types.FunctionType] = field(default_factory=set)

    def value(self, value: Any, names_groups: bool) -> None:
        """Reads what a variable or an attribute holds.

        Args:
            value: anything.
            names_groups: whether it may be called with `groups`.
        """
        if isinstance(value, types.FunctionType):
            self.function(value)
        elif isinstance(value, types.BuiltinFunctionType):
            if names_groups and value in NAMES:
                self.functions.add(NAMES[value])
        elif isinstance(value, functools.partial):
            names_groups |= "groups" in value.keywords or len(value.args) >= _UP_TO_GROUPS
            for each in (value.func, *value.args):
                self.value(each, names_groups)
        elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
            self.value(value.__func__, names_groups)
        elif isinstance(value, property):
            self.value(value.fget, names_groups)
        elif isinstance(value, type) and issubclass(value, torch.autograd.Function):
            self.value(inspect.getattr_static(value, "forward"), names_groups)
        elif isinstance(value, (tuple, list, dict)) and len(value) <= _LARGEST_TABLE:
            for each in value.values() if isinstance(value, dict) else value:
                if not isinstance(each, (tuple, list, dict)):
                    self.value(each, names_groups)

    def function(self, function: types.FunctionType) -> None:
        """Reads a function, and what it reads."""
        if function in self._seen or _package(function) in _SKIPPED:
            return
        self._seen.add(function)
        read = _read(function.__code__)
        self.attributes |= read.attributes
        for name in read.attributes:
            for each in self.kind.__mro__:
                if _package(each) not in _SKIPPED and name in vars(each):
                    self.value(vars(each)[name], read.names_groups)
        if read.names_groups:
            self.grouped |= read.attributes
            if any(name.partition(".")[0] == "torch" for name in read.imports):
                self.functions |= set(NAMES.values()) & (read.attributes | read.imports)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for name, *path in read.reads:
            try:
                value = cells[name].cell_contents if name in cells else function.__globals__[name]
            except (KeyError, ValueError):  # It is Python's own, or not set yet.
                continue
            for attribute in path:
                known = isinstance(value, (types.ModuleType, type))
                value = inspect.getattr_static(value, attribute, None) if known else None
            self.value(value, read.names_groups)
        names = {*read.attributes, *read.imports, *(name for path in read.reads for name in path)}
        self.computes_again |= any("checkpoint" in name for name in names)


_OF_CLASS: weakref.WeakKeyDictionary[type, tuple[Any, _Reading]] = weakref.WeakKeyDictionary()


def _reading_of(kind: type) -> _Reading:
    """Reads the forward pass of a class, once."""
    forward = inspect.getattr_static(kind, "forward", None)
    kept = _OF_CLASS.get(kind)
    if kept is None or kept[0] is not forward:
        reading = _Reading(kind)
        reading.value(forward, False)
        kept = _OF_CLASS[kind] = forward, reading
    return kept[1]


def attributes_read(kind: type) -> Set[str]:
    """The names of all attributes that the forward pass of a class reads, and what it calls in files of its own."""
    return _reading_of(kind).attributes


def computes_again(kind: type) -> bool:
    """Whether the forward pass of a class may be computed again, from a checkpoint."""
    return _reading_of(kind).computes_again


def functions_called(module: nn.Module) -> tuple[str, ...]:
    """The names of the convolution functions that a module's own forward pass may call for depthwise convolutions.

    Args:
        module: any module, grafted or not.
    """
    if isinstance(module, (_ConvNd, nn.RNNBase, torch.jit.ScriptModule)):
        return ()
    reading, held = _reading_of(type(module)), vars(module)
    functions = reading.functions
    if kept := reading.attributes & held.keys():
        # A module may hold functions itself, and each something else.
        own = _Reading(type(module))
        for name in kept:
            own.value(held[name], name in reading.grouped)
        functions = functions | own.functions
    groups, channels = held.get("groups"), held.get("in_channels")
    if "groups" in reading.grouped and isinstance(groups, int):
        is_dense = groups == 1 or (isinstance(channels, int) and groups != channels)
        functions = set() if is_dense else functions
    return tuple(sorted(functions))


def why_not_served(module: nn.Module) -> str:
    """The reason why the convolution functions that a module calls are not served; empty if there is none."""
    for method in methods_of(module).values():
        if isinstance(method, FunctionsForward):
            return method.why_not
    if not names_of_forward(module):
        return "its forward was replaced: graft the model first, then replace it"
    if computes_again(type(module)):
        return "its forward pass may be computed again, from a checkpoint, where no scope is: graft with an example"
    if sum(1 for _ in module.modules()) > _MOST_MODULES:
        return "it holds many modules, which a scope around all would delay: graft with an example"
    return ""
