"""The properties that have no meaning for an adopted operator, and why."""

from __future__ import annotations

from torchgraft.checking.adopting.adopted import Adopted, first_line
from torchgraft.operator import Operator

# The properties about a declaration, or about the two names of an Operator, and why they have no meaning.
_OF_DECLARATIONS = {
    "gradient_layouts": "an adopted operator may lay out its gradients as it likes",
    "autocast": "nothing is declared about it under autocast",
    "flops": "its number of operations is not declared",
    "sharding": "nothing is declared about how it may be cut over devices",
    "fallbacks": "an adopted operator never falls back to a reference",
    "pickle": "programs find it by its name and do not pickle it",
}
# The properties that an author may exclude by an error: derivatives of derivatives, and transforms.
_TRANSFORMS = ("second_gradient", "functional_gradients", "forward_mode", "vmap")
_DECLINING = (
    "once_differentiable",
    "double backward",
    "is not implemented",
    "not been implemented",
    "setup_context",
    "implement the jvp",
)


def why_not_asked(operator: Operator, property_name: str) -> str:
    """Returns why a property has no meaning for an adopted operator; an empty text if it has, and for all others."""
    return _OF_DECLARATIONS.get(property_name, "") if isinstance(operator, Adopted) else ""


def declined(operator: Operator, property_name: str, error: BaseException | None) -> str:
    """Returns why an adopted operator lacks a derivative or a transform; an empty text for other errors."""
    if not isinstance(operator, Adopted) or property_name not in _TRANSFORMS:
        return ""
    while error is not None:
        said = first_line(error)
        if isinstance(error, (NotImplementedError, RuntimeError)) and any(each in said for each in _DECLINING):
            return f"its author excluded it: {said}"
        error = error.__cause__ or error.__context__
    return ""
