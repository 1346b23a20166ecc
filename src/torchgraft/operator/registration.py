"""Registration with PyTorch: fake results, batches, autocast, gradients, and the fallback of an operator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry, register_flop_formula

from torchgraft._private import pytorch
from torchgraft.declaration import Declaration
from torchgraft.declaration.autocast import AUTOCAST_KEYS, make_cast, no_autocast
from torchgraft.declaration.bad_arguments import explain_devices
from torchgraft.declaration.memory import expect_own_memory, unkept, with_own_memory
from torchgraft.declaration.results import as_tuple, nested, single
from torchgraft.declaration.schema import by_name, tensors_in
from torchgraft.kernels.fallback import IN_A_LOOP, note
from torchgraft.kernels.names import Names
from torchgraft.kernels.signatures import why_no_kernel
from torchgraft.operator import mutation
from torchgraft.operator.autograd import Autograd


def register(
    names: Names, autograd: Autograd, name_for_compilation: Callable[[], None], library: torch.library.Library
) -> None:
    """Registers everything behind both names of an operator, except its kernels.

    Args:
        names: of the operator.
        autograd: its autograd Functions.
        name_for_compilation: is called in each compilation of a call of the operator.
        library: holds the registrations.
    """
    declaration = names.declaration
    filled, name = declaration.filled, declaration.name
    names_tensors = any(argument.keyword_only and argument.holds_tensors for argument in declaration.arguments)
    for overload in (names.public, names.raw):
        fake, fallback = _make_fake(declaration, name_for_compilation), _make_fallback(declaration)
        if overload is names.public:
            fake, fallback = filled(fake), filled(fallback)
        torch.library.register_fake(overload.name(), fake, lib=library)
        if overload is names.raw or not names_tensors:
            torch.library.register_vmap(overload.name(), _make_vmap(declaration, overload), lib=library)
        # The lowest priority: a kernel that a library registers for a device takes precedence.
        library.impl(overload.name().split("::")[1], fallback, "CompositeExplicitAutograd")
    if declaration.autocast != "none":
        for key in AUTOCAST_KEYS.values():
            library.impl(name, filled(_make_autocast(names)), key)
    if declaration.flops is not None:
        flops = filled(declaration.flops)
        register_flop_formula(_packets(names))(lambda *shapes, out_shape=None, **named: flops(*shapes, **named))
    if declaration.mutates:
        mutation.register(names, library)
        return
    if any(each.optional_elements for each in declaration.tensor_arguments):
        # torch.jit.trace cannot record a list in which None may stand: it records what the reference is made of.
        for each in (name, f"_{name}"):
            library.impl(each, filled(_make_recorded(declaration)), "Tracer")
    else:
        # A graph of torch.jit.trace must have gradients, even if none were needed when it was recorded.
        library.impl(f"_{name}", names.call_public, "Tracer")
    # PyTorch's register_autograd does not support keyword-only tensors. It silently loses forward-mode tangents and the
    # gradients of a list that contains None, and torch.func.grad raises an error with it.
    library.impl(name, _make_autograd_kernel(names, autograd), "Autograd", with_keyset=True)


def forget(names: Names) -> None:
    """Removes the FLOP formula of an operator that is undeclared: it does not belong to the operator's library."""
    for packet in _packets(names):
        flop_registry.pop(packet, None)


def _packets(names: Names) -> list[Any]:
    return [overload.overloadpacket for overload in (names.public, names.raw)]


def _make_vmap(operator: Declaration, name: Any) -> Callable[..., Any]:
    """The vmap rule of one of an operator's names: the declared one, or a loop."""
    rule = operator.vmap
    call = by_name(name, operator.arguments)

    def loop(batch_size: int, in_dims: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, Any]:
        note(operator, arguments, "it has no vmap rule; declare vmap=, which computes a batch at once", IN_A_LOOP)
        rows = []
        for i in range(batch_size):
            row = [_row(value, dim, i) for value, dim in zip(arguments, in_dims, strict=True)]
            found = call(*row)
            # One result may be a list, and its tensors are then not separate results.
            rows.append((found,) if operator.output_count == 1 else as_tuple(found))
        results = tuple(_stacked(column) for column in zip(*rows, strict=True))
        in_front = tuple([0] * len(result) if isinstance(result, list) else 0 for result in results)
        return single(results), single(in_front)

    def batched(info: Any, in_dims: Sequence[Any], /, *arguments: Any, **named: Any) -> tuple[Any, Any]:
        if named or len(arguments) < len(operator.arguments):
            arguments = operator.complete(arguments, named)
            in_dims = (*in_dims, *(None,) * (len(arguments) - len(in_dims)))
        if rule is not None:
            results, dims = rule(name, info.batch_size, in_dims, *arguments)
            return with_own_memory(results, arguments), dims
        return loop(info.batch_size, in_dims, arguments)

    return batched


def _row(value: Any, dim: Any, i: int) -> Any:
    """An argument of one call of a batch."""
    if isinstance(value, (list, tuple)) and isinstance(dim, (list, tuple)):
        return [_row(element, each, i) for element, each in zip(value, dim, strict=True)]
    return value.select(dim, i) if isinstance(value, Tensor) and dim is not None else value


def _stacked(column: Sequence[Any]) -> Any:
    """One result of all calls of a batch."""
    if isinstance(column[0], (list, tuple)):
        return [torch.stack(each) for each in zip(*column, strict=True)]
    return torch.stack(list(column))


def _make_fake(operator: Declaration, name_for_compilation: Callable[[], None]) -> Callable[..., Any]:
    """Builds the fake kernel: it returns empty results, and refuses tensors on different devices, as a kernel does."""

    def fake(*arguments: Any) -> Any:
        explain_devices(operator.name, operator.arguments, arguments)
        name_for_compilation()
        if not operator.lists:
            return None
        results = _make_results(operator, arguments)
        _expect_new(operator, results, arguments)
        return results

    return fake


def _make_results(operator: Declaration, arguments: Sequence[Any]) -> Any:
    """Makes the empty results of a call.

    Raises:
        TypeError: they do not match the schema.
        ValueError: a result shares memory.
    """
    results = operator.output(*arguments)
    _expect_results(operator, results)
    expect_own_memory(operator.name, "output", results, arguments)
    return results


def _expect_new(operator: Declaration, results: Any, arguments: Sequence[Any]) -> None:
    """Raises ValueError if a result of `output` was not made in this compilation."""
    modes = [mode for mode in map(pytorch.fake_mode_of, tensors_in(arguments)) if mode is not None]
    for number, result in enumerate(tensors_in(as_tuple(results))):
        if modes and pytorch.fake_mode_of(result) is not modes[0]:
            raise ValueError(
                f"{operator.name}: result {number} of output is a tensor from before the call, and calls would share"
                " its memory: output must make a new one at each call"
            )


def _expect_results(operator: Declaration, results: Any) -> None:
    """Raises TypeError if the results of `output` do not match the schema, because PyTorch would crash."""
    each = (results,) if operator.output_count == 1 else results
    kinds = [list if is_list else Tensor for is_list in operator.lists]
    if not isinstance(each, (tuple, list)) or len(each) != len(kinds):
        got = f"{len(each)} results" if isinstance(each, (tuple, list)) else type(each).__name__
        raise TypeError(f"{operator.name}: output must return {len(kinds)} results in a tuple, got {got}")
    for number, (result, kind) in enumerate(zip(each, kinds, strict=True)):
        is_right = isinstance(result, (list, tuple) if kind is list else Tensor)
        if not is_right or (kind is list and not all(isinstance(one, Tensor) for one in result)):
            expected = "a list of tensors" if kind is list else "a tensor"
            got = type(result).__name__
            raise TypeError(f"{operator.name}: result {number} of output must be {expected}, got {got}")


def _filled_in(operator: Declaration, empty: Any, results: Any) -> Any:
    """Copies the results of the reference into the empty results of `output`, and returns these."""
    targets, values = (list(tensors_in(as_tuple(each))) for each in (empty, results))
    if len(targets) != len(values):
        raise ValueError(
            f"{operator.name}: output must return {len(values)} tensors, as the reference does, got {len(targets)}"
        )
    for number, (to, value) in enumerate(zip(targets, values, strict=True)):
        if to.shape != value.shape or not torch.can_cast(value.dtype, to.dtype):
            raise ValueError(
                f"{operator.name}: result {number} of output is {tuple(to.shape)} in {to.dtype}, that of the reference"
                f" {tuple(value.shape)} in {value.dtype}: output must return the sizes and dtype of the reference"
            )
        if to.device != value.device:
            raise ValueError(
                f"{operator.name}: result {number} of output is on {to.device}, that of the reference on"
                f" {value.device}: output must return it on the device of the reference's result"
            )
        to.copy_(value)
    return empty


def _make_fallback(operator: Declaration) -> Callable[..., Any]:
    """Builds the kernel for devices without one: it runs the reference, and lays results out as a kernel does."""

    def fallback(*arguments: Any) -> Any:
        operator.explain(*arguments)
        device = next(tensor.device.type for tensor in operator.arrangement.tensors(arguments) if tensor is not None)
        note(operator, arguments, why_no_kernel(operator, device))
        with no_autocast(arguments), pytorch.below_no_mode():
            if operator.mutates:
                results = mutation.answer_by_reference(operator, arguments)
            else:
                results = operator.reference(*arguments)
            # A copy, because the reference may return a view of an argument, and results must not share memory.
            if not operator.knows_output or operator.sizes_from_data:
                return tree_map_only(Tensor, _copied, results)
            if not operator.lists:
                return None
            empty = _make_results(operator, arguments)
            # If `output` keeps its tensors and returns them again, all calls would share their memory.
            return _filled_in(operator, unkept(empty, sys.getrefcount(empty)), results)

    return fallback


def _make_recorded(operator: Declaration) -> Callable[..., Any]:
    """Builds the kernel that torch.jit.trace records: the reference."""

    def recorded(*arguments: Any) -> Any:
        note(operator, arguments, "torch.jit.trace cannot record a list of tensors in which None may stand")
        with torch.enable_grad(), no_autocast(arguments):
            return with_own_memory(operator.reference(*arguments), arguments)

    return recorded


def _copied(result: Tensor) -> Tensor:
    # The copy of a subclass that only renames Tensor is a Tensor.
    with torch._C.DisableTorchFunctionSubclass():
        return torch.empty_like(result).copy_(result)


def _make_autocast(names: Names) -> Callable[..., Any]:
    """Builds the autocast kernel of the public name, for calls through torch.ops."""
    operator = names.declaration
    cast = make_cast(operator.autocast, operator.arguments, operator.mixed)

    def autocast_kernel(*arguments: Any) -> Any:
        arguments = tuple(cast(arguments))
        with pytorch.without_autocast():
            return names.call_public(*arguments)

    return autocast_kernel


def _make_autograd_kernel(names: Names, autograd: Autograd) -> Callable[..., Any]:
    """Builds the autograd kernel of the public name, for calls through torch.ops."""
    operator, differentiable = names.declaration, autograd.public
    arrangement = operator.arrangement

    def autograd_kernel(keyset: Any, /, *arguments: Any, **named: Any) -> Any:
        complete = operator.complete(arguments, named)
        needs_grad = torch.is_grad_enabled() and operator.needs_grad(complete)
        # torch.func would not differentiate a Function here, and tangents would be lost.
        if pytorch.transform_active() and (needs_grad or pytorch.forward_mode_active()):
            reason = "torch.func does not differentiate what torch.ops or functionalize calls; call the Operator alone"
            note(operator, complete, reason)
            with no_autocast(complete):
                return with_own_memory(operator.reference(*complete), complete)
        if not needs_grad:
            return pytorch.below_autograd(names.public, keyset, arguments, named)
        results = differentiable(*arrangement.tensors(complete), *arrangement.others(complete))
        return single(nested(results, operator.lists)) if any(operator.lists) else results

    return autograd_kernel
