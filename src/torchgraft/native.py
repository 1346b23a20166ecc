"""Finds and loads the compiled libraries of a package, says why one is missing, and reaches the kernels in them."""

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

OLDEST_TORCH = (2, 11)
# Of the sources of kernels, by kind of device.
SUFFIXES = {"cpu": ".cpp", "cuda": ".cu"}


@dataclass(frozen=True)
class NativeLibrary:
    """A compiled library of a package.

    Attributes:
        namespace: of its operators.
        device: the kind of device, 'cpu' or 'cuda'.
        path: where it lies.
        problem: why it is not loaded; empty if it is.
        sources: what it is made from, where that is known.
    """

    namespace: str
    device: str
    path: Path
    problem: str
    sources: tuple[Path, ...] = ()

    @property
    def loaded(self) -> bool:
        """Whether the kernels of this library are in use."""
        return not self.problem

    def function(self, name: str) -> Any:
        """A C function that the library exports. None if it exports none of this name, or is not loaded."""
        return getattr(_open(self.path), name, None) if self.loaded else None


@functools.cache
def _open(path: Path) -> ctypes.PyDLL:
    # Python keeps its lock in calls that take less time than handing the lock over would.
    return ctypes.PyDLL(str(path))


_libraries: dict[tuple[str, str], NativeLibrary] = {}
# Of one operator each, by its qualified name and the device.
_told: dict[tuple[str, str], NativeLibrary] = {}
_on_load: list[Callable[[str, str], None]] = []


def tell_of_libraries(told: Callable[[str, str], None]) -> None:
    """Calls a function for each library that is loaded from now on, with its namespace and device."""
    _on_load.append(told)


def load(namespace: str, directory: Path, *, sources: Sequence[Path] = ()) -> None:
    """Loads `<namespace>_cpu` and `<namespace>_cuda` from a directory, each where this PyTorch can use it.

    Nothing is raised where one is missing or does not load: its operators then run on their references, and every
    warning about that gives the reason found here. A kernel whose types are not those of its schema is an error.

    The variable TORCHGRAFT_LIBRARIES names a directory that goes before: a library of that name in it is loaded
    instead. `graft check --sanitize` puts instrumented builds there.

    Args:
        namespace: the operators' namespace in `torch.ops`, and the stem of the libraries' names.
        directory: where the libraries lie; for an installed package its own `lib` folder.
        sources: what the libraries are made from, for tools that compile it in another way, as `graft check --emulate`
            does. Without them, such a tool takes those beside the declaration of the operator.

    Raises:
        TypeError: a kernel of a declared operator does not fit its schema; the message says what to write.
    """
    for device in ("cpu", "cuda"):
        path = directory / f"{namespace}_{device}.so"
        if (instead := os.environ.get("TORCHGRAFT_LIBRARIES")) and Path(instead, path.name).is_file():
            path = Path(instead, path.name)
        own = tuple(each for each in sources if each.suffix == SUFFIXES[device])
        library = NativeLibrary(namespace, device, path, _try_to_load(namespace, device, path), own)
        _libraries[namespace, device] = library
        for told in _on_load if library.loaded else ():
            told(namespace, device)


def emulates(namespace: str) -> bool:
    """Whether the CPU kernels of a namespace are its CUDA kernels on the emulator, as in `graft check --emulate`."""
    return namespace in os.environ.get("TORCHGRAFT_EMULATED", "").split(",")


def load_for(operator: str, device: str, path: Path) -> NativeLibrary:
    """Loads a library that registers its kernels when it is told to; see `tell`.

    Args:
        operator: the qualified name of the one that has a kernel in it.
        device: the kind of device, 'cpu' or 'cuda'.
        path: of the library.

    Raises:
        OSError: it does not load.
    """
    namespace = operator.partition("::")[0]
    if problem := _try_to_load(namespace, device, path):
        raise OSError(problem)
    return NativeLibrary(namespace, device, path, "")


def tell(operator: str, device: str, library: NativeLibrary | None) -> None:
    """Registers the kernel of a library for an operator, in place of the one registered before.

    If `library` is None, the earlier kernel is only removed.

    Raises:
        RuntimeError: PyTorch refuses it.
    """
    for each, wanted in ((_told.pop((operator, device), None), False), (library, True)):
        if each is not None:
            register = each.function("torchgraft_register")
            register.argtypes, register.restype = (ctypes.c_bool,), ctypes.c_bool
            if not register(wanted):
                raise RuntimeError(f"{operator}: PyTorch refused to register the kernel of {each.path}")
    if library is not None:
        _told[operator, device] = library


def told(operator: str, device: str) -> NativeLibrary | None:
    """The library that `tell` last registered the kernel of, for an operator on a kind of device."""
    return _told.get((operator, device))


def torch_version() -> tuple[int, ...]:
    """The first two numbers of PyTorch's version."""
    return tuple(int(part) for part in torch.__version__.split(".")[:2])


def _try_to_load(namespace: str, device: str, path: Path) -> str:
    """Loads one library; what kept it from being loaded, or an empty string."""
    if torch_version() < OLDEST_TORCH:
        return f"PyTorch {torch.__version__} is older than {'.'.join(map(str, OLDEST_TORCH))}; install a newer one"
    if device == "cuda" and torch.version.cuda is None:
        return "this PyTorch was built without CUDA; install one with CUDA"
    if not path.is_file():
        return f"{path} does not exist; {_how_to_build(namespace, device, path)}"
    try:
        torch.ops.load_library(path)
    except OSError as error:
        return f"{path} did not load: {error}"
    return ""


def _how_to_build(namespace: str, device: str, path: Path) -> str:
    if namespace == "torchgraft":
        compiler = "nvcc" if device == "cuda" else "a C++ compiler"
        return f"build it with `make build`, or install {compiler} and reinstall torchgraft"
    more = ", cuda=True" if device == "cuda" else ""
    return f"build it with torchgraft.building.build({namespace!r}, [its sources], {str(path.parent)!r}{more})"


def libraries() -> tuple[NativeLibrary, ...]:
    """All libraries that were asked for, loaded or not."""
    return (*_libraries.values(), *_told.values())


def libraries_of(namespace: str, device: str) -> tuple[NativeLibrary, ...]:
    """Those of a namespace for a kind of device: what `load` looked for comes first."""
    return tuple(each for each in libraries() if (each.namespace, each.device) == (namespace, device))


def has_kernels(namespace: str, device: str) -> bool:
    """Whether a library with a namespace's kernels for a kind of device is loaded."""
    return any(library.loaded for library in libraries_of(namespace, device))


def why_no_kernel(namespace: str, device: str) -> str:
    """Why a namespace has no kernels for a kind of device, for a person to read."""
    library = _libraries.get((namespace, device))
    if library is None:
        return f"{namespace} has no kernels for {device}: load them with torchgraft.native.load({namespace!r}, ...)"
    return library.problem or f"{library.path} does not register any kernel with TORCHGRAFT_KERNEL"


def _chooser(namespace: str, device: str) -> NativeLibrary | None:
    library = _libraries.get((namespace, device))
    return library if library is not None and library.function("torchgraft_force_kernel") else None


def kernels(namespace: str, device: str) -> dict[str, tuple[str, ...]]:
    """The kernels that a loaded library lists by TORCHGRAFT_KERNELS, by the name of their operator.

    Args:
        namespace: of the operators.
        device: the kind of device, 'cpu' or 'cuda'.

    Returns:
        The names in the order in which the library asks its rules; empty where it lists none.
    """
    library = _chooser(namespace, device)
    if library is None:
        return {}
    lines = library.function("torchgraft_kernels")
    lines.restype = ctypes.c_char_p
    listed: dict[str, dict[str, None]] = {}
    for line in lines().decode().splitlines():
        operator, _, kernel = line.partition("\t")
        listed.setdefault(operator, {})[kernel] = None
    return {operator: tuple(names) for operator, names in listed.items()}


class Signature(NamedTuple):
    """The arguments and results of the C++ function of a kernel, each in the word of a schema.

    Attributes:
        function: its name.
        arguments: the types that it takes.
        results: the types that it returns.
    """

    function: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]


def signatures(namespace: str, device: str) -> dict[str, Signature]:
    """The signatures of the kernels of a loaded library, by the name of their operator; empty if none is loaded.

    Args:
        namespace: of the operators.
        device: the kind of device, 'cpu' or 'cuda'.
    """
    found: dict[str, Signature] = {}
    for library in libraries_of(namespace, device):
        found |= signatures_of(library)
    return found


def signatures_of(library: NativeLibrary) -> dict[str, Signature]:
    """The same of one library."""
    lines = library.function("torchgraft_signatures")
    if lines is None:
        return {}
    lines.restype = ctypes.c_char_p
    found = {}
    for line in lines().decode().splitlines():
        operator, function, arguments, results = line.split("\t")
        words = (tuple(filter(None, text.split(", "))) for text in (arguments, results))
        found[operator] = Signature(function, *words)
    return found


class ForcedKernel:
    """A scope in which one kernel runs every call that it supports, in all threads of this process.

    Where it does not support a call, the library chooses as it does otherwise, or refuses the call. Scopes do not nest:
    at the end of one nothing is forced.

    Args:
        namespace: of the kernel's operator.
        device: the kind of device, 'cpu' or 'cuda'.
        name: of the kernel, as `kernels` gives it.
        alone: whether a call that it does not support raises an error that `is_refused` knows, where the library was
            built with headers that can.

    Attributes:
        served: how many calls have fallen on the kernel; known at the end of the scope.
        is_ruled_out: whether none has, and some would have on another device.

    Raises:
        LookupError: the library lists no kernels.
    """

    def __init__(self, namespace: str, device: str, name: str, *, alone: bool = False) -> None:
        library = _chooser(namespace, device)
        if library is None:
            raise LookupError(
                f"the library of {namespace} for {device} does not list its kernels: add TORCHGRAFT_KERNELS to it"
            )
        self._force = library.function("torchgraft_force_kernel")
        self._force.argtypes = (ctypes.c_char_p,)
        self._force.restype = ctypes.c_int64
        self._refuse_others = library.function("torchgraft_force_alone") if alone else None
        # The library keeps the address: these bytes live as long as the scope.
        self._name = name.encode()
        self.served, self.is_ruled_out = 0, False

    def __enter__(self) -> "ForcedKernel":
        if self._refuse_others is not None:
            self._refuse_others(True)
        self._force(self._name)
        return self

    def __exit__(self, *error: object) -> None:
        served = self._force(None)
        if self._refuse_others is not None:
            self._refuse_others(False)
        self.served, self.is_ruled_out = max(served, 0), served < 0


def is_refused(error: BaseException) -> bool:
    """Whether an error says that the kernel which alone may serve does not support a call."""
    return "the kernel that alone may serve does not support this call" in str(error)


def refusal_in(namespace: str, error: BaseException) -> str:
    """The message of TORCHGRAFT_CHECK in a kernel of a namespace, if it is the error raised just now in this thread.

    Args:
        namespace: of the operators.
        error: what a call raised.

    Returns:
        The text; empty for any other error, and for kernels of libraries that were built before they told it.
    """
    for library in libraries():
        if library.namespace == namespace and (last := library.function("torchgraft_last_refusal")) is not None:
            last.restype = ctypes.c_char_p
            said: str = last().decode(errors="replace")
            if said and said in str(error):
                return said
    return ""


def trace_answers(namespace: str, device: str, call: Callable[[], object]) -> int:
    """The answers of all rules that a call asks, as one number, which changes if any answer changes.

    Args:
        namespace: of the operators.
        device: the kind of device, 'cpu' or 'cuda'.
        call: makes the call, in this thread.

    Returns:
        The number; 0 where no rule is asked.
    """
    library = _libraries.get((namespace, device))
    trace = None if library is None else library.function("torchgraft_trace_answers")
    if trace is None:
        return 0
    trace.argtypes, trace.restype = (ctypes.c_bool,), ctypes.c_uint64
    trace(True)
    try:
        call()
    finally:
        answers: int = trace(False)
    return answers


def chosen_kernels(namespace: str, device: str, call: Callable[[], object]) -> tuple[str, ...]:
    """The kernels that a library chose by its rules during a call, in order, each once.

    Args:
        namespace: of the operators.
        device: the kind of device, 'cpu' or 'cuda'.
        call: makes the call.

    Returns:
        The names; empty where the library chooses between none.
    """
    library = _libraries.get((namespace, device))
    chosen = None if library is None else library.function("torchgraft_chosen")
    if chosen is None:
        call()
        return ()
    chosen.restype = ctypes.c_char_p
    trace_answers(namespace, device, call)
    return tuple(dict.fromkeys(chosen().decode().splitlines()))
