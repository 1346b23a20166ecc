"""Tells PyTorch's DTensor how operators may be sharded. It is imported with torchgraft, and imports nothing of DTensor.

It uses private names of PyTorch. `tests/test_torch_private.py` calls each.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

import torch

from torchgraft._private import dtensor_rules
from torchgraft.declaration import Declaration
from torchgraft.declaration.sharding import (
    PARTIAL,
    REPLICATED,
    Cut,
    Placement,
    ShardedCall,
    Sharding,
    ShardingError,
    moved,
)
from torchgraft.kernels.fallback import PerformanceWarning
from torchgraft.kernels.names import Names

_MODULE = "torch.distributed.tensor"

# The overloads of operators that were declared before DTensor was imported, by the operators' qualified names.
_waiting: dict[str, tuple[Any, ...]] = {}


class Sharded(NamedTuple):
    """An operator as DTensor sees it.

    Attributes:
        declaration: of the operator.
        sharding: returns the sharding. If it is to be derived, the first call takes long.
    """

    declaration: Declaration
    sharding: Callable[[], Sharding]


# The declared operators, by qualified name. A rule looks its operator up here, because PyTorch keeps the first rule of
# a name that is declared again.
_known: dict[str, Sharded] = {}


class _AfterImport(MetaPathFinder):
    """Registers the rules of all operators as soon as something imports DTensor; until then it costs nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            while _waiting:
                _register(*_waiting.popitem())

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


def register(names: Names, sharding: Callable[[], Sharding]) -> None:
    """Registers the rules of an operator, now or when DTensor is imported.

    Args:
        names: of the operator.
        sharding: returns the sharding, which may take long.
    """
    name = names.declaration.qualified_name
    _known[name] = Sharded(names.declaration, sharding)
    overloads = names.public, names.raw
    if dtensor() is not None:
        _register(name, overloads)
        return
    if not _waiting and not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())
    _waiting[name] = overloads


def forget(qualified_name: str) -> None:
    """Forgets the rules of an operator that is undeclared."""
    _known.pop(qualified_name, None)
    _waiting.pop(qualified_name, None)
    if dtensor() is not None:
        clear_cache()


def dtensor() -> Any:
    """Returns the class DTensor if it was imported, and otherwise None."""
    return getattr(sys.modules.get(_MODULE), "DTensor", None)


def clear_cache() -> None:
    """Makes DTensor call the rules again."""
    dtensor_rules.clear_sharding_cache(dtensor())


def _register(name: str, overloads: Sequence[Any]) -> None:
    takes_lists = any(each.is_list for each in _known[name].declaration.arguments) if name in _known else False
    for overload in overloads:
        dtensor_rules.register_sharding_rule(dtensor(), overload, _make_rule(name), takes_lists=takes_lists)


def _make_rule(name: str) -> Callable[[Any], Any]:
    """Builds the rule that DTensor calls once for each kind of call. It returns placements of arguments and results."""

    def rule(schema: Any) -> Any:
        known = _known.get(name)
        if known is None:
            raise NotImplementedError(f"{name}: its torchgraft.Operator was deleted: declare it again")
        operator, sharding = known.declaration, known.sharding()
        values = schema.args_schema
        specs = [values[place] if place < len(values) else None for place, _ in sharding.tensors]
        mesh, *others = dict.fromkeys(spec.mesh for spec in specs if spec is not None)
        if others:
            raise ShardingError(
                f"{operator.name}: all tensors must be on one mesh, got {mesh} and {others[0]}: distribute them on the"
                " same mesh"
            )
        call = sharding.of([None if spec is None else spec.shape for spec in specs], values)
        here = [None if spec is None else tuple(map(_read, spec.placements)) for spec in specs]
        call.refuse_others(here)
        counts = tuple(mesh.shape)
        if reason := call.gathered(here, counts):
            warnings.warn(f"{operator.name}: {reason}", PerformanceWarning, stacklevel=2)
        metas = dtensor_rules.metas_of_results(dtensor(), schema)
        ranks = [len(meta.shape) for meta in ([metas] if operator.output_count == 1 else metas)]
        cut = _cheapest(call, here, counts, ranks, [0 if spec is None else _bytes(spec) for spec in specs])

        changed = list(values)
        for (place, _), spec, where in zip(sharding.tensors, specs, cut.arguments, strict=True):
            if spec is not None and where is not None:
                changed[place] = _spec(mesh, where, spec.tensor_meta)
        at = mesh.get_coordinate()
        if at is not None:
            for place, number in call.numbers(cut.letters, counts, values, at).items():
                changed[place] = number
        outputs = tuple(_spec(mesh, where) for where in cut.results)
        return dtensor_rules.output_sharding(
            outputs[0] if operator.output_count == 1 else outputs,
            schema,
            changed,
            needs_redistribute=cut.arguments != tuple(here) or any(map(_differs, changed, values)),
        )

    return rule


def _differs(one: Any, other: Any) -> bool:
    """Whether an int argument was replaced by another number."""
    return isinstance(one, int) and one is not other and one != other


def _bytes(spec: Any) -> int:
    meta = spec.tensor_meta
    return math.prod(meta.shape) * int(meta.dtype.itemsize)


def _cheapest(
    call: ShardedCall, here: Sequence[Any], mesh: Sequence[int], ranks: Sequence[int], sizes: Sequence[int]
) -> Cut:
    """Returns the cut that moves the fewest bytes: none, if the tensors already have its placements."""
    cuts = list(call.cuts(mesh, ranks))
    for cut in cuts:
        if cut.arguments == tuple(here):
            return cut

    def cost(cut: Cut) -> float:
        return sum(
            moved(one, other, mesh, size)
            for one, other, size in zip(here, cut.arguments, sizes, strict=True)
            if one is not None and other is not None
        )

    # Every device can always compute all of it.
    return min(cuts, key=cost)


def on_shards(
    declaration: Declaration, sharding: Callable[[], Sharding], gradient: Callable[..., Any]
) -> Callable[..., Any]:
    """Wraps a formula that differentiates a reference: with DTensors, each device differentiates its own part.

    Args:
        declaration: of the operator.
        sharding: as for `register`.
        gradient: the formula, for plain tensors.
    """
    name = declaration.qualified_name
    _differentiated[name] = Sharded(declaration, sharding)

    def differentiated(
        needs_grad: Sequence[Any], output_grads: Sequence[Any], saved: Sequence[Any], *arguments: Any
    ) -> Any:
        if torch.compiler.is_compiling():
            return gradient(needs_grad, output_grads, saved, *arguments)
        kind = dtensor()
        if kind is None or not any(isinstance(value, kind) for value in arguments):
            return gradient(needs_grad, output_grads, saved, *arguments)
        return _differentiate(_differentiated[name], gradient, needs_grad, output_grads, arguments)

    return differentiated


# Operators by name: TorchDynamo, which traces the formula, cannot take an operator from its closure.
_differentiated: dict[str, Sharded] = {}


def _differentiate(
    operator: Sharded,
    gradient: Callable[..., Any],
    needs_grad: Sequence[Any],
    output_grads: Sequence[Any],
    arguments: Sequence[Any],
) -> list[Any]:
    sharding = operator.sharding()
    tensors = [arguments[place] for place, _ in sharding.tensors]
    mesh = next(tensor.device_mesh for tensor in tensors if tensor is not None)
    counts = tuple(mesh.shape)
    call = sharding.of([None if tensor is None else tensor.shape for tensor in tensors], arguments)
    here = [None if tensor is None else tuple(map(_read, tensor.placements)) for tensor in tensors]
    ranks = [0 if grad is None else grad.dim() for grad in output_grads]
    # Hidden results have no gradients.
    ranks += [0] * (operator.declaration.output_count - len(ranks))
    sizes = [0 if tensor is None else _bytes(tensor._spec) for tensor in tensors]
    cut = _cheapest(call, here, counts, ranks, sizes)
    local = list(arguments)
    for (place, _), tensor, where in zip(sharding.tensors, tensors, cut.arguments, strict=True):
        if tensor is not None and where is not None:
            # The gradient of a summand does not depend on the summand.
            local[place] = _local(tensor, [REPLICATED if each == PARTIAL else each for each in where])
    at = mesh.get_coordinate()
    for place, number in call.numbers(cut.letters, counts, arguments, at or [0] * len(counts)).items():
        local[place] = number
    local_grads = [
        # Each summand has the gradient of the sum.
        grad if grad is None else _local(grad, [REPLICATED if each == PARTIAL else each for each in where])
        for grad, where in zip(output_grads, cut.results, strict=False)
    ]
    found = gradient(needs_grad, local_grads, (), *local)
    return [
        each
        if each is None
        else _whole(each, tensor, [_of_gradient(*one) for one in zip(where or (), cut.letters, strict=True)])
        for each, tensor, where in zip(found, tensors, cut.arguments, strict=True)
    ]


def _of_gradient(placement: Placement, letter: str) -> Placement:
    """Returns the placement of an argument's gradient, from that of the argument and the letter that is cut."""
    if placement == PARTIAL:
        return REPLICATED
    return PARTIAL if placement == REPLICATED and letter else placement


def _local(tensor: Any, placements: Sequence[Placement]) -> Any:
    return tensor.redistribute(tensor.device_mesh, [placement_of(each) for each in placements]).to_local()


def _whole(local: Any, like: Any, placements: Sequence[Placement]) -> Any:
    """Makes a DTensor from the part on each device, with the sizes of another DTensor."""
    kept = [placement_of(each) for each in placements]
    return dtensor().from_local(
        local,
        like.device_mesh,
        kept,
        run_check=False,
        shape=like.shape,
        stride=torch.empty(like.shape, device="meta").stride(),
    )


def _read(placement: Any) -> Placement:
    """Converts a placement of PyTorch's. An unknown one becomes its text, which equals none of ours."""
    from torch.distributed.tensor import Shard

    if placement.is_replicate():
        return REPLICATED
    if placement.is_partial():
        return PARTIAL
    return int(placement.dim) if type(placement) is Shard else repr(placement)


def placement_of(placement: Placement) -> Any:
    """Converts a placement of ours to PyTorch's."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if isinstance(placement, int):
        return Shard(placement)
    return Partial() if placement == PARTIAL else Replicate()


def _spec(mesh: Any, placements: Sequence[Placement], meta: Any = None) -> Any:
    return dtensor_rules.dtensor_spec(mesh, tuple(map(placement_of, placements)), meta)


def explain(declaration: Declaration, arguments: Sequence[Any], error: BaseException) -> None:
    """Raises a clear error for one that a call with DTensors raised; returns for other errors."""
    kind = dtensor()
    if kind is None or not any(isinstance(value, kind) for value in arguments):
        return
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ShardingError):
            raise cause from None
        cause = cause.__cause__
    for argument, value in zip(declaration.arguments, arguments, strict=False):
        if argument.is_tensor and value is not None and not isinstance(value, kind):
            raise ShardingError(
                f"{declaration.name}: {argument.name} is a plain tensor beside DTensors: distribute it, as"
                " distribute_tensor(tensor, mesh, [Replicate()]) does"
            ) from None
