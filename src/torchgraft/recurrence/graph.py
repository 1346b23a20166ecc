"""A graph of pointwise operations: what a cell computes for one unit, without repetitions and dead ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from torchgraft.recurrence.operations import INPUT, NUMBER, OPERATIONS


class Node(NamedTuple):
    """A value of a graph.

    Attributes:
        operation: a key of `OPERATIONS`, or INPUT or NUMBER.
        arguments: the places of its arguments among the nodes of the graph.
        number: the value of a NUMBER; the place of an INPUT among the inputs.
        is_bool: whether it is a truth value.
    """

    operation: str
    arguments: tuple[int, ...] = ()
    number: float = 0.0
    is_bool: bool = False


_ONE = Node(NUMBER, (), 1.0)


class Graph(NamedTuple):
    """A function of numbers.

    Attributes:
        inputs: the names of its arguments.
        nodes: its values, each behind its arguments; of inputs only those that are used.
        outputs: the places of its results among the nodes.
    """

    inputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    @property
    def operations(self) -> list[str]:
        """The operations, in order."""
        return [node.operation for node in self.nodes if node.operation not in (INPUT, NUMBER)]

    def evaluate(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The results for tensors of one shape and dtype, computed by differentiable operators of PyTorch."""
        like = tensors[0]
        values: list[Tensor] = []
        for node in self.nodes:
            if node.operation == INPUT:
                values.append(tensors[int(node.number)])
            elif node.operation == NUMBER:
                # Without dimensions, in the dtype of the others: `torch.where` of two Python floats gives float32.
                values.append(like.new_full((), node.number))
            else:
                operands = [values[place] for place in node.arguments]
                in_torch = OPERATIONS[node.operation].in_torch
                values.append(in_torch(*operands, like) if node.operation == "to_number" else in_torch(*operands))
        # A copy where a result is an argument, or another result: results are never aliased.
        results: list[Tensor] = []
        for place in self.outputs:
            value = values[place]
            is_taken = self.nodes[place].operation == INPUT or any(value is each for each in results)
            if value.shape != like.shape:
                value = value.expand_as(like).clone()
            results.append(value.clone() if is_taken else value)
        return tuple(results)


class Builder:
    """Collects nodes: an operation on the same arguments becomes one node.

    Identities that change no bit of a result are applied; adding zero changes at most the sign of a zero. The slopes of
    tanh and sigmoid become operations of their own, which are more exact than differences.

    Args:
        inputs: the names of the arguments.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        self.inputs = tuple(inputs)
        self.nodes: list[Node] = []
        self._places: dict[Node, int] = {}

    def input(self, number: int) -> int:
        """The place of an argument."""
        return self._place(Node(INPUT, (), float(number)))

    def number(self, value: float) -> int:
        """The place of a constant."""
        # By its digits: 0.0 and -0.0 are equal, and NaN is not even equal to itself.
        key = Node(f"{NUMBER} {value!r}")
        if key not in self._places:
            self._places[key] = len(self.nodes)
            self.nodes.append(Node(NUMBER, (), value))
        return self._places[key]

    def add(self, operation: str, *arguments: int) -> int:
        """The place of an operation's result."""
        definition = OPERATIONS[operation]
        if (same := self._simplified(operation, arguments)) is not None:
            return same
        given = [self._as_kind(each, is_bool) for each, is_bool in zip(arguments, definition.takes_bool, strict=True)]
        if definition.commutes:
            given.sort()
        return self._place(Node(operation, tuple(given), is_bool=definition.gives_bool))

    def graph(self, outputs: Sequence[int]) -> Graph:
        """The graph of some results, without the nodes that they do not need."""
        needed = set(outputs)
        for place in range(len(self.nodes) - 1, -1, -1):
            if place in needed:
                needed.update(self.nodes[place].arguments)
        moved = {old: new for new, old in enumerate(sorted(needed))}
        nodes = [self.nodes[old] for old in moved]
        kept = (node._replace(arguments=tuple(moved[each] for each in node.arguments)) for node in nodes)
        return Graph(self.inputs, tuple(kept), tuple(moved[each] for each in outputs))

    def _place(self, node: Node) -> int:
        if node not in self._places:
            self._places[node] = len(self.nodes)
            self.nodes.append(node)
        return self._places[node]

    def _as_kind(self, place: int, is_bool: bool) -> int:
        if self.nodes[place].is_bool == is_bool:
            return place
        return self.add("ne", place, self.number(0.0)) if is_bool else self.add("to_number", place)

    def _simplified(self, operation: str, arguments: Sequence[int]) -> int | None:
        nodes = [self.nodes[place] for place in arguments]
        values = [node.number if node.operation == NUMBER else None for node in nodes]
        is_whole = not any(node.is_bool for node in nodes)
        if operation in ("mul", "add") and is_whole:
            neutral = 1.0 if operation == "mul" else 0.0
            for value, other in zip(values, reversed(arguments), strict=True):
                if value == neutral:
                    return other
        if operation in ("div", "sub", "pow") and is_whole and values[1] == (0.0 if operation == "sub" else 1.0):
            return arguments[0]
        if operation == "neg" and nodes[0].operation == "neg":
            return nodes[0].arguments[0]
        return self._slope(operation, arguments)

    def _slope(self, operation: str, arguments: Sequence[int]) -> int | None:
        """The place of 1 - tanh(x)**2, or of sigmoid(x) * (1 - sigmoid(x)), if that is the operation."""
        nodes = [self.nodes[place] for place in arguments]
        if operation == "sub" and nodes[0] == _ONE and nodes[1].operation == "mul":
            first, second = nodes[1].arguments
            if first == second and self.nodes[first].operation == "tanh":
                return self.add("tanh_slope", *self.nodes[first].arguments)
        if operation == "mul":
            for place, other in zip(arguments, reversed(nodes), strict=True):
                is_rest = other.operation == "sub" and self.nodes[other.arguments[0]] == _ONE
                if self.nodes[place].operation == "sigmoid" and is_rest and other.arguments[1] == place:
                    return self.add("sigmoid_slope", *self.nodes[place].arguments)
        return None


def rebuilt(
    graph: Graph,
    builder: Builder,
    inputs: Mapping[int, int],
    pairs: Mapping[tuple[int, int], int],
) -> list[int] | None:
    """Adds a graph to a builder, with other inputs.

    Args:
        graph: what is added.
        builder: gets the nodes.
        inputs: the place in the builder for the numbers of the graph's inputs.
        pairs: the place in the builder for the sum of two inputs, by their numbers in order.

    Returns:
        The places of the graph's results; None if an input is used of which no place is given.
    """
    places: list[int | None] = []
    for node in graph.nodes:
        if node.operation == INPUT:
            places.append(inputs.get(int(node.number)))
        elif node.operation == NUMBER:
            places.append(builder.number(node.number))
        else:
            operands = [graph.nodes[each] for each in node.arguments]
            if node.operation == "add" and all(each.operation == INPUT for each in operands):
                numbers = sorted(int(each.number) for each in operands)
                if (sum_of_pair := pairs.get((numbers[0], numbers[-1]))) is not None:
                    places.append(sum_of_pair)
                    continue
            arguments = [places[each] for each in node.arguments]
            known = [each for each in arguments if each is not None]
            if len(known) < len(arguments):
                return None
            places.append(builder.add(node.operation, *known))
    results = [places[each] for each in graph.outputs]
    return None if None in results else [each for each in results if each is not None]


def split(values: Sequence[Any], *counts: int) -> list[list[Any]]:
    """So many of some values, then so many of the next ones, and so on."""
    parts, first = [], 0
    for count in counts:
        parts.append(list(values[first : first + count]))
        first += count
    return parts
