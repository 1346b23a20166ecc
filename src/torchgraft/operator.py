"""Operator: one declaration from which everything follows that a PyTorch operator has.

An operator means what its reference computes; its kernels compute the same, faster. Each kernel is registered under
two names: a public one, `namespace::name`, that autograd knows, and a raw one, `namespace::_name`, that it does not.
Which of the two a call takes, and what is wrapped around it, is decided in one place, `_make_call`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, register_flop_formula

from torchgraft import _torch_private, native
from torchgraft._autocasting import AUTOCAST_KEYS, AutocastRule, cast
from torchgraft.arguments import stands_for_tensor
from torchgraft.differentiation import as_tuple, make_autograd
from torchgraft.differentiation import gradient_by_reference as gradient_by_reference
from torchgraft.explaining import (
    Argument,
    describe,
    explain_devices,
    explain_kinds,
    explain_memory,
    out_of_memory,
)
from torchgraft.fallback import note_fallback

FLOATING: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


# Kernels take any layout, so a compiler may keep that in which it has something: models of contiguous images run in
# channels_last where that suits their other convolutions.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)


class Operator:
    """An operator: a schema, what it means, and what PyTorch must know about it.

    Calling it takes the arguments of its schema by position. Where a kernel refuses them, `explain` looks at them and
    raises a ValueError or TypeError that a person can use; a call that succeeds pays nothing for that.

    Args:
        schema: `namespace::name(Tensor input, ..., int size) -> Tensor`. Tensors come first, then numbers, each an
            argument of its own: a list costs a microsecond. Libraries implement it as `name` and as `_name`.
        reference: what the operator means, in differentiable PyTorch, for any device; takes the schema's arguments and
            returns the schema's results.
        output: empty results with the sizes, strides, dtype and device that a kernel gives.
        gradient: `gradient(needs_grad, output_grads, saved, *arguments)`: which tensor arguments need a gradient, the
            gradients of the visible results (None where nothing flows back), the hidden results, and the arguments of
            the call. Returns one gradient a tensor argument, None where it is not needed. Made of operators, so that
            it can be differentiated again. Without it the reference is differentiated.
        unsaved: names of tensor arguments that `gradient` does not read. They are not kept for it, so that memory is
            free earlier and a caller may change them in place; None stands in their places.
        visible_outputs: how many of the schema's results a caller sees; the others are kept for the gradient and are
            not differentiable. None: all are visible.
        autocast: under autocast 'lower' casts to autocast's dtype, 'promote' to the widest dtype among the arguments,
            'none' not at all. float64 is left alone.
        vmap: `vmap(operator, batch_size, in_dims, *arguments)`: the results and their batch dimensions, computed by
            `operator` from arguments without a batch dimension of vmap's. Without it a batch is a loop.
        flops: the number of floating-point operations, from the arguments with a shape in place of each tensor.
        kernels: the dtypes that have kernels, by kind of device; 'reference' where PyTorch's own composition is the
            best kernel and no warning is due. None: `dtypes` on cpu and cuda.
        compile: 'reference' where torch.compile makes more of the reference than of an opaque kernel.
        dtypes: what every tensor argument must be, and all of them the same; None leaves that to the reference.
        mixed: names of tensor arguments, not the first, that may be of another of `dtypes` than the others are.
        explain: raises ValueError or TypeError where the arguments make no sense; otherwise returns.

    Raises:
        ValueError: for a schema that cannot be served, or a name that is taken.
    """

    registered: dict[str, Operator] = {}  # noqa: RUF012  every operator of this process, by qualified name

    def __init__(
        self,
        schema: str,
        *,
        reference: Callable[..., Any],
        output: Callable[..., Any],
        gradient: Callable[..., Sequence[Tensor | None]] | None = None,
        unsaved: Sequence[str] = (),
        visible_outputs: int | None = None,
        autocast: AutocastRule = "none",
        vmap: Callable[..., Any] | None = None,
        flops: Callable[..., int] | None = None,
        kernels: Mapping[str, Sequence[torch.dtype]] | Literal["reference"] | None = None,
        compile: Literal["kernel", "reference"] = "kernel",
        dtypes: Sequence[torch.dtype] | None = FLOATING,
        mixed: Sequence[str] = (),
        explain: Callable[..., None] | None = None,
    ) -> None:
        # Where it is declared: another process finds it by importing that.
        self.module: str = sys._getframe(1).f_globals.get("__name__", "__main__")
        self.qualified_name = schema.partition("(")[0].strip()
        self.namespace, _, self.name = self.qualified_name.partition("::")
        if not self.name.isidentifier() or self.name.startswith("_"):
            raise ValueError(f"schema must begin with 'namespace::name(', got {schema!r}")
        if self.qualified_name in Operator.registered:
            raise ValueError(f"{self.qualified_name} is declared already; an operator's name must be its own")

        self._library = torch.library.Library(self.namespace, "FRAGMENT")
        signature = schema[schema.index("(") :]
        for name in (self.name, f"_{self.name}"):
            self._library.define(name + signature, tags=_TAGS)
        namespace = getattr(torch.ops, self.namespace)
        self.public = getattr(namespace, self.name).default
        self.raw = getattr(namespace, f"_{self.name}").default

        described = _torch_private.schema_of(self.public)
        self.arguments = tuple(described.arguments)
        self.signature = describe(self.arguments)
        self.tensor_count = _count_tensors(self.qualified_name, self.signature)
        self.output_count = len(described.returns)
        self.visible_outputs = self.output_count if visible_outputs is None else visible_outputs

        self.reference = reference
        self.output = output
        self.gradient = gradient
        self.unsaved = tuple(unsaved)
        _check_unsaved(self)
        self.autocast = autocast
        self.vmap = vmap
        self.flops = flops
        self.dtypes = None if dtypes is None else tuple(dtypes)
        self.kernels = dict.fromkeys(("cpu", "cuda"), self.dtypes or FLOATING) if kernels is None else kernels
        self.mixed = tuple(mixed)
        self.compile = compile
        self._explain = explain

        self.autograd = make_autograd(self)
        self._register()
        # What calling the Operator does, one Python frame cheaper.
        self.call = _make_call(self)
        Operator.registered[self.qualified_name] = self

    def __call__(self, *arguments: Any) -> Any:
        """The visible results of the operator; arguments by position, as in the schema."""
        return self.call(*arguments)

    def __repr__(self) -> str:
        return f"Operator({_torch_private.schema_of(self.public)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _registered, (self.qualified_name, self.module)

    @property
    def short_name(self) -> str:
        """As a person writes it: without the namespace for an operator of torchgraft."""
        return self.qualified_name.removeprefix("torchgraft::")

    def explain(self, *arguments: Any) -> None:
        """Raises the ValueError or TypeError that says what is wrong with arguments; returns where nothing is."""
        explain_kinds(self.name, self.signature, arguments, self.dtypes, self.mixed)
        # First, as what explains sizes may compute something.
        explain_memory(self.name, self.signature, arguments)
        if self._explain is not None:
            self._explain(*arguments)

    def visible(self, results: Any) -> Any:
        """What a caller sees of all results."""
        if self.visible_outputs == self.output_count:
            return results
        return results[0] if self.visible_outputs == 1 else results[: self.visible_outputs]

    def note(self, arguments: Sequence[object], reason: str) -> None:
        """Records that the reference answers where a kernel could have, unless the reference is the best kernel."""
        if self.kernels != "reference":
            note_fallback(self.qualified_name, arguments, reason)

    def _register(self) -> None:
        for operator in (self.public, self.raw):
            name = operator.name()
            torch.library.register_fake(name, _make_fake(self), lib=self._library)
            torch.library.register_vmap(name, _make_vmap(self, operator), lib=self._library)
            # Last in rank: a kernel that a library registers for a device goes before it.
            self._library.impl(name.split("::")[1], _make_fallback(self), "CompositeExplicitAutograd")
        # What torch.jit.trace records is to have gradients, whether or not they were asked for then.
        self._library.impl(f"_{self.name}", self.public, "Tracer")
        torch.library.register_autograd(
            self.qualified_name,
            self.autograd.backward,
            setup_context=self.autograd.setup_context,
            lib=self._library,
        )
        if self.autocast != "none":
            for key in AUTOCAST_KEYS.values():
                self._library.impl(self.name, _make_autocast(self), key)
        if self.flops is not None:
            packets = [operator.overloadpacket for operator in (self.public, self.raw)]
            if not any(packet in flop_registry for packet in packets):
                flops = self.flops
                register_flop_formula(packets)(lambda *shapes, out_shape=None: flops(*shapes))


def _registered(qualified_name: str, module: str) -> Operator:
    if qualified_name not in Operator.registered:
        importlib.import_module(module)
    return Operator.registered[qualified_name]


def _count_tensors(qualified_name: str, arguments: Sequence[Argument]) -> int:
    """How many tensors an operator's arguments begin with."""
    is_tensor = [argument.kind == "Tensor" for argument in arguments]
    count = sum(is_tensor)
    if not count or not all(is_tensor[:count]) or any("List" in argument.kind for argument in arguments):
        raise ValueError(f"{qualified_name}: a schema has tensors first, at least one, then numbers, and no lists")
    return count


def _check_unsaved(operator: Operator) -> None:
    """Raises ValueError for names that are no tensor arguments, and where the reference, which reads all, is used."""
    tensors = [argument.name for argument in operator.signature[: operator.tensor_count]]
    strangers = sorted(set(operator.unsaved) - set(tensors))
    if strangers:
        raise ValueError(f"{operator.qualified_name}: unsaved names {strangers}, and its tensors are {tensors}")
    if operator.unsaved and operator.gradient is None:
        raise ValueError(f"{operator.qualified_name}: without a gradient of its own nothing can be left unsaved")


def _make_call(operator: Operator) -> Callable[..., Any]:
    """The choice made at each call: which of an operator's two names to call, and through what."""
    public, raw, reference = operator.public, operator.raw, operator.reference
    kernel = _torch_private.callee_of(raw)
    visible, all_visible = operator.visible, operator.visible_outputs == operator.output_count
    eager, functional = operator.autograd.eager, operator.autograd.functional
    tensor_count = operator.tensor_count
    casts = operator.autocast != "none"
    has_gradient = operator.gradient is not None
    # PyTorch's autograd, transforms and compilers know what the reference is made of; where compilers are to see the
    # operator all the same, export that traces without TorchDynamo must find it in this call.
    by_pytorch = operator.kernels == operator.compile == "reference"
    dtypes = operator.dtypes or ()
    any_autocast, transform_active = _torch_private.any_autocast, _torch_private.transform_active
    jit_tracing = _torch_private.jit_tracing
    is_compiling, is_exporting = torch.compiler.is_compiling, torch.compiler.is_exporting
    is_grad_enabled = torch.is_grad_enabled
    # Devices that have kernels for some dtypes only; mostly empty, and then there is nothing to ask.
    partial = operator.kernels if isinstance(operator.kernels, Mapping) else {}
    partial = {device: dtypes for device, dtypes in partial.items() if set(dtypes) != set(operator.dtypes or FLOATING)}

    def by_reference(arguments: Sequence[Any], reason: str) -> Any:
        operator.note(arguments, reason)
        return visible(reference(*arguments))

    def call(*arguments: Any) -> Any:
        try:
            if casts and any_autocast():
                arguments = tuple(cast(operator.autocast, arguments))
            compiling = is_compiling()
            if compiling and operator.compile == "reference":
                explain_kinds(operator.name, operator.signature, arguments, operator.dtypes, operator.mixed)
                return visible(reference(*arguments))
            if by_pytorch:
                # PyTorch may take dtypes that the operator does not, and meta beside anything; all else it refuses.
                device = arguments[0].device
                for tensor in arguments[:tensor_count]:
                    if tensor is not None and (tensor.dtype not in dtypes or tensor.device != device):
                        explain_kinds(operator.name, operator.signature, arguments, operator.dtypes, operator.mixed)
                return visible(reference(*arguments))
            if partial:
                first = arguments[0]
                if first.dtype not in partial.get(first.device.type, (first.dtype,)):
                    return by_reference(arguments, f"no kernel for this dtype on {first.device.type}")

            # Before compilation: then what is compiled may hold transforms too, and they give right answers.
            if transform_active():
                if not has_gradient:
                    return by_reference(arguments, "it has no gradient formula, and torch.func needs one")
                # compile(grad(f)) through an autograd.Function gives zero gradients without a word.
                if compiling:
                    return visible(reference(*arguments))
                if _torch_private.forward_mode_active():
                    return by_reference(arguments, "kernels do not carry forward-mode tangents")
                return visible(functional(*arguments))

            needs_grad = False
            tensors = arguments[:tensor_count]
            if is_grad_enabled():
                for tensor in tensors:
                    if tensor is not None and tensor.requires_grad:
                        needs_grad = True
                        break
            if compiling and (is_exporting() or (needs_grad and not has_gradient)):
                return visible(public(*arguments))
            if not needs_grad:
                results = raw(*arguments) if compiling else kernel(*arguments)
                return results if all_visible else visible(results)
            if compiling:
                return visible(functional(*arguments))
            if jit_tracing():
                # It records what the dispatcher sees, and can make nothing of a Function that is written in Python.
                with torch.no_grad():
                    return visible(public(*arguments))
            return eager(*tensors, arguments[tensor_count:])
        except Exception as error:
            if any(map(stands_for_tensor, arguments)):
                return visible(public(*arguments))
            try:
                operator.explain(*arguments)
            except (ValueError, TypeError) as clear:
                raise clear from None
            if (lacking := out_of_memory(error)) is not None:
                raise lacking from None
            raise

    return call


def _make_vmap(operator: Operator, name: Any) -> Callable[..., Any]:
    """The vmap rule of one of an operator's names: the declared one, or a loop."""
    rule = operator.vmap
    if rule is not None:
        return lambda info, in_dims, *arguments: rule(name, info.batch_size, in_dims, *arguments)

    def loop(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Any, Any]:
        operator.note(arguments, "it has no vmap rule, so a batch is a loop")
        rows = []
        for i in range(info.batch_size):
            row = [
                value.select(dim, i) if isinstance(value, Tensor) and dim is not None else value
                for value, dim in zip(arguments, in_dims, strict=True)
            ]
            rows.append(as_tuple(name(*row)))
        results = tuple(torch.stack(column) for column in zip(*rows, strict=True))
        return (results, (0,) * len(results)) if len(results) > 1 else (results[0], 0)

    return loop


def _make_fake(operator: Operator) -> Callable[..., Any]:
    """What tracing sees of a kernel: empty results, and no mixture of devices, which a kernel would refuse."""

    def fake(*arguments: Any) -> Any:
        explain_devices(operator.name, operator.signature, arguments)
        return operator.output(*arguments)

    return fake


def _make_fallback(operator: Operator) -> Callable[..., Any]:
    """The kernel of devices that have none: the reference, laid out as a kernel would."""

    def fallback(*arguments: Any) -> Any:
        operator.explain(*arguments)
        device = arguments[0].device.type
        operator.note(arguments, native.why_no_kernel(operator.namespace, device))
        results = as_tuple(operator.reference(*arguments))
        expected = as_tuple(operator.output(*arguments))
        # A copy also where the reference returned a view of an argument: results are never aliased.
        laid_out = tuple(empty.copy_(result) for empty, result in zip(expected, results, strict=True))
        return laid_out[0] if len(laid_out) == 1 else laid_out

    return fallback


def _make_autocast(operator: Operator) -> Callable[..., Any]:
    """The autocast kernel of the public name, for calls that do not come through the Operator."""

    def autocast_kernel(*arguments: Any) -> Any:
        arguments = tuple(cast(operator.autocast, arguments))
        with _torch_private.without_autocast():
            return operator.public(*arguments)

    return autocast_kernel
