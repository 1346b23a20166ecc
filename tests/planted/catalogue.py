"""All planted bugs, and the operators beside them that are right."""

from __future__ import annotations

from planted import calls, elementwise, kinds, matrices, products, reduction, sizes, values
from planted.bug import Bug
from torchgraft import Operator

_MODULES = (elementwise, reduction, products, matrices, kinds, sizes, values, calls)
BUGS: tuple[Bug, ...] = tuple(bug for module in _MODULES for bug in module.BUGS)
CONTROLS: tuple[Operator, ...] = (
    elementwise.scale,
    reduction.row_sum,
    products.multiply,
    matrices.matrix_product,
    matrices.left_alone,
    *kinds.CONTROLS,
    *values.CONTROLS,
    *sizes.CONTROLS,
    *calls.CONTROLS,
)


def bugs_of(device: str) -> list[Bug]:
    """Those that are bugs on a kind of device."""
    return [bug for bug in BUGS if device in bug.devices]


def controls_of(device: str) -> list[Operator]:
    """Those that can be asked on a kind of device: what the host draws by a reference no CUDA graph captures."""
    return [control for control in CONTROLS if device == "cpu" or not control.declaration.random]
