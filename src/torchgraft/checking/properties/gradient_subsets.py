"""Each gradient is the same whichever others are requested, and nothing is recorded where none is.

Proves: for every subset of the tensor arguments, the gradients are those of the full set. autograd records nothing if
no argument needs a gradient, under no_grad or in inference mode.

Measures: of how many arguments the formula computes the gradient although it is not needed, which takes time and is
right. It may return None, an empty tensor or what it was given, such as an incoming gradient.

Cannot prove: that no time is spent on a gradient that is thrown away before the formula returns.

Mend: return None, or nothing costly, where `needs_grad` is false, and never let one gradient depend on whether another
one is needed.

Example: a kernel of the gradient that skips the input's gradient leaves the weight's unwritten, too.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.properties.gradient import expect_gradients
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.compare import expect, expect_same
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.gradients import grad_or_zeros
from torchgraft.declaration.results import as_tuple
from torchgraft.operator.gradients import formula_of


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_subsets, case.table(small=True, empty=False, count=4))
    unneeded: set[str] = set()
    case.each(lambda call: _check_formula(call, unneeded), case.table(small=True, empty=False, count=4))
    if unneeded:
        case.facts["gradients that are computed and not needed"] = len(unneeded)
    case.each(_check_nothing_recorded, case.table(small=True, empty=False, count=1))


def _check_subsets(call: Call) -> None:
    call.leaves()
    names = call.leaf_names
    full = _gradients(call, names)
    for chosen in _subsets(names):
        for name, found in _gradients(call, chosen).items():
            what = f"the gradient of {name}, asked for {', '.join(chosen)} alone,"
            call.expect_close(found, *in_float64([full[name]]), summed=call.sample.elements, what=what)


def _subsets(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields every subset of the names, except none and all."""
    return itertools.chain.from_iterable(itertools.combinations(names, count) for count in range(1, len(names)))


def _gradients(call: Call, names: Sequence[str]) -> dict[str, Tensor]:
    arguments = call.arguments
    tensors = {name: tensor for name, tensor, _ in call.named_tensors(arguments)}
    leaves = [tensors[name].requires_grad_() for name in names]
    results = expect_gradients(call, tree_leaves(call.function(*arguments)))
    return dict(zip(names, grad_or_zeros(results, leaves, call.output_grads(results)), strict=True))


def _check_formula(call: Call, unneeded: set[str]) -> None:
    """Asks the formula for each subset, and notes the arguments whose gradient it computes without need."""
    operator = call.operator
    # The formula of an operator that writes to its arguments is asked of what was there before.
    if operator.declaration.gradient is None or operator.declaration.mutates or any(operator.declaration.lists):
        return
    arguments = call.arguments
    results = as_tuple(operator.raw(*arguments))
    visible, hidden = results[: operator.declaration.visible_outputs], results[operator.declaration.visible_outputs :]
    saved = (*[results[place] for place in operator.declaration.saved_places], *hidden)
    if any(argument.is_list for argument in operator.declaration.tensor_arguments):
        return
    incoming = call.differentiable_results(visible)
    grads = [torch.ones_like(each) if any(each is other for other in incoming) else None for each in visible]
    # What is only passed on costs nothing: no gradient was computed.
    given = {each.untyped_storage().data_ptr() for each in tensors_of((*grads, *results, *arguments))}
    for chosen in _subsets(call.leaf_names):
        needed = [argument.name in chosen for argument in operator.declaration.tensor_arguments]
        gradients = as_tuple(formula_of(operator.declaration)(needed, grads, saved, *arguments))
        expect_same(
            len(gradients),
            len(operator.declaration.tensor_arguments),
            "the formula returns the wrong number of gradients",
        )
        for argument, gradient in zip(operator.declaration.tensor_arguments, gradients, strict=True):
            name = argument.name
            if name in chosen:
                expect(gradient is not None, f"the formula returns no gradient of {name}, which is needed")
            else:
                is_computed = gradient is not None and gradient.numel() > 0
                if is_computed and gradient.untyped_storage().data_ptr() not in given:
                    unneeded.add(name)


def _check_nothing_recorded(call: Call) -> None:
    for result in tree_leaves(call.function(*call.arguments)):
        expect(not result.requires_grad, "a result requires a gradient although no argument does")
    arguments = call.leaves()
    with torch.no_grad():
        for result in tree_leaves(call.function(*arguments)):
            # A view of what needs a gradient says that it needs one too, and nothing is recorded.
            is_open = result.requires_grad and not (result._is_view() and result.grad_fn is None)
            expect(not is_open, "a result requires a gradient under torch.no_grad()")
    with torch.inference_mode():
        for result in tree_leaves(call.function(*call.arguments)):
            expect(result.is_inference(), "a result of inference mode is not an inference tensor")
    expect(all(tensor.grad is None for tensor in tensors_of(arguments)), "an argument has a gradient without backward")


PROPERTY = Property(check)
