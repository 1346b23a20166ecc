"""How an operator is differentiated: by its formula, or else through its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from torchgraft import _torch_private
from torchgraft.explaining import Argument


class Differentiated(Protocol):
    """What is asked of an Operator here."""

    name: str
    raw: Any
    reference: Callable[..., Any]
    gradient: Callable[..., Sequence[Tensor | None]] | None
    unsaved: tuple[str, ...]
    arguments: tuple[Any, ...]
    signature: tuple[Argument, ...]
    tensor_count: int
    output_count: int
    visible_outputs: int

    def visible(self, results: Any) -> Any:
        """What a caller sees of all results."""

    def note(self, arguments: Sequence[object], reason: str) -> None:
        """Records that the reference answers."""


def as_tuple(results: Any) -> tuple[Any, ...]:
    """One result as a tuple of one; several as they are."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def gradient_by_reference(
    reference: Callable[..., Any], tensor_count: int, visible: Callable[[Any], Any] = lambda results: results
) -> Callable[..., Sequence[Tensor | None]]:
    """A gradient formula that differentiates a reference: for an operator whose gradient needs no kernel.

    Args:
        reference: what is differentiated, of an operator's arguments.
        tensor_count: how many tensors those begin with.
        visible: which of the reference's results have gradients.

    Returns:
        What an Operator takes as `gradient`.
    """

    def gradient(
        needs_grad: Sequence[bool],
        output_grads: Sequence[Tensor | None],
        saved: Sequence[Tensor],
        *arguments: Any,
    ) -> Sequence[Tensor | None]:
        wanted = [i for i in range(tensor_count) if needs_grad[i]]

        def of_wanted(*values: Tensor) -> tuple[Tensor, ...]:
            replaced = list(arguments)
            for i, value in zip(wanted, values, strict=True):
                replaced[i] = value
            return as_tuple(visible(reference(*replaced)))

        outputs, vjp = torch.func.vjp(of_wanted, *(arguments[i] for i in wanted))[:2]
        cotangents = tuple(
            torch.zeros_like(output) if grad is None else grad
            for output, grad in zip(outputs, output_grads, strict=True)
        )
        gradients = dict(zip(wanted, vjp(cotangents), strict=True))
        return tuple(gradients.get(i) for i in range(tensor_count))

    return gradient


_Tensors = Sequence[Tensor | None]
_Choice = Callable[[_Tensors], _Tensors]


def _choose_saved(operator: Differentiated) -> tuple[_Choice | None, _Choice | None, int]:
    """What of an operator's tensor arguments is kept for its gradient.

    Returns:
        What takes those that are kept out of all; what puts them back in their places, with None in the others; and how
        many are kept. None and None where all are.
    """
    names = [argument.name for argument in operator.signature[: operator.tensor_count]]
    places = [place for place, name in enumerate(names) if name not in operator.unsaved]
    count = len(places)
    if count == len(names):
        return None, None, count
    if places == list(range(count)):
        missing = (None,) * (len(names) - count)
        return lambda values: values[:count], lambda kept: (*kept, *missing), count
    at = {place: i for i, place in enumerate(places)}
    return (
        lambda values: [values[place] for place in places],
        lambda kept: tuple(kept[at[place]] if place in at else None for place in range(len(names))),
        count,
    )


class Autograd(NamedTuple):
    """An operator's places in autograd.

    Attributes:
        eager: applies it and records a gradient; the cheaper of the two to call. Takes the tensors, and then all
            numbers in one tuple: autograd spends most of a microsecond on each argument of a Function.
        functional: the same, in the form that torch.func and torch.compile understand; takes each argument by itself.
        setup_context: what to save for backward, where each argument stands by itself.
        backward: the gradients of all arguments, None for those that are numbers.
    """

    eager: Callable[..., Any]
    functional: Callable[..., Any]
    setup_context: Callable[..., None]
    backward: Callable[..., tuple[Tensor | None, ...]]


def make_autograd(operator: Differentiated) -> Autograd:
    """Builds the two Functions of an operator.

    What follows is closures over functions and numbers, because torch.compile traces it and cannot wrap an Operator.
    """
    raw, visible = operator.raw, operator.visible
    kernel = _torch_private.callee_of(raw)
    tensors, visible_outputs = operator.tensor_count, operator.visible_outputs

    def reference(*arguments: Any) -> Any:
        operator.note(arguments, "it has no gradient formula")
        return operator.reference(*arguments)

    gradient = operator.gradient or gradient_by_reference(reference, tensors, visible)
    several_outputs = operator.output_count > 1
    keep, give_back, saved_tensors = _choose_saved(operator)
    no_gradients_of_numbers = (None,) * (len(operator.arguments) - tensors)
    any_autocast = _torch_private.any_autocast

    def save(ctx: Any, values: Sequence[Tensor | None], numbers: tuple[Any, ...], results: Any) -> None:
        ctx.numbers = numbers
        if keep is not None:
            values = keep(values)
        if several_outputs:
            ctx.save_for_backward(*values, *results[visible_outputs:])
            ctx.set_materialize_grads(False)
        else:
            ctx.save_for_backward(*values)

    def tensor_gradients(ctx: Any, output_grads: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
        output_grads = output_grads[:visible_outputs]
        # A loop and no generator, which would cost a third of a microsecond.
        for grad in output_grads:
            if grad is not None:
                break
        else:
            return (None,) * tensors
        kept = ctx.saved_tensors
        values, hidden = kept[:saved_tensors], kept[saved_tensors:]
        if give_back is not None:
            values = give_back(values)
        if any_autocast():
            # Autocast has done its work in the forward pass; the gradients have the dtypes that it chose.
            with torch.autocast(grad.device.type, enabled=False):
                return gradient(ctx.needs_input_grad, output_grads, hidden, *values, *ctx.numbers)
        return gradient(ctx.needs_input_grad, output_grads, hidden, *values, *ctx.numbers)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        save(ctx, inputs[:tensors], tuple(inputs[tensors:]), output)
        if several_outputs:
            ctx.mark_non_differentiable(*output[visible_outputs:])

    def backward(ctx: Any, *output_grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return (*tensor_gradients(ctx, output_grads), *no_gradients_of_numbers)

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values_and_numbers: Any) -> Any:
            *values, numbers = values_and_numbers
            results = kernel(*values, *numbers)
            save(ctx, values, numbers, results)
            return visible(results)

        @staticmethod
        def backward(ctx: Any, *output_grads: Tensor | None) -> tuple[Tensor | None, ...]:
            return (*tensor_gradients(ctx, output_grads), None)

    class Functional(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arguments: Any) -> Any:
            return raw(*arguments)

    Functional.setup_context = staticmethod(setup_context)  # type: ignore[method-assign]
    Functional.backward = staticmethod(backward)  # type: ignore[method-assign]
    for function in (Eager, Functional):
        # The name under which it appears as grad_fn.
        function.__name__ = "".join(part.capitalize() for part in operator.name.split("_"))
    return Autograd(Eager.apply, Functional.apply, setup_context, backward)
