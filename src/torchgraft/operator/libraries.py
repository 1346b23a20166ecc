"""Recognizes values of Python, PyTorch and Triton, and finds the values that users have put into their modules."""

from __future__ import annotations

import abc
import functools
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import torch

from torchgraft.operator.known_pure import BY_PYTHON, IMPURE_IN, PURE, PURE_IN

CACHED: Any = type(functools.lru_cache(len))
DESCRIPTORS = (
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    types.GetSetDescriptorType,
)
_ATTRIBUTES = (types.MemberDescriptorType, *DESCRIPTORS)
# The module of the metaclass of classes that PyTorch and Triton define in C++.
PYBIND = "pybind11_builtins"
# Values that serve libraries as annotations or as texts for the prompt, and the modules that define such values.
_ANNOTATIONS = (types.UnionType, types.GenericAlias)
_ANNOTATING = ("typing", "typing_extensions", "__future__", "torch._jit_internal", "_sitebuiltins", PYBIND)
# Returns the classes that were registered with an abstract class.
_get_dump: Any = vars(abc)["_get_dump"]
_NAMESPACES = (type(torch.ops), type(torch.ops.aten))
# The folders of the libraries.
_PYTORCH = Path(torch.__file__).resolve().parent
_PYTHON = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]


def is_pure(module: str, name: str) -> bool:
    """Whether results of a library's function or class follow from its arguments."""
    name = name.partition(".")[0]
    return (module in PURE and name not in IMPURE_IN.get(module, ())) or name in PURE_IN.get(module, ())


def name_of(function: types.FunctionType) -> str:
    """The name of a function in its module. Decorators copy the others; Python 3.10 has none that they do not copy."""
    return getattr(function.__code__, "co_qualname", function.__qualname__)


def put_into(owner: Any) -> dict[str, Any]:
    """Returns the members of a library's module or class that may not be those that were shipped."""
    put, names = {}, vars(owner)
    inside = f"{owner.__qualname__}." if isinstance(owner, type) else ""
    for name, value in names.items():
        while type(value) is CACHED:
            value = value.__wrapped__
        kind = type(value)
        if name in BY_PYTHON or (not inside and name.startswith("__")) or isinstance(value, types.ModuleType):
            is_shipped = True
        elif not inside and _is_librarys_own(value):
            # A module may import a value under another name. functools renames its functions.
            named = name_of(value) if kind is types.FunctionType else value.__qualname__
            if named != name:
                put[name] = f"{value.__module__} {named}"
            continue
        elif kind is types.FunctionType:
            is_shipped = comes_with_library(value) and (name_of(value) == inside + name or _is_of_compilers(value))
        elif kind is types.BuiltinFunctionType:
            is_shipped = value.__name__ == name
        elif kind in _ATTRIBUTES:
            is_shipped = value.__objclass__ is owner
        else:
            is_shipped = issubclass(kind, _ANNOTATIONS) or kind.__module__ in _ANNOTATING
        if not is_shipped:
            put[name] = names[name]
    return put


def _is_librarys_own(value: Any) -> bool:
    if isinstance(value, type):
        return value.__module__ == "builtins" or is_held(value, sys.modules.get(value.__module__), value.__qualname__)
    return isinstance(value, types.BuiltinFunctionType) or comes_with_library(value)


def registered(value: type) -> set[str]:
    """The names of all classes that were registered with an abstract one, or with a class that inherits from it."""
    registry = _get_dump(value)[0] if "_abc_impl" in vars(value) else ()
    names = {f"{each.__module__}.{each.__qualname__}" for each in (reference() for reference in registry) if each}
    return names.union(*map(registered, type.__subclasses__(value)))


def is_held(value: Any, module: types.ModuleType | None, name: str) -> bool:
    """Whether a module of a library has a value under a name."""
    if module is None or not is_library(module):
        return False
    held: Any = module
    for part in name.split("."):
        held = getattr(held, part, None)
    return held is value


def is_library(module: types.ModuleType) -> bool:
    """Whether a module belongs to Python, PyTorch or Triton. The name is not enough: a user's file may have it too."""
    if isinstance(module, _NAMESPACES):
        return True
    file, name = vars(module).get("__file__"), module.__name__
    if file is not None:
        return _lies_in_library(file)
    # A module in C: it is a part of Python, or of a module that has a file.
    if sys.modules.get(name) is not module:
        return False
    parent = sys.modules.get(name.rpartition(".")[0])
    return name in sys.builtin_module_names or (parent is not None and is_library(parent))


def comes_with_library(function: Any) -> bool:
    """Whether a value is a function whose code lies in a file of a library."""
    return isinstance(function, types.FunctionType) and _lies_in_library(function.__code__.co_filename)


def _is_of_compilers(function: types.FunctionType) -> bool:
    """Whether PyTorch's compilers put a function into a class themselves, as they do with `Module.__init__`."""
    file = Path(function.__code__.co_filename)
    return any(file.is_relative_to(_PYTORCH / each) for each in ("_dynamo", "fx", "_functorch", "export", "_export"))


@functools.cache
def _lies_in_library(file: str) -> bool:
    if file.startswith("<frozen "):
        return True
    path = Path(file).resolve()
    if path.is_relative_to(_PYTORCH):
        return True
    at = [place for place, part in enumerate(path.parts) if part in ("site-packages", "dist-packages")]
    if at:
        return path.parts[at[-1] + 1] in ("triton", "typing_extensions.py")
    return any(path.is_relative_to(each) for each in _PYTHON)
