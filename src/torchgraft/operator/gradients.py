"""Gradient formulas that differentiate a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from torchgraft._private import pytorch
from torchgraft.declaration import Declaration
from torchgraft.declaration.results import flat_results
from torchgraft.declaration.schema import Argument, Arrangement, arrange, by_name, read_schema
from torchgraft.kernels.fallback import GRADIENT_ON_REFERENCE, note_fallback


def gradient_by_reference(
    reference: Callable[..., Any],
    tensor_count: int | str,
    visible: Callable[[Any], Any] = lambda results: results,
) -> Callable[..., Sequence[Tensor | None]]:
    """Makes a gradient formula that differentiates a reference, for an operator whose gradient needs no kernel.

    Args:
        reference: the function to differentiate; it takes an operator's arguments.
        tensor_count: the number of tensors with which the arguments begin; or the operator's schema, if tensors also
            stand elsewhere or in lists, or if there are keyword-only arguments.
        visible: selects, from the reference's results, those that have gradients.

    Returns:
        A function for the parameter `gradient` of an Operator.

    Raises:
        ValueError: PyTorch cannot read the schema, or an Operator does not support it.
    """
    if isinstance(tensor_count, str):
        arguments = read_schema(tensor_count).arguments
        gradient = differentiate_reference(by_name(reference, arguments), arrange(arguments), visible)
        # Keyword-only arguments come in the order of the schema.
        return lambda *values, **named: gradient(*values, *named.values())
    return differentiate_reference(reference, arrange([Argument("", "Tensor")] * tensor_count), visible)


def differentiate_reference(
    reference: Callable[..., Any], arrangement: Arrangement, visible: Callable[[Any], Any]
) -> Callable[..., Sequence[Tensor | None]]:
    """Makes the formula of `gradient_by_reference` for tensors at any places."""

    def gradient(
        needs_grad: Sequence[Any], output_grads: Sequence[Any], saved: Sequence[Tensor], *arguments: Any
    ) -> Sequence[Any]:
        tensors, others = arrangement.tensors(arguments), arrangement.others(arguments)
        needed = arrangement.flat(needs_grad, others)
        wanted = [i for i in range(len(tensors)) if needed[i]]
        flat_grads = flat_results(output_grads)

        def of_wanted(*values: Tensor) -> tuple[Tensor, ...]:
            replaced = list(tensors)
            for i, value in zip(wanted, values, strict=True):
                replaced[i] = value
            results = flat_results(visible(reference(*arrangement.together(replaced, others))))
            # Indices and counts have no gradients.
            return tuple(filter(has_gradients, results))

        # torch.func refuses to work under hooks of saved tensors, as checkpoint and save_on_cpu set them.
        is_hooked = not torch.compiler.is_compiling() and pytorch.has_saved_tensor_hooks()
        differentiated = _vjp_under_hooks if is_hooked else torch.func.vjp
        outputs, vjp = differentiated(of_wanted, *(tensors[i] for i in wanted))[:2]
        if len(flat_grads) != len(outputs):
            results = flat_results(visible(reference(*arguments)))
            flat_grads = tuple(grad for grad, result in zip(flat_grads, results, strict=True) if has_gradients(result))
        cotangents = tuple(
            torch.zeros_like(output) if grad is None else grad for output, grad in zip(outputs, flat_grads, strict=True)
        )
        gradients = dict(zip(wanted, vjp(cotangents), strict=True))
        return arrangement.by_argument(tuple(gradients.get(i) for i in range(len(tensors))), others)

    gradient.is_of_reference = True  # type: ignore[attr-defined]
    return gradient


def _vjp_under_hooks(
    function: Callable[..., tuple[Tensor, ...]], *values: Tensor
) -> tuple[tuple[Tensor, ...], Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
    """Does the same as `torch.func.vjp`, but through autograd, if hooks of saved tensors are active.

    If a gradient of this gradient is recorded, the hooks get the tensors that it saves; otherwise they get none.
    """
    records = torch.is_grad_enabled()
    with torch.enable_grad(), nullcontext() if records else _without_hooks():
        # Views, because one value may depend on another one, and that dependence must not count here.
        inputs = tuple(value.view_as(value) if records else value.detach() for value in values)
        inputs = tuple(each if each.requires_grad else each.requires_grad_() for each in inputs)
        outputs = function(*inputs)

    def vjp(cotangents: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        pairs = [(output, grad) for output, grad in zip(outputs, cotangents, strict=True) if output.requires_grad]
        if not pairs:
            return tuple(map(torch.zeros_like, inputs))
        differentiable, grads = zip(*pairs, strict=True)
        return torch.autograd.grad(differentiable, inputs, grads, create_graph=records, materialize_grads=True)

    return outputs, vjp


def _without_hooks() -> AbstractContextManager[None]:
    """A scope in which the hooks of saved tensors change nothing."""
    return torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)


def formula_of(declaration: Declaration) -> Callable[..., Any]:
    """Returns the gradient formula of an operator. If it has none, the formula differentiates its reference."""
    if callable(declaration.gradient):
        return declaration.gradient
    reference = declaration.reference
    if declaration.gradient is None:
        reference = noted(declaration, "it has no gradient formula")
    return differentiate_reference(reference, declaration.arrangement, declaration.visible)


def noted(declaration: Declaration, reason: str) -> Callable[..., Any]:
    """Wraps the reference, so that each of its calls counts as a gradient that no kernel computes."""
    plain_reference, wants_kernels, name = declaration.reference, declaration.wants_kernels, declaration.qualified_name

    def reference(*arguments: Any) -> Any:
        if wants_kernels:
            note_fallback(name, arguments, reason, GRADIENT_ON_REFERENCE)
        return plain_reference(*arguments)

    return reference


def is_of_reference(declaration: Declaration) -> bool:
    """Whether the gradient of an operator differentiates a reference: by default, or by its formula."""
    return declaration.gradient in (None, "reference") or hasattr(declaration.gradient, "is_of_reference")


def has_gradients(tensor: Tensor | None) -> bool:
    """Whether a tensor can have a gradient, or be one: indices and counts cannot."""
    return tensor is not None and (tensor.is_floating_point() or tensor.is_complex())
