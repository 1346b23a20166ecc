"""The private names of Triton's interpreter that torchgraft depends on, and nothing else.

The interpreter computes with NumPy, which has no bfloat16 and no float8: it keeps their codes as whole numbers, and
adds, compares and reduces those. It also differs from a GPU where PTX says something else than NumPy: in the maximum of
NaN, in the rounding of a sum in half precision, in what overflows float8, in `and` and `or` of blocks. `repair` makes a
kernel give under the interpreter what the code gives that Triton compiles for GPUs of compute capability 9.0.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from torchgraft._private.triton_numbers import Values, repair_arithmetic, repair_conversions, repair_reductions


@dataclass
class Launches:
    """A scope in which Triton kernels are launched.

    Attributes:
        config: the number of the configuration that tuned kernels take.
        left_out: whether a tuned kernel ruled the configuration out for its arguments, and took another one.
        on_launch: called with each kernel that is about to run, its arguments by name, and its options.
    """

    config: int = 0
    left_out: bool = False
    on_launch: Callable[[Any, Mapping[str, Any], Mapping[str, Any]], None] | None = None


_launches: ContextVar[Launches | None] = ContextVar("launches", default=None)
# One thread launches at a time.
_lock = threading.RLock()


@contextmanager
def launching(launches: Launches) -> Iterator[Launches]:
    """A scope whose launches a description says more about."""
    token = _launches.set(launches)
    try:
        yield launches
    finally:
        _launches.reset(token)


@functools.cache
def repair() -> None:
    """Has the interpreter give what a GPU gives, to one launch at a time, from any thread."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    values = Values(interpreter)
    repair_arithmetic(interpreter.InterpreterBuilder, values)
    repair_conversions(interpreter.InterpreterBuilder, values)
    repair_reductions(interpreter, values)
    _repair_python(interpreter)
    _repair_launches(interpreter)
    _repair_tuning()


def is_repaired() -> bool:
    """Whether the interpreter launches the Triton kernels of this process, and `launching` tells it more."""
    return repair.cache_info().currsize > 0


def _repair_python(interpreter: Any) -> None:
    """Has `and`, `or` and `not` of blocks mean what Triton compiles them to; Python would take any block as true."""
    semantic = interpreter.interpreter_semantic
    tensor = importlib.import_module("triton.language").tensor

    def connected(is_and: bool, first: Any, *others: Callable[[], Any]) -> Any:
        found = first
        for other in others:
            if not isinstance(found, tensor):
                if bool(found) != is_and:
                    return found
                found = other()
                continue
            combine = semantic.logical_and if is_and else semantic.logical_or
            found = combine(found, semantic.to_tensor(other()))
        return found

    def negated(value: Any) -> Any:
        return semantic.not_(value) if isinstance(value, tensor) else not value

    def assigned(self: Any, node: ast.Assign) -> Any:
        node.value = self.visit(node.value)
        return visit_assign(self, node)

    def combined(self: Any, node: ast.BoolOp) -> Any:
        first, *others = map(self.visit, node.values)
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        later = [ast.Lambda(args=nothing, body=each) for each in others]
        is_and = ast.Constant(value=isinstance(node.op, ast.And))
        return ast.copy_location(ast.Call(func=_name(connected), args=[is_and, first, *later], keywords=[]), node)

    def with_one_operand(self: Any, node: ast.UnaryOp) -> Any:
        node.operand = self.visit(node.operand)
        if not isinstance(node.op, ast.Not):
            return node
        return ast.copy_location(ast.Call(func=_name(negated), args=[node.operand], keywords=[]), node)

    def _name(function: Any) -> ast.Name:
        return ast.Name(id=function.__name__, ctx=ast.Load())

    visit_assign = interpreter.ASTTransformer.visit_Assign
    methods = {"visit_Assign": assigned, "visit_BoolOp": combined, "visit_UnaryOp": with_one_operand}
    connected.__name__, negated.__name__ = "_torchgraft_connected", "_torchgraft_negated"
    # A kernel sees all names of the interpreter's module.
    vars(interpreter).update({each.__name__: each for each in (connected, negated)})
    interpreter.FunctionRewriter.ast_transformer = type("Transformer", (interpreter.ASTTransformer,), methods)()


def _repair_launches(interpreter: Any) -> None:
    """Has one thread launch at a time, with arguments as a GPU takes them, and nothing left in Triton's modules.

    The interpreter keeps which program runs, and what it put in the place of Triton's functions, in global variables.
    """
    numpy, jit = interpreter.np, importlib.import_module("triton.runtime.jit")
    language = importlib.import_module("triton.language")
    function = interpreter.InterpretedFunction
    run, patch = function.run, interpreter._patch_lang
    values, accesses = Values(interpreter), _Accesses(interpreter)
    # The names that were replaced for the launch under way, by the global variables of the functions that see them.
    replaced: dict[int, Any] = {}

    def patch_once(called: Any) -> Any:
        """Replaces Triton's functions for what a launch calls, once; `launch` puts them back."""
        if id(called.__globals__) not in replaced:
            replaced[id(called.__globals__)] = patch(called)
        return _Nothing()

    def as_argument(value: Any, annotation: Any) -> Any:
        """A truth value or a number with a fraction as a kernel gets it; the interpreter knows only whole numbers."""
        if isinstance(value, bool):
            dtype = language.int1
        elif isinstance(value, float):
            dtype = getattr(language, _FLOATS.get(annotation, "float32"))
        else:
            return value
        return language.tensor(values.handle([value], dtype), dtype)

    def launch(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        if warmup:
            return
        options = {name: value for name, value in named.items() if name not in self.arg_names}
        taken = {name: value for name, value in named.items() if name in self.arg_names}
        bound = inspect.getcallargs(self.fn, *arguments, **taken)
        annotations = {name: jit._normalize_ty(each) for name, each in self.fn.__annotations__.items()}
        scope = _launches.get()
        if scope is not None and scope.on_launch is not None:
            scope.on_launch(self, bound, options)
        sizes = grid(bound) if callable(grid) else grid
        given = {
            name: value if annotations.get(name) == "constexpr" else as_argument(value, annotations.get(name))
            for name, value in bound.items()
        }
        with _lock, numpy.errstate(all="ignore"):
            accesses.begin()
            try:
                run(self, grid=tuple(map(int, sizes)), warmup=False, **given)
                accesses.expect_no_race(self.fn.__name__, bound)
            finally:
                for each in reversed(list(replaced.values())):
                    each.restore()
                replaced.clear()

    interpreter._patch_lang, function.run = patch_once, launch


class RaceError(RuntimeError):
    """A program of a launch reads what another one writes, without an atomic operation."""


# A launch that reads and writes more elements than this is not watched.
_MOST_ACCESSES = 2**20


class _Accesses:
    """The addresses that each program of a launch reads and writes.

    The interpreter runs one program after the other. On a GPU they run side by side, and only atomic operations, with
    which one can wait for another, say which comes first: a launch that has one is not watched.
    """

    def __init__(self, interpreter: Any) -> None:
        self._numpy, self._builder = interpreter.np, interpreter.interpreter_builder
        builder = interpreter.InterpreterBuilder
        load, store = builder.create_masked_load, builder.create_masked_store

        def create_masked_load(building: Any, pointers: Any, mask: Any, *more: Any) -> Any:
            self._note(self._reads, pointers, mask)
            return load(building, pointers, mask, *more)

        def create_masked_store(building: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
            self._note(self._writes, pointers, mask)
            return store(building, pointers, value, mask, *more)

        def unwatched(operation: Any) -> Any:
            def run(*arguments: Any) -> Any:
                self._left = -1
                return operation(*arguments)

            return run

        builder.create_masked_load, builder.create_masked_store = create_masked_load, create_masked_store
        for name in ("create_atomic_cas", "create_atomic_rmw"):
            setattr(builder, name, unwatched(getattr(builder, name)))
        self._reads: list[tuple[Any, int]] = []
        self._writes: list[tuple[Any, int]] = []
        self._left = 0

    def begin(self) -> None:
        """Forgets the last launch."""
        self._reads.clear()
        self._writes.clear()
        self._left = _MOST_ACCESSES

    def _note(self, kept: list[tuple[Any, int]], pointers: Any, mask: Any) -> None:
        if self._left < 0:
            return
        inside = self._numpy.asarray(getattr(mask, "data", mask), dtype=bool)
        addresses = self._numpy.broadcast_to(pointers.data, inside.shape)[inside]
        self._left -= addresses.size
        x, y, z = self._builder.grid_idx
        columns, rows, _ = self._builder.grid_dim
        if addresses.size:
            kept.append((addresses, x + columns * (y + rows * z)))

    def expect_no_race(self, kernel: str, arguments: Mapping[str, Any]) -> None:
        """Raises RaceError if a program read what another one wrote."""
        if self._left < 0 or len({program for _, program in self._writes}) < 2:
            return
        tensors = {name: each for name, each in arguments.items() if isinstance(each, torch.Tensor)}
        for name, tensor in tensors.items():
            start = tensor.untyped_storage().data_ptr()
            end = start + tensor.untyped_storage().nbytes()
            reads, writes = (self._within(each, start, end) for each in (self._reads, self._writes))
            if reads is None or writes is None:
                continue
            race = self._race(*reads, *writes)
            if race is not None:
                reader, writer = race
                raise RaceError(
                    f"data race: program {reader} of {kernel} reads what program {writer} writes to {name}, and on a "
                    "GPU either may be first: use an atomic operation such as tl.atomic_add, or a launch for each step"
                )

    def _within(self, accesses: Sequence[tuple[Any, int]], start: int, end: int) -> tuple[Any, Any] | None:
        """The addresses of one storage and the programs that use them; None if there are none."""
        numpy = self._numpy
        found = [each for each in accesses if start <= int(each[0].min()) < end]
        if not found:
            return None
        counts = [addresses.size for addresses, _ in found]
        programs = numpy.repeat([program for _, program in found], counts)
        return numpy.concatenate([addresses for addresses, _ in found]), programs

    def _race(self, read: Any, readers: Any, written: Any, writers: Any) -> tuple[int, int] | None:
        """A program that reads and another one that writes the same address; None if there are none."""
        numpy = self._numpy
        order = numpy.lexsort((writers, written))
        written, writers = written[order], writers[order]
        first = numpy.searchsorted(written, read, side="left")
        last = numpy.searchsorted(written, read, side="right") - 1
        for place in (first, last):
            # Of the programs that write an address these are the first and the last; both are the reader, or it races.
            races = (first <= last) & (writers[numpy.clip(place, 0, len(writers) - 1)] != readers)
            if races.any():
                at = int(numpy.argmax(races))
                return int(readers[at]), int(writers[place[at]])
        return None


class _Nothing:
    """Stands for a scope that ends later."""

    def restore(self) -> None:
        """Leaves all as it is."""


# By the annotation of a parameter, what a kernel takes a number with a fraction for; without one, float32.
_FLOATS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}


def is_interpreted(kernel: Any) -> bool:
    """Whether Triton's interpreter runs what `triton.jit` made, however it is tuned."""
    return type(innermost(kernel)).__name__ == "InterpretedFunction"


def has_rules(kernel: Any) -> bool:
    """Whether `triton.heuristics` made a kernel."""
    return type(kernel).__name__ == "Heuristics"


def innermost(kernel: Any) -> Any:
    """Returns the kernel that `triton.jit` made, without its tuner and heuristics."""
    while type(kernel).__name__ in ("Autotuner", "Heuristics"):
        kernel = kernel.fn
    return kernel


def configurations(kernel: Any) -> list[str]:
    """The configurations between which a tuned kernel chooses, in words; none for any other kernel."""
    while type(kernel).__name__ in ("Autotuner", "Heuristics"):
        if type(kernel).__name__ == "Autotuner":
            return [_words(each) for each in kernel.configs]
        kernel = kernel.fn
    return []


def _words(config: Any) -> str:
    plain = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return ", ".join(f"{name}={value}" for name, value in {**config.kwargs, **plain}.items())


class DependsOnWhatItWroteError(RuntimeError):
    """A tuned kernel gives another result when it runs again, as it does while it is tuned."""


def _repair_tuning() -> None:
    """Has tuned kernels take the configuration of the scope: there is no GPU whose time could tell them apart."""
    tuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    run = tuner.run

    def run_one(self: Any, *arguments: Any, **named: Any) -> Any:
        if not is_interpreted(self):
            return run(self, *arguments, **named)
        with _lock:
            self.nargs = dict(zip(self.arg_names, arguments, strict=False))
            config = _configuration(self, named)
            given = {**self.nargs, **named, **config.all_kwargs()}
            key = _key(self, given)
            if len(self.configs) > 1 and key not in self.cache:
                _expect_same_again(self, config, arguments, named, given)
                self.cache[key] = config
            else:
                _run_hook(config, given)
                self.fn.run(*arguments, **named, **config.all_kwargs())
            self.nargs = None

    tuner.run = run_one


def _key(tuner: Any, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns the key under which a tuner remembers a configuration."""
    named = [given[name] for name in tuner.keys if name in given]
    return (*named, *(str(each.dtype) for each in given.values() if hasattr(each, "dtype")))


def _run_hook(config: Any, given: Mapping[str, Any]) -> None:
    if config.pre_hook is not None:
        config.pre_hook(given)


def _configuration(tuner: Any, named: Mapping[str, Any]) -> Any:
    """The configuration of the scope, or else the first that a tuner does not rule out for its arguments."""
    scope = _launches.get() or Launches()
    wanted = tuner.configs[min(scope.config, len(tuner.configs) - 1)]
    try:
        fit = tuner.prune_configs(dict(named))
    except RuntimeError as error:
        # A rule that looks at the GPU says nothing here.
        if "active drivers" not in str(error):
            raise
        fit = tuner.configs
    if any(each is wanted for each in fit):
        return wanted
    scope.left_out = True
    return fit[0]


def _expect_same_again(
    tuner: Any, config: Any, arguments: Sequence[Any], named: Mapping[str, Any], given: Mapping[str, Any]
) -> None:
    """Runs a kernel as the first call of a tuner does: once to be measured, and again to be used."""

    def run() -> None:
        _run_hook(config, given)
        tuner.fn.run(*arguments, **named, **config.all_kwargs())

    tensors = {name: each for name, each in given.items() if isinstance(each, torch.Tensor)}
    tuner.pre_hook(given)
    run()
    before = {name: each.clone() for name, each in tensors.items()}
    tuner.post_hook(given, exception=None)
    tuner.pre_hook(given, reset_only=True)
    run()
    for name, each in tensors.items():
        # Flat: a tensor without elements is contiguous whatever its strides are, and has no view of other elements.
        if not torch.equal(each.reshape(-1).view(torch.uint8), before[name].reshape(-1).view(torch.uint8)):
            raise DependsOnWhatItWroteError(
                f"triton.autotune launches {tuner.base_fn.__name__} several times in a first call, and {name} is not "
                f"the same after a second launch: give triton.autotune reset_to_zero=[{name!r}] where the kernel adds "
                f"to zeros, or restore_value=[{name!r}] where it changes what it was given"
            )
