"""A word that follows from what a declaration says: other code or other values give another word, in every process."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib
import inspect
import os
import sys
import types
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

# These say all about themselves when they are printed.
_NUMBERS_AND_TEXT = (type(None), type(Ellipsis), bool, int, float, complex, str, bytes, range)
_PLAIN = (*_NUMBERS_AND_TEXT, torch.dtype, torch.device, torch.layout, torch.memory_format)
# Containers that hold nothing but what they list.
_CONTAINERS = (tuple, list, dict, set, frozenset, OrderedDict)
# User's classes may inherit from these. Any other class that is written in C may hold values that nothing shows.
_BASES = (object, type, *_CONTAINERS, *_NUMBERS_AND_TEXT)

# Their code is that of PyTorch, Python or Triton, which compilers' caches know by version.
_LIBRARIES = frozenset(("torch", "triton", *sys.stdlib_module_names)) - {"__main__"}

# Names, and functions and tables themselves, by which code reaches values that it does not spell.
_LOOKUPS = frozenset(
    ("import_module", "__import__", "eval", "exec", "globals", "environ", "getenv", "__annotations__", "get_type_hints")
)
_ELSEWHERE: tuple[Any, ...] = (
    *(importlib.import_module, __import__, eval, exec, globals, getattr, vars),
    *(os.environ, os.getenv, sys.argv, sys.modules),
)
_LOOKUPS_IN_MODULES = frozenset(("getattr", "attrgetter", "vars", "__dict__"))

# Functions of PyTorch whose results are settings.
_SETTINGS: tuple[Any, ...] = (torch.get_num_threads, torch.get_default_dtype, torch.get_default_device)

# Members that Python itself adds to a class.
_BY_PYTHON = frozenset(
    (
        "__annotate_func__",
        "__annotations__",
        "__annotations_cache__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__match_args__",
        "__module__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
        "_abc_impl",
        "__slots__",
        "__static_attributes__",
        "__weakref__",
    )
)

# A function that reaches more than this many values is not followed further.
_MOST_VALUES = 10_000


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_CACHED: Any = type(functools.lru_cache(maxsize=None)(len))


class _UnknownError(Exception):
    """A value that cannot be told from another one of its kind."""


def fingerprint(value: Any) -> str:
    """Returns a word for a value and everything that functions in it are made of and refer to.

    Functions count by their code, constants, defaults, closures and the globals that they name, and not by where their
    source lies. What cannot be described gives a word that never comes again.

    Args:
        value: numbers, text, dtypes, functions, classes and modules, in tuples, lists, sets and dicts.

    Returns:
        An identifier.
    """
    made_of = hashlib.sha256()
    try:
        for word in _Description().of(value):
            made_of.update(word.encode() + b"\0")
    except _UnknownError:
        return f"declared_{uuid.uuid4().hex}"
    return f"declared_{made_of.hexdigest()[:16]}"


class _Description:
    """Describes one value, and each value that it refers to once."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []

    def of(self, value: Any) -> Iterator[str]:
        """The words for a value."""
        if type(value) in _PLAIN:
            yield f"{type(value).__name__} {value!r}"
            return
        # Python may or may not use one tuple for equal constants.
        if type(value) is tuple:
            yield from self._all(value)
            return
        if id(value) in self._seen:
            yield f"seen {self._seen[id(value)]}"
            return
        self._seen[id(value)] = len(self._seen)
        # No other value may get its address.
        self._alive.append(value)
        if len(self._seen) > _MOST_VALUES:
            raise _UnknownError
        yield type(value).__name__
        if any(value is each for each in _ELSEWHERE):
            raise _UnknownError
        if any(value is each for each in _SETTINGS):
            yield repr(value())
        elif isinstance(value, types.ModuleType):
            if not _is_library(value.__name__):
                # Who takes what out of it is not known.
                raise _UnknownError
            yield value.__name__
        elif isinstance(value, (type, *_FUNCTIONS)):
            yield from self._code(value)
        elif not _is_of_library(type(value)):
            yield from self._instance(value)
        elif type(value) in _CONTAINERS:
            yield from self._listed(value)
        elif isinstance(value, types.CodeType):
            exceptions = getattr(value, "co_exceptiontable", b"")
            yield value.co_code.hex()
            yield from self._all((value.co_consts, value.co_names, value.co_varnames, value.co_flags, exceptions))
        elif type(value) is functools.partial:
            yield from self._all((value.func, value.args, value.keywords, vars(value)))
        elif type(value) is _CACHED:
            yield from self._all((value.__wrapped__, vars(value)))
        elif isinstance(value, (staticmethod, classmethod)):
            yield from self.of(value.__func__)
        elif isinstance(value, property):
            yield from self._all((value.fget, value.fset))
        elif isinstance(value, functools.cached_property):
            yield from self.of(value.func)
        elif inspect.isdatadescriptor(value):
            # A field of a named tuple or a slot, which its name among the members of the class describes.
            return
        elif _is_of_library(value) and (name := _name_of(value)):
            # An operator of PyTorch's.
            yield f"{value.__module__} {name}"
        elif type(value).__module__.partition(".")[0] == "triton":
            # A kernel in Triton, or what tunes one: its source, and the sizes that are tried.
            yield repr(getattr(value, "configs", ""))
            yield from self.of(getattr(value, "fn", _Nothing))
        elif hasattr(value, "__dict__"):
            # Its class is a library's and written in Python, as that of torch.no_grad() is.
            yield from self._instance(value)
        else:
            raise _UnknownError

    def _code(self, value: Any) -> Iterator[str]:
        """The words for a function or a class."""
        if isinstance(value, types.MethodType):
            yield from self._all((value.__func__, value.__self__))
        elif isinstance(value, types.BuiltinFunctionType):
            yield value.__qualname__
            owner: Any = value.__self__
            yield from self.of(owner.__name__ if isinstance(owner, (type, types.ModuleType)) else owner)
        elif _is_of_library(value):
            yield f"{value.__module__} {_name_of(value)}"
            # A library's decorator keeps the user's function in the closure of the function that it returns.
            yield from self._all(_closure(value))
        elif isinstance(value, types.FunctionType):
            yield from self._function(value)
        else:
            yield value.__qualname__
            members = {name: each for name, each in vars(value).items() if name not in _BY_PYTHON}
            yield from self._all((type(value), value.__bases__, members))

    def _instance(self, value: Any) -> Iterator[str]:
        """The words for an instance: its class, and all that it keeps."""
        if type(value).__module__.startswith("torchgraft.") and hasattr(value, "declaration_word"):
            yield value.declaration_word
            return
        for each in type(value).__mro__:
            made_in_c = isinstance(vars(each).get("__new__"), types.BuiltinFunctionType)
            if made_in_c and each not in _BASES and _is_of_library(each):
                raise _UnknownError
        yield from self._all((type(value), getattr(value, "__dict__", None), _slots(value)))
        if isinstance(value, _CONTAINERS):
            yield from self._listed(value)
        elif isinstance(value, _NUMBERS_AND_TEXT):
            base: Any = next(base for base in _NUMBERS_AND_TEXT if isinstance(value, base))
            yield repr(base(value))

    def _listed(self, container: Any) -> Iterator[str]:
        """The words for what a container holds, in an order that is the same in every process."""
        if isinstance(container, (set, frozenset)):
            yield from sorted(" ".join(_Description().of(each)) for each in container)
        elif isinstance(container, dict):
            yield from self._all(part for pair in dict.items(container) for part in pair)
        else:
            yield from self._all(container)

    def _all(self, values: Any) -> Iterator[str]:
        for each in values:
            yield from self.of(each)
        yield "end"

    def _function(self, function: types.FunctionType) -> Iterator[str]:
        if _looks_elsewhere(function.__code__):
            raise _UnknownError
        yield from self._all((function.__code__, vars(function)))
        closure = _closure(function)
        names = list(_names_in(function.__code__))
        named = function.__kwdefaults__ or {}
        for values in (function.__defaults__ or (), named, named.values(), closure):
            for value in values:
                yield from self._named(value, names)
            yield "end"
        for name in names:
            if name in function.__globals__:
                yield name
                yield from self._named(function.__globals__[name], names)

    def _named(self, value: Any, names: Sequence[str]) -> Iterator[str]:
        """The words for what a function refers to, and for what it may take out of it if it is a module."""
        if not isinstance(value, types.ModuleType):
            yield from self.of(value)
            return
        yield from self._module(value)
        if _is_library(value.__name__):
            for name in names:
                held = vars(value).get(name)
                if type(held) in _PLAIN or any(held is each for each in (*_ELSEWHERE, *_SETTINGS)):
                    yield name
                    yield from self.of(held)
        else:
            if not _LOOKUPS_IN_MODULES.isdisjoint(names):
                raise _UnknownError
            for name in names:
                if name in vars(value) and id(vars(value)[name]) not in self._seen:
                    yield name
                    yield from self._named(vars(value)[name], names)

    def _module(self, module: types.ModuleType) -> Iterator[str]:
        """A module counts by its name if it is a library's, otherwise by its source."""
        yield module.__name__
        if _is_library(module.__name__):
            return
        try:
            yield hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()
        except (OSError, AttributeError):
            raise _UnknownError from None


class _Nothing:
    """Stands for what a value should have, and has not."""


def _looks_elsewhere(code: types.CodeType) -> bool:
    """Whether code imports what is not a library's, or looks up names that it does not spell."""
    if not _LOOKUPS.isdisjoint(code.co_names):
        return True
    imports = (each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME")
    nested = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return any(not _is_library(name) for name in imports) or any(map(_looks_elsewhere, nested))


def _names_in(code: types.CodeType) -> Iterator[str]:
    """The names that code and the functions in it may look up among globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _closure(function: Any) -> list[Any]:
    """The values that a function has from where it was defined."""
    try:
        return [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    except ValueError:
        # A variable that has no value yet.
        raise _UnknownError from None


def _slots(value: Any) -> dict[str, Any]:
    """The values that an instance keeps in slots, by name."""
    named = [vars(each).get("__slots__", ()) for each in type(value).__mro__]
    slots = [slot for each in named for slot in ((each,) if isinstance(each, str) else each)]
    # A name with two underscores in front is another one in its class.
    if any(slot.startswith("__") and slot not in _BY_PYTHON for slot in slots):
        raise _UnknownError
    return {slot: getattr(value, slot) for slot in slots if slot not in _BY_PYTHON and hasattr(value, slot)}


def _name_of(value: Any) -> str:
    """The name of a function, a class or an operator of PyTorch's; empty for what has none, as an instance."""
    return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", ""))


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def _is_of_library(value: Any) -> bool:
    # A decorator may have given a function of a user's the names of a library's.
    is_function = isinstance(value, types.FunctionType)
    module = value.__globals__.get("__name__") if is_function else getattr(value, "__module__", None)
    return isinstance(module, str) and _is_library(module)
