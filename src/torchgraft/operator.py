"""Operator: one declaration from which everything follows that a PyTorch operator has.

An operator means what its reference computes; its kernels compute the same, faster. Each kernel is registered under
two names: a public one, `namespace::name`, that autograd knows, and a raw one, `namespace::_name`, that it does not.
Which of the two a call takes, and what is wrapped around it, is decided in one place, `_make_call`.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from torchgraft import _dtensor, _torch_private, choosing, mutation, native, python_kernels, registration
from torchgraft._autocasting import AutocastRule, make_cast, no_autocast
from torchgraft.arguments import stands_for_tensor
from torchgraft.declaring import (
    check_kinds,
    check_names,
    check_random,
    dtypes_of,
    make_output,
    make_sharding,
    why_unsharded,
)
from torchgraft.declaring import unknown_size as unknown_size
from torchgraft.derive_sharding import derive_at_need
from torchgraft.differentiation import gradient_by_reference as gradient_by_reference
from torchgraft.differentiation import make_autograd, make_gradient, nested, single
from torchgraft.explaining import explain_kinds, explain_memory, out_of_memory
from torchgraft.fallback import ON_REFERENCE, note_fallback
from torchgraft.fingerprint import fingerprint
from torchgraft.schema import REQUIRED, Argument, arrange, by_name, make_complete, positional_signature, read_schema
from torchgraft.shapes import Shapes
from torchgraft.sharding import Sharding
from torchgraft.signatures import expect_fitting, forget
from torchgraft.version import __version__

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])
_Policy = TypeVar("_Policy", bound=Callable[..., str])


_declarations = itertools.count()

# The operators that were undeclared, by name. PyTorch keeps their definitions: what torch.jit recorded, and an exported
# program, hold them, and a call of a definition that is gone crashes.
_undeclared: dict[str, Operator] = {}

# Classes that do nothing of their own when an operator is called on them.
_PLAIN_TENSORS = frozenset((Tensor, torch.nn.Parameter))

FLOATING: tuple[torch.dtype, ...] = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class Operator:
    """An operator: a schema, what it means, and what PyTorch must know about it.

    Call it as PyTorch's operators are called, with the arguments of its schema: by position or by name, with defaults
    left out. If a kernel refuses the arguments, `explain` looks at them and raises a ValueError or TypeError that says
    what is wrong; a call that succeeds does not pay for that.

    The functions below are called with all arguments of the schema, in its order; arguments that the schema wants
    named are passed by name.

    Args:
        schema: `namespace::name(Tensor input, ..., int size=1) -> Tensor`, with any arguments that PyTorch's schemas
            have. At least one must be a tensor or a list of tensors. Results are tensors, or a list of tensors.
            Libraries implement the operator as `name` and as `_name`. A call is fastest if tensors come first, then
            numbers, each as an argument of its own: a list costs a microsecond. An argument `Tensor(a!)` is written to
            (see `reference`).
        reference: computes what the operator means, in differentiable PyTorch, on any device, and returns the schema's
            results. It must not write to its arguments. If the operator writes to arguments, the reference returns
            their new values as new tensors, in the order of the schema, and then the results.
        output: returns empty results with the sizes, strides, dtype and device that a kernel gives. None: results are
            contiguous and have the dtype of the first tensor argument, if `shapes` gives all their sizes; otherwise the
            reference runs on tensors without data, and sizes must not depend on data.
        shapes: the sizes of tensor arguments and results in words, as `"n c, c -> n c"`: see
            `torchgraft.shapes.Shapes`. Sizes that do not fit are refused before `explain` is called.
        gradient: `gradient(needs_grad, output_grads, saved, *arguments)` returns one gradient for each tensor argument.
            It gets whether each tensor argument needs a gradient, the gradients of the visible results, the hidden
            results, and the arguments of the call; a list of tensors has a list in each of them. A gradient that is not
            needed may be returned, and is dropped. If it is made of operators, it can be differentiated again.
            'reference': the reference is differentiated, and no better gradient is expected. None: the reference is
            differentiated, and a warning says so.
        materialize_grads: whether `gradient` gets zeros instead of None for a result through which no gradient flows.
        unsaved: names of tensor arguments that `gradient` does not read. They are not kept, so their memory is free
            earlier, and a caller may change them in place; `gradient` gets None for them. Arguments that are written to
            are never kept.
        not_differentiable: names of tensor arguments and results, as the schema names them, that have no gradient.
            Integers and booleans never have one.
        visible_outputs: how many of the schema's results a caller gets. The others are kept for the gradient and are
            not differentiable. None: all.
        autocast: what autocast does to floating-point arguments other than float64: 'lower' casts them to autocast's
            dtype, 'promote' to the widest dtype among them, 'none' does not cast.
        vmap: `vmap(operator, batch_size, in_dims, *arguments)` returns the results and their batch dimensions, and
            computes them by `operator`. None: vmap runs a loop over the batch.
        sharding: what may be cut over devices, as `"N C _ _, C _ _ _, C -> N C _ _"`: see
            `torchgraft.sharding.Sharding`. 'derive': it is found from the reference and the samples when DTensor first
            needs it, and a warning says what to write down. None: no tensor may be cut.
        strides: 'reference' if results and gradients have exactly the strides that the reference's have, whatever
            the strides of the arguments are, as those of an operator that takes the place of one of PyTorch's. `graft
            check` asks it (property `strides`). None: `output` says what strides results have.
        flops: returns the number of floating-point operations; it gets a shape in place of each tensor.
        kernels: the dtypes that have kernels, by kind of device. 'reference': PyTorch's own composition is the best
            kernel, and no warning is due. None: `dtypes`, on cpu and cuda.
        compile: 'reference' if torch.compile makes faster code from the reference than by calling a kernel.
        dtypes: the dtypes that tensor arguments may have; all must have the same one. A dict gives the dtypes of each
            argument by name; arguments with the same entry must have the same dtype. None: the reference decides.
        sizes_from_data: whether sizes of results depend on the values of tensors, as the number of boxes kept does.
            `output` then uses `torchgraft.unknown_size()` for a size that it does not know.
        random: names of integer arguments, such as a seed, that determine random results. A kernel then need not give
            the same numbers as the reference; the check compares their distributions.
        mixed: names of tensor arguments, except the first, that may have another of `dtypes` than the others.
            Autocast 'lower' leaves them in float32.
        explain: raises a ValueError or TypeError if the arguments make no sense, and otherwise returns.

    Raises:
        ValueError: the schema cannot be supported, or the name is already declared.
        TypeError: a loaded library has a kernel of this name whose C++ types do not match the schema.
    """

    registered: dict[str, Operator] = {}  # noqa: RUF012  every operator of this process, by qualified name

    def __init__(
        self,
        schema: str,
        *,
        reference: Callable[..., Any],
        output: Callable[..., Any] | None = None,
        shapes: str | None = None,
        gradient: Callable[..., Any] | Literal["reference"] | None = None,
        materialize_grads: bool = False,
        unsaved: Sequence[str] = (),
        not_differentiable: Sequence[str] = (),
        visible_outputs: int | None = None,
        autocast: AutocastRule = "none",
        vmap: Callable[..., Any] | None = None,
        sharding: str | None = None,
        strides: Literal["reference"] | None = None,
        flops: Callable[..., int] | None = None,
        kernels: Mapping[str, Sequence[torch.dtype]] | Literal["reference"] | None = None,
        compile: Literal["kernel", "reference"] = "kernel",
        dtypes: Sequence[torch.dtype] | Mapping[str, Sequence[torch.dtype]] | None = FLOATING,
        mixed: Sequence[str] = (),
        sizes_from_data: bool = False,
        random: Sequence[str] = (),
        explain: Callable[..., None] | None = None,
    ) -> None:
        # Where it is declared: another process finds it by importing that.
        self.module: str = sys._getframe(1).f_globals.get("__name__", "__main__")
        self.qualified_name = schema.partition("(")[0].strip()
        self.namespace, _, self.name = self.qualified_name.partition("::")
        if not self.name.isidentifier() or self.name.startswith("_"):
            raise ValueError(f"schema must begin with 'namespace::name(', got {schema!r}")
        replaced: Operator | None = self.__dict__.pop("_replaced", None)
        if Operator.registered.get(self.qualified_name) is not replaced:
            raise ValueError(f"{self.qualified_name} is already declared; give this operator another name")

        read = read_schema(schema)
        self.arguments = read.arguments
        self.results = read.results
        self.lists = tuple(result.is_list for result in read.results)
        self.arrangement = arrange(self.arguments)
        self.complete = make_complete(self.name, self.arguments)
        self.mutates = any(argument.mutated for argument in self.arguments)
        self.output_count = len(read.results)
        self.visible_outputs = self.output_count if visible_outputs is None else visible_outputs

        functions = {"reference": reference, "output": output, "vmap": vmap, "flops": flops, "explain": explain}
        for name, function in functions.items():
            if not callable(function) and (name == "reference" or function is not None):
                raise TypeError(f"{self.qualified_name}: {name} must be a function, got {function!r}")

        def called(function: Callable[..., Any] | None, before: int = 0) -> Any:
            return function and by_name(function, self.arguments, before)

        self.reference = called(reference)
        written = sum(argument.mutated for argument in self.arguments)
        self.shapes = None if shapes is None else Shapes(self.name, shapes, self.arguments, read.results)
        self.gradient = make_gradient(self, gradient)
        self.materialize_grads = materialize_grads
        self.vmap = called(vmap, 3)
        self.flops = called(flops)
        self._explain = called(explain)
        if autocast not in get_args(AutocastRule):
            raise ValueError(f"{self.qualified_name}: autocast must be 'lower', 'promote' or 'none', got {autocast!r}")
        self.autocast = autocast
        self.strides = strides
        self.compile = compile
        self.mixed = tuple(mixed)
        self.sizes_from_data = sizes_from_data
        self.random = check_random(self, random)
        self.not_differentiable = tuple(not_differentiable)
        self.dtypes_of, self.primary = dtypes_of(self, dtypes)
        self.dtypes = self.dtypes_of.get(self.arguments[self.primary].name)
        told = self.shapes.make_output(self.primary) if self.shapes and self.shapes.tells_results else None
        self.knows_output = output is not None or told is not None
        self.output = called(output) or told or make_output(self.reference, written, self.output_count)
        self.kernels = dict.fromkeys(("cpu", "cuda"), self.dtypes or FLOATING) if kernels is None else kernels
        # Whether a call that no kernel serves is worth a warning: not if the reference is the best kernel.
        self.wants_kernels = self.kernels != "reference"
        if native.emulates(self.namespace) and self.kernels != "reference":
            self.kernels = {**self.kernels, "cpu": self.kernels.get("cuda", ())}
        # By kind of device, what computes the operator and records its gradient without Python; takes all arguments.
        self.recorders: dict[str, Callable[..., Any]] = {}
        mutated = [argument.name for argument in self.arguments if argument.mutated and argument.holds_tensors]
        check_names(self, "unsaved", unsaved)
        check_names(self, "not_differentiable", not_differentiable, [result.name for result in read.results])
        check_kinds(self, unsaved, gradient)
        self.unsaved = tuple(dict.fromkeys((*unsaved, *mutated)))
        self._sharding = make_sharding(self, sharding, self.shapes, read.results, self.random)
        visible_results = read.results[: self.visible_outputs]
        self.constant_outputs = tuple(
            place for place, result in enumerate(visible_results) if result.name and result.name in not_differentiable
        )

        # The schemas of the public and of the raw name, as PyTorch defines them.
        self._schemas = (
            (self.name + schema[schema.index("(") :], registration.tags_of(self.arguments)),
            (f"_{self.name}{positional_signature(schema)}", registration.tags_of(())),
        )
        self._argument_count = -1 if any(argument.keyword_only for argument in self.arguments) else len(self.arguments)
        # Everything that compiled code takes for granted about a call: see `name_for_compilation`.
        said = output or (shapes if told else reference)
        self._taken_for_granted = (self._schemas[1][0], said, sizes_from_data, visible_outputs, torch.get_default_dtype)
        self._named_for: Callable[[], Any] = lambda: None
        self._names: Any = None
        self.public: Any
        self.raw: Any
        self._library: torch.library.Library
        if replaced is None:
            self._declare()
        else:
            replaced._become(self.__dict__)

    def _redefine(self, schema: str, **declared: Any) -> Callable[[], None]:
        """Declares the operator anew, in place: every variable that holds it calls the new one from then on.

        If the new declaration cannot be made, the one before stays.

        Args:
            schema: of the same name.
            declared: what else `Operator` takes.

        Returns:
            A function that brings the declaration before back.

        Raises:
            ValueError: the schema has another name, or as for `Operator`; so for all other errors.
        """
        if schema.partition("(")[0].strip() != self.qualified_name:
            raise ValueError(f"schema must begin with '{self.qualified_name}(', got {schema!r}")
        before = self.__dict__
        kernels = python_kernels.of_operator(self.qualified_name)
        new = Operator.__new__(Operator)
        new.__dict__["_replaced"] = self
        # It registers itself as this object.
        Operator.__init__(new, schema, **declared)

        def bring_back() -> None:
            self._become(before)
            python_kernels.register_again(self, self._library, kernels)

        return bring_back

    def _declare(self) -> None:
        """Registers the operator with PyTorch, and with everything here that knows operators by their names."""
        before = None if self._names is not None else _undeclared.pop(self.qualified_name, None)
        if before is not None:
            _torch_private.undefine(before._library)
            if before._schemas == self._schemas:
                self._names, self.public, self.raw = before._names, before.public, before.raw
            else:
                before._free_names()
        has_names = self._names is not None
        if not has_names:
            self._names = torch.library.Library(self.namespace, "FRAGMENT")
        # No other declaration of this process has it, of this name or another.
        self.identity = f"{self.qualified_name} {next(_declarations)}"
        # What stands behind the names has a library of its own, so that it can be replaced while the names stay.
        self._library = torch.library.Library(self.namespace, "FRAGMENT")
        try:
            if not has_names:
                for text, tags in self._schemas:
                    self._names.define(text, tags=tags)
                namespace = getattr(torch.ops, self.namespace)
                self.public = getattr(namespace, self.name).default
                self.raw = getattr(namespace, f"_{self.name}").default
            self.autograd = make_autograd(self)
            registration.register(self, self._library)
            expect_fitting(self, self._library)
            self._renew_call()
            self._name_for_caches()
            for overload in (self.public, self.raw):
                _torch_private.forget_dispatch(overload)
            if not why_unsharded(self, self.random):
                _dtensor.register(self)
        except BaseException:
            forget(self)
            _dtensor.forget(self)
            _torch_private.undefine(self._library)
            if not has_names:
                # The name is free again.
                _torch_private.undefine(self._names)
            elif before is not None:
                before._refuse_names()
            raise
        Operator.registered[self.qualified_name] = self

    def _renew_call(self) -> None:
        """Sets what calling the Operator does where all arguments are given in the order of the schema.

        Who holds the function of an earlier declaration calls this one: it stays, and what it refers to is replaced.
        """
        new: Any = _make_call(self)
        self.call: Any = self.__dict__.get("call", new)
        for cell, renewed in zip(self.call.__closure__, new.__closure__, strict=True):
            cell.cell_contents = renewed.cell_contents

    def _withdraw(self) -> python_kernels.Registered:
        """Undoes `_declare`, but for the names. Returns the kernels that are written in Python."""
        # What is compiled over an overload of PyTorch's holds the gradient of this declaration.
        _torch_private.forget_compiled()
        del Operator.registered[self.qualified_name]
        _dtensor.forget(self)
        forget(self)
        registration.forget(self)
        _torch_private.undefine(self._library)
        return python_kernels.forget(self.qualified_name)

    def _refuse_names(self) -> None:
        """Keeps the names, and makes their calls errors."""
        self._library = torch.library.Library(self.namespace, "FRAGMENT")
        for overload in (self.public, self.raw):
            _torch_private.refuse_name(self._library, overload, self._why_gone())
        _undeclared[self.qualified_name] = self

    def _free_names(self) -> None:
        """Frees the names. Who still holds what PyTorch calls them by gets an error, where PyTorch would crash."""
        _torch_private.undefine(self._names)
        for overload in (self.public, self.raw):
            _torch_private.refuse_calls(overload, self._why_gone())

    def _expect_declared(self) -> None:
        if Operator.registered.get(self.qualified_name) is not self:
            raise RuntimeError(self._why_gone())

    def _why_gone(self) -> str:
        return f"{self.qualified_name} was undeclared or got another schema: declare it again, or call the new one"

    def _become(self, state: dict[str, Any]) -> None:
        """Takes another declaration of its name in the place of its own. If that fails, the one before stays whole.

        Args:
            state: the attributes of an Operator that is not declared.
        """
        before = self.__dict__
        kernels = self._withdraw()
        keeps_names = state["_schemas"] == before["_schemas"]
        if keeps_names:
            # What PyTorch calls them by, in compiled code and in variables, stays what it is, and follows.
            state.update({name: before[name] for name in ("_names", "public", "raw", "call")})
        else:
            self._free_names()
            _torch_private.refuse_function(self.call, self._why_gone())
            state["_names"] = None
        self.__dict__ = state
        try:
            self._declare()
        except BaseException:
            self.__dict__ = before
            if not keeps_names:
                self._names = None
            self._declare()
            python_kernels.register_again(self, self._library, kernels)
            raise

    def name_for_compilation(self) -> None:
        """Lets the caches of compilers tell what is declared now from what was declared when a graph was kept.

        A compiled graph holds the sizes, strides and dtypes of results, and PyTorch keeps it on disk by the names of
        the operators in it. If `output` changes, a later process would read results of the new layout by the old one.
        It is called in each compilation: what `output` refers to may have been defined or set after the declaration.
        """
        compilation = _torch_private.compilation()
        if compilation is not None and self._named_for() is not compilation:
            self._name_for_caches()
            self._named_for = weakref.ref(compilation)

    def _name_for_caches(self) -> None:
        kernels = python_kernels.seen_by_compilers(self.qualified_name)
        self.declaration_word = fingerprint((__version__, self._taken_for_granted, kernels))
        _torch_private.name_for_caches(self.raw, self.declaration_word)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """The visible results of the operator; arguments by position and by name, as in the schema."""
        if named or len(arguments) != self._argument_count:
            arguments = self.complete(arguments, named)
        return self.call(*arguments)

    def __repr__(self) -> str:
        return f"Operator({_torch_private.schema_of(self.public)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _registered, (self.qualified_name, self.module)

    def undeclare(self) -> None:
        """Removes the operator and frees its name for another one. A later call of it is a RuntimeError."""
        if Operator.registered.get(self.qualified_name) is not self:
            return
        self._withdraw()
        self._refuse_names()
        _torch_private.refuse_function(self.call, self._why_gone())

    def argument(self, name: str) -> Argument:
        """The argument with a name. `name[0]` is a tensor in a list."""
        return next(argument for argument in self.arguments if argument.name == name.partition("[")[0])

    @property
    def tensor_arguments(self) -> tuple[Argument, ...]:
        """The arguments that are tensors or lists of them."""
        return tuple(argument for argument in self.arguments if argument.holds_tensors)

    @property
    def short_name(self) -> str:
        """The name for people: without the namespace if the operator is torchgraft's."""
        return self.qualified_name.removeprefix("torchgraft::")

    def kernel(self, device: str, *, name: str | None = None, triton: bool = False) -> Callable[[_Kernel], _Kernel]:
        """A decorator: registers a Python function as a kernel of the operator.

        It takes all arguments of the schema, in its order, and returns new tensors like those of `output`; what is
        written to, it writes to.

        Args:
            device: the kind of device, 'cpu' or 'cuda'.
            name: of the kernel, where an operator has several; None: the function's.
            triton: whether it is made of Triton kernels, each launched through `torchgraft.wrap_triton`. Compilers see
                these; and under Triton's interpreter it is a kernel of the CPU as well.

        Raises:
            ValueError: there is no such kind of device, or the name is taken.
            RuntimeError: the operator was undeclared.
        """

        def register(function: _Kernel) -> _Kernel:
            self._expect_declared()
            named, called = name or function.__name__, by_name(function, self.arguments)
            is_interpreted = triton and python_kernels.is_interpreted()
            devices = dict.fromkeys((device, "cpu") if is_interpreted else (device,))
            if is_interpreted and isinstance(self.kernels, Mapping) and device in self.kernels:
                # What is claimed of the device holds of the CPU then, so that a check expects the kernel there.
                self.kernels = {"cpu": self.kernels[device], **self.kernels}
                self._renew_call()
            for each in devices:
                python_kernels.register(self, self._library, each, named, called, triton=triton)
            self._name_for_caches()
            return function

        return register

    def choose_kernel(self, device: str) -> Callable[[_Policy], _Policy]:
        """A decorator: registers a function that chooses the kernel of each call on a kind of device.

        The function takes all arguments of the schema, in its order, and returns the name of a kernel; `'compiled'` is
        that of the compiled library. Without a policy that goes first, and then the kernel that was registered first.

        Args:
            device: the kind of device, 'cpu' or 'cuda'.

        Raises:
            ValueError: no kernel written in Python is registered for it.
            RuntimeError: the operator was undeclared.
        """

        def register(function: _Policy) -> _Policy:
            self._expect_declared()
            chosen = python_kernels.choose_by(self, device, function)
            self._name_for_caches()
            return chosen

        return register

    def explain(self, *arguments: Any) -> None:
        """Raises a ValueError or TypeError that says what is wrong with the arguments. Returns if nothing is wrong."""
        explain_kinds(self.name, self.arguments, arguments, self.dtypes_of, self.mixed)
        # First, as what explains sizes may compute something.
        explain_memory(self.name, self.arguments, arguments)
        if self.shapes is not None:
            self.shapes.explain(*arguments)
        if self._explain is not None:
            self._explain(*arguments)

    def with_defaults(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments in the order of the schema, with the defaults of those that are missing at the end."""
        return (*arguments, *(argument.default for argument in self.arguments[len(arguments) :]))

    def visible(self, results: Any) -> Any:
        """What a caller sees of all results."""
        if self.visible_outputs == self.output_count:
            return results
        return results[0] if self.visible_outputs == 1 else results[: self.visible_outputs]

    def note(self, arguments: Sequence[object], reason: str, what: str = ON_REFERENCE) -> None:
        """Records that a call is slower than with a kernel, unless the reference is the best kernel."""
        if self.wants_kernels:
            note_fallback(self.qualified_name, arguments, reason, what)

    def recover(self, error: Exception, arguments: Sequence[Any]) -> Any:
        """Raises what a person can use for an error of a call; where values stand for tensors, records the call."""
        if any(map(stands_for_tensor, arguments)):
            return self.visible(self.call_public(*arguments))
        if self.autocast != "none" and _torch_private.any_autocast():
            # A layer that calls PyTorch, which casts by itself, has the arguments from before.
            arguments = make_cast(self.autocast, self.arguments, self.mixed)(arguments)
        try:
            self.explain(*arguments)
        except (ValueError, TypeError) as clear:
            raise clear from None
        if (lacking := out_of_memory(error)) is not None:
            raise lacking from None
        _dtensor.explain(self, arguments, error)
        if said := native.refusal_in(self.namespace, error):
            # The kernel knows more than the declaration explains, as which index is too large.
            raise ValueError(said if said.startswith(self.name) else f"{self.name}: {said}") from None
        raise error

    @property
    def sharding(self) -> Sharding:
        """The dimensions along which it may be cut over devices; derived from the reference if none is declared."""
        if self._sharding is None:
            self._sharding = derive_at_need(self)
        return self._sharding

    def needs_grad(self, arguments: Sequence[Any]) -> bool:
        """Whether a tensor needs a gradient that has one."""
        pairs = zip(self.arguments, arguments, strict=True)
        wanted = [value for argument, value in pairs if argument.name not in self.not_differentiable]
        return any(isinstance(value, Tensor) and value.requires_grad for value in tree_leaves(wanted))

    def call_public(self, *arguments: Any) -> Any:
        """Calls the public name; all arguments in the order of the schema."""
        return by_name(self.public, self.arguments)(*arguments)

    def filled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of all arguments, which PyTorch may call without those that equal their defaults."""
        if all(argument.default is REQUIRED and not argument.keyword_only for argument in self.arguments):
            return function
        count = len(self.arguments)

        def call(*arguments: Any, **named: Any) -> Any:
            # The raw name gets all arguments by position.
            return function(*(arguments if len(arguments) == count else self.complete(arguments, named)))

        return call


def _registered(qualified_name: str, module: str) -> Operator:
    if qualified_name not in Operator.registered:
        importlib.import_module(module)
    if qualified_name not in Operator.registered:
        raise RuntimeError(f"{qualified_name} was undeclared, or {module} does not declare it: declare it first")
    return Operator.registered[qualified_name]


def _met(value: Any) -> Any:
    """The value of an argument: TorchDynamo would lose a number that it first meets inside a Function."""
    if isinstance(value, (list, tuple)):
        return [_met(each) for each in value]
    return value * 1.0 if isinstance(value, float) else value


def _make_call(operator: Operator) -> Callable[..., Any]:
    """The choice made at each call: which of an operator's two names to call, and through what."""
    if operator.mutates:
        return mutation.make_call(operator)
    raw, reference, call_public = operator.raw, operator.reference, by_name(operator.public, operator.arguments)
    kernel = _torch_private.callee_of(raw)
    visible, all_visible = operator.visible, operator.visible_outputs == operator.output_count
    eager, functional = operator.autograd.eager, operator.autograd.functional
    take_tensors, take_others = operator.arrangement.tensors, operator.arrangement.others
    tensor_count, tensors_first = operator.arrangement.first or 0, operator.arrangement.first is not None
    lists, gives_lists = operator.lists, any(operator.lists)
    is_plain = tensors_first and not gives_lists
    cast = make_cast(operator.autocast, operator.arguments, operator.mixed)
    recorders = operator.recorders
    casts, not_differentiable = operator.autocast != "none", bool(operator.not_differentiable)
    has_gradient, is_grad_enabled = operator.gradient is not None, torch.is_grad_enabled
    gradient_by_reference = operator.gradient is None or hasattr(operator.gradient, "is_of_reference")
    has_saved_tensor_hooks = _torch_private.has_saved_tensor_hooks
    identity = operator.identity
    # PyTorch's autograd, transforms and compilers know what the reference is made of; where compilers are to see the
    # operator all the same, export that traces without TorchDynamo must find it in this call.
    by_pytorch = operator.kernels == operator.compile == "reference"
    described, dtypes_of, mixed = operator.arguments, operator.dtypes_of, operator.mixed
    dtypes, primary = operator.dtypes or (), operator.primary
    any_autocast, transform_active = _torch_private.any_autocast, _torch_private.transform_active
    may_be_timed, namespace = choosing.is_wanted, operator.namespace
    jit_tracing, dispatch_modes = _torch_private.jit_tracing, _torch_private.dispatch_modes
    is_compiling, is_exporting = torch.compiler.is_compiling, torch.compiler.is_exporting
    # Devices that have kernels for some dtypes only; mostly empty, and then there is nothing to ask.
    partial = operator.kernels if isinstance(operator.kernels, Mapping) else {}
    partial = {device: dtypes for device, dtypes in partial.items() if set(dtypes) != set(operator.dtypes or FLOATING)}

    def by_reference(arguments: Sequence[Any], reason: str) -> Any:
        operator.note(arguments, reason)
        return call_reference(arguments)

    def call_reference(arguments: Sequence[Any]) -> Any:
        if any_autocast():
            # It has cast what the declaration says, and would cast all else that the reference is made of.
            with no_autocast(arguments):
                return visible(reference(*arguments))
        return visible(reference(*arguments))

    def first_of(arguments: Sequence[Any]) -> Any:
        value = arguments[primary]
        if isinstance(value, Tensor):
            return value
        # It is a list, or None stands for it.
        return next(tensor for tensor in take_tensors(arguments) if tensor is not None)

    def apply(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """What a functional Function gives, as the schema has it."""
        tensors: list[Any] = []
        for tensor in take_tensors(arguments):
            # TorchDynamo cannot trace a Function that gets one tensor twice.
            is_known = tensor is not None and any(tensor is each for each in tensors)
            tensors.append(tensor.view_as(tensor) if is_known else tensor)
        results = function(*tensors, *map(_met, take_others(arguments)))
        return visible(single(nested(results, lists)) if gives_lists else results)

    def call(*arguments: Any) -> Any:
        try:
            if casts and any_autocast():
                arguments = tuple(cast(arguments))
            compiling = is_compiling()
            if compiling:
                # TorchDynamo reuses compiled code while what it has looked at stays the same, and it does not look at
                # the Functions below: another operator would get this one's gradient. No two declarations share this.
                if not identity:
                    raise AssertionError
                if operator.compile == "reference":
                    explain_kinds(operator.name, described, arguments, dtypes_of, mixed)
                    return call_reference(arguments)
            if by_pytorch:
                # PyTorch may take dtypes that the operator does not, and meta beside anything; all else it refuses.
                device = first_of(arguments).device
                for tensor in take_tensors(arguments):
                    if tensor is not None and (tensor.dtype not in dtypes or tensor.device != device):
                        explain_kinds(operator.name, described, arguments, dtypes_of, mixed)
                return call_reference(arguments)
            if partial and not (compiling and is_exporting()):
                first = first_of(arguments)
                if first.dtype not in partial.get(first.device.type, (first.dtype,)):
                    explain_kinds(operator.name, described, arguments, dtypes_of, mixed)
                    return by_reference(arguments, f"no kernel for this dtype on {first.device.type}")

            # Before compilation: then what is compiled may hold transforms too, and they give right answers.
            if transform_active():
                if not has_gradient:
                    return by_reference(arguments, "it has no gradient formula, and torch.func needs one")
                # compile(grad(f)) through an autograd.Function gives zero gradients without a word.
                if compiling:
                    return call_reference(arguments)
                if _torch_private.forward_mode_active():
                    return by_reference(arguments, "kernels do not carry forward-mode tangents")
                return apply(functional, arguments)

            needs_grad = False
            tensors = arguments[:tensor_count] if tensors_first else take_tensors(arguments)
            if is_grad_enabled():
                for tensor in tensors:
                    if tensor is not None and tensor.requires_grad:
                        needs_grad = True
                        break
                if needs_grad and not_differentiable:
                    needs_grad = operator.needs_grad(arguments)
                    if not needs_grad:
                        arguments = tree_map_only(Tensor, Tensor.detach, tuple(arguments))
            if compiling:
                if is_exporting():
                    return visible(call_public(*arguments))
                if not needs_grad:
                    return visible(raw(*arguments))
                # TorchDynamo cannot trace torch.func in a gradient under such hooks, and leaves them forbidden.
                if gradient_by_reference and has_saved_tensor_hooks():
                    return by_reference(arguments, "its gradient is the reference's, compiled under saved-tensor hooks")
                return apply(functional, arguments)
            if dispatch_modes():
                # What sees each operator, as a policy of selective checkpointing does, knows the public names.
                return visible(call_public(*arguments))
            if not needs_grad:
                results = choosing.call(namespace, kernel, arguments) if may_be_timed() else kernel(*arguments)
                return results if all_visible else visible(results)
            if jit_tracing():
                # It records what the dispatcher sees, and can make nothing of a Function that is written in Python.
                with torch.no_grad():
                    return visible(call_public(*arguments))
            if recorders:
                for tensor in tensors:
                    if tensor is not None and type(tensor) not in _PLAIN_TENSORS:
                        break
                else:
                    if (record := recorders.get(first_of(arguments).device.type)) is not None:
                        return record(*arguments)
            if is_plain:
                return eager(*tensors, arguments[tensor_count:])
            results = eager(*tensors, take_others(arguments))
            return single(nested(results, lists[: operator.visible_outputs])) if gives_lists else results
        except Exception as error:
            return operator.recover(error, arguments)

    return call
