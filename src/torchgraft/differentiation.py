"""How an operator is differentiated: by its formula, or else through its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchgraft import _dtensor, _torch_private, choosing
from torchgraft.declared import Declared
from torchgraft.fallback import GRADIENT_ON_REFERENCE, note_fallback
from torchgraft.schema import Argument, Arrangement, arrange, by_name, read_schema


def as_tuple(results: Any) -> tuple[Any, ...]:
    """One result as a tuple of one; several as they are."""
    return tuple(results) if isinstance(results, (tuple, list)) else (results,)


def single(results: tuple[Any, ...]) -> Any:
    """The reverse of `as_tuple`."""
    return results[0] if len(results) == 1 else results


def flat_results(results: Any) -> tuple[Any, ...]:
    """Results one by one, those in a list too."""
    flat: list[Any] = []
    for result in as_tuple(results):
        flat.extend(result if isinstance(result, (tuple, list)) else (result,))
    return tuple(flat)


def nested(values: Sequence[Any], lists: Sequence[bool]) -> tuple[Any, ...]:
    """What stands for results one by one, as it stands for the results: the reverse of `flat_results`.

    Args:
        values: one each.
        lists: of each result whether it is a list; at most one is.
    """
    found, rest = [], list(values)
    for number, is_list in enumerate(lists):
        length = len(rest) - (len(lists) - number - 1) if is_list else 1
        found.append(rest[:length] if is_list else rest[0])
        rest = rest[length:]
    return tuple(found)


def gradient_by_reference(
    reference: Callable[..., Any],
    tensor_count: int | str,
    visible: Callable[[Any], Any] = lambda results: results,
) -> Callable[..., Sequence[Tensor | None]]:
    """A gradient formula that differentiates a reference: for an operator whose gradient needs no kernel.

    Args:
        reference: what is differentiated, of an operator's arguments.
        tensor_count: how many tensors those begin with; or the operator's schema, where tensors stand elsewhere or in
            lists, or where arguments must be named.
        visible: which of the reference's results have gradients.

    Returns:
        What an Operator takes as `gradient`.

    Raises:
        ValueError: PyTorch cannot read the schema, or no Operator can serve it.
    """
    if isinstance(tensor_count, str):
        arguments = read_schema(tensor_count).arguments
        gradient = differentiate_reference(by_name(reference, arguments), arrange(arguments), visible)
        # Those that must be named come in the order of the schema.
        return lambda *values, **named: gradient(*values, *named.values())
    return differentiate_reference(reference, arrange([Argument("", "Tensor")] * tensor_count), visible)


def differentiate_reference(
    reference: Callable[..., Any], arrangement: Arrangement, visible: Callable[[Any], Any]
) -> Callable[..., Sequence[Tensor | None]]:
    """As `gradient_by_reference`, wherever the tensors stand."""

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
            return tuple(filter(_has_gradients, results))

        outputs, vjp = torch.func.vjp(of_wanted, *(tensors[i] for i in wanted))[:2]
        if len(flat_grads) != len(outputs):
            results = flat_results(visible(reference(*arguments)))
            flat_grads = tuple(grad for grad, result in zip(flat_grads, results, strict=True) if _has_gradients(result))
        cotangents = tuple(
            torch.zeros_like(output) if grad is None else grad for output, grad in zip(outputs, flat_grads, strict=True)
        )
        gradients = dict(zip(wanted, vjp(cotangents), strict=True))
        return arrangement.by_argument(tuple(gradients.get(i) for i in range(len(tensors))), others)

    gradient.is_of_reference = True  # type: ignore[attr-defined]
    return gradient


def make_gradient(operator: Declared, gradient: object) -> Callable[..., Any] | None:
    """The gradient formula of an operator, as a function of arguments in the order of the schema.

    Args:
        operator: whose arguments, reference and visible results are known.
        gradient: a formula, 'reference' or None.

    Raises:
        TypeError: it is none of these.
    """
    if gradient == "reference":
        return differentiate_reference(operator.reference, operator.arrangement, operator.visible)
    if gradient is not None and not callable(gradient):
        raise TypeError(
            f"{operator.qualified_name}: gradient must be a function, 'reference' or None, got {gradient!r}"
        )
    return gradient and by_name(gradient, operator.arguments, 3)


_Tensors = Sequence[Tensor | None]
_Choice = Callable[[_Tensors], _Tensors]


def _choose_saved(operator: Declared) -> tuple[_Choice | None, _Choice | None, int]:
    """What of an operator's tensor arguments, none of them a list, is kept for its gradient.

    Returns:
        What takes those that are kept out of all; what puts them back in their places, with None in the others; and how
        many are kept. None and None where all are.
    """
    names = [argument.name for argument in operator.arguments if argument.holds_tensors]
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


def _has_gradients(tensor: Tensor | None) -> bool:
    """Whether a tensor can have a gradient, or be one: indices and counts cannot."""
    return tensor is not None and (tensor.is_floating_point() or tensor.is_complex())


def _none_needed(needed: Any) -> Any:
    """That no gradient is needed, in the form in which it was said."""
    return [False] * len(needed) if isinstance(needed, (list, tuple)) else False


def _drop_unneeded(name: str, tensors: Sequence[str], gradients: Any, needs_grad: Sequence[Any]) -> Sequence[Any]:
    """What a formula returned, with None for each gradient that is not needed.

    Args:
        name: of the operator.
        tensors: the names of its arguments that hold tensors.
        gradients: one each, or one alone; for a list of tensors a list, or None.
        needs_grad: whether each is needed; for a list of tensors a list.

    Raises:
        ValueError: there are more or fewer.
    """
    gradients = as_tuple(gradients)
    if len(gradients) != len(needs_grad):
        raise ValueError(
            f"{name}: its gradient must return one for each of the arguments {', '.join(tensors)}, got {len(gradients)}"
        )
    if needs_grad.count(True) == len(needs_grad):
        return gradients
    kept: list[Any] = []
    for gradient, needed, argument in zip(gradients, needs_grad, tensors, strict=True):
        if not isinstance(needed, (list, tuple)) or gradient is None:
            kept.append(gradient if needed else None)
            continue
        if len(gradient) != len(needed):
            raise ValueError(
                f"{name}: its gradient must return one for each of the {len(needed)} tensors of {argument}, got"
                f" {len(gradient)}"
            )
        kept.append([each if wanted else None for each, wanted in zip(gradient, needed, strict=True)])
    return kept


class Autograd(NamedTuple):
    """An operator's places in autograd.

    Attributes:
        eager: applies it and records a gradient; the cheaper of the two to call. Takes the tensors, and then all
            numbers in one tuple: autograd spends most of a microsecond on each argument of a Function.
        functional: the same, in the form that torch.func and torch.compile understand; takes each argument by itself.
        public: the same, over the public name.
        replace_formula: puts another formula in the place of the operator's, and returns the one that was there, for
            checks that find out which part of an operator is wrong.
    """

    eager: Callable[..., Any]
    functional: Callable[..., Any]
    public: Callable[..., Any]
    replace_formula: Callable[[Callable[..., Any]], Callable[..., Any]]


def make_autograd(operator: Declared) -> Autograd:
    """Builds the two Functions of an operator.

    What follows is closures over functions and numbers, because torch.compile traces it and cannot wrap an Operator.
    """
    raw, visible, arrangement = operator.raw, operator.visible, operator.arrangement
    kernel, several_visible = _torch_private.callee_of(raw), operator.visible_outputs > 1 and not any(operator.lists)
    visible_outputs, lists = operator.visible_outputs, operator.lists
    visible_lists, hidden_lists = lists[:visible_outputs], lists[visible_outputs:]
    hides_lists = any(hidden_lists)
    tensors_first, together = arrangement.first is not None, arrangement.together

    plain_reference, qualified_name, wants_kernels = operator.reference, operator.qualified_name, operator.wants_kernels
    is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled

    def noted(reason: str) -> Callable[..., Any]:
        """The reference, which records that it answers."""

        def reference(*arguments: Any) -> Any:
            if wants_kernels:
                note_fallback(qualified_name, arguments, reason, GRADIENT_ON_REFERENCE)
            return plain_reference(*arguments)

        return reference

    reference = noted("it has no gradient formula")
    gradient = operator.gradient or differentiate_reference(reference, arrangement, visible)
    # DTensor has no rules for much that references are made of.
    gradient = _dtensor.on_shards(operator, gradient) if hasattr(gradient, "is_of_reference") else gradient
    keep, give_back, saved_tensors = _choose_saved(operator)
    signature = operator.arguments
    places = [place for place, argument in enumerate(signature) if argument.holds_tensors]
    tensor_count, tensor_names, name = len(places), [signature[place].name for place in places], operator.name
    materialize_grads = operator.materialize_grads
    takes_lists, gives_lists = any(signature[place].is_list for place in places), any(lists)
    several_outputs, gives_one = operator.output_count > 1 or gives_lists, operator.output_count == 1
    # A list of tensors leaves its length among what is no tensor.
    other_count = sum(not argument.is_tensor for argument in signature)
    differentiable = [signature[place].name not in operator.not_differentiable for place in places]
    all_differentiable, constant_outputs = all(differentiable), operator.constant_outputs
    any_autocast = _torch_private.any_autocast
    # What writes to its arguments must run once.
    may_be_timed, namespace = choosing.is_wanted if not operator.mutates else bool, operator.namespace

    def each_of(results: Any) -> tuple[Any, ...]:
        return (results,) if gives_one else tuple(results)

    def save(
        ctx: Any, values: Sequence[Tensor | None], others: tuple[Any, ...], results: Any, *, has_all: bool = True
    ) -> None:
        ctx.others = others
        if gives_lists:
            # Whether this Function has the hidden results among its own, and so gets gradients for them.
            ctx.has_all = has_all
        if keep is not None:
            values = keep(values)
        if takes_lists:
            ctx.saved_count = len(values)
        if several_outputs:
            ctx.save_for_backward(*values, *flat_results(each_of(results)[visible_outputs:]))
            ctx.set_materialize_grads(materialize_grads)
        else:
            ctx.save_for_backward(*values)

    def mark(ctx: Any, results: Any, first_hidden: int) -> None:
        """Tells autograd which results have no gradients."""
        each = each_of(results)
        constant = flat_results((*(each[place] for place in constant_outputs), *each[first_hidden:]))
        if constant:
            ctx.mark_non_differentiable(*constant)

    def gradients_of(ctx: Any, needs_grad: Sequence[Any], flat_grads: Sequence[Tensor | None]) -> Sequence[Any]:
        """The gradients of the arguments that hold tensors, of such a list a list.

        `flat_grads` are those of the visible results, or of all where `ctx.has_all` says so.
        """
        output_grads = nested(flat_grads, lists if ctx.has_all else visible_lists) if gives_lists else flat_grads
        output_grads = output_grads[:visible_outputs]
        # A loop and no generator, which would cost a third of a microsecond.
        for grad in flat_results(output_grads) if gives_lists else output_grads:
            if grad is not None:
                break
        else:
            return (None,) * len(places)
        if several_visible:
            # Compilers give zeros where autograd gives None.
            output_grads = [grad if _has_gradients(grad) else None for grad in output_grads]
        if not all_differentiable:
            pairs = zip(needs_grad, differentiable, strict=True)
            needs_grad = [needed if may else _none_needed(needed) for needed, may in pairs]
        kept = ctx.saved_tensors
        count = ctx.saved_count if takes_lists else saved_tensors
        values, hidden = kept[:count], kept[count:]
        if give_back is not None:
            values = give_back(values)
        if hidden and is_grad_enabled() and not is_compiling():
            if any(needs_grad[place] for place in unsaved_places) and may_differentiate_again():
                raise RuntimeError(cannot_differentiate_again)
            hidden = Hidden.apply(len(hidden), *hidden, *values, *ctx.others)
        if hides_lists:
            hidden = nested(hidden, hidden_lists)
        arguments = (*values, *ctx.others) if tensors_first else together(values, ctx.others)
        if any_autocast():
            # Autocast has done its work in the forward pass; the gradients have the dtypes that it chose.
            with torch.autocast(grad.device.type, enabled=False):
                found = gradient(needs_grad, output_grads, hidden, *arguments)
        else:
            found = gradient(needs_grad, output_grads, hidden, *arguments)
        return _drop_unneeded(name, tensor_names, found, needs_grad)

    hidden_gradient = differentiate_reference(
        noted("its gradient reads hidden results, whose own gradients are asked for"),
        arrangement,
        lambda results: each_of(results)[visible_outputs:],
    )
    unsaved_places = [place for place, argument in enumerate(tensor_names) if argument in operator.unsaved]
    cannot_differentiate_again = (
        f"{name}: its gradient cannot be differentiated again, as it reads hidden results. The reference computes their"
        f" gradient from all arguments, but {', '.join(operator.unsaved)} is not kept: remove it from unsaved, or let"
        " the gradient formula read arguments instead of hidden results"
    )
    may_differentiate_again = _torch_private.may_differentiate_again

    class Hidden(torch.autograd.Function):
        """Gives hidden results a gradient, through the reference, when a gradient is differentiated that reads them."""

        generate_vmap_rule = True

        @staticmethod
        def forward(count: int, *hidden_values_and_others: Any) -> Any:
            return tuple([each.view_as(each) for each in hidden_values_and_others[:count]])

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            count = inputs[0]
            rest = inputs[1 + count :]
            ctx.count, ctx.others = count, rest[len(rest) - other_count :]
            ctx.save_for_backward(*rest[: len(rest) - other_count])
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, *hidden_grads: Tensor | None) -> tuple[Tensor | None, ...]:
            values = ctx.saved_tensors
            gradients: Sequence[Tensor | None] = (None,) * len(values)
            if any(grad is not None for grad in hidden_grads):
                if unsaved_places:
                    raise RuntimeError(cannot_differentiate_again)
                needed = arrangement.by_argument(ctx.needs_input_grad[1 + ctx.count :][: len(values)], ctx.others)
                found = hidden_gradient(needed, hidden_grads, (), *together(values, ctx.others))
                gradients = arrangement.flat(found, ctx.others)
            return (None, *(None,) * ctx.count, *gradients, *(None,) * other_count)

    def replace_formula(formula: Callable[..., Any]) -> Callable[..., Any]:
        nonlocal gradient
        before, gradient = gradient, formula
        return before

    def flat_gradients(ctx: Any, count: int, flat_grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """The gradients of tensors one by one; `count` arguments of the Function are none."""
        needs_grad = ctx.needs_input_grad
        if not takes_lists:
            return gradients_of(ctx, needs_grad[:tensor_count], flat_grads)
        needs_grad = arrangement.by_argument(needs_grad[: len(needs_grad) - count], ctx.others)
        return arrangement.flat(gradients_of(ctx, needs_grad, flat_grads), ctx.others)

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values_and_others: Any) -> Any:
            *values, others = values_and_others
            given = (*values, *others) if tensors_first else together(values, others)
            results = choosing.call(namespace, kernel, given) if may_be_timed() else kernel(*given)
            save(ctx, values, others, results, has_all=False)
            if constant_outputs:
                mark(ctx, results, operator.output_count)
            return flat_results(visible(results)) if gives_lists else visible(results)

        @staticmethod
        def backward(ctx: Any, *output_grads: Tensor | None) -> tuple[Tensor | None, ...]:
            return (*flat_gradients(ctx, 1, output_grads), None)

    def make_functional(callee: Callable[..., Any]) -> Any:
        """The Function that calls one of the operator's two names."""

        class Functional(torch.autograd.Function):
            generate_vmap_rule = True

            @staticmethod
            def forward(*values_and_others: Any) -> Any:
                if tensors_first and not gives_lists:
                    return callee(*values_and_others)
                count = len(values_and_others) - other_count
                results = callee(*together(values_and_others[:count], values_and_others[count:]))
                return flat_results(results) if gives_lists else results

            @staticmethod
            def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
                count = len(inputs) - other_count
                results = nested(output, lists) if gives_lists else output
                save(ctx, inputs[:count], tuple(inputs[count:]), results)
                mark(ctx, results, visible_outputs)

            @staticmethod
            def backward(ctx: Any, *output_grads: Tensor | None) -> tuple[Tensor | None, ...]:
                return (*flat_gradients(ctx, other_count, output_grads), *(None,) * other_count)

        return Functional

    functional, public = make_functional(raw), make_functional(by_name(operator.public, signature))
    for function in (Eager, functional, public):
        # The name under which it appears as grad_fn.
        function.__name__ = "".join(part.capitalize() for part in operator.name.split("_"))
    return Autograd(Eager.apply, functional.apply, public.apply, replace_formula)
