"""Operators that write to their arguments, as `Tensor(a!)` in a schema says.

Their reference returns the new values of the written arguments, in the order of the schema, and then the results. If
the reference computes a call, its new values are copied into the arguments. Written arguments have no gradient; results
have one by a formula, or through the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from torchgraft._private import pytorch
from torchgraft.declaration import Declaration
from torchgraft.declaration.memory import with_own_memory
from torchgraft.declaration.results import as_tuple, nested, single
from torchgraft.declaration.schema import Argument, tensors_in
from torchgraft.kernels.fallback import note
from torchgraft.kernels.names import Names
from torchgraft.operator.autograd import Autograd


def written(signature: Sequence[Argument], arguments: Sequence[Any]) -> list[tuple[str, Any]]:
    """The arguments that are written to, each a tensor, a list of them or None, with their names."""
    pairs = zip(signature, arguments, strict=True)
    return [(argument.name, value) for argument, value in pairs if argument.mutated]


def answer_by_reference(operator: Declaration, arguments: Sequence[Any]) -> Any:
    """Calls the reference, copies its new values into the arguments, and returns its results, or None without any."""
    mutated = written(operator.arguments, arguments)
    count = len(mutated) + len(operator.lists)
    read = arguments
    # The gradient of the reference may read written arguments, so it gets copies. Compilers would not keep a copy (seen
    # in PyTorch 2.13: they use the argument instead, and the gradient is silently wrong). They get no copy, and
    # autograd raises an error.
    if torch.is_grad_enabled() and not torch.compiler.is_compiling() and operator.needs_grad(arguments):
        read = [
            tree_map_only(Tensor, torch.clone, value) if argument.mutated else value
            for argument, value in zip(operator.arguments, arguments, strict=True)
        ]
    values = operator.reference(*read)
    values = (values,) if count == 1 else as_tuple(values)
    if len(values) != count:
        raise ValueError(
            f"{operator.name}: its reference must return {len(mutated)} new values and {len(operator.lists)} results,"
            f" got {len(values)} values"
        )
    # A value may be an argument, or a view of one, and this argument is written to before the value is read.
    values = with_own_memory(values, arguments)
    for (name, old), new in zip(mutated, values, strict=False):
        for to, value in zip(tensors_in([old]), tensors_in([new]), strict=True):
            if to.shape != value.shape:
                raise ValueError(
                    f"{operator.name}: {name} of the sizes {tuple(to.shape)} cannot hold its new value, whose sizes"
                    f" are {tuple(value.shape)}"
                )
            to.detach().copy_(value.detach())
    results = values[len(mutated) :]
    return results[0] if len(results) == 1 else results or None


def expect_writable(operator: Declaration, arguments: Sequence[Any]) -> None:
    """Raises ValueError if a written argument needs a gradient, or if one is needed and there is no result."""
    mutated = written(operator.arguments, arguments)
    for name, value in mutated:
        if any(tensor.requires_grad for tensor in tensors_in([value])):
            raise ValueError(
                f"{operator.name}: {name} is written to, so it must not need a gradient; call it under"
                f" torch.no_grad(), or on {name}.detach()"
            )
    if not operator.lists:
        for argument, value in zip(operator.arguments, arguments, strict=True):
            if any(tensor.requires_grad for tensor in tensors_in([value])):
                raise ValueError(
                    f"{operator.name}: {argument.name} needs a gradient, but the operator returns nothing that could"
                    f" carry one; call it under torch.no_grad(), or on {argument.name}.detach()"
                )


def make_call(
    names: Names, autograd: Autograd, identity: str, recover: Callable[[Exception, Sequence[Any]], Any]
) -> Callable[..., Any]:
    """Builds the function that calls a mutating operator; arguments as for `torchgraft.operator.call.make_call`."""
    operator, raw, kernel = names.declaration, names.raw, pytorch.callee_of(names.raw)
    arrangement, visible, has_gradient = operator.arrangement, operator.visible, operator.gradient is not None
    is_compiling, is_exporting = torch.compiler.is_compiling, torch.compiler.is_exporting

    def call(*arguments: Any) -> Any:
        try:
            needs_grad = False
            if torch.is_grad_enabled():
                expect_writable(operator, arguments)
                tensors = arrangement.tensors(arguments)
                needs_grad = any(tensor is not None and tensor.requires_grad for tensor in tensors)
            compiling = is_compiling()
            # See `torchgraft.operator.call`.
            if compiling and not identity:
                raise AssertionError
            if pytorch.transform_active() or (needs_grad and compiling):
                note(
                    operator, arguments, "transforms and compiled gradients do not see that it writes to its arguments"
                )
                return visible(answer_by_reference(operator, arguments))
            if not needs_grad:
                if compiling:
                    return visible((names.call_public if is_exporting() else raw)(*arguments))
                return visible(kernel(*arguments))
            if not has_gradient:
                note(operator, arguments, "it has no gradient formula")
                return visible(answer_by_reference(operator, arguments))
            results = autograd.eager(*tensors, arrangement.others(arguments))
            if not any(operator.lists):
                return results
            return single(nested(results, operator.lists))
        except Exception as error:
            return recover(error, arguments)

    return call


def register(names: Names, library: torch.library.Library) -> None:
    """Makes both names count the versions of the arguments that they write to; the public one records no gradient."""
    for overload in (names.public, names.raw):
        name = overload.name().split("::")[1]
        if any(names.declaration.lists):
            inside = _make_inside(names.declaration)
            torch.library.register_torch_dispatch(overload.name(), pytorch.functional_mode(), inside, lib=library)
        library.impl(name, _counting(names.declaration, overload), "ADInplaceOrView", with_keyset=True)
    library.impl(names.declaration.name, _refusing(names), "Autograd", with_keyset=True)


def _make_inside(operator: Declaration) -> Callable[..., Any]:
    """Builds the function for compilers, the reference: PyTorch refuses a list of results beside written arguments."""

    def inside(mode: Any, overload: Any, types: Any, arguments: Sequence[Any] = (), named: Any = None) -> Any:
        complete = operator.complete(arguments, named or {})
        note(operator, complete, "compilers take no list of tensors from an operator that writes to its arguments")
        with mode:
            return answer_by_reference(operator, complete)

    return inside


def _counting(operator: Declaration, overload: Any) -> Callable[..., Any]:
    places = [place for place, argument in enumerate(operator.arguments) if argument.mutated]
    names = [argument.name for argument in operator.arguments]

    def count(keyset: Any, /, *arguments: Any, **named: Any) -> Any:
        for place in places:
            value = arguments[place] if place < len(arguments) else named.get(names[place])
            for tensor in tensors_in([value]):
                torch.autograd.graph.increment_version(tensor)
        return pytorch.below_views(overload, keyset, arguments, named)

    return count


def _refusing(names: Names) -> Callable[..., Any]:
    operator = names.declaration

    def refuse(keyset: Any, /, *arguments: Any, **named: Any) -> Any:
        if torch.is_grad_enabled():
            complete = operator.complete(arguments, named)
            expect_writable(operator, complete)
            if any(tensor is not None and tensor.requires_grad for tensor in operator.arrangement.tensors(complete)):
                raise ValueError(
                    f"{operator.name}: torch.ops cannot differentiate an operator that writes to its arguments; call"
                    " the torchgraft.Operator instead"
                )
        return pytorch.below_autograd(names.public, keyset, arguments, named)

    return refuse
