"""Declaration: all that an author says about an operator, read, checked, and completed by what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft import native
from torchgraft.declaration.autocast import AutocastRule
from torchgraft.declaration.bad_arguments import explain_kinds, explain_memory, explain_values
from torchgraft.declaration.checks import check_names, check_random, check_results
from torchgraft.declaration.dtypes import FLOATING, dtypes_of
from torchgraft.declaration.output import output_like_reference
from torchgraft.declaration.results import as_tuple
from torchgraft.declaration.schema import (
    REQUIRED,
    Argument,
    Arrangement,
    SchemaResult,
    arrange,
    by_name,
    make_complete,
    read_schema,
)
from torchgraft.declaration.shapes import Shapes
from torchgraft.declaration.sharding import Sharding, read_sharding, why_unsharded

Kernels = Mapping[str, Sequence[torch.dtype]] | Literal["reference"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Declaration:
    """All that is known of an operator before PyTorch knows it; `torchgraft.Operator` describes the parameters.

    All functions take the arguments of the schema by position, in its order.

    Attributes:
        schema: `namespace::name(Tensor input, ..., int size=1) -> Tensor`.
        arguments: of the schema.
        results: of the schema.
        reference: as declared; no gradient and no tangent passes through what `not_differentiable` names.
        output: returns empty results; made from `shapes` or from the reference if none is declared.
        knows_output: whether `output` says more than the reference does.
        sizes_of: the source of the sizes of results in compiled code: a function, or the text of `shapes`.
        shapes: the sizes in words; None if there are none.
        gradient: a formula; 'reference', or None, if the reference is differentiated.
        materialize_grads: as declared.
        unsaved: names of arguments that are not kept for the gradient; what is written to is among them.
        saved_places: the places of the visible results that are kept for the gradient, in the order of the schema.
        not_differentiable: as declared.
        visible_outputs: how many results a caller gets.
        constant_outputs: the places of the visible results that have no gradient.
        autocast: as declared.
        vmap: as declared.
        sharding: what may be cut over devices; None if it is to be derived.
        strides: as declared.
        flops: as declared.
        kernels: dtypes by kind of device; 'reference' if the reference is the best kernel.
        compile: as declared.
        dtypes_of: the dtypes of each tensor argument, by name.
        dtypes: the dtypes of the operator: those of its primary argument; None if the reference decides.
        primary: the place of the tensor argument that has the dtypes of the operator.
        mixed: as declared.
        sizes_from_data: as declared.
        random: as declared.
        explain_call: as declared: raises for arguments that make no sense.
    """

    schema: str
    arguments: tuple[Argument, ...]
    results: tuple[SchemaResult, ...]
    reference: Callable[..., Any]
    output: Callable[..., Any]
    knows_output: bool = False
    sizes_of: Any = None
    shapes: Shapes | None = None
    gradient: Callable[..., Any] | Literal["reference"] | None = None
    materialize_grads: bool = False
    unsaved: tuple[str, ...] = ()
    saved_places: tuple[int, ...] = ()
    not_differentiable: tuple[str, ...] = ()
    visible_outputs: int
    constant_outputs: tuple[int, ...] = ()
    autocast: AutocastRule = "none"
    vmap: Callable[..., Any] | None = None
    sharding: Sharding | None
    strides: Literal["reference"] | None = None
    flops: Callable[..., int] | None = None
    kernels: Kernels
    compile: Literal["kernel", "reference"] = "kernel"
    dtypes_of: Mapping[str, tuple[torch.dtype, ...]]
    dtypes: tuple[torch.dtype, ...] | None
    primary: int
    mixed: tuple[str, ...] = ()
    sizes_from_data: bool = False
    random: tuple[str, ...] = ()
    explain_call: Callable[..., None] | None = None

    @cached_property
    def qualified_name(self) -> str:
        """The name with its namespace, `namespace::name`."""
        return self.schema.partition("(")[0].strip()

    @cached_property
    def namespace(self) -> str:
        """The part of the name before `::`."""
        return self.qualified_name.partition("::")[0]

    @cached_property
    def name(self) -> str:
        """The part of the name after `::`."""
        return self.qualified_name.partition("::")[2]

    @property
    def short_name(self) -> str:
        """The name for people: without the namespace if the operator is torchgraft's."""
        return self.qualified_name.removeprefix("torchgraft::")

    @cached_property
    def lists(self) -> tuple[bool, ...]:
        """For each result, whether it is a list of tensors."""
        return tuple(result.is_list for result in self.results)

    @cached_property
    def arrangement(self) -> Arrangement:
        """Where the tensors stand among the arguments."""
        return arrange(self.arguments)

    @cached_property
    def complete(self) -> Callable[..., tuple[Any, ...]]:
        """`complete(values, named)` returns all arguments of a call, in the order of the schema."""
        return make_complete(self.name, self.arguments)

    @cached_property
    def mutates(self) -> bool:
        """Whether the operator writes to an argument."""
        return any(argument.mutated for argument in self.arguments)

    @property
    def output_count(self) -> int:
        """How many results the schema has."""
        return len(self.results)

    @property
    def is_of_pytorch(self) -> bool:
        """Whether the reference is the best kernel, and compilers see into it too."""
        return self.kernels == self.compile == "reference"

    @property
    def wants_kernels(self) -> bool:
        """Whether a call without a kernel deserves a warning: not if the reference is the best kernel."""
        return self.kernels != "reference"

    @property
    def why_unsharded(self) -> str:
        """Why DTensor cannot take the operator; empty if it can."""
        return why_unsharded(self.arguments, self.results, self.sizes_from_data, self.random)

    @property
    def tensor_arguments(self) -> tuple[Argument, ...]:
        """The arguments that are tensors or lists of them."""
        return tuple(argument for argument in self.arguments if argument.holds_tensors)

    def argument(self, name: str) -> Argument:
        """The argument with a name. For `name[0]`, a tensor in a list, it is the list."""
        return next(argument for argument in self.arguments if argument.name == name.partition("[")[0])

    def with_defaults(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments in the order of the schema, with the defaults of those that are missing at the end."""
        return (*arguments, *(argument.default for argument in self.arguments[len(arguments) :]))

    def filled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function of all arguments: PyTorch calls it without those that equal their defaults."""
        if all(argument.default is REQUIRED and not argument.keyword_only for argument in self.arguments):
            return function
        count, complete = len(self.arguments), self.complete

        def call(*arguments: Any, **named: Any) -> Any:
            # The raw name gets all arguments by position.
            return function(*(arguments if len(arguments) == count else complete(arguments, named)))

        return call

    @cached_property
    def visible(self) -> Callable[[Any], Any]:
        """`visible(results)` returns the results that a caller gets, of all results."""
        visible_outputs, all_visible = self.visible_outputs, self.visible_outputs == self.output_count

        # Not a method, because TorchDynamo cannot trace a method that a formula holds.
        def visible(results: Any) -> Any:
            if all_visible:
                return results
            return results[0] if visible_outputs == 1 else results[:visible_outputs]

        return visible

    def needs_grad(self, arguments: Sequence[Any]) -> bool:
        """Whether a tensor requires a gradient and is not declared as not differentiable."""
        pairs = zip(self.arguments, arguments, strict=True)
        wanted = [value for argument, value in pairs if argument.name not in self.not_differentiable]
        return any(isinstance(value, Tensor) and value.requires_grad for value in tree_leaves(wanted))

    def explain(self, *arguments: Any) -> None:
        """Raises a ValueError or TypeError that says what is wrong with the arguments. Returns if nothing is wrong."""
        explain_kinds(self.name, self.arguments, arguments, self.dtypes_of, self.mixed)
        # Before the sizes, because `explain_call` may compute with the tensors.
        explain_memory(self.name, self.arguments, arguments)
        if self.shapes is not None:
            self.shapes.explain(*arguments)
        if self.explain_call is not None:
            self.explain_call(*arguments)
        if self.sizes_from_data:
            explain_values(self.name, self.arguments, arguments)


def read(
    schema: str,
    *,
    reference: Callable[..., Any],
    output: Callable[..., Any] | None,
    shapes: str | None,
    gradient: Callable[..., Any] | Literal["reference"] | None,
    unsaved: Sequence[str],
    saved_outputs: Sequence[str],
    not_differentiable: Sequence[str],
    visible_outputs: int | None,
    autocast: AutocastRule,
    vmap: Callable[..., Any] | None,
    sharding: str | None,
    flops: Callable[..., int] | None,
    kernels: Kernels | None,
    dtypes: Sequence[torch.dtype] | Mapping[str, Sequence[torch.dtype]] | None,
    sizes_from_data: bool,
    mixed: Sequence[str],
    random: Sequence[str],
    explain: Callable[..., None] | None,
    **as_declared: Any,
) -> Declaration:
    """Makes the declaration from the parameters of `torchgraft.Operator`.

    Raises:
        ValueError, TypeError: as for `torchgraft.Operator`.
    """
    operator = schema.partition("(")[0].strip()
    arguments, results = read_schema(schema)
    functions = {"reference": reference, "output": output, "vmap": vmap, "flops": flops, "explain": explain}
    _check_functions(operator, functions, gradient)
    if autocast not in get_args(AutocastRule):
        raise ValueError(f"{operator}: autocast must be 'lower', 'promote' or 'none', got {autocast!r}")

    def called(function: Callable[..., Any] | None, before: int = 0) -> Any:
        return function and by_name(function, arguments, before)

    found_shapes = None if shapes is None else Shapes(operator.partition("::")[2], shapes, arguments, results)
    random, (found_dtypes, primary) = check_random(operator, arguments, random), dtypes_of(operator, arguments, dtypes)
    told = found_shapes.make_output(primary) if found_shapes and found_shapes.tells_results else None
    written = sum(argument.mutated for argument in arguments)
    check_names(operator, arguments, "unsaved", unsaved)
    check_names(operator, arguments, "not_differentiable", not_differentiable, [result.name for result in results])
    mutated = [argument.name for argument in arguments if argument.mutated and argument.holds_tensors]
    visible_outputs = len(results) if visible_outputs is None else visible_outputs
    primary_dtypes = found_dtypes.get(arguments[primary].name)
    visible_names = [result.name for result in results[:visible_outputs]]
    check_results(operator, visible_names, "saved_outputs", saved_outputs)
    declaration = Declaration(
        schema=schema,
        arguments=arguments,
        results=results,
        reference=_without_gradients(called(reference), arguments, results, not_differentiable),
        output=called(output) or told or output_like_reference(called(reference), written, len(results)),
        knows_output=output is not None or told is not None,
        sizes_of=output or (shapes if told else reference),
        shapes=found_shapes,
        gradient=called(gradient, 3) if callable(gradient) else gradient,
        unsaved=tuple(dict.fromkeys((*unsaved, *mutated))),
        saved_places=tuple(place for place, name in enumerate(visible_names) if name and name in saved_outputs),
        not_differentiable=tuple(not_differentiable),
        visible_outputs=visible_outputs,
        constant_outputs=tuple(
            place
            for place, each in enumerate(results[:visible_outputs])
            if each.name and each.name in not_differentiable
        ),
        autocast=autocast,
        vmap=called(vmap, 3),
        sharding=read_sharding(operator, sharding, arguments, results, found_shapes, sizes_from_data, random),
        flops=called(flops),
        kernels=_kernels_here(operator, kernels, primary_dtypes),
        dtypes_of=found_dtypes,
        dtypes=primary_dtypes,
        primary=primary,
        mixed=tuple(mixed),
        sizes_from_data=sizes_from_data,
        random=random,
        explain_call=called(explain),
        **as_declared,
    )
    _check_together(declaration, unsaved, saved_outputs, gradient)
    return declaration


def _without_gradients(
    reference: Callable[..., Any], arguments: Sequence[Argument], results: Sequence[Any], names: Sequence[str]
) -> Callable[..., Any]:
    """Wraps a reference, so that arguments and results that are not differentiable are constants.

    A reference also runs where PyTorch differentiates it itself, as in forward mode and in compiled code.
    """
    constant_arguments = [place for place, each in enumerate(arguments) if each.name in names]
    written = sum(argument.mutated for argument in arguments)
    constant_results = [written + place for place, each in enumerate(results) if each.name and each.name in names]
    if not constant_arguments and not constant_results:
        return reference
    returns_one = written + len(results) == 1

    def call(*values: Any) -> Any:
        given = list(values)
        for place in constant_arguments:
            given[place] = _constant(given[place])
        found = reference(*given)
        if returns_one:
            return _constant(found) if constant_results else found
        # If the reference returns too few results, the caller raises an error.
        return tuple(
            [_constant(each) if place in constant_results else each for place, each in enumerate(as_tuple(found))]
        )

    return call


def _constant(value: Any) -> Any:
    """A tensor, or each of a list, without its gradient and tangent."""
    if isinstance(value, (list, tuple)):
        return [_constant(each) for each in value]
    return value.detach() if isinstance(value, Tensor) else value


def _kernels_here(operator: str, kernels: Kernels | None, dtypes: tuple[torch.dtype, ...] | None) -> Kernels:
    """The kernels that are declared; if the emulator runs those of a GPU, the CPU has them too."""
    if kernels == "reference":
        return kernels
    found = dict.fromkeys(("cpu", "cuda"), dtypes or FLOATING) if kernels is None else kernels
    if native.emulates(operator.partition("::")[0]):
        return {**found, "cpu": found.get("cuda", ())}
    return found


def _check_functions(operator: str, functions: Mapping[str, object], gradient: object) -> None:
    """Raises TypeError for a parameter that must be a function and is not one."""
    for parameter, function in functions.items():
        if not callable(function) and (parameter == "reference" or function is not None):
            raise TypeError(f"{operator}: {parameter} must be a function, got {function!r}")
    if gradient is not None and gradient != "reference" and not callable(gradient):
        raise TypeError(f"{operator}: gradient must be a function, 'reference' or None, got {gradient!r}")


def _check_together(
    declaration: Declaration, unsaved: Sequence[str], saved_outputs: Sequence[str], gradient: object
) -> None:
    """Raises ValueError for parameters that contradict each other."""
    operator, has_lists = declaration.qualified_name, any(each.is_list for each in declaration.tensor_arguments)
    mutates = declaration.mutates
    if mutates and gradient == "reference":
        raise ValueError(
            f"{operator}: gradient='reference' would read arguments after the operator has written to them. Leave"
            " gradient out: a call that needs a gradient then runs the reference"
        )
    for parameter, names in (("unsaved", unsaved), ("saved_outputs", saved_outputs)):
        if names and not callable(gradient):
            raise ValueError(
                f"{operator}: {parameter} needs a gradient function, and gradient is {gradient!r}: leave {parameter}"
                " out"
            )
    if unsaved and has_lists:
        raise ValueError(
            f"{operator}: unsaved must be empty if the operator takes lists of tensors, got {list(unsaved)}"
        )
    if mutates and declaration.autocast != "none":
        raise ValueError(
            f"{operator}: autocast must be 'none' for an operator that writes to its arguments: it would write to"
            f" copies, got {declaration.autocast!r}"
        )
    if mutates and declaration.gradient and has_lists:
        raise ValueError(
            f"{operator}: an operator that writes to its arguments and takes lists of tensors cannot have a gradient:"
            " leave gradient out"
        )
    if mutates and declaration.visible_outputs != declaration.output_count:
        raise ValueError(
            f"{operator}: an operator that writes to its arguments cannot hide results: leave visible_outputs out"
        )
