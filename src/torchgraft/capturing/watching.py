"""Watches calls of operators: every call that reaches a kernel, and eager calls that the reference answers.

Nothing is asked at a call of an operator that nobody watches: a scope registers what watches, and undoes it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from torchgraft._private import pytorch
from torchgraft.declaration.schema import tensors_in
from torchgraft.operator import Operator
from torchgraft.operator.call import replace_in_call


@dataclass(frozen=True)
class WatchedCall:
    """A call that is about to run.

    Attributes:
        operator: that is called.
        arguments: all of the schema, in its order.
        by_reference: whether the reference answers because no kernel would, so that no kernel is to be doubted.
    """

    operator: Operator
    arguments: tuple[Any, ...]
    by_reference: bool


# Is called before each call; what it returns is called with the results, of the schema, visible or not. Both work in
# the scope `alone`.
Watcher = Callable[[WatchedCall], Callable[[Any], None] | None]


@dataclass(eq=False)
class _Watched:
    """An operator that somebody watches.

    Attributes:
        watchers: those who do.
        library: holds the registration.
        restore: puts back what was replaced in the operator's call.
    """

    watchers: tuple[Watcher, ...]
    library: torch.library.Library
    restore: list[Callable[[], None]] = field(default_factory=list)


_lock = threading.RLock()
_watched: dict[Operator, _Watched] = {}


class _Inside(threading.local):
    """Whether this thread is inside a watcher, whose own calls of operators nobody watches."""

    is_on = False


_inside = _Inside()


@contextmanager
def unwatched() -> Iterator[None]:
    """A scope whose calls in this thread nobody watches."""
    before, _inside.is_on = _inside.is_on, True
    try:
        yield
    finally:
        _inside.is_on = before


@contextmanager
def watching(operator: Operator, watcher: Watcher) -> Iterator[None]:
    """A scope in which calls of an operator are watched; scopes may be nested, and lie over each other."""
    with _lock:
        if operator not in _watched:
            _watched[operator] = _begin(operator)
        _watched[operator].watchers += (watcher,)
    try:
        yield
    finally:
        with _lock:
            watched = _watched[operator]
            # Two scopes may have equal watchers.
            place = next(number for number, each in enumerate(watched.watchers) if each is watcher)
            watched.watchers = watched.watchers[:place] + watched.watchers[place + 1 :]
            if not watched.watchers:
                del _watched[operator]
                for restore in watched.restore:
                    restore()
                pytorch.undefine(watched.library)
                for overload in (operator.public, operator.raw):
                    pytorch.forget_dispatch(overload)


def _begin(operator: Operator) -> _Watched:
    watched = _Watched((), torch.library.Library(operator.namespace, "FRAGMENT"))

    def by_kernel(go_on: Callable[[], Any], arguments: Sequence[Any], named: Any) -> Any:
        declaration = operator.declaration
        # The raw name takes by position what the public one wants named.
        if named or len(arguments) < len(declaration.arguments):
            arguments = declaration.complete(arguments, named)
        return _run(watched, WatchedCall(operator, tuple(arguments), False), go_on)

    def by_reference(before: Callable[[Sequence[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
        def call(arguments: Sequence[Any]) -> Any:
            return _run(watched, WatchedCall(operator, tuple(arguments), True), partial(before, arguments))

        return call

    for overload in (operator.public, operator.raw):
        pytorch.watch_calls(watched.library, overload, by_kernel)
    for name in ("by_reference", "missing_dtype"):
        watched.restore.append(replace_in_call(operator.call, name, by_reference))
    # PyTorch's own convolution calls the kernels from C++, below the operator's name.
    watched.restore.append(replace_in_call(operator.call, "recorder_of", lambda recorder_of: {}.get))
    return watched


@contextmanager
def alone(*, recording: bool = False) -> Iterator[None]:
    """A scope for what a watcher does: neither autocast and modes nor other watchers see it, and autograd if asked."""
    with unwatched(), torch.set_grad_enabled(recording), pytorch.without_autocast(), torch._C.DisableTorchFunction():
        yield


def _run(watched: _Watched, call: WatchedCall, go_on: Callable[[], Any]) -> Any:
    # Tensors of compilers and of the device meta have no values.
    if _inside.is_on or not all(map(pytorch.has_memory, tensors_in(call.arguments))):
        return go_on()
    told = [after for watcher in watched.watchers if (after := watcher(call)) is not None]
    results = go_on()
    for after in told:
        after(results)
    return results
