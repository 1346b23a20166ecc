"""How an operator is differentiated: by its formula, or else through its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchgraft import _torch_private

if TYPE_CHECKING:
    from torchgraft.operator import Operator


def as_tuple(results: Any) -> tuple[Any, ...]:
    """One result as a tuple of one; several as they are."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def input_gradients(
    operator: Operator,
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    arguments: Sequence[Any],
) -> Sequence[Tensor | None]:
    """Gradients of an operator's tensor arguments, None where none is needed."""
    if _torch_private.any_autocast():
        # Autocast has done its work in the forward pass; the gradients have the dtypes that it chose.
        with torch.autocast(arguments[0].device.type, enabled=False):
            return _input_gradients(operator, needs_grad, output_grads, saved, arguments)
    return _input_gradients(operator, needs_grad, output_grads, saved, arguments)


def _input_gradients(
    operator: Operator,
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    arguments: Sequence[Any],
) -> Sequence[Tensor | None]:
    if operator.gradient is not None:
        return operator.gradient(needs_grad, output_grads, saved, *arguments)
    operator.note(arguments, "it has no gradient formula")
    wanted = [i for i in range(operator.tensor_count) if needs_grad[i]]

    def of_wanted(*values: Tensor) -> tuple[Tensor, ...]:
        replaced = list(arguments)
        for i, value in zip(wanted, values, strict=True):
            replaced[i] = value
        return as_tuple(operator.visible(operator.reference(*replaced)))

    outputs, vjp = torch.func.vjp(of_wanted, *(arguments[i] for i in wanted))
    cotangents = tuple(
        torch.zeros_like(output) if grad is None else grad for output, grad in zip(outputs, output_grads, strict=True)
    )
    gradients = dict(zip(wanted, vjp(cotangents), strict=True))
    return tuple(gradients.get(i) for i in range(operator.tensor_count))


class Autograd:
    """An operator's places in autograd: what is saved, and two Functions over its raw kernel.

    `eager` is the cheaper of the two to call; `functional` is the one that torch.func and torch.compile understand.
    """

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        autograd = self
        raw = operator.raw

        class Eager(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *arguments: Any) -> Any:
                results = raw(*arguments)
                autograd.save(ctx, arguments, as_tuple(results))
                return operator.visible(results)

            @staticmethod
            def backward(ctx: Any, *output_grads: Tensor | None) -> Any:
                return autograd.backward(ctx, *output_grads)

        class Functional(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(*arguments: Any) -> Any:
                return raw(*arguments)

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                autograd.setup_context(ctx, inputs, output)

            @staticmethod
            def backward(ctx: Any, *output_grads: Tensor | None) -> Any:
                return autograd.backward(ctx, *output_grads)

        # The names under which the two appear as grad_fn.
        camel = "".join(part.capitalize() for part in operator.name.split("_"))
        Eager.__name__ = Functional.__name__ = camel
        self.eager: Callable[..., Any] = Eager.apply
        self.functional: Callable[..., Any] = Functional.apply

    def save(self, ctx: Any, arguments: Sequence[Any], results: Sequence[Tensor]) -> None:
        """Keeps what the gradient needs: the arguments, and the results that nobody sees."""
        tensors = self._operator.tensor_count
        ctx.save_for_backward(*arguments[:tensors], *results[self._operator.visible_outputs :])
        ctx.numbers = tuple(arguments[tensors:])
        ctx.set_materialize_grads(False)

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """`save`, for the interface in which all results pass through autograd, the hidden ones too."""
        results = as_tuple(output)
        self.save(ctx, inputs, results)
        hidden = results[self._operator.visible_outputs :]
        if hidden:
            ctx.mark_non_differentiable(*hidden)

    def backward(self, ctx: Any, *output_grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Gradients of all arguments, None for those that are numbers."""
        operator = self._operator
        output_grads = output_grads[: operator.visible_outputs]
        if all(grad is None for grad in output_grads):
            return (None,) * len(operator.arguments)
        tensors = ctx.saved_tensors
        arguments = tensors[: operator.tensor_count] + ctx.numbers
        saved = tensors[operator.tensor_count :]
        gradients = input_gradients(operator, ctx.needs_input_grad, output_grads, saved, arguments)
        return (*gradients, *(None,) * len(ctx.numbers))
