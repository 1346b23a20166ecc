"""Records gradients: the autograd Functions of an operator, which compute its gradient by its formula or its reference.

They are closures over functions, tuples and numbers, because TorchDynamo traces them and cannot wrap other objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchgraft._private import pytorch
from torchgraft.declaration import Declaration
from torchgraft.declaration.results import as_tuple, flat_results, nested, single
from torchgraft.declaration.sharding import Sharding
from torchgraft.kernels import measured_choice
from torchgraft.kernels.names import Names
from torchgraft.operator import dtensor
from torchgraft.operator.gradients import differentiate_reference, formula_of, has_gradients, is_of_reference, noted

# `backward(ctx, count, output_grads)` returns the gradients of tensors one by one; the last `count` arguments of the
# Function are not tensors.
_Backward = Callable[[Any, int, Sequence[Tensor | None]], Sequence[Tensor | None]]


class Autograd(NamedTuple):
    """The functions by which calls of an operator enter autograd.

    Attributes:
        eager: calls the kernel and records a gradient; cheaper to call than `functional`. Takes the tensors, and then
            all numbers in one tuple: autograd spends most of a microsecond on each argument of a Function.
        functional: the same, in the form that torch.func and torch.compile understand; takes each argument separately.
        public: as `functional`, but calls the public name.
        replace_formula: replaces the gradient formula, and returns the earlier one; for checks that find out which part
            of an operator is wrong.
    """

    eager: Callable[..., Any]
    functional: Callable[..., Any]
    public: Callable[..., Any]
    replace_formula: Callable[[Callable[..., Any]], Callable[..., Any]]


def make_autograd(names: Names, sharding: Callable[[], Sharding]) -> Autograd:
    """Builds the Functions of an operator.

    Args:
        names: of the operator.
        sharding: returns what may be cut over devices, which may take long.
    """
    declaration = names.declaration
    formula = formula_of(declaration)
    # DTensor lacks rules for many operators that references call.
    formula = dtensor.on_shards(declaration, sharding, formula) if is_of_reference(declaration) else formula
    save, mark = _make_saving(declaration)
    backward, replace_formula = _make_backward(declaration, formula)
    functions = (
        _make_eager(names, save, mark, backward),
        _make_functional(declaration, names.raw, save, mark, backward),
        _make_functional(declaration, names.call_public, save, mark, backward),
    )
    for function in functions:
        # The name under which it appears as grad_fn.
        function.__name__ = "".join(part.capitalize() for part in declaration.name.split("_"))
    eager, functional, public = (function.apply for function in functions)
    return Autograd(eager, functional, public, replace_formula)


def _make_saving(declaration: Declaration) -> tuple[Callable[..., None], Callable[..., None]]:
    """Builds `save(ctx, values, others, results)`, and `mark(ctx, results, first_hidden)` for autograd."""
    visible_outputs, materialize_grads = declaration.visible_outputs, declaration.materialize_grads
    gives_lists, takes_lists = any(declaration.lists), any(each.is_list for each in declaration.tensor_arguments)
    several_outputs, gives_one = declaration.output_count > 1 or gives_lists, declaration.output_count == 1
    constant_outputs, keep = declaration.constant_outputs, _choose_saved(declaration)[0]
    saved_places = declaration.saved_places
    unsaved_places = _unsaved_places(declaration) if declaration.output_count > visible_outputs else []

    def each_of(results: Any) -> tuple[Any, ...]:
        return (results,) if gives_one else tuple(results)

    def save(
        ctx: Any, values: Sequence[Tensor | None], others: tuple[Any, ...], results: Any, *, has_all: bool = True
    ) -> None:
        """Keeps what the backward pass reads. `has_all`: whether the Function returns the hidden results too."""
        ctx.others = others
        if gives_lists:
            ctx.has_all = has_all
        tracks: tuple[Tensor | None, ...] = ()
        if unsaved_places:
            ctx.is_transformed = pytorch.transform_active()
            if ctx.is_transformed:
                tracks = _tracks_of(values[place] for place in unsaved_places)
        if keep is not None:
            values = keep(values)
        if takes_lists:
            ctx.saved_count = len(values)
        if several_outputs:
            each = each_of(results)
            read = (*[each[place] for place in saved_places], *each[visible_outputs:])
            ctx.save_for_backward(*values, *flat_results(read), *tracks)
            ctx.set_materialize_grads(materialize_grads)
        elif saved_places:
            ctx.save_for_backward(*values, results)
        else:
            ctx.save_for_backward(*values)

    def mark(ctx: Any, results: Any, first_hidden: int) -> None:
        """Tells autograd which results have no gradients."""
        each = each_of(results)
        constant = flat_results((*(each[place] for place in constant_outputs), *each[first_hidden:]))
        if constant:
            ctx.mark_non_differentiable(*constant)

    return save, mark


def _make_eager(names: Names, save: Callable[..., None], mark: Callable[..., None], backward: _Backward) -> Any:
    """Builds the Function for eager calls, the cheapest in Python: arguments that are not tensors come in one tuple."""
    declaration, kernel = names.declaration, pytorch.callee_of(names.raw)
    tensors_first, together = declaration.arrangement.first is not None, declaration.arrangement.together
    visible, gives_lists = declaration.visible, any(declaration.lists)
    constant_outputs, output_count = declaration.constant_outputs, declaration.output_count
    # An operator that writes to its arguments must run only once.
    may_be_timed, namespace = measured_choice.is_wanted if not declaration.mutates else bool, declaration.namespace

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *values_and_others: Any) -> Any:
            *values, others = values_and_others
            given = (*values, *others) if tensors_first else together(values, others)
            results = measured_choice.call(namespace, kernel, given) if may_be_timed() else kernel(*given)
            save(ctx, values, others, results, has_all=False)
            if constant_outputs:
                mark(ctx, results, output_count)
            return flat_results(visible(results)) if gives_lists else visible(results)

        @staticmethod
        def backward(ctx: Any, *output_grads: Tensor | None) -> tuple[Tensor | None, ...]:
            return (*backward(ctx, 1, output_grads), None)

    return Eager


def _make_functional(
    declaration: Declaration,
    callee: Callable[..., Any],
    save: Callable[..., None],
    mark: Callable[..., None],
    backward: _Backward,
) -> Any:
    """Builds the Function that torch.func and torch.compile understand, over one of the operator's two names."""
    tensors_first, together = declaration.arrangement.first is not None, declaration.arrangement.together
    lists, gives_lists, visible_outputs = declaration.lists, any(declaration.lists), declaration.visible_outputs
    other_count = _count_others(declaration)

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
            results = single(nested(output, lists)) if gives_lists else output
            save(ctx, inputs[:count], tuple(inputs[count:]), results)
            mark(ctx, results, visible_outputs)

        @staticmethod
        def backward(ctx: Any, *output_grads: Tensor | None) -> tuple[Tensor | None, ...]:
            return (*backward(ctx, other_count, output_grads), *(None,) * other_count)

    return Functional


def _count_others(declaration: Declaration) -> int:
    """The number of a Function's arguments that are not tensors. A list of tensors has one among them: its length."""
    return sum(not argument.is_tensor for argument in declaration.arguments)


def _make_backward(
    declaration: Declaration, gradient: Callable[..., Any]
) -> tuple[_Backward, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Builds the backward pass of an operator by a gradient formula, and a function that replaces the formula."""
    arrangement, lists, visible_outputs = declaration.arrangement, declaration.lists, declaration.visible_outputs
    tensors_first, together = arrangement.first is not None, arrangement.together
    visible_lists, hidden_lists = lists[:visible_outputs], lists[visible_outputs:]
    gives_lists, hides_lists = any(lists), any(hidden_lists)
    read_lists = (*[lists[place] for place in declaration.saved_places], *hidden_lists)
    saved_count, hidden_count = len(declaration.saved_places), len(hidden_lists)
    several_visible = visible_outputs > 1 and not gives_lists
    tensor_arguments, name = declaration.tensor_arguments, declaration.name
    tensor_names, tensor_count = [argument.name for argument in tensor_arguments], len(tensor_arguments)
    takes_lists = any(argument.is_list for argument in tensor_arguments)
    differentiable = [argument not in declaration.not_differentiable for argument in tensor_names]
    all_differentiable, any_autocast = all(differentiable), pytorch.any_autocast
    give_back, saved_tensors = _choose_saved(declaration)[1:]
    is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
    with_gradients = _make_hidden(declaration)
    unsaved_count = len(_unsaved_places(declaration))
    hides_from_unsaved = unsaved_count > 0 and declaration.output_count > visible_outputs

    def gradients_of(ctx: Any, needs_grad: Sequence[Any], flat_grads: Sequence[Tensor | None]) -> Sequence[Any]:
        """Returns a gradient for each argument that holds tensors; for a list of tensors, a list.

        `flat_grads` are those of the visible results, or of all results if `ctx.has_all` is true.
        """
        output_grads = nested(flat_grads, lists if ctx.has_all else visible_lists) if gives_lists else flat_grads
        output_grads = output_grads[:visible_outputs]
        # A loop and no generator, which would cost a third of a microsecond. Compilers give zeros for integers too.
        for grad in flat_results(output_grads) if gives_lists else output_grads:
            if grad is not None and (grad.is_floating_point() or grad.is_complex()):
                break
        else:
            return (None,) * tensor_count
        if several_visible:
            # Compilers give zeros where autograd gives None.
            output_grads = [grad if has_gradients(grad) else None for grad in output_grads]
        if not all_differentiable:
            pairs = zip(needs_grad, differentiable, strict=True)
            needs_grad = [needed if may else _none_needed(needed) for needed, may in pairs]
        kept, tracks = ctx.saved_tensors, None
        if hides_from_unsaved and ctx.is_transformed:
            kept, tracks = kept[:-unsaved_count], kept[-unsaved_count:]
        count = ctx.saved_count if takes_lists else saved_tensors
        values, saved = kept[:count], kept[count:]
        if give_back is not None:
            values = give_back(values)
        if hidden_count and is_grad_enabled() and not is_compiling():
            # Visible results come from autograd with their own gradients; hidden ones have none.
            first = saved_count if hides_lists else len(saved) - hidden_count
            saved = (*saved[:first], *with_gradients(needs_grad, saved[first:], values, ctx.others, tracks))
        if gives_lists:
            saved = nested(saved, read_lists)
        arguments = (*values, *ctx.others) if tensors_first else together(values, ctx.others)
        if any_autocast():
            if is_compiling():
                # torch.compile starts its trace again when it first reads a stride of a gradient. If it did so inside
                # the scope below, it would never leave the scope.
                for each in flat_results(output_grads) if gives_lists else output_grads:
                    if each is not None:
                        each.stride()
            # Autocast has done its work in the forward pass; the gradients have the dtypes that it chose.
            with torch.autocast(grad.device.type, enabled=False):
                found = gradient(needs_grad, output_grads, saved, *arguments)
        else:
            found = gradient(needs_grad, output_grads, saved, *arguments)
        return _drop_unneeded(name, tensor_names, found, needs_grad)

    def replace_formula(formula: Callable[..., Any]) -> Callable[..., Any]:
        nonlocal gradient
        before, gradient = gradient, formula
        return before

    def backward(ctx: Any, count: int, flat_grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        needs_grad = ctx.needs_input_grad
        if not takes_lists:
            return gradients_of(ctx, needs_grad[:tensor_count], flat_grads)
        needs_grad = arrangement.by_argument(needs_grad[: len(needs_grad) - count], ctx.others)
        return arrangement.flat(gradients_of(ctx, needs_grad, flat_grads), ctx.others)

    return backward, replace_formula


def _make_hidden(declaration: Declaration) -> Callable[..., tuple[Tensor, ...]]:
    """Builds `with_gradients(needs_grad, hidden, values, others, tracks)`: hidden results that can be differentiated.

    The second derivative of a formula that reads hidden results goes through these results, which are differentiated
    through the reference. The reference needs all arguments, so a second derivative is refused if an argument in
    `unsaved` needs a gradient. Under torch.func an outer transform may need such a gradient without this gradient
    knowing it. There `tracks` stand for these arguments, and the refusal comes when a gradient reaches one of them.
    """
    arrangement, visible_outputs = declaration.arrangement, declaration.visible_outputs
    unsaved_places = _unsaved_places(declaration)
    other_count, together = _count_others(declaration), arrangement.together
    gradient = differentiate_reference(
        noted(declaration, "its gradient reads hidden results, whose own gradients are asked for"),
        arrangement,
        lambda results: as_tuple(results)[visible_outputs:],
    )
    refusal = (
        f"{declaration.name}: its gradient cannot be differentiated again, as it reads hidden results. The reference"
        f" computes their gradient from all arguments, but {', '.join(declaration.unsaved)} is not kept: remove it from"
        " unsaved, or let the gradient formula read arguments instead of hidden results"
    )

    class Hidden(torch.autograd.Function):
        """Returns hidden results as they are, and differentiates the reference in the backward pass."""

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
                    raise RuntimeError(refusal)
                needed = arrangement.by_argument(ctx.needs_input_grad[1 + ctx.count :][: len(values)], ctx.others)
                found = gradient(needed, hidden_grads, (), *together(values, ctx.others))
                gradients = arrangement.flat(found, ctx.others)
            return (None, *(None,) * ctx.count, *gradients, *(None,) * other_count)

    def with_gradients(
        needs_grad: Sequence[Any],
        hidden: Sequence[Tensor],
        values: Sequence[Tensor | None],
        others: Sequence[Any],
        tracks: Sequence[Tensor | None] | None,
    ) -> tuple[Tensor, ...]:
        if tracks is not None:
            values = list(values)
            for place, track in zip(unsaved_places, tracks, strict=True):
                values[place] = track
        elif any(needs_grad[place] for place in unsaved_places):
            raise RuntimeError(refusal)
        return Hidden.apply(len(hidden), *hidden, *values, *others)

    return with_gradients


def _unsaved_places(declaration: Declaration) -> list[int]:
    """The places, among the tensor arguments, of those that are not kept for the gradient."""
    return [place for place, each in enumerate(declaration.tensor_arguments) if each.name in declaration.unsaved]


def _tracks_of(arguments: Iterable[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Returns tensors without elements that autograd connects with arguments, but that keep none of their memory."""
    with torch.enable_grad():
        return tuple(None if each is None else each.unsqueeze(0)[:0].clone() for each in arguments)


_Tensors = Sequence[Tensor | None]
_Choice = Callable[[_Tensors], _Tensors]


def _choose_saved(declaration: Declaration) -> tuple[_Choice | None, _Choice | None, int]:
    """Chooses the tensor arguments that are kept for the gradient; none of them is a list.

    Returns:
        A function that selects the arguments that are kept; one that puts them back in their places, with None in the
        others; and how many are kept. If all are kept, None stands for both functions.
    """
    names = [argument.name for argument in declaration.tensor_arguments]
    places = [place for place, name in enumerate(names) if name not in declaration.unsaved]
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


def _none_needed(needed: Any) -> Any:
    """Returns False for each tensor, in the form of `needed`: one bool, or a list of bools."""
    return [False] * len(needed) if isinstance(needed, (list, tuple)) else False


def _drop_unneeded(name: str, tensors: Sequence[str], gradients: Any, needs_grad: Sequence[Any]) -> Sequence[Any]:
    """Returns the gradients of a formula, with None for each that is not needed.

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
