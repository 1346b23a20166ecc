"""Hashes a declaration: other code or other values give another hash, and the same ones give the same in each process.

The description goes from a value to everything that it refers to: a function refers to its code, to its defaults and
closure, and to the globals that its code names; a class to its members; an instance to its class and to what it keeps.
It stops at PyTorch, Python and Triton, which compilers' caches know by version: a function or class of theirs counts by
its name, if its results follow from its arguments (`PURE`). The name is that of its code, because decorators copy all
other names, and what anyone has put into its class or its module counts too. All others, such as those that read files,
settings or registries, cannot be described, and neither can values that do not show what they hold.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import dis
import functools
import hashlib
import operator
import re
import sys
import threading
import types
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchgraft.kernels.python_kernels import wrap_triton
from torchgraft.layout import onednn_takes
from torchgraft.operator.known_pure import (
    BY_PYTHON,
    OF_TRITON,
    PURE,
    READABLE,
    SETTINGS,
)
from torchgraft.operator.libraries import (
    CACHED,
    DESCRIPTORS,
    PYBIND,
    comes_with_library,
    is_held,
    is_library,
    is_pure,
    name_of,
    put_into,
    registered,
)

# Values that `repr` describes completely.
_NUMBERS_AND_TEXT = (type(None), type(...), type(NotImplemented), bool, int, float, complex, str, bytes, range)
_PLAIN = frozenset(
    (*_NUMBERS_AND_TEXT, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.finfo, torch.iinfo)
)
# Containers that hold only the elements that they list.
_CONTAINERS = (tuple, list, collections.OrderedDict, dict, set, frozenset, types.MappingProxyType, torch.Size)
# A class may inherit from these. Any other class that is written in C may hold values that nothing shows.
_BASES = frozenset((object, type, *_CONTAINERS, *_NUMBERS_AND_TEXT, types.SimpleNamespace))
_Fields = collections.namedtuple("_Fields", "name")
# Classes whose instances a pickle describes completely.
_PICKLED = (
    *(slice, collections.deque, collections.defaultdict, type(vars(_Fields)["name"])),
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller),
)
# Classes whose instances have no influence on results.
_LOCKS = (type(threading.Lock()), type(threading.RLock()))
# Equal constants may or may not be the same object, which differs between compiling a file and loading its byte code.
_CONSTANTS = (tuple, frozenset, types.CodeType)


# The descriptors that give the slots and the attributes of an instance.
_KEPT = (types.MemberDescriptorType, types.GetSetDescriptorType)
# Namespaces of PyTorch's own operators.
_OF_PYTORCH = frozenset(("aten", "prims", "prim", "quantized", "mkldnn", "onednn", "mkl", "_native"))
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)

# Flags of classes: the attributes cannot be set; the class was made while Python runs, not by its C code.
_IMMUTABLE, _HEAP_TYPE = 1 << 8, 1 << 9

# Names of attributes through which code can read more than is described, unless they are in `READABLE`: a frame gives
# all variables, a code object its file, and `Operator.registered` all operators.
_HIDDEN = re.compile(r"__\w+__|\b(?:(?:gi|ag|cr|tb)_frame|f_(?:back|globals|locals)|co_\w+|registered)\b")

# A value from which more than this many others are reached is not described.
_MOST_VALUES = 10_000


_NO_OPERATORS: Mapping[str, Any] = types.MappingProxyType({})


class _UnknownError(Exception):
    """A value cannot be described well enough to tell it from others of its kind."""


def fingerprint(value: Any, operators: Mapping[str, tuple[Any, Callable[[], Any]]] = _NO_OPERATORS) -> str:
    """Returns a hash of a value and of everything that functions in it consist of and refer to.

    Functions count by their code, constants, defaults, closures and the globals that they name, and not by the place of
    their source. A value that cannot be described gets an identifier that never occurs again.

    Args:
        value: numbers, text, dtypes, functions, classes and instances, in tuples, lists, sets and dicts.
        operators: the operators that functions may refer to, by name, each with a function that returns the values that
            describe it.

    Returns:
        An identifier.
    """
    try:
        words = _Description(operators).of(value)
    # This runs code of the user's, such as __eq__ of a key. That may raise anything, and must not stop a declaration.
    except Exception:
        return f"declared_{uuid.uuid4().hex}"
    return f"declared_{hashlib.sha256(chr(0).join(words).encode()).hexdigest()[:16]}"


class _Description:
    """Describes a value and each value that it refers to, one after another, and numbers them as it finds them."""

    def __init__(self, operators: Mapping[str, Any], before: _Description | None = None) -> None:
        self._operators = operators
        self._meanings = {id(each): meaning for each, meaning in operators.values()}
        self._numbers: dict[int, int] = {} if before is None else dict(before._numbers)
        self._next: int = 0 if before is None else before._next
        # The values of this description and of all others that it made to sort the elements of sets.
        self._visited: list[None] = [] if before is None else before._visited
        # Holds all values that have numbers, so that no other value gets their addresses.
        self._found: list[tuple[Any, bool]] = []
        # Whether the value under description is a user's.
        self._is_of_users: bool = before is None or before._is_of_users
        self._words: list[str] = []

    def of(self, value: Any) -> list[str]:
        """The words for a value."""
        # Code may use anything that a user put into Tensor, by its name or by an operator such as +.
        self._refer(value, torch.Tensor)
        # The list grows during the loop.
        for each, is_of_users in self._found:
            self._is_of_users = is_of_users
            self._words.append(f"@{type(each).__name__}")
            self._describe(each)
        return self._words

    def _refer(self, *values: Any) -> None:
        """Adds plain values, and the numbers of others, which are described later."""
        for value in values:
            kind = type(value)
            if kind is int:
                self._words.append(hex(value))
            elif kind in _PLAIN:
                if kind is str and self._is_of_users:
                    # getattr, a format or a getter of `operator` may take it for the name of an attribute.
                    _refuse_hidden(value)
                self._say(value)
            else:
                number = None if kind in _CONSTANTS else self._numbers.get(id(value))
                if number is None:
                    if len(self._visited) > _MOST_VALUES:
                        raise _UnknownError("it refers to too many values")
                    self._visited.append(None)
                    self._found.append((value, self._is_of_users))
                    number = self._numbers[id(value)] = self._next
                    self._next += 1
                self._words.append(f"#{number}")

    def _say(self, *names: Any) -> None:
        """Adds plain values that the described code cannot read."""
        self._words.extend(f"{type(name).__name__} {name!r}" for name in names)

    def _refer_to_members(self, members: Mapping[str, Any]) -> None:
        """Adds what a class, function or instance holds by name."""
        kept = {name: value for name, value in members.items() if name not in BY_PYTHON}
        self._say(tuple(kept))
        self._refer(*kept.values())

    def _refer_to_what_was_put_into(self, owner: Any) -> None:
        """Refers to everything in a module or class of a library that anyone may have set."""
        self._is_of_users = False
        self._refer_to_members(put_into(owner))

    def _describe(self, value: Any) -> None:
        """Adds the words for a value that is not plain."""
        kind = type(value)
        if value is wrap_triton:
            self._refer(value.__name__)
        elif value is onednn_takes:
            self._refer(value.__name__, *map(value, (torch.bfloat16, torch.float16)))
        elif id(value) in self._meanings:
            self._refer(self._meanings[id(value)]())
        elif kind in (types.FunctionType, types.BuiltinFunctionType) and value in SETTINGS:
            self._refer(value.__name__, value())
        elif value is sys.argv:
            raise _UnknownError("sys.argv is another one in each process")
        elif kind in _CONTAINERS:
            self._list(value)
        elif kind is types.FunctionType:
            self._describe_function(value)
        elif kind is types.CodeType:
            self._say(value.co_code, value.co_names, value.co_varnames, value.co_flags)
            self._say(value.co_freevars, value.co_cellvars, getattr(value, "co_exceptiontable", b""))
            self._say(value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
            self._refer(value.co_consts)
        elif kind is types.BuiltinFunctionType:
            self._describe_builtin(value)
        elif issubclass(kind, type):
            self._describe_class(value)
        elif issubclass(kind, types.ModuleType):
            # It is not known which members of it are used.
            if value.__name__ not in PURE or not is_library(value):
                raise _UnknownError(f"the module {value.__name__} is passed on")
            self._say(value.__name__)
            self._refer_to_what_was_put_into(value)
        elif kind is types.MethodType:
            self._refer(value.__func__, value.__self__)
        elif kind in (staticmethod, classmethod):
            self._refer(value.__func__)
        elif kind is property:
            self._refer(value.fget, value.fset, value.fdel)
        elif kind is functools.partial:
            self._refer(value.func, value.args, value.keywords, vars(value))
        elif kind is CACHED:
            if value.cache_info().currsize and not comes_with_library(value.__wrapped__):
                raise _UnknownError(f"{value} does not show what it holds")
            self._refer_to_members(vars(value))
        elif kind in DESCRIPTORS:
            self._say(value.__name__)
            if not self._is_of_library(value.__objclass__):
                raise _UnknownError(f"{value.__objclass__.__qualname__} is written in C")
        elif kind is types.MethodWrapperType:
            self._say(value.__name__)
            self._refer(value.__self__)
        elif kind is types.MemberDescriptorType:
            # A slot, which its name among the members of its class describes.
            self._say(value.__name__)
        elif kind in _PICKLED:
            self._refer(*(list(each) if hasattr(each, "__next__") else each for each in value.__reduce_ex__(4)))
        elif kind is re.Pattern:
            self._refer(value.pattern, value.flags)
        elif type(kind).__module__ == PYBIND and hasattr(kind, "__members__"):
            # An enumeration.
            self._say(kind.__module__, str(value))
        elif kind in _LOCKS:
            return
        elif issubclass(kind, _OPERATORS):
            self._describe_operator(value)
        else:
            self._describe_instance(value)

    def _list(self, container: Any) -> None:
        """Adds what a container holds, in an order that is the same in every process."""
        # A user's class may override the methods that list its elements.
        base: Any = next(base for base in _CONTAINERS if isinstance(container, base))
        if base in (set, frozenset):
            elements = list(base.__iter__(container))
            if len(elements) > 1:
                elements.sort(key=lambda each: _Description(self._operators, self).of(each))
        elif hasattr(base, "items"):
            elements = [part for pair in base.items(container) for part in pair]
        else:
            elements = list(base.__iter__(container))
        self._refer(len(elements), *elements)

    def _is_of_library(self, value: type) -> bool:
        """Adds the name of a class by which a library holds it; whether one does.

        Raises:
            _UnknownError: its results do not follow from its arguments.
        """
        module, name = value.__module__, value.__qualname__
        # Python gives some classes of a user's the names of its own modules.
        if not is_held(value, sys.modules.get(module), name):
            is_static = module == "builtins" and not value.__flags__ & _HEAP_TYPE
            if is_static:
                self._say(name)
            return is_static
        self._name(module, name)
        return True

    def _name(self, module: str, name: str) -> None:
        """Adds the name of a function or class of a library, and its module, if others could put something into it."""
        if not is_pure(module, name):
            raise _UnknownError(f"{module}.{name} may depend on more than its arguments")
        self._say(module, name)
        if module in PURE:
            self._refer(sys.modules[module])

    def _describe_function(self, function: types.FunctionType) -> None:
        code, names = function.__code__, function.__globals__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        closure = {name: cell.cell_contents for name, cell in cells.items()}
        self._refer_to_members(vars(function))
        # Some modules of Python change their names.
        module = sys.modules.get(getattr(names.get("__spec__"), "name", ""))
        if module is not None and vars(module) is names and is_library(module) and comes_with_library(function):
            # A function of a library, or what its decorator returned: then the closure holds the user's function.
            self._name(module.__name__, name_of(function))
            self._say(code.co_firstlineno)
            self._refer_to_members(closure)
            self._is_of_users = False
            self._refer(function.__defaults__, function.__kwdefaults__)
            return
        self._is_of_users = True
        self._say(function.__name__, function.__qualname__)
        self._refer(code, function.__defaults__, function.__kwdefaults__)
        self._refer_to_members(
            {name: value for name, value in closure.items() if not isinstance(value, types.ModuleType)}
        )
        mentioned, attributes = _mentions(code)
        for place, name, *path in mentioned:
            for value in _roots(place, name, closure, function):
                # That of a class, which dicts and sets call: numbers that they do not show.
                if value is not hash or function.__name__ != "__hash__":
                    self._say(name)
                    self._look_up(value, path)
        for name in attributes:
            _refuse_hidden(name)

    def _look_up(self, value: Any, path: Iterable[str]) -> None:
        """Refers to what code finds if it reads attributes of a module."""
        for name in path:
            if not isinstance(value, types.ModuleType):
                break
            if is_library(value):
                value = getattr(value, name)
            elif type(value) is types.ModuleType and name in vars(value):
                value = vars(value)[name]
            else:
                raise _UnknownError(f"the module {value.__name__} computes {name}")
            self._say(name)
        self._refer(value)

    def _describe_builtin(self, function: types.BuiltinFunctionType) -> None:
        name, owner = function.__name__, function.__self__
        self._say(name)
        if isinstance(owner, types.ModuleType):
            if not (is_library(owner) and is_pure(owner.__name__, name)):
                raise _UnknownError(f"{owner.__name__}.{name} may depend on more than its arguments")
            self._say(owner.__name__)
        elif owner is not None:
            self._refer(owner)
        elif getattr(torch._C._VariableFunctions, name, None) != function:
            raise _UnknownError(f"{name} is written in C")

    def _describe_class(self, value: Any) -> None:
        members = type.__getattribute__(value, "__dict__")
        if "_abc_impl" in members and value not in (abc.ABC, typing.Protocol):
            self._say(sorted(registered(value)))
        if self._is_of_library(value):
            if not value.__flags__ & _IMMUTABLE:
                self._refer(type(value), value.__bases__)
                self._refer_to_what_was_put_into(value)
        else:
            self._is_of_users = True
            # The annotations of a protocol say what its instances have.
            self._say(value.__name__, value.__qualname__, tuple(members.get("__annotations__", ())))
            self._refer(type(value), value.__bases__)
            self._refer_to_members(members)

    def _describe_operator(self, operator: Any) -> None:
        """Adds the words for an operator in torch.ops: those of PyTorch count by their names."""
        text = str(operator)
        namespace, name = text.split(".")[:2]
        declared = self._operators.get(f"{namespace}::{name.removeprefix('_')}")
        if declared is not None:
            self._refer(declared[0])
        elif namespace not in _OF_PYTORCH:
            raise _UnknownError(f"{text} may be defined anew")
        self._refer(text)

    def _describe_instance(self, value: Any) -> None:
        kind = type(value)
        if kind.__module__.startswith("triton.") and "fn" in getattr(value, "__dict__", {}):
            self._refer({name: vars(value)[name] for name in OF_TRITON if name in vars(value)})
            return
        kept = {}
        for each in kind.__mro__:
            members = type.__getattribute__(each, "__dict__")
            in_c = not each.__flags__ & _HEAP_TYPE or isinstance(members.get("__new__"), types.BuiltinFunctionType)
            if in_c and each not in _BASES:
                raise _UnknownError(f"{each.__qualname__} is written in C")
            for name, member in members.items():
                if type(member) in _KEPT and (name == "__dict__" or type(member) is types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError):
                        kept[name] = member.__get__(value)
        self._refer(kind)
        self._refer_to_members(kept.pop("__dict__", {}))
        self._refer_to_members(kept)
        if isinstance(value, _CONTAINERS):
            self._list(value)
        elif isinstance(value, _NUMBERS_AND_TEXT):
            base: Any = next(base for base in _NUMBERS_AND_TEXT if isinstance(value, base))
            self._refer(base.__getnewargs__(value))


def _roots(place: str, name: str, closure: Mapping[str, Any], function: types.FunctionType) -> Iterator[Any]:
    """The value of a name that a function spells, if there is one yet."""
    if place == "module":
        yield sys.modules[name]
    built_in: Mapping[str, Any] = function.__builtins__
    for names in (closure,) if place == "closure" else (function.__globals__, built_in):
        if name in names:
            yield names[name]
            return


@functools.lru_cache(maxsize=10_000)
def _mentions(code: types.CodeType) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """The names that code and the functions in it look up.

    Returns:
        Of each name that is no local variable where it is looked up, the name, and the attributes that are read from it
        at once; and all names of attributes.

    Raises:
        _UnknownError: it imports relative to its package, or a part of a package under another name.
    """
    mentioned: dict[tuple[str, ...], None] = {}
    attributes: dict[str, None] = {}
    _read(code, set(), mentioned, attributes)
    return tuple(mentioned), tuple(attributes)


def _read(
    code: types.CodeType, imported: set[str], mentioned: dict[tuple[str, ...], None], attributes: dict[str, None]
) -> None:
    """Adds what code looks up, for `_mentions`; `imported` are variables that hold the module of their name."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("EXTENDED_ARG", "CACHE", "NOP")]
    closed = {*code.co_cellvars, *code.co_freevars}
    for at, step in enumerate(steps):
        kind, name = step.opname, step.argval
        if kind == "IMPORT_NAME":
            level, taken = steps[at - 2].argval, steps[at - 1].argval
            if level == 0 and taken:
                mentioned.update(dict.fromkeys(("module", name, each) for each in taken))
            elif level == 0 and steps[at + 1].argval == name and steps[at + 1].opname.startswith("STORE_"):
                imported.add(name)
            else:
                raise _UnknownError(f"{code.co_name} imports {name}")
        elif kind in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            attributes[name] = None
        elif kind.startswith("LOAD_") and ("GLOBAL" in kind or "NAME" in kind or "DEREF" in kind):
            path = tuple(_path(steps, at))
            mentioned[("closure" if "DEREF" in kind else "global", name, *path)] = None
            if name in imported:
                mentioned[("module", name, *path)] = None
        elif "LOAD_FAST" in kind:
            # Later versions of Python load two variables at once; and load a variable to put it into a closure.
            names = name if isinstance(name, tuple) else (name,)
            for each in names:
                if each in imported and each not in closed:
                    mentioned[("module", each, *(_path(steps, at) if each == names[-1] else ()))] = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _read(constant, imported, mentioned, attributes)


def _path(steps: Sequence[dis.Instruction], at: int) -> Iterator[str]:
    """The attributes that are read at once from what one step loads."""
    for step in steps[at + 1 :]:
        if step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            return
        yield step.argval


def _refuse_hidden(text: str) -> None:
    for name in _HIDDEN.findall(text):
        if name not in READABLE:
            raise _UnknownError(f"code may read {name}")
