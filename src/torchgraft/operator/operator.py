"""Operator: makes a PyTorch operator, with everything that belongs to it, from one declaration.

An operator means what its reference computes; its kernels compute the same, faster. Each kernel is registered under
two names, and torchgraft/operator/call.py decides which of the two a call takes: see docs/design/calls.md.
"""

from __future__ import annotations

import importlib
import itertools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch

from torchgraft._private import pytorch
from torchgraft.declaration import FLOATING, Declaration, read
from torchgraft.declaration.autocast import AutocastRule
from torchgraft.declaration.schema import by_name
from torchgraft.declaration.sharding import Sharding
from torchgraft.finding.samples import samples_of
from torchgraft.kernels import python_kernels, signatures
from torchgraft.kernels.filling import filling
from torchgraft.kernels.names import Names, schemas_of
from torchgraft.kernels.python_kernels import CompileForGpu
from torchgraft.operator import cache_names, dtensor, registration
from torchgraft.operator.autograd import make_autograd
from torchgraft.operator.call import make_call
from torchgraft.operator.derive_sharding import derive_at_need
from torchgraft.operator.errors import make_recover

_Kernel = TypeVar("_Kernel", bound=Callable[..., Any])
_Policy = TypeVar("_Policy", bound=Callable[..., str])

_declarations = itertools.count()

# The operators that were undeclared, by name. PyTorch keeps their definitions, because programs that torch.jit or
# torch.export made refer to them, and a call of a removed definition crashes.
_undeclared: dict[str, Operator] = {}


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
            contiguous and have the dtype of the tensor argument that decides the operator's (see `dtypes`), if `shapes`
            gives all their sizes; otherwise the reference runs on tensors without data, and sizes must not depend on
            data.
        shapes: the sizes of tensor arguments and results in words, as `"n c, c -> n c"`: see
            `torchgraft.declaration.shapes.Shapes`. Sizes that do not fit are refused before `explain` is called.
        gradient: `gradient(needs_grad, output_grads, saved, *arguments)` returns one gradient for each tensor argument.
            It gets whether each tensor argument needs a gradient, the gradients of the visible results, the results
            that are saved for it (`saved_outputs`, then the hidden ones), and the arguments of the call; a list of
            tensors has a list in each of them. A gradient that is not needed may be returned, and is dropped. If it is
            made of operators, it can be differentiated again.
            'reference': the reference is differentiated, and no better gradient is expected. None: the reference is
            differentiated, and a warning says so.
        materialize_grads: whether `gradient` gets zeros instead of None for a result through which no gradient flows.
        unsaved: names of tensor arguments that `gradient` does not read. They are not kept, so their memory is free
            earlier, and a caller may change them in place; `gradient` gets None for them. Arguments that are written to
            are never kept.
        saved_outputs: names of visible results that `gradient` reads, as the schema names them. They are kept, and
            `saved` holds them in the order of the schema, before the hidden results. A caller that changes one of them
            in place before the backward pass gets autograd's error. They have the dtypes of the results: what must be
            more accurate in float16 is a hidden result, in float32.
        not_differentiable: names of tensor arguments and results, as the schema names them, that have no gradient.
            Integers and booleans never have one.
        visible_outputs: how many of the schema's results a caller gets. The others are kept for the gradient and are
            not differentiable. None: all.
        autocast: what autocast does to floating-point arguments other than float64: 'lower' casts them to autocast's
            dtype, 'promote' to the widest dtype among them, 'none' does not cast.
        vmap: `vmap(operator, batch_size, in_dims, *arguments)` returns the results and their batch dimensions, and
            computes them by `operator`. None: vmap runs a loop over the batch.
        sharding: what may be cut over devices, as `"N C _ _, C _ _ _, C -> N C _ _"`: see
            `torchgraft.declaration.sharding.Sharding`. 'derive': it is found from the reference and the samples when
            DTensor first needs it, and a warning says what to write down. None: no tensor may be cut.
        strides: 'reference' if results and gradients have exactly the strides of the reference's, whatever the strides
            of the arguments are: for an operator that replaces one of PyTorch's. `graft check` tests it (property
            `strides`). None: results have the strides that `output` gives them.
        flops: returns the number of floating-point operations; it gets a shape in place of each tensor.
        kernels: the dtypes of the deciding argument (see `dtypes`) that have kernels, by kind of device. 'reference':
            PyTorch's own composition is the best kernel, and no warning is due. None: `dtypes`, on cpu and cuda.
        compile: 'reference' if torch.compile makes faster code from the reference than by calling a kernel.
        dtypes: the dtypes that tensor arguments may have; all must have the same one. A dict gives the dtypes of each
            argument by name; arguments with the same entry must have the same dtype. None: the reference decides. A
            compiled kernel refuses all others itself: see docs/kernels.md. The first tensor argument decides the dtype
            of a call; of a dict, the first with an entry that has floating-point or complex dtypes, or else the first
            with an entry.
        sizes_from_data: whether sizes of results depend on the values of tensors, as the number of boxes kept does.
            `output` then uses `torchgraft.unknown_size()` for a size that it does not know.
        random: names of integer arguments, such as `SymInt seed`, that determine random results. A kernel then need not
            give the same numbers as the reference; the check compares their distributions.
        mixed: names of tensor arguments, except the first, that may have another of `dtypes` than the others.
            Autocast 'lower' leaves them in float32; the kernel then rounds them to the dtype of the first argument.
        explain: raises a ValueError or TypeError if the arguments are wrong, and otherwise returns.

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
        saved_outputs: Sequence[str] = (),
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
        # The module that declares it. Another process imports this module to find the operator.
        self.module: str = sys._getframe(1).f_globals.get("__name__", "__main__")
        qualified_name = schema.partition("(")[0].strip()
        name = qualified_name.partition("::")[2]
        if not name.isidentifier() or name.startswith("_"):
            raise ValueError(
                f"schema must begin with 'namespace::name(', and name must not begin with an underscore, got {schema!r}"
            )
        replaced: Operator | None = self.__dict__.pop("_replaced", None)
        if Operator.registered.get(qualified_name) is not replaced:
            raise ValueError(f"{qualified_name} is already declared; give this operator another name")
        declaration = read(
            schema,
            reference=reference,
            output=output,
            shapes=shapes,
            gradient=gradient,
            materialize_grads=materialize_grads,
            unsaved=unsaved,
            saved_outputs=saved_outputs,
            not_differentiable=not_differentiable,
            visible_outputs=visible_outputs,
            autocast=autocast,
            vmap=vmap,
            sharding=sharding,
            strides=strides,
            flops=flops,
            kernels=kernels,
            compile=compile,
            dtypes=dtypes,
            mixed=mixed,
            sizes_from_data=sizes_from_data,
            random=random,
            explain=explain,
        )
        self._set(declaration)
        if replaced is None:
            self._declare()
        else:
            replaced._become(self.__dict__)

    def _set(self, declaration: Declaration) -> None:
        """Sets the attributes that follow from a declaration alone; `_declare` adds those that PyTorch gives."""
        self.declaration = declaration
        # Copies, because each call reads them.
        self._complete = declaration.complete
        named = any(argument.keyword_only for argument in declaration.arguments)
        self._argument_count = -1 if named else len(declaration.arguments)
        self._sharding = declaration.sharding
        # For `name_for_compilation`.
        self._named_for: Callable[[], Any] = lambda: None
        # The library that defines the names, and what it defines.
        self._definitions: Any = None
        self._schemas = schemas_of(declaration)
        self._library: torch.library.Library
        self.names: Names

    @property
    def name(self) -> str:
        """The name without its namespace."""
        return self.declaration.name

    @property
    def namespace(self) -> str:
        """The part of the name before `::`."""
        return self.declaration.namespace

    @property
    def qualified_name(self) -> str:
        """The name with its namespace, `namespace::name`."""
        return self.declaration.qualified_name

    @property
    def short_name(self) -> str:
        """The name for people: without the namespace if the operator is torchgraft's."""
        return self.declaration.short_name

    @property
    def reference(self) -> Callable[..., Any]:
        """The definition of the operator; takes all arguments by position, in the order of the schema."""
        return self.declaration.reference

    @property
    def public(self) -> Any:
        """The overload in `torch.ops` of the public name."""
        return self.names.public

    @property
    def raw(self) -> Any:
        """The overload in `torch.ops` of the raw name."""
        return self.names.raw

    def _redefine(self, schema: str, **declared: Any) -> Callable[[], None]:
        """Declares the operator anew, in place: every variable that holds it calls the new one from then on.

        If the new declaration cannot be made, the earlier one stays.

        Args:
            schema: of the same name.
            declared: the other arguments of `Operator`.

        Returns:
            A function that restores the earlier declaration.

        Raises:
            ValueError: the schema has another name; or as for `Operator`, which may raise other errors too.
        """
        if schema.partition("(")[0].strip() != self.qualified_name:
            raise ValueError(f"schema must begin with '{self.qualified_name}(', got {schema!r}")
        before = self.__dict__
        kernels = python_kernels.of_operator(self.qualified_name)
        new = Operator.__new__(Operator)
        new.__dict__["_replaced"] = self
        # Because of `_replaced`, this changes `self` and does not register `new`.
        Operator.__init__(new, schema, **declared)

        def bring_back() -> None:
            self._become(before)
            python_kernels.register_again(self.names, self._library, kernels)

        return bring_back

    def _declare(self, kept: Names | None = None) -> None:
        """Registers the operator with PyTorch, and with every table of torchgraft that holds operators by name.

        Args:
            kept: the names of an earlier declaration with the same schemas: its overloads stay. None: there is none.
        """
        before = None if kept is not None else _undeclared.pop(self.qualified_name, None)
        if before is not None:
            pytorch.undefine(before._library)
            if before._schemas == self._schemas:
                self._definitions, kept = before._definitions, before.names
            else:
                before._free_names()
        if kept is None:
            self._definitions = torch.library.Library(self.namespace, "FRAGMENT")
        # No other declaration of this process has this text, not even one of the same name.
        self.identity = f"{self.qualified_name} {next(_declarations)}"
        # The functions behind the names are in a library of their own, so that they can be replaced without the names.
        self._library = torch.library.Library(self.namespace, "FRAGMENT")
        try:
            self.names = self._define() if kept is None else Names(self.declaration, kept.public, kept.raw)
            self.autograd = make_autograd(self.names, lambda: self.sharding)
            registration.register(self.names, self.autograd, self.name_for_compilation, self._library)
            signatures.expect_fitting(self.names, self._library)
            self._renew_call()
            self._name_for_caches()
            for overload in (self.public, self.raw):
                pytorch.forget_dispatch(overload)
            if not self.declaration.why_unsharded:
                dtensor.register(self.names, lambda: self.sharding)
        except BaseException:
            signatures.forget(self.qualified_name)
            dtensor.forget(self.qualified_name)
            pytorch.undefine(self._library)
            if kept is None:
                # The name is free again.
                pytorch.undefine(self._definitions)
            elif before is not None:
                before._refuse_names()
            raise
        Operator.registered[self.qualified_name] = self

    def _define(self) -> Names:
        """Defines both names in PyTorch."""
        for text, tags in self._schemas:
            self._definitions.define(text, tags=tags)
        packets = (getattr(getattr(torch.ops, self.namespace), name) for name in (self.name, f"_{self.name}"))
        return Names(self.declaration, *(packet.default for packet in packets))

    def _renew_call(self) -> None:
        """Sets what calling the Operator does if all arguments are given in the order of the schema.

        The function object stays and the values in its closure are replaced, so that code which holds the function of
        an earlier declaration calls this one.
        """
        new: Any = make_call(self.names, self.autograd, self.identity)
        self.call: Any = self.__dict__.get("call", new)
        for cell, renewed in zip(self.call.__closure__, new.__closure__, strict=True):
            cell.cell_contents = renewed.cell_contents

    def _withdraw(self) -> python_kernels.Registered:
        """Undoes `_declare`, except for the names. Returns the kernels that are written in Python."""
        # Compiled code that calls an overload holds the gradient of this declaration.
        pytorch.forget_compiled()
        del Operator.registered[self.qualified_name]
        dtensor.forget(self.qualified_name)
        signatures.forget(self.qualified_name)
        registration.forget(self.names)
        pytorch.undefine(self._library)
        return python_kernels.forget(self.qualified_name)

    def _refuse_names(self) -> None:
        """Keeps the names, and makes each call of them an error."""
        self._library = torch.library.Library(self.namespace, "FRAGMENT")
        for overload in (self.public, self.raw):
            pytorch.refuse_name(self._library, overload, self._why_gone())
        _undeclared[self.qualified_name] = self

    def _free_names(self) -> None:
        """Frees the names. Calls of their overloads, which other code may still hold, are errors, and not crashes."""
        pytorch.undefine(self._definitions)
        for overload in (self.public, self.raw):
            pytorch.refuse_calls(overload, self._why_gone())

    def _expect_declared(self) -> None:
        if Operator.registered.get(self.qualified_name) is not self:
            raise RuntimeError(self._why_gone())

    def _why_gone(self) -> str:
        return f"{self.qualified_name} was undeclared or got another schema: declare it again, or call the new one"

    def _become(self, state: dict[str, Any]) -> None:
        """Replaces the declaration by another one of the same name. If that fails, the earlier one is declared again.

        Args:
            state: the attributes of an Operator that is not declared.
        """
        before, names = self.__dict__, self.names
        kernels = self._withdraw()
        keeps_names = state["_schemas"] == before["_schemas"]
        if keeps_names:
            # The overloads stay, so compiled code and variables that hold them call the new declaration.
            state.update(_definitions=before["_definitions"], call=before["call"])
        else:
            self._free_names()
            pytorch.refuse_function(self.call, self._why_gone())
        self.__dict__ = state
        try:
            self._declare(names if keeps_names else None)
        except BaseException:
            self.__dict__ = before
            self._declare(names if keeps_names else None)
            python_kernels.register_again(self.names, self._library, kernels)
            raise

    def name_for_compilation(self) -> None:
        """Renames the operator in compilers' caches if its declaration has changed since the last compilation.

        A compiled graph holds the sizes, strides and dtypes of results, and PyTorch keeps it on disk by the names of
        the operators in it. Under the same name, a later process would use the graph of an earlier `output`, and read
        results in the wrong layout.
        It is called in each compilation: what `output` refers to may have been defined or set after the declaration.
        """
        compilation = pytorch.compilation()
        if compilation is not None and self._named_for() is not compilation:
            self._name_for_caches()
            self._named_for = weakref.ref(compilation)

    def _name_for_caches(self) -> None:
        self.declaration_word = cache_names.word_of(self, Operator)
        pytorch.name_for_caches(self.raw, self.declaration_word)

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """The visible results of the operator; arguments by position and by name, as in the schema."""
        if named or len(arguments) != self._argument_count:
            arguments = self._complete(arguments, named)
        return self.call(*arguments)

    def __repr__(self) -> str:
        return f"Operator({pytorch.schema_of(self.public)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _registered, (self.qualified_name, self.module)

    def undeclare(self) -> None:
        """Removes the operator and frees its name for another one. A later call of it is a RuntimeError."""
        if Operator.registered.get(self.qualified_name) is not self:
            return
        self._withdraw()
        self._refuse_names()
        pytorch.refuse_function(self.call, self._why_gone())

    def kernel(
        self,
        device: str,
        *,
        name: str | None = None,
        triton: bool = False,
        language: str = "",
        fills: bool = False,
        compile: CompileForGpu | None = None,
    ) -> Callable[[_Kernel], _Kernel]:
        """A decorator: registers a Python function as a kernel of the operator.

        The function takes all arguments of the schema, in its order, and returns new tensors like those of `output`. It
        writes to the arguments that the schema marks as written to. On CUDA the device of the tensors is current.

        Args:
            device: the kind of device, 'cpu' or 'cuda'.
            name: of the kernel, if an operator has several; None: the name of the function.
            triton: whether it is made of Triton kernels, each launched through `torchgraft.wrap_triton`. Compilers see
                these. Under Triton's interpreter it is registered as a kernel for the CPU too.
            language: the language that it is written in, as reports name it, such as 'TileLang'. A kernel in 'Helion'
                is registered for the CPU too if HELION_INTERPRET=1 or TORCHGRAFT_HELION_INTERPRET=1: Helion then runs
                it in Python.
            fills: whether the function takes the results behind the arguments, all by position, and writes them, as
                compiled functions of tvm-ffi, CuTe DSL and TileLang do. What it returns is ignored. Its tensors are
                contiguous, and need no gradient; an argument that it writes to shares no memory with another one. It is
                not called if no result has an element. The operator needs `output` or `shapes`.
            compile: compiles what a call launches for a GPU, on any machine, and returns the code, or raises an error.
                It takes the arguments of a call, with tensors on the device 'meta'. `graft check` calls it on a machine
                without a GPU.

        Raises:
            ValueError: there is no such kind of device, the name is taken or missing, or nothing tells `fills` the
                results.
            RuntimeError: the operator was undeclared.
        """

        def register(function: _Kernel) -> _Kernel:
            self._expect_declared()
            named: str | None = name or getattr(function, "__name__", None)
            if not named:
                raise ValueError(f"{self.name}: the kernel has no name of its own: pass name='...' to kernel()")
            called: Any = filling(function, self.declaration) if fills else None
            called = called or by_name(function, self.declaration.arguments)
            traits = python_kernels.Traits(triton, language, compile and by_name(compile, self.declaration.arguments))
            is_interpreted = triton and python_kernels.is_interpreted()
            is_interpreted = is_interpreted or python_kernels.runs_in_reference_mode(language)
            devices = dict.fromkeys((device, "cpu") if is_interpreted else (device,))
            claimed = self.declaration.kernels
            if is_interpreted and isinstance(claimed, Mapping) and device in claimed:
                # The CPU then has the dtypes that are declared for the device: a check expects the kernel there.
                self.declaration = replace(self.declaration, kernels={"cpu": claimed[device], **claimed})
                self.names = replace(self.names, declaration=self.declaration)
                self._renew_call()
            for each in devices:
                python_kernels.register(self.names, self._library, each, named, called, traits)
            self._name_for_caches()
            return function

        return register

    def choose_kernel(self, device: str) -> Callable[[_Policy], _Policy]:
        """A decorator: registers a function that chooses the kernel of each call on a kind of device.

        The function takes all arguments of the schema, in its order, and returns the name of a kernel; `'compiled'`
        names the kernel of the compiled library. Without such a function, the compiled kernel is called if there is
        one, and otherwise the kernel that was registered first.

        Args:
            device: the kind of device, 'cpu' or 'cuda'.

        Raises:
            ValueError: no kernel written in Python is registered for it.
            RuntimeError: the operator was undeclared.
        """

        def register(function: _Policy) -> _Policy:
            self._expect_declared()
            chosen = python_kernels.choose_by(self.declaration, device, function)
            self._name_for_caches()
            return chosen

        return register

    def explain(self, *arguments: Any) -> None:
        """Raises a ValueError or TypeError that says what is wrong with the arguments. Returns if nothing is wrong."""
        self.declaration.explain(*arguments)

    def recover(self, error: Exception, arguments: Sequence[Any]) -> Any:
        """Raises a clear error for one that a call raised: see `torchgraft.operator.errors.make_recover`."""
        return make_recover(self.names)(error, arguments)

    @property
    def sharding(self) -> Sharding:
        """The dimensions along which devices may share tensors; slow at first if it is to be derived."""
        if self._sharding is None:
            self._sharding = derive_at_need(self.declaration, samples_of(self))
        return self._sharding


def _registered(qualified_name: str, module: str) -> Operator:
    if qualified_name not in Operator.registered:
        importlib.import_module(module)
    if qualified_name not in Operator.registered:
        raise RuntimeError(f"{qualified_name} was undeclared, or {module} does not declare it: declare it first")
    return Operator.registered[qualified_name]


cache_names.note_what_is_shipped(Operator)
