"""Modules whose class calls a function causal_conv1d of another package: their methods, with other functions in it."""

import builtins
import dis
import functools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from torchgraft.nn.grafting.causal import name_of, stand_in_for
from torchgraft.nn.grafting.methods import (
    ConvForward,
    Forward,
    FunctionsForward,
    Method,
    PrepareScriptable,
    Replicate,
    computes_as_its_base,
    methods_of,
    names_of_forward,
)
from torchgraft.nn.grafting.recurrent import RecurrentForward
from torchgraft.nn.recording import is_recorded_to_be_read

# Packages whose classes call no such function, or call torchgraft's own.
_SKIPPED = ("torch", "torchgraft", "builtins", "typing")


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and that of the functions inside it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _globals_of(code: types.CodeType, operation: str) -> set[str]:
    """The global variables that the code of a function reads or writes; an attribute of that name is another matter."""
    instructions = (each for part in _codes(code) for each in dis.get_instructions(part))
    return {each.argval for each in instructions if each.opname == operation}


class _Globals:
    """The global variables of copied functions: those of their file, but for the functions that they call.

    Args:
        scope: the global variables of the file.
    """

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope, self.own = scope, dict(scope)
        # By this name torch.compile would look variables up in the file, where they have other values.
        self.own.pop("__name__", None)
        # The names that have the same value in both, and the values of those that copies write, as both had them last.
        self._shared: set[str] = set()
        self.written: dict[str, Any] = {}

    def add(self, code: types.CodeType, changes: Mapping[str, Any]) -> None:
        """Adds the variables of a function.

        Args:
            code: of the function.
            changes: the variables that have other values than in the file.
        """
        self.own.update(changes)
        read, written = (_globals_of(code, f"{each}_GLOBAL") for each in ("LOAD", "STORE"))
        names = (read | written) - changes.keys() - vars(builtins).keys()
        self._shared = (self._shared | names) - changes.keys()
        self.written.update((name, self.own.get(name)) for name in names & written)

    def exchange(self) -> None:
        """Gives the file the values that the copy has written, and the copy those that the file has now."""
        own, scope = self.own, self.scope
        for name, value in self.written.items():
            if name in own and own[name] is not value:
                scope[name] = own[name]
        for name in self._shared:
            if name in scope:
                own[name] = scope[name]
            else:
                own.pop(name, None)
        for name in self.written:
            self.written[name] = own.get(name)


@dataclass
class _Calls:
    """The methods of a class that call such functions.

    Attributes:
        methods: by name, copies that call what stands in.
        functions: the names of the functions that are served.
        refused: the names of those that take other arguments.
        read: the variables that were read, with their values: as long as they have these, the copies hold.
        globals: those of the copies, by the identity of those of the file.
    """

    methods: dict[str, types.FunctionType] = field(default_factory=dict)
    functions: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    read: list[tuple[Mapping[str, Any], str, Any]] = field(default_factory=list)
    globals: dict[int, _Globals] = field(default_factory=dict)
    _copies: dict[types.FunctionType, types.FunctionType | None] = field(default_factory=dict)

    def holds(self) -> bool:
        """Whether the file and the class still have the functions that were copied, and those that they called."""
        return all(scope.get(name) is value for scope, name, value in self.read)

    def replaced(self, value: Any, scope: Mapping[str, Any] | None = None) -> Any:
        """The value that takes the place of a variable's; None if that calls no such function.

        Args:
            value: of a variable.
            scope: the global variables, if the value is that of one. Functions that a function calls are followed as
                far as those of its own file.
        """
        if name := name_of(value):
            found = stand_in_for(value)
            (self.functions if found else self.refused).add(name)
            return found
        if isinstance(value, tuple):
            items = [stand_in_for(each) for each in value]
            self.functions.update(name_of(each) for each, item in zip(value, items, strict=True) if item)
            return tuple(item or each for each, item in zip(value, items, strict=True)) if any(items) else None
        if isinstance(value, types.FunctionType) and (scope is None or value.__globals__ is scope):
            return self.copy(value)
        return None

    def copy(self, function: types.FunctionType) -> types.FunctionType | None:
        """Copies a function so that it calls what stands in; None if it calls none of the known functions."""
        if function not in self._copies:
            self._copies[function] = None  # A function that calls itself ends here.
            self._copies[function] = self._copy(function)
        return self._copies[function]

    def _copy(self, function: types.FunctionType) -> types.FunctionType | None:
        scope, changes = function.__globals__, dict[str, Any]()
        read = _globals_of(function.__code__, "LOAD_GLOBAL")
        for name in {name for code in _codes(function.__code__) for name in code.co_names if name in scope}:
            value = scope[name]
            interesting = isinstance(value, (types.FunctionType, nn.Module, tuple))
            if interesting and (not name_of(value) or name in read):
                other = self.replaced(value, scope)
                if other is not None:
                    changes[name] = other
                    self.read.append((scope, name, value))
        cells, is_wrapper = list(function.__closure__ or ()), False
        for place, cell in enumerate(cells):
            # A decorator keeps the function that it wraps in such a cell.
            try:
                other = self.replaced(cell.cell_contents)
            except ValueError:  # The cell is empty.
                continue
            if other is not None:
                cells[place], is_wrapper = types.CellType(other), True
        if not (changes or is_wrapper):
            return None
        own = self.globals.setdefault(id(scope), _Globals(scope))
        own.add(function.__code__, changes)
        # Compiled code belongs to a code object, so the copy has one of its own.
        code = function.__code__.replace()
        copied = types.FunctionType(code, own.own, function.__name__, function.__defaults__, tuple(cells))
        copied.__kwdefaults__ = function.__kwdefaults__
        functools.update_wrapper(copied, function)
        return copied


_FOUND: weakref.WeakKeyDictionary[type, _Calls] = weakref.WeakKeyDictionary()


def _calls_of(kind: type) -> _Calls:
    """Finds the methods of a class that call such functions; layers of one class share them."""
    found = _FOUND.get(kind)
    if found is not None and found.holds():
        return found
    found, seen = _Calls(), set()
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] in _SKIPPED:
            continue
        for name, value in vars(each).items():
            if isinstance(value, types.FunctionType) and not name.startswith("__") and name not in seen:
                seen.add(name)
                copied = found.copy(value)
                if copied is not None:
                    found.methods[name] = copied
                    found.read.append((vars(each), name, value))
    if found.methods:
        _FOUND[kind] = found
    return found


class Caller(Forward):
    """A method of a module whose class calls such functions: the class's own code, with what stands in for them."""

    __slots__ = ("_calls", "_function", "_theirs", "name")

    def __init__(self, layer: nn.Module, name: str) -> None:
        super().__init__(layer)
        self.name = name
        self._find(layer)

    def _find(self, layer: nn.Module) -> None:
        self._theirs: Callable[..., Any] = getattr(type(layer), self.name)
        self._calls = _calls_of(type(layer))
        # A file may be loaded where the class calls none of the functions.
        self._function: Callable[..., Any] = self._calls.methods.get(self.name) or self._theirs

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Runs the class's own method, and causal convolutions on operators."""
        layer = self._layer() or self._found()
        theirs = getattr(type(layer), self.name)
        if is_recorded_to_be_read():
            return theirs(layer, *arguments, **named)
        if torch.compiler.is_compiling():
            return (self._function if theirs is self._theirs else theirs)(layer, *arguments, **named)
        if not self._calls.holds():
            # Another tool has given the class or its file a function of its own.
            self._find(layer)
        for each in self._calls.globals.values():
            each.exchange()
        try:
            return self._function(layer, *arguments, **named)
        finally:
            for each in self._calls.globals.values():
                if each.written:
                    each.exchange()

    def of(self, layer: nn.Module) -> "Caller":
        """The same method of another layer."""
        return type(self)(layer, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._found(), self.name)


class Attribute(Method):
    """A function that a module keeps in an attribute of its own, such as `self.causal_conv1d_update`."""

    __slots__ = ("_before", "_function", "name")
    is_of_the_class = False

    def __init__(self, layer: nn.Module, name: str, before: Callable[..., Any]) -> None:
        super().__init__(layer)
        self.name = name
        self._before = before
        self._function = stand_in_for(before) or before

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Calls what stands in for the function."""
        return (self._before if is_recorded_to_be_read() else self._function)(*arguments, **named)

    def of(self, layer: nn.Module) -> "Attribute":
        """The same attribute of another layer."""
        return type(self)(layer, self.name, self._before)

    def of_the_class(self) -> Callable[..., Any]:
        """The function that the attribute held."""
        return self._before

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._found(), self.name, self._before)


@dataclass(frozen=True)
class Calls:
    """The calls of causal_conv1d that a module makes itself.

    Attributes:
        methods: those that serve them, by the names under which the module keeps them.
        functions: the names of the functions that are called.
        reason: why they are not served; empty if they are.
    """

    methods: dict[str, Method] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    reason: str = ""


def calls_of(module: nn.Module) -> Calls:
    """Finds the calls of causal_conv1d that a module makes: in methods of its class, and in attributes of its own.

    Args:
        module: any module, grafted or not.
    """
    of_class = _calls_of(type(module))
    kept = {
        name: value.of_the_class() if isinstance(value, Attribute) else value
        for name, value in vars(module).items()
        if isinstance(value, (types.FunctionType, Attribute))
    }
    attributes = {name: value for name, value in kept.items() if stand_in_for(value)}
    functions = of_class.functions.union(map(name_of, attributes.values()))
    refused = of_class.refused.union(filter(None, map(name_of, kept.values()))) - functions
    if not functions and not refused:
        return Calls()
    names = tuple(sorted(functions or refused))
    if not functions:
        return Calls(functions=names, reason=f"its {' and '.join(names)} takes other arguments than the published one")
    if of_class.methods.keys() & vars(module).keys() - methods_of(module).keys():
        return Calls(functions=names, reason="its forward was replaced: graft the model first, then replace it")
    methods: dict[str, Method] = {name: Caller(module, name) for name in of_class.methods}
    methods.update({name: Attribute(module, name, value) for name, value in attributes.items()})
    methods.update({each.name: each(module) for each in (Replicate, PrepareScriptable)})
    return Calls(methods, names)


def give(module: nn.Module, *, measured: bool = False) -> None:
    """Gives a module the methods by which it computes on torchgraft's operators.

    Args:
        module: a convolution, a module that calls one as a function, or a recurrent layer.
        measured: whether it does so in all calls, for an example. Otherwise a recurrent layer decides in each.
    """
    if isinstance(module, nn.RNNBase):
        methods: dict[str, Method] = {name: RecurrentForward(module, measured) for name in names_of_forward(module)}
        methods.update({each.name: each(module) for each in (Replicate, PrepareScriptable)})
        vars(module).update(methods)
        return
    methods = calls_of(module).methods
    if not methods and computes_as_its_base(module):
        methods = {ConvForward.name: ConvForward(module)}
    elif not methods:
        kind = Forward if isinstance(module, _ConvNd) else FunctionsForward
        methods = {name: kind(module) for name in names_of_forward(module)}
        methods.update({each.name: each(module) for each in (Replicate, PrepareScriptable)})
    vars(module).update(methods)
