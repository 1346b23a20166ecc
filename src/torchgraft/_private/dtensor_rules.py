"""The private names of DTensor, by which torchgraft tells it how operators may be sharded.

As in `torchgraft._private.pytorch`, each stands behind a name of ours, and `tests/test_torch_private.py` calls each.
Each function takes the class DTensor, or imports what it needs of its package: this module imports nothing of it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def clear_sharding_cache(dtensor: Any) -> None:
    """Makes the class DTensor ask the rules of operators again."""
    # `torch.distributed.tensor.debug` has a function for this, but its module imports NumPy, which may not be there.
    dtensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()


def register_sharding_rule(dtensor: Any, operator: Any, rule: Callable[[Any], Any], *, takes_lists: bool) -> None:
    """Registers what the class DTensor asks about an operator overload: how arguments must lie, and how results do."""
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    # PyTorch keeps what a rule said of a call. From `static_argnum` on it looks at arguments that are no tensors when
    # it searches for that; its own `register_sharding` begins at the first int, and forgets a bool in front of it.
    # If an argument is a list, what it holds is looked at one by one.
    info = RuntimeSchemaInfo(static_argnum=0, needs_pytree=takes_lists)
    dtensor._op_dispatcher.sharding_propagator.register_sharding_prop_rule(operator, rule, info)


def metas_of_results(dtensor: Any, schema: Any) -> Any:
    """Shapes, strides and dtypes of the results of a call that a rule of DTensor is asked about."""
    return dtensor._op_dispatcher.sharding_propagator._propagate_tensor_meta_non_cached(schema)


def dtensor_spec(mesh: Any, placements: Sequence[Any], meta: Any = None) -> Any:
    """How a DTensor lies on a mesh of devices."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    return DTensorSpec(mesh, tuple(placements), tensor_meta=meta)


def output_sharding(outputs: Any, schema: Any, arguments: Sequence[Any], *, needs_redistribute: bool) -> Any:
    """The answer of a rule of DTensor.

    Args:
        outputs: how the results lie.
        schema: the call that was asked about.
        arguments: of the call on each device, each tensor as its spec.
        needs_redistribute: whether they are others than those of the call.
    """
    from torch.distributed.tensor._op_schema import OpSchema, OutputSharding

    return OutputSharding(
        outputs,
        OpSchema(schema.op, tuple(arguments), schema.kwargs_schema),
        needs_redistribute=needs_redistribute,
        use_val_from_redistribute_schema=True,
    )
