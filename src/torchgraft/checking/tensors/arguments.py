"""The tensors among the arguments of a call: found, changed, and left to pass."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from torchgraft.declaration.schema import tensors_in


def tensors_of(arguments: Iterable[Any]) -> list[Tensor]:
    """Collects the tensors among arguments, those in lists too."""
    return list(tensors_in(arguments))


def each_tensor(change: Callable[[Tensor], Any], arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Changes every tensor among arguments."""
    return tuple(tree_map_only(Tensor, change, list(arguments)))


def replaced(values: Sequence[Any], place: int, value: Any) -> tuple[Any, ...]:
    """Replaces one of several values."""
    return (*values[:place], value, *values[place + 1 :])


def replaced_inside(values: Sequence[Any], place: int, number: int, value: Any) -> tuple[Any, ...]:
    """Replaces an element of a list that is one of several values."""
    return replaced(values, place, list(replaced(values[place], number, value)))


def of_tensors(
    function: Callable[..., Any], arguments: Sequence[Any], chosen: Sequence[bool] | None = None
) -> Callable[..., Any]:
    """Wraps `function` so that it takes its tensors alone, those in lists one by one.

    Args:
        function: of all arguments.
        arguments: what it takes else.
        chosen: which of the tensors are left to pass; None: all.
    """
    leaves, structure = tree_flatten(list(arguments))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if chosen is not None:
        places = [place for place, is_chosen in zip(places, chosen, strict=True) if is_chosen]
    return with_places_left(lambda *each: function(*tree_unflatten(list(each), structure)), leaves, places)


def with_places_left(
    function: Callable[..., Any], arguments: Sequence[Any], places: Sequence[int]
) -> Callable[..., Any]:
    """Wraps `function` so that it takes the arguments in some places alone."""

    def call(*values: Any) -> Any:
        full = list(arguments)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        return function(*full)

    return call
