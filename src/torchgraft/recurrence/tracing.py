"""Reads a function of tensors as a graph of pointwise operations, or says why it is none."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from torchgraft.recurrence.graph import Builder, Graph
from torchgraft.recurrence.operations import SAME, SAME_VALUE

# Sizes of rows and units that are called: what a cell computes must not depend on them.
_SHAPES = ((2, 3), (3, 5))

_POINTWISE = "every unit must be computed from its own gates and states alone"
_DIMENSIONS = "gates and states have rows and units, which a cell must leave as they are"
_RANDOM = "a cell must not draw random numbers: draw a mask for the whole sequence, and pass it with the input"
_MIXING = {
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "prod", "var", "var_mean", "std"), _POINTWISE),
    **dict.fromkeys(("any", "all", "norm", "linalg_vector_norm", "logsumexp", "cumsum", "sort"), _POINTWISE),
    **dict.fromkeys(("_softmax", "_log_softmax", "native_layer_norm", "native_group_norm"), _POINTWISE),
    **dict.fromkeys(("mm", "addmm", "bmm", "matmul", "dot", "mv", "convolution"), _POINTWISE),
    **dict.fromkeys(("view", "expand", "permute", "slice", "select", "unsqueeze", "squeeze"), _DIMENSIONS),
    **dict.fromkeys(("cat", "stack", "split", "split_with_sizes", "index", "gather", "flip", "roll"), _DIMENSIONS),
    **dict.fromkeys(("rand", "randn", "rand_like", "randn_like", "bernoulli", "native_dropout"), _RANDOM),
}
_INSTEAD = {
    "floor": "its gradient is zero everywhere",
    "round": "its gradient is zero everywhere",
    "remainder": "write it with torch.where",
    "fmod": "write it with torch.where",
    "hypot": "write torch.sqrt(a * a + b * b)",
    "atan2": "write it with torch.atan and torch.where",
    "exp2": "write torch.exp(0.6931471805599453 * x)",
    "log2": "write torch.log(x) * 1.4426950408889634",
    "log10": "write torch.log(x) * 0.4342944819032518",
    "tan": "write torch.sin(x) / torch.cos(x)",
    "sinh": "write (torch.exp(x) - torch.exp(-x)) / 2",
    "cosh": "write (torch.exp(x) + torch.exp(-x)) / 2",
    "isnan": "write x != x",
}


@functools.cache
def _decompositions() -> dict[Any, Any]:
    aten = torch.ops.aten
    more = (
        *(aten.elu, aten.elu_backward, aten.leaky_relu, aten.leaky_relu_backward, aten.hardtanh),
        *(aten.hardtanh_backward, aten.silu, aten.silu_backward, aten.gelu, aten.gelu_backward, aten.softplus),
        *(aten.softplus_backward, aten.log_sigmoid_forward, aten.log_sigmoid_backward, aten.tanh_backward),
        *(aten.sigmoid_backward, aten.threshold_backward),
    )
    return {**core_aten_decompositions(), **get_decompositions(more)}


def trace(
    name: str, function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[str], *, of_any_size: bool = False
) -> Graph:
    """Reads a function as a graph.

    Args:
        name: of the cell, for errors.
        function: takes tensors of one shape, (rows, units), and returns tensors of that shape.
        inputs: the names of its arguments.
        of_any_size: whether it is known that the sizes of the tensors do not matter, and need not be varied.

    Raises:
        ValueError: it computes something that is not pointwise, has no C++ here, depends on values in a way that no
            graph shows, or writes to its arguments.
    """
    shapes = _SHAPES[:1] if of_any_size else _SHAPES
    graphs = [_read(name, _record(name, function, len(inputs), shape), inputs, shape) for shape in shapes]
    # By their text, in which NaN is equal to itself.
    if len(set(map(repr, graphs))) > 1:
        raise ValueError(
            f"{name} depends on how many rows or units there are: {_POINTWISE}, whatever the sizes of its arguments are"
        )
    return graphs[0]


def _record(name: str, function: Callable[..., Any], count: int, shape: tuple[int, int]) -> GraphModule:
    generator = torch.Generator().manual_seed(0)
    values = [torch.rand(shape, generator=generator, dtype=torch.float64) + 0.25 for _ in range(count)]
    try:
        # Functionalized, so that what is written in place is an operation, and a copy to an argument shows.
        recorded = make_fx(
            torch.func.functionalize(lambda *tensors: function(*tensors)), decomposition_table=_decompositions()
        )(*values)
    except (RuntimeError, IndexError) as error:
        if "tracing tensor" in str(error) or "vmap" in str(error):
            raise ValueError(
                f"{name} decides by the values of its arguments, as `if h.sum() > 0` and `h.item()` do: a cell must"
                " compute the same operations for all values. Write torch.where(condition, value, other)"
            ) from None
        raise ValueError(_failed(name, error, shape)) from error
    recorded.graph.eliminate_dead_code()
    return recorded


def _failed(name: str, error: Exception, shape: tuple[int, int]) -> str:
    """Says to the author of a cell what an error of PyTorch means."""
    said = str(error).splitlines()[0]
    hint = ""
    if "mat1 and mat2" in said or "m1 and m2" in said:
        hint = (
            ". A step cannot multiply by a matrix: the one product of a recurrence is `message @ weight_hh.T`, which is"
            " taken before the step and comes as `message_gates`"
        )
    elif "size of tensor" in said:
        hint = ". What is another number for each unit is a parameter of the cell (`parameters=1`)"
    where = f"where each gate, state and parameter has the shape {shape}, rows and units"
    return f"{name} raised {type(error).__name__}: {said} ({where}){hint}"


def _read(name: str, recorded: GraphModule, inputs: Sequence[str], shape: tuple[int, int]) -> Graph:
    builder, places = Builder(inputs), dict[Node, int]()
    placeholders = [node for node in recorded.graph.nodes if node.op == "placeholder"]
    for node in recorded.graph.nodes:
        if node.op == "placeholder":
            places[node] = builder.input(placeholders.index(node))
        elif node.op == "get_attr":
            places[node] = builder.number(_constant(name, getattr(recorded, str(node.target))))
        elif node.op == "call_function":
            places[node] = _Call(name, node, shape, builder, places, inputs).place()
    (results,) = next(node for node in reversed(recorded.graph.nodes) if node.op == "output").args
    return builder.graph([places[each] for each in results])


def _constant(name: str, tensor: Tensor) -> float:
    if tensor.requires_grad:
        raise ValueError(
            f"{name} uses a tensor from outside that requires a gradient, which it would never get: numbers from"
            " outside are compiled in. Make it a parameter of the cell (`parameters=1`), a number of each unit, which"
            " the cell then gets as an argument behind its states"
        )
    if tensor.numel() != 1:
        raise ValueError(
            f"{name} uses a tensor of shape {tuple(tensor.shape)} from outside: a number of each unit must be one of"
            " its parameters, which the cell then gets as arguments behind its states"
        )
    return float(tensor.item())


class _Call:
    """A call of an operation of PyTorch, as nodes of a graph."""

    def __init__(
        self,
        cell: str,
        node: Node,
        shape: tuple[int, int],
        builder: Builder,
        places: dict[Node, int],
        inputs: Sequence[str],
    ) -> None:
        self._cell, self._node, self._shape, self._inputs = cell, node, shape, inputs
        self._builder, self._places = builder, places
        target: Any = node.target
        self._name = target._schema.name.partition("::")[2]
        self._arguments = list(node.args)

    def place(self) -> int:
        """The place of the call's result."""
        name, value = self._name, self._node.meta["val"]
        if name == "copy_":
            (target, *_) = self._arguments
            known = self._places.get(target) if isinstance(target, Node) else None
            which = self._inputs[int(self._builder.nodes[known].number)] if known is not None else "an argument"
            raise ValueError(f"{self._cell} writes to its argument {which}: return a new tensor instead")
        if name in ("expand", "view", "slice") and self._keeps_elements():
            return self._argument(0)
        if name in _MIXING or not isinstance(value, Tensor) or value.shape not in (self._shape, ()):
            self._refuse(_MIXING.get(name, _POINTWISE))
        if name in SAME_VALUE:
            return self._argument(0)
        if name in ("full", "full_like", "scalar_tensor"):
            return self._number(self._arguments[0 if name == "scalar_tensor" else 1])
        if name in ("zeros_like", "ones_like", "zeros", "ones"):
            return self._number(float(name.startswith("ones")))
        if name.startswith(("empty", "new_empty")):
            # What is written to it later shows as another operation.
            return self._number(math.nan)
        if name == "fill":
            return self._operand(self._arguments[1])
        if name == "_to_copy":
            return self._converted(value.dtype)
        if name in ("add", "sub", "rsub"):
            return self._sum()
        if name == "clamp":
            return self._clamped()
        if name == "where" and len(self._arguments) == 3:
            return self._builder.add("where", *map(self._argument, range(3)))
        return self._same(value.dtype)

    def _keeps_elements(self) -> bool:
        """Whether each element of the result is the one in its place, or the only one, of the first argument."""
        given = self._arguments[0].meta["val"].shape if isinstance(self._arguments[0], Node) else None
        return given in ((), self._node.meta["val"].shape) and self._node.meta["val"].shape in ((), self._shape)

    def _same(self, dtype: torch.dtype) -> int:
        """An operation that has the same arguments here."""
        operation = SAME.get(self._name)
        is_of_integers = self._name.startswith("bitwise") and dtype != torch.bool
        if operation is None or is_of_integers or self._node.kwargs.get("rounding_mode"):
            self._refuse()
        places = [self._argument(number) for number in range(len(self._arguments))]
        if operation == "mul" and dtype == torch.bool:
            operation = "and"
        return self._builder.add(str(operation), *places)

    def _sum(self) -> int:
        first, second = self._argument(0), self._argument(1)
        if self._node.meta["val"].dtype == torch.bool:
            return self._builder.add("or", first, second)
        alpha = self._node.kwargs.get("alpha", self._arguments[2] if len(self._arguments) > 2 else 1)
        if alpha != 1:
            second = self._builder.add("mul", second, self._number(alpha))
        if self._name == "rsub":
            first, second = second, first
        return self._builder.add("add" if self._name == "add" else "sub", first, second)

    def _clamped(self) -> int:
        place = self._argument(0)
        bounds = dict(zip(("min", "max"), self._arguments[1:], strict=False)) | dict(self._node.kwargs)
        for name, operation in (("min", "clamp_min"), ("max", "clamp_max")):
            if bounds.get(name) is not None:
                place = self._builder.add(operation, place, self._operand(bounds[name]))
        return place

    def _converted(self, dtype: torch.dtype) -> int:
        place = self._argument(0)
        is_truth = self._builder.nodes[place].is_bool
        if dtype == torch.bool:
            return self._builder.add("ne", place, self._number(0.0))
        if not is_truth and dtype != torch.float64:
            self._refuse(f"it gets numbers of any dtype, and must not convert them to {dtype}")
        return self._builder.add("to_number", place) if is_truth else place

    def _argument(self, number: int) -> int:
        return self._operand(self._arguments[number])

    def _operand(self, value: Any) -> int:
        return self._places[value] if isinstance(value, Node) else self._number(value)

    def _number(self, value: Any) -> int:
        if isinstance(value, Node):
            return self._places[value]
        if not isinstance(value, (bool, int, float)):
            self._refuse(f"{value!r} is no number")
        return self._builder.number(float(value))

    def _refuse(self, why: str = "") -> Any:
        name = self._name.strip("_")
        if not why:
            why = _INSTEAD.get(name, f"a cell may be made of {', '.join(sorted(SAME))}, and what PyTorch makes of them")
        raise ValueError(f"{self._cell} calls {self._node.target}, which a cell cannot: {why}")
