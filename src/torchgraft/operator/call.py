"""The choice made at each call: which of an operator's two names to call, and through what.

docs/design/calls.md explains it. Its two tables have the rows of the functions that `_make_compiled_call` and
`make_call` build, in the same order; the rows about torch.func are those of `_make_transformed_call`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import CellType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from torchgraft._private import pytorch
from torchgraft.declaration import FLOATING, Declaration
from torchgraft.declaration.autocast import make_cast, no_autocast
from torchgraft.declaration.bad_arguments import explain_kinds
from torchgraft.declaration.memory import with_own_memory
from torchgraft.declaration.results import nested, single
from torchgraft.kernels import measured_choice
from torchgraft.kernels.fallback import note
from torchgraft.kernels.names import Names
from torchgraft.operator import mutation
from torchgraft.operator.autograd import Autograd
from torchgraft.operator.errors import make_recover
from torchgraft.operator.gradients import is_of_reference

_Call = Callable[[Sequence[Any]], Any]

# Classes of tensors that do not change what a call of an operator does.
_PLAIN_TENSORS = frozenset((Tensor, torch.nn.Parameter))


def make_call(names: Names, autograd: Autograd, identity: str) -> Callable[..., Any]:
    """Builds the function that calls an operator; it takes all arguments in the order of the schema.

    `identity` is a text that no other declaration of this process has.
    """
    declaration, recover = names.declaration, make_recover(names)
    if declaration.mutates:
        return mutation.make_call(names, autograd, identity, recover)
    call_public, kernel, eager = names.call_public, pytorch.callee_of(names.raw), autograd.eager
    visible, all_visible = declaration.visible, declaration.visible_outputs == declaration.output_count
    recorders, recorder_of, arrangement = names.recorders, names.recorders.get, declaration.arrangement
    take_tensors, take_others, tensor_count = arrangement.tensors, arrangement.others, arrangement.first or 0
    first_of = _first_of(declaration)
    visible_lists, gives_lists = declaration.lists[: declaration.visible_outputs], any(declaration.lists)
    tensors_first, not_differentiable = arrangement.first is not None, bool(declaration.not_differentiable)
    is_plain, casts = tensors_first and not gives_lists, declaration.autocast != "none"
    cast = make_cast(declaration.autocast, declaration.arguments, declaration.mixed)
    by_pytorch, by_reference = declaration.is_of_pytorch, _make_checked_reference_call(declaration)
    partial, missing_dtype = _partly_supported(declaration), _make_missing_dtype_call(declaration)
    compiled, transformed = _make_compiled_call(names, autograd, identity), _make_transformed_call(names, autograd)
    any_autocast, transform_active = pytorch.any_autocast, pytorch.transform_active
    jit_tracing, dispatch_modes, may_be_timed = pytorch.jit_tracing, pytorch.dispatch_modes, measured_choice.is_wanted
    namespace, detach_unneeded = declaration.namespace, _make_detach_unneeded(declaration)
    is_compiling, is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled

    def call(*arguments: Any) -> Any:
        try:
            if casts and any_autocast():
                arguments = tuple(cast(arguments))
            if is_compiling():
                return compiled(arguments)
            # The reference is the best kernel, and compilers see into it too.
            if by_pytorch:
                return by_reference(arguments)
            # The device has kernels, but none for this dtype.
            if partial:
                first = first_of(arguments)
                if first.dtype not in partial.get(first.device.type, (first.dtype,)):
                    return missing_dtype(arguments)
            # A torch.func transform or forward mode is active.
            if transform_active():
                return transformed(arguments)

            needs_grad = False
            tensors = arguments[:tensor_count] if tensors_first else take_tensors(arguments)
            if is_grad_enabled():
                for tensor in tensors:
                    if tensor is not None and tensor.requires_grad:
                        needs_grad = True
                        break
                if needs_grad and not_differentiable:
                    needs_grad, arguments = detach_unneeded(arguments)
            # A TorchDispatchMode intercepts each operator, for example a policy of selective checkpointing.
            if dispatch_modes():
                return visible(call_public(*arguments))
            # No gradient is needed.
            if not needs_grad:
                results = measured_choice.call(namespace, kernel, arguments) if may_be_timed() else kernel(*arguments)
                return results if all_visible else visible(results)
            # torch.jit.trace records what the dispatcher sees, and nothing of a Function that is written in Python.
            if jit_tracing():
                with torch.no_grad():
                    return visible(call_public(*arguments))
            # The operator's library records gradients in C++, and all tensors are of PyTorch's own classes.
            if recorders:
                for tensor in tensors:
                    if tensor is not None and type(tensor) not in _PLAIN_TENSORS:
                        break
                else:
                    if (record := recorder_of(first_of(arguments).device.type)) is not None:
                        return record(*arguments)
            # Otherwise.
            if is_plain:
                return eager(*tensors, arguments[tensor_count:])
            results = eager(*tensors, take_others(arguments))
            return single(nested(results, visible_lists)) if gives_lists else results
        except Exception as error:
            return recover(error, arguments)

    return call


def variable_of(call: Callable[..., Any], name: str) -> CellType | None:
    """Finds a variable of `make_call`; what it holds is what `call` refers to at that moment.

    Args:
        call: of an operator.
        name: of the variable.

    Returns:
        The cell; None if the call has nothing of this name.
    """
    return dict(zip(call.__code__.co_freevars, call.__closure__ or (), strict=True)).get(name)


def replace_in_call(call: Callable[..., Any], name: str, change: Callable[[Any], Any]) -> Callable[[], None]:
    """Replaces a variable that an operator's call uses, so that calls pay for a hook only while it is in place.

    Args:
        call: what `make_call` built. Nothing is replaced if it does not use the variable.
        name: of a variable of `make_call`.
        change: returns the replacement; it gets the value of the variable.

    Returns:
        A function that restores the value, unless the operator was declared again in between.
    """
    if (cell := variable_of(call, name)) is None:
        return lambda: None
    before = cell.cell_contents
    replacement = cell.cell_contents = change(before)

    def restore() -> None:
        if cell.cell_contents is replacement:
            cell.cell_contents = before

    return restore


def _make_compiled_call(names: Names, autograd: Autograd, identity: str) -> _Call:
    """Builds the function for calls that TorchDynamo or torch.export traces."""
    declaration, raw, call_public = names.declaration, names.raw, names.call_public
    visible, reference, functional = declaration.visible, _make_reference_call(declaration), autograd.functional
    by_compiler, by_pytorch = declaration.compile == "reference", declaration.is_of_pytorch
    partial = _partly_supported(declaration)
    first_of, missing_dtype = _first_of(declaration), _make_missing_dtype_call(declaration)
    explain, apply = _make_explain_kinds(declaration), _make_apply(declaration)
    not_differentiable, gradient_by_reference = bool(declaration.not_differentiable), is_of_reference(declaration)
    take_tensors, detach_unneeded = declaration.arrangement.tensors, _make_detach_unneeded(declaration)
    transform_active, has_saved_tensor_hooks = pytorch.transform_active, pytorch.has_saved_tensor_hooks
    is_exporting, is_grad_enabled = torch.compiler.is_exporting, torch.is_grad_enabled

    def call(arguments: Sequence[Any]) -> Any:
        # TorchDynamo reuses compiled code while what it has looked at stays the same, and it does not look at the
        # Functions below: another operator would get this one's gradient. No two declarations share this text.
        if not identity:
            raise AssertionError
        # The declaration says compile='reference'.
        if by_compiler:
            explain(arguments)
            return reference(arguments) if by_pytorch else with_own_memory(reference(arguments), arguments)
        # The device has kernels, but none for this dtype. An exported program runs on any device.
        if partial and not is_exporting():
            first = first_of(arguments)
            if first.dtype not in partial.get(first.device.type, (first.dtype,)):
                return missing_dtype(arguments)
        # A torch.func transform or forward mode is active: compile(grad(f)) through a Function silently gives zero
        # gradients.
        if transform_active():
            return with_own_memory(reference(arguments), arguments)

        needs_grad = False
        if is_grad_enabled():
            for tensor in take_tensors(arguments):
                if tensor is not None and tensor.requires_grad:
                    needs_grad = True
                    break
            if needs_grad and not_differentiable:
                needs_grad, arguments = detach_unneeded(arguments)
        # torch.export traces.
        if is_exporting():
            return visible(call_public(*arguments))
        # No gradient is needed.
        if not needs_grad:
            return visible(raw(*arguments))
        # Saved-tensor hooks are active, and the gradient differentiates the reference: TorchDynamo cannot trace
        # torch.func there, and would leave such hooks forbidden.
        if gradient_by_reference and has_saved_tensor_hooks():
            return with_own_memory(reference(arguments), arguments)
        # Otherwise.
        return apply(functional, arguments)

    return call


def _make_transformed_call(names: Names, autograd: Autograd) -> _Call:
    """Builds the function for eager calls under a torch.func transform or in forward mode."""
    declaration = names.declaration
    has_gradient, functional = declaration.gradient is not None, autograd.functional
    reference, apply = _make_reference_call(declaration), _make_apply(declaration)
    visible, call_public = declaration.visible, names.call_public
    forward_mode_active, functionalize_active = pytorch.forward_mode_active, pytorch.functionalize_active

    def call(arguments: Sequence[Any]) -> Any:
        if not has_gradient:
            note(declaration, arguments, "it has no gradient formula, and torch.func needs one")
            try:
                return with_own_memory(reference(arguments), arguments)
            except RuntimeError as error:
                # PyTorch batches no operation whose sizes depend on values, and no `item`: the rule of the public name
                # computes each call of a batch alone. One of random numbers needs a seed for each, and stays refused.
                if declaration.random or not str(error).startswith("vmap:"):
                    raise
            return visible(call_public(*arguments))
        if forward_mode_active():
            note(declaration, arguments, "kernels do not carry forward-mode tangents")
            return with_own_memory(reference(arguments), arguments)
        # PyTorch has no rule for a Function under functionalize (seen in 2.13). The public name takes the kernel where
        # nothing is differentiated, and otherwise the reference.
        if functionalize_active():
            return visible(call_public(*arguments))
        return apply(functional, arguments)

    return call


def _make_reference_call(declaration: Declaration) -> _Call:
    """Builds the function that runs the reference."""
    visible, reference, any_autocast = declaration.visible, declaration.reference, pytorch.any_autocast

    def call(arguments: Sequence[Any]) -> Any:
        if any_autocast():
            # The arguments are cast by the declared rule already; autocast would also cast inside the reference.
            with no_autocast(arguments):
                return visible(reference(*arguments))
        return visible(reference(*arguments))

    return call


def _make_checked_reference_call(declaration: Declaration) -> _Call:
    """Builds the function for a reference that is the best kernel: it checks what PyTorch would accept, and runs it."""
    visible, reference, any_autocast = declaration.visible, declaration.reference, pytorch.any_autocast
    take_tensors, first_of = declaration.arrangement.tensors, _first_of(declaration)
    dtypes, explain = declaration.dtypes or (), _make_explain_kinds(declaration)

    def call(arguments: Sequence[Any]) -> Any:
        # PyTorch may accept dtypes that the operator does not, and tensors on meta beside others. All other wrong
        # arguments it refuses itself.
        device = first_of(arguments).device
        for tensor in take_tensors(arguments):
            if tensor is not None and (tensor.dtype not in dtypes or tensor.device != device):
                explain(arguments)
        if any_autocast():
            with no_autocast(arguments):
                return visible(reference(*arguments))
        return visible(reference(*arguments))

    return call


def _make_missing_dtype_call(declaration: Declaration) -> _Call:
    """Builds the function that runs the reference if a device has kernels, but none for the dtype."""
    reference, first_of, explain = (
        _make_reference_call(declaration),
        _first_of(declaration),
        _make_explain_kinds(declaration),
    )

    def call(arguments: Sequence[Any]) -> Any:
        explain(arguments)
        note(declaration, arguments, f"no kernel for this dtype on {first_of(arguments).device.type}")
        return with_own_memory(reference(arguments), arguments)

    return call


def _make_explain_kinds(declaration: Declaration) -> Callable[[Sequence[Any]], None]:
    """Builds the function that raises an error if types, dtypes or devices of the arguments are wrong."""
    name, arguments = declaration.name, declaration.arguments
    dtypes_of, mixed = declaration.dtypes_of, declaration.mixed

    def explain(values: Sequence[Any]) -> None:
        explain_kinds(name, arguments, values, dtypes_of, mixed)

    return explain


def _make_apply(declaration: Declaration) -> Callable[[Callable[..., Any], Sequence[Any]], Any]:
    """Builds the function that calls a functional Function, and returns the visible results."""
    visible, lists, gives_lists = declaration.visible, declaration.lists, any(declaration.lists)
    take_tensors, take_others = declaration.arrangement.tensors, declaration.arrangement.others

    def apply(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        tensors: list[Any] = []
        for tensor in take_tensors(arguments):
            # TorchDynamo cannot trace a Function that gets one tensor twice.
            is_known = tensor is not None and any(tensor is each for each in tensors)
            tensors.append(tensor.view_as(tensor) if is_known else tensor)
        results = function(*tensors, *map(_met, take_others(arguments)))
        return visible(single(nested(results, lists)) if gives_lists else results)

    return apply


def _make_detach_unneeded(declaration: Declaration) -> Callable[[Sequence[Any]], tuple[bool, Any]]:
    """Builds the function that detaches all arguments if each that requires a gradient is declared not differentiable.

    It returns whether a gradient is needed, and the arguments.
    """
    needs_grad = declaration.needs_grad

    def detach_unneeded(arguments: Sequence[Any]) -> tuple[bool, Any]:
        if needs_grad(arguments):
            return True, arguments
        return False, tree_map_only(Tensor, Tensor.detach, tuple(arguments))

    return detach_unneeded


def _met(value: Any) -> Any:
    """Returns an argument in a form that TorchDynamo keeps: it would lose a float that it first sees in a Function."""
    if isinstance(value, (list, tuple)):
        return [_met(each) for each in value]
    return value * 1.0 if isinstance(value, float) else value


def _first_of(declaration: Declaration) -> Callable[[Sequence[Any]], Any]:
    """Builds the function that returns the tensor whose device and dtype decide those of the call."""
    primary, take_tensors = declaration.primary, declaration.arrangement.tensors

    def first_of(arguments: Sequence[Any]) -> Any:
        value = arguments[primary]
        if isinstance(value, Tensor):
            return value
        # The argument is a list, or None.
        return next(tensor for tensor in take_tensors(arguments) if tensor is not None)

    return first_of


def _partly_supported(declaration: Declaration) -> Mapping[str, Sequence[torch.dtype]]:
    """The dtypes that have kernels, for each kind of device that has some but not all of the operator's."""
    kernels = declaration.kernels if isinstance(declaration.kernels, Mapping) else {}
    wanted = set(declaration.dtypes or FLOATING)
    return {device: dtypes for device, dtypes in kernels.items() if set(dtypes) != wanted}
