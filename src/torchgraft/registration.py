"""What PyTorch is told of an operator: fake results, batches, autocast, gradients, and the fallback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry, register_flop_formula

from torchgraft import _torch_private, mutation
from torchgraft._autocasting import AUTOCAST_KEYS, make_cast, no_autocast
from torchgraft.declared import Declared
from torchgraft.differentiation import as_tuple, nested, single
from torchgraft.explaining import explain_devices
from torchgraft.fallback import IN_A_LOOP
from torchgraft.schema import REQUIRED, Argument, by_name, tensors_in
from torchgraft.signatures import why_no_kernel

# What AOTInductor hands to an operator when the package runs, and not when it is made.
_HANDED_OVER = ("int", "SymInt", "Scalar")


def tags_of(arguments: Sequence[Argument]) -> tuple[torch.Tag, ...]:
    """What compilers are told of a name of an operator.

    Args:
        arguments: of its schema; none where no argument of the name has a default.
    """
    # Kernels take any layout, so a compiler may keep that in which it has something: models of contiguous images run in
    # channels_last where that suits their other convolutions.
    layout = torch.Tag.flexible_layout
    for each in arguments:
        has_default = each.default is not REQUIRED and each.default is not None
        if each.keyword_only and each.kind in _HANDED_OVER and has_default:
            # With that tag AOTInductor forgets an integer that must be named and equals its default: its package then
            # fails, for PyTorch's own custom operators too. With this one Inductor fills all arguments in.
            layout = torch.Tag.needs_exact_strides
    return torch.Tag.pt2_compliant_tag, layout


def register(operator: Declared, library: torch.library.Library) -> None:
    """Registers all that stands behind both names of an operator, but for kernels.

    Args:
        operator: what is registered.
        library: that defines its names.
    """
    names_tensors = any(argument.keyword_only and argument.holds_tensors for argument in operator.arguments)
    for overload in (operator.public, operator.raw):
        name = overload.name()
        fake, fallback = _make_fake(operator), _make_fallback(operator)
        if overload is operator.public:
            fake, fallback = operator.filled(fake), operator.filled(fallback)
        torch.library.register_fake(name, fake, lib=library)
        if overload is operator.raw or not names_tensors:
            torch.library.register_vmap(name, _make_vmap(operator, overload), lib=library)
        # Last in rank: a kernel that a library registers for a device goes before it.
        library.impl(name.split("::")[1], fallback, "CompositeExplicitAutograd")
    if operator.autocast != "none":
        for key in AUTOCAST_KEYS.values():
            library.impl(operator.name, operator.filled(_make_autocast(operator)), key)
    if operator.flops is not None:
        flops = operator.filled(operator.flops)
        register_flop_formula(_packets(operator))(lambda *shapes, out_shape=None, **named: flops(*shapes, **named))
    if operator.mutates:
        mutation.register(operator, library)
        return
    if any(each.holds_tensors and each.optional_elements for each in operator.arguments):
        # torch.jit.trace cannot record a list in which None may stand: it records what the reference is made of.
        for name in (operator.name, f"_{operator.name}"):
            library.impl(name, operator.filled(_make_recorded(operator)), "Tracer")
    else:
        # What torch.jit.trace records is to have gradients, whether or not they were asked for then.
        library.impl(f"_{operator.name}", operator.call_public, "Tracer")
    # PyTorch's register_autograd knows no tensors that must be named. Without a word it loses forward-mode tangents and
    # the gradients of a list in which None stands for a tensor; torch.func.grad it refuses.
    library.impl(operator.name, _make_autograd_kernel(operator), "Autograd", with_keyset=True)


def forget(operator: Declared) -> None:
    """Removes from PyTorch what no library of ours holds: the FLOP formula of an operator that is withdrawn."""
    for packet in _packets(operator):
        flop_registry.pop(packet, None)


def _packets(operator: Declared) -> list[Any]:
    return [overload.overloadpacket for overload in (operator.public, operator.raw)]


def _make_vmap(operator: Declared, name: Any) -> Callable[..., Any]:
    """The vmap rule of one of an operator's names: the declared one, or a loop."""
    rule = operator.vmap
    call = by_name(name, operator.arguments)

    def loop(batch_size: int, in_dims: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, Any]:
        operator.note(arguments, "it has no vmap rule; declare vmap=, which computes a batch at once", IN_A_LOOP)
        rows = []
        for i in range(batch_size):
            row = [_row(value, dim, i) for value, dim in zip(arguments, in_dims, strict=True)]
            rows.append(as_tuple(call(*row)))
        results = tuple(_stacked(column) for column in zip(*rows, strict=True))
        in_front = tuple([0] * len(result) if isinstance(result, list) else 0 for result in results)
        return single(results), single(in_front)

    def batched(info: Any, in_dims: Sequence[Any], /, *arguments: Any, **named: Any) -> tuple[Any, Any]:
        if named or len(arguments) < len(operator.arguments):
            arguments = operator.complete(arguments, named)
            in_dims = (*in_dims, *(None,) * (len(arguments) - len(in_dims)))
        if rule is not None:
            return rule(name, info.batch_size, in_dims, *arguments)
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


def _make_fake(operator: Declared) -> Callable[..., Any]:
    """What tracing sees of a kernel: empty results, and no mixture of devices, which a kernel would refuse."""

    def fake(*arguments: Any) -> Any:
        explain_devices(operator.name, operator.arguments, arguments)
        operator.name_for_compilation()
        return _make_results(operator, arguments) if operator.lists else None

    return fake


def _make_results(operator: Declared, arguments: Sequence[Any]) -> Any:
    """Empty results of a call.

    Raises:
        TypeError: they are not those of the schema.
        ValueError: two of them share memory, one shares it with an argument, or elements of one do: what is written to
            one would be written over the other.
    """
    results = operator.output(*arguments)
    _expect_results(operator, results)
    others = list(tensors_in(arguments))
    for number, result in enumerate(tensors_in(as_tuple(results))):
        if any(_torch_private.share_memory(result, other) for other in others):
            raise ValueError(
                f"{operator.name}: result {number} of output shares memory with another result or with an argument:"
                " output must return a new tensor for each result, as torch.empty_like makes one"
            )
        # Sizes that a compiler does not know are not asked: it would compile for each of them.
        known = [pair for pair in zip(result.shape, result.stride(), strict=True) if all(type(n) is int for n in pair)]
        if _overlap(known):
            raise ValueError(
                f"{operator.name}: elements of result {number} of output share memory, as expand() does it: output"
                " must return a tensor of its own memory for each result, as torch.empty_like makes one"
            )
        others.append(result)
    return results


def _overlap(sizes_and_strides: Sequence[tuple[int, int]]) -> bool:
    """Whether elements of a tensor of these sizes and strides may lie at one place; for layouts that PyTorch makes."""
    if not all(size for size, _ in sizes_and_strides):
        return False
    reached = 0
    for size, step in sorted(sizes_and_strides, key=lambda pair: pair[1]):
        if size > 1:
            if step <= reached:
                return True
            reached += (size - 1) * step
    return False


def _expect_results(operator: Declared, results: Any) -> None:
    """Raises TypeError where `output` returned what the schema does not have: PyTorch would crash."""
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


def _filled_in(operator: Declared, empty: Any, results: Any) -> Any:
    """The results of the reference, as `output` lays them out."""
    targets, values = (list(tensors_in(as_tuple(each))) for each in (empty, results))
    if len(targets) != len(values):
        raise ValueError(
            f"{operator.name}: output must return {len(values)} tensors, as the reference, got {len(targets)}"
        )
    for number, (to, value) in enumerate(zip(targets, values, strict=True)):
        if to.shape != value.shape or not torch.can_cast(value.dtype, to.dtype):
            raise ValueError(
                f"{operator.name}: result {number} of output is {tuple(to.shape)} in {to.dtype}, that of the reference"
                f" {tuple(value.shape)} in {value.dtype}: output must say what the reference gives"
            )
        to.copy_(value)
    return empty


def _make_fallback(operator: Declared) -> Callable[..., Any]:
    """The kernel of devices that have none: the reference, laid out as a kernel would."""

    def fallback(*arguments: Any) -> Any:
        operator.explain(*arguments)
        device = next(tensor.device.type for tensor in operator.arrangement.tensors(arguments) if tensor is not None)
        operator.note(arguments, why_no_kernel(operator, device))
        with no_autocast(arguments):
            if operator.mutates:
                results = mutation.answer_by_reference(operator, arguments)
            else:
                results = operator.reference(*arguments)
            # A copy also where the reference returned a view of an argument: results are never aliased.
            if not operator.knows_output or operator.sizes_from_data:
                return tree_map_only(Tensor, _copied, results)
            return _filled_in(operator, _make_results(operator, arguments), results) if operator.lists else None

    return fallback


def _make_recorded(operator: Declared) -> Callable[..., Any]:
    """The reference, for torch.jit.trace."""

    def recorded(*arguments: Any) -> Any:
        operator.note(arguments, "torch.jit.trace cannot record a list of tensors in which None may stand")
        with torch.enable_grad(), no_autocast(arguments):
            return operator.reference(*arguments)

    return recorded


def _copied(result: Tensor) -> Tensor:
    return torch.empty_like(result).copy_(result)


def _make_autocast(operator: Declared) -> Callable[..., Any]:
    """The autocast kernel of the public name, for calls that do not come through the Operator."""
    cast = make_cast(operator.autocast, operator.arguments, operator.mixed)

    def autocast_kernel(*arguments: Any) -> Any:
        arguments = tuple(cast(arguments))
        with _torch_private.without_autocast():
            return operator.call_public(*arguments)

    return autocast_kernel


def _make_autograd_kernel(operator: Declared) -> Callable[..., Any]:
    """The autograd kernel of the public name, for calls that do not come through the Operator."""
    differentiable, arrangement = operator.autograd.public, operator.arrangement

    def autograd_kernel(keyset: Any, /, *arguments: Any, **named: Any) -> Any:
        complete = operator.complete(arguments, named)
        needs_grad = torch.is_grad_enabled() and operator.needs_grad(complete)
        # A Function would not be differentiated by torch.func here, and tangents would be lost.
        if _torch_private.transform_active() and (needs_grad or _torch_private.forward_mode_active()):
            operator.note(complete, "torch.func cannot look into what torch.ops calls; call the Operator")
            with no_autocast(complete):
                return operator.reference(*complete)
        if not needs_grad:
            return _torch_private.below_autograd(operator.public, keyset, arguments, named)
        results = differentiable(*arrangement.tensors(complete), *arrangement.others(complete))
        return single(nested(results, operator.lists)) if any(operator.lists) else results

    return autograd_kernel
