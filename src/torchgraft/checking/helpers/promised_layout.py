"""The layout of results that `output` promises, compared with the kernel's."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.tensors.strides import significant_strides


def layout_difference(call: Call) -> str:
    """Describes how the results that `output` promises differ from the kernel's; empty if they do not."""
    if call.declaration.sizes_from_data:
        return ""
    try:
        fake = tree_leaves(call.declaration.output(*call.make("meta")))
        real = tree_leaves(call.operator.raw(*call.arguments))
        defined = tree_leaves(call.operator.reference(*call.arguments))
    except Exception:
        return ""
    promise = "`shapes=`" if call.declaration.shapes and call.declaration.shapes.tells_results else "`output=`"
    for one, other, right in zip(fake, real, defined, strict=False):
        for aspect, of in _ASPECTS.items():
            said, is_so = of(one), of(other)
            if said != is_so:
                whose = promise if of(right) == is_so else "the kernel" if of(right) == said else f"{promise} or kernel"
                return f"{whose}: {promise} says {aspect} {said}, the kernel gives {is_so}, the reference {of(right)}"
    return ""


_ASPECTS: dict[str, Callable[[Tensor], Any]] = {
    "sizes": lambda tensor: tuple(tensor.shape),
    "dtype": lambda tensor: tensor.dtype,
    "strides": significant_strides,
}
