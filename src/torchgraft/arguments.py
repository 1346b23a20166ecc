"""Checks of arguments: each function raises, or returns the value as kernels and compilers take it.

PyTorch's dispatcher takes a tensor or a NumPy float for an int, and anything for a bool. So what comes from a caller is
looked at here first, and then means the same on every path: kernels, references and compilers.
"""

import numbers
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function
from torch.utils._pytree import tree_leaves


def whole(name: str, argument: str, value: Any) -> int:
    """An int, or what `operator.index` accepts, such as NumPy's integers. Not a bool, as in `F.conv2d`.

    A value that stands for an int while `torch.fx` records stays as it is, here and in the functions below.

    Args:
        name: of the function or layer, for the message.
        argument: of it, for the message.
        value: what was passed.

    Returns:
        The number as an int; a SymInt as it is.

    Raises:
        TypeError: anything else.
    """
    if not isinstance(value, bool):
        if isinstance(value, (int, torch.SymInt)):
            return value  # type: ignore[return-value]
        try:
            return operator.index(value)
        except TypeError:
            pass
        if stands_for_tensor(value):
            return value
    raise TypeError(f"{name}: {argument} must be an int, got {_show(value)}")


def positive(name: str, argument: str, value: Any) -> int:
    """The number, as `whole` returns it. Raises a ValueError if it is not above zero."""
    found = whole(name, argument, value)
    if found <= 0:
        raise ValueError(f"{name}: {argument} must be positive, got {found}")
    return found


def real(name: str, argument: str, value: Any) -> float:
    """A real number: an int, a float, or a type registered as real, such as NumPy's. Not a bool or a tensor.

    Args:
        name: of the function or layer, for the message.
        argument: of it, for the message.
        value: what was passed.

    Returns:
        The number as a float; one that a compiler knows by its name alone as it is.

    Raises:
        TypeError: anything else.
        ValueError: an int that is too large for a float.
    """
    if isinstance(value, (float, torch.SymFloat, torch.SymInt)) or stands_for_tensor(value):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: {argument} must be a number, got {_show(value)}")
    try:
        return float(value)
    except OverflowError:
        bits = f"an integer of {value.bit_length()} bits" if isinstance(value, int) else _show(value)
        raise ValueError(f"{name}: {argument} must fit a float, got {bits}") from None


def flag(name: str, argument: str, value: Any) -> bool:
    """A bool, NumPy's among them.

    Args:
        name: of the function or layer, for the message.
        argument: of it, for the message.
        value: what was passed.

    Returns:
        The bool; a SymBool as it is.

    Raises:
        TypeError: anything else.
    """
    if isinstance(value, (bool, torch.SymBool)) or stands_for_tensor(value):
        return value
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"):
        return bool(value)
    raise TypeError(f"{name}: {argument} must be a bool, got {_show(value)}")


def sizes(name: str, argument: str, value: Any, of: str) -> tuple[int, ...]:
    """Whole numbers, one for each dimension.

    Args:
        name: of the function, for the message.
        argument: of it, for the message.
        value: what was passed: something with as many whole numbers.
        of: what they are, as '(C, H, W)'.

    Returns:
        The numbers.

    Raises:
        TypeError: no such thing.
        ValueError: more or fewer of them.
    """
    count = of.count(",") + 1
    if stands_for_tensor(value):
        # How many there are is known when the recorded graph runs.
        return tuple(value[place] for place in range(count))
    expected = f"{name}: {argument} must be {count} ints, {of}"
    # Text is iterable, too, and its letters would be called wrong one by one.
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{expected}, got {value!r}")
    found = tuple(whole(name, f"each of {argument}", each) for each in value)
    if len(found) != count:
        raise ValueError(f"{expected}, got {tuple(found)}")
    return found


def require_tensor(name: str, argument: str, value: object) -> None:
    """Raises a TypeError if a value is not a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}: {argument} must be a Tensor, got {_show(value)}")


def stands_for_tensor(value: object) -> bool:
    """Whether a value records what is called with it, as those that `torch.fx.symbolic_trace` passes do.

    Such a value stands for a tensor, or for what is made of tensors: a size, a pair of states.
    """
    # PyTorch's own question, `has_torch_function`, is answered with yes of everything while a mode is on.
    return not isinstance(value, Tensor) and hasattr(type(value), "__torch_function__")


def record_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Records a call as one node of a graph, if any of its arguments is recorded, too.

    Args:
        function: is called with the arguments whenever the graph runs.
        arguments: of the call; tuples and lists may hold recorded values.

    Returns:
        A value that stands for the result. None if no argument stands for anything, and nothing is recorded.
    """
    found = [value for value in tree_leaves(arguments) if stands_for_tensor(value)]
    return handle_torch_function(function, found, *arguments) if found else None


def _show(value: object) -> str:
    return type(value).__name__
