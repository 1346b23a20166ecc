"""One call of an operator, and the results and gradients that the reference gives for it."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.kernels import claims_kernel
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor, of_tensors, replaced, replaced_inside, tensors_of
from torchgraft.checking.tensors.compare import expect, expect_close
from torchgraft.checking.tensors.dtypes import holds_numbers, in_float64, is_number
from torchgraft.checking.tensors.gradients import (
    attached,
    differentiate,
    grad_or_zeros,
    leaves_of,
    randn_like,
    with_gradients,
)
from torchgraft.declaration import Declaration
from torchgraft.declaration.results import as_tuple, single
from torchgraft.operator import Operator, mutation
from torchgraft.operator.gradients import has_gradients, is_of_reference
from torchgraft.sampling import Sample, Samples

# Of the root of a result's mean square.
_NO_ROUNDING = 1 / 8
# A sample of at most so many elements shows what depends on a dtype.
_FEW_ELEMENTS = 1 << 16


class MadeOfOperators:
    """An operator that may be made of several of PyTorch's own, each of which rounds its results."""


@dataclass(frozen=True)
class Call:
    """One call of an operator: a sample, made on a device in a dtype."""

    operator: Operator
    samples: Samples
    sample: Sample
    device: torch.device
    dtype: torch.dtype
    seed: int

    @property
    def declaration(self) -> Declaration:
        """The declaration of the operator."""
        return self.operator.declaration

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments: new tensors each time, always of the same values."""
        return self.make()

    def make(
        self, device: torch.device | str | None = None, *, seed: int = 0, on_device: bool = False
    ) -> tuple[Any, ...]:
        """Makes all arguments, with the schema's defaults for those that the sample leaves out.

        Args:
            device: where, if not on the call's; on `meta` they hold nothing.
            seed: is added to the call's.
            on_device: whether a GPU may make random values of its own.
        """
        where = self.device if device is None else device
        made = self.sample.make(where, self.dtype, self.seed + seed, on_device=on_device)
        return self.declaration.with_defaults(made)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The sizes of its tensors."""
        return [tuple(tensor.shape) for tensor in self.sample.tensors]

    @property
    def summed(self) -> int:
        """The number of products that one element of the result is a sum of."""
        return self.samples.summed(*self.make("meta"))

    @property
    def precision(self) -> torch.dtype:
        """The coarsest dtype in which results are computed: the call's, or a dtype among the arguments."""
        given = self.declaration.with_defaults(self.sample.arguments)
        dtypes = [each for each in (self.dtype, *given) if isinstance(each, torch.dtype) and holds_numbers(each)]
        return max(dtypes, key=lambda each: torch.finfo(each).eps, default=self.dtype)

    @property
    def precision_of_gradients(self) -> torch.dtype:
        """The coarsest dtype in which results and gradients are computed: a gradient has the dtype of its argument."""
        tensors = [each.dtype for each in tensors_of(self.make("meta")) if has_gradients(each)]
        real = [torch.empty(0, dtype=each).real.dtype for each in tensors]
        real += [self.precision] if self.precision.is_floating_point else []
        return max(real, key=lambda each: torch.finfo(each).eps, default=self.precision)

    def with_argument(self, place: int, value: Any) -> "Call":
        """Makes the call whose sample has another argument in a place, a value or what is drawn for it."""
        arguments = replaced(self.declaration.with_defaults(self.sample.arguments), place, value)
        return replace(self, sample=replace(self.sample, arguments=arguments))

    @property
    def tensor_names(self) -> list[str]:
        """The names of all tensors among the arguments."""
        return [name for name, _, _ in self.named_tensors(self.make("meta"))]

    @property
    def leaf_names(self) -> list[str]:
        """The names of the tensors that have gradients."""
        return [name for name, _, has_gradient in self.named_tensors(self.make("meta")) if has_gradient]

    def named_tensors(self, arguments: Sequence[Any]) -> Iterator[tuple[str, Tensor, bool]]:
        """Yields each tensor among arguments, with its name and whether it has a gradient."""
        gives_gradients = _gives_gradients(self)
        for argument, value in zip(self.declaration.arguments, arguments, strict=True):
            may = argument.name not in self.declaration.not_differentiable and not argument.mutated
            has_gradient = gives_gradients and may
            for number, each in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(each, Tensor):
                    name = f"{argument.name}[{number}]" if isinstance(value, list) else argument.name
                    yield name, each, has_gradient and is_number(each)

    def leaves(self, arguments: Sequence[Any] | None = None, *, required: bool = True) -> tuple[Any, ...]:
        """Makes new tensors of the same strides of all arguments; those that have a gradient become leaves.

        Args:
            arguments: others than those of this call.
            required: whether to ask for one at least.

        Raises:
            NotApplicable: none has a gradient, and one is required.
        """
        arguments = self.arguments if arguments is None else arguments
        wanted = [has_gradient for _, _, has_gradient in self.named_tensors(arguments)]
        if required and not any(wanted):
            raise NotApplicable("no argument has a gradient")
        flags = iter(wanted)
        return each_tensor(lambda tensor: tensor.detach().clone().requires_grad_(next(flags)), arguments)

    def of_leaves(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
        """Wraps `function`: it takes only tensors that have gradients, and returns only results that have one."""
        chosen = [has_gradient for _, _, has_gradient in self.named_tensors(arguments)]

        def of_copies(*values: Any) -> Any:
            # The next call must not find what this one has written.
            return function(*(self.with_copies_of_written(values) if self.declaration.mutates else values))

        of_chosen = of_tensors(of_copies, arguments, chosen)
        return lambda *tensors: single(tuple(self.differentiable_results(tree_leaves(of_chosen(*tensors)))))

    def differentiable_results(self, results: Sequence[Tensor]) -> list[Tensor]:
        """Returns the results that should have a gradient if an argument needs one."""
        constant = [False] * len(results)
        written = len(tensors_of(self.written(self.make("meta")))) if self.declaration.mutates else 0
        constant[:written] = [True] * written
        for place in self.declaration.constant_outputs:
            constant[written + place] = True
        return [
            each for each, is_constant in zip(results, constant, strict=True) if not is_constant and is_number(each)
        ]

    def written(self, arguments: Sequence[Any]) -> list[Any]:
        """Returns the arguments that a call writes to; those that are left out are none."""
        return [value for _, value in mutation.written(self.declaration.arguments, arguments) if value is not None]

    def with_copies_of_written(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Returns arguments with copies, of the same strides, of those that a call writes to."""
        written = {id(each) for each in tensors_of(self.written(arguments))}
        return each_tensor(lambda each: _copied(each) if id(each) in written else each, arguments)

    def function(self, *arguments: Any) -> Any:
        """Calls the operator; returns the new values of arguments that it writes to, and its results."""
        return self.outcome_of(self.operator.call, arguments)

    def outcome_of(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Calls a function that computes the same as the operator; returns as `function` does."""
        found = function(*arguments)
        if not self.declaration.mutates:
            return found
        return single((*self.written(arguments), *(as_tuple(found) if self.declaration.lists else ())))

    def tensors_in_turn(self) -> Iterator[tuple[str, Tensor, Callable[[Any], tuple[Any, ...]]]]:
        """Yields each tensor argument: its name, its value, and a function that puts another value in its place."""
        arguments = self.arguments

        def others(change: Callable[..., tuple[Any, ...]], *at: Any) -> Callable[[Any], tuple[Any, ...]]:
            # The next call must not find the values that this one has written.
            return lambda value: change(self.arguments if self.declaration.mutates else arguments, *at, value)

        for place, value in enumerate(arguments):
            name = self.declaration.arguments[place].name
            if isinstance(value, Tensor):
                yield name, value, others(replaced, place)
            for number, each in enumerate(value if isinstance(value, list) else ()):
                if isinstance(each, Tensor):
                    yield f"{name}[{number}]", each, others(replaced_inside, place, number)

    def reference(self, *arguments: Any) -> Any:
        """Computes what a caller should see, by the reference.

        Random results are not the reference's: the operator computes them, for contiguous arguments.
        """
        if self.declaration.random:
            own = self.dtype if self.has_own_random_numbers else None
            return self.function(*each_tensor(lambda each: _plain(each, own), arguments))
        return self.by_definition(*arguments)

    def by_definition(self, *arguments: Any) -> Any:
        """Computes what a caller should see, by the reference; it draws random numbers of its own."""
        results = self.declaration.visible(self.operator.reference(*arguments))
        if not self.declaration.mutates:
            return results
        # An argument that was left out has no new value.
        return single(tuple(each for each in as_tuple(results) if each is not None))

    @property
    def has_own_random_numbers(self) -> bool:
        """Whether random numbers in the dtype of the call are no rounded ones of float64, as those of torch.randn."""
        taken = self.declaration.dtypes
        if taken is not None and torch.float64 not in taken:
            return True
        if self.dtype == torch.float64:
            return False
        # A reference is right, so that it differs by what it draws; a wrong operator may differ by itself. Fewer than
        # 16 numbers PyTorch draws in float64 for any dtype, and rounds them.
        asked = _own_numbers.setdefault(self.operator, {})
        key = self.dtype, self.device
        if key not in asked:
            most = max(self.samples.table, key=lambda sample: sample.elements * (sample.elements <= _FEW_ELEMENTS))
            asked[key] = replace(self, sample=most)._draws_by_dtype
        return asked[key] or self._draws_by_dtype

    @property
    def _draws_by_dtype(self) -> bool:
        return _depends_on_dtype(self.operator.reference, self) and _depends_on_dtype(self.function, self)

    def expected(self, arguments: tuple[Any, ...] | None = None) -> Any:
        """Computes what a caller should see, in float64, by the reference, of these arguments or of others."""
        return self.reference(*in_float64(self.arguments if arguments is None else arguments))

    def run(
        self, arguments: tuple[Any, ...] | None = None, output_grads: Sequence[Tensor] | None = None
    ) -> list[Tensor | None]:
        """Runs forward and backward; returns the results and the gradients of all leaves, None for those without one.

        Args:
            arguments: other leaves than those of this call.
            output_grads: other incoming gradients than random ones.
        """
        arguments = self.leaves(required=False) if arguments is None else arguments
        results = tree_leaves(self.function(*arguments))
        differentiated = with_gradients(results)
        gradients: Sequence[Tensor | None] = ()
        if differentiated:
            leaves = leaves_of(arguments)
            if output_grads is None:
                # Nobody sees these again, so a formula that writes to them does no harm here.
                own = self.output_grads(differentiated)
                gradients = torch.autograd.grad(differentiated, leaves, own, allow_unused=True)
            else:
                gradients = differentiate(differentiated, leaves, output_grads)
        return [*(result.detach() for result in results), *gradients]

    def run_own(self) -> list[Tensor | None]:
        """Runs what the author wrote: as `run`, without gradients that PyTorch computes.

        Several threads of PyTorch may add up the gradient of an index in any order.
        """
        if self.has_gradients_of_pytorch:
            return [result.detach() for result in tree_leaves(self.function(*self.leaves(required=False)))]
        return self.run()

    def generator(self) -> torch.Generator:
        """A generator of further values, such as incoming gradients."""
        return torch.Generator().manual_seed(self.seed + 1)

    def output_grads(self, results: Iterable[Tensor]) -> list[Tensor]:
        """Makes incoming gradients for results: random, but always the same values."""
        generator = self.generator()
        return [randn_like(result, generator) for result in results]

    def expected_gradients(
        self, output_grads: Iterable[Tensor], arguments: Sequence[Any] | None = None
    ) -> tuple[Tensor, ...]:
        """Computes the gradients of all tensors for incoming gradients, in float64, by the reference.

        Args:
            output_grads: of all results that are differentiable.
            arguments: None: the call's.

        Raises:
            Mismatch: the reference has none.
        """
        return self.reference_gradients(
            in_float64(output_grads), in_float64(self.arguments if arguments is None else arguments)
        )

    def reference_gradients(
        self, output_grads: Iterable[Tensor], arguments: Sequence[Any] | None = None
    ) -> tuple[Tensor, ...]:
        """Computes the gradients as `expected_gradients` does, in the dtypes of the arguments.

        Raises:
            Mismatch: the reference has none.
        """
        arguments = self.leaves(arguments)
        references = self.differentiable_results(tree_leaves(self.reference(*arguments)))
        expect(
            any(reference.requires_grad for reference in references)
            or not any(map(Tensor.numel, references))
            or self._is_constant(arguments, references),
            "the reference has no gradient: its result does not require one, although its arguments do",
        )
        leaves = leaves_of(arguments)
        # PyTorch's own gradient of an empty batch is cut from the graph.
        return grad_or_zeros(attached(references, leaves), leaves, tuple(output_grads))

    def _is_constant(self, arguments: Sequence[Any], results: Sequence[Tensor]) -> bool:
        """Whether the reference gives the same results for other real numbers: its gradient is zero then."""

        def changed(tensor: Tensor) -> Tensor:
            return tensor.detach() + 1 if has_gradients(tensor) else tensor

        try:
            others = self.differentiable_results(tree_leaves(self.reference(*each_tensor(changed, arguments))))
        except Exception:
            # It refuses these numbers.
            return False
        return all(map(torch.equal, results, others))

    @property
    def is_of_pytorch(self) -> bool:
        """Whether PyTorch computes the results, by the reference: the author declares no kernel for them."""
        is_authors = isinstance(self.operator, MadeOfOperators) or self.declaration.random
        return not is_authors and not claims_kernel(self.operator, self.device, self.dtype)

    @property
    def has_gradients_of_pytorch(self) -> bool:
        """Whether PyTorch computes the gradients, by those of the reference: the author wrote no formula."""
        if isinstance(self.operator, MadeOfOperators) or self.declaration.random:
            return False
        return is_of_reference(self.declaration) or self.declaration.is_of_pytorch

    def by_pytorch(self, arguments: Sequence[Any] | None = None) -> Any:
        """Computes the results by the reference in the dtypes of the arguments, if PyTorch computes them; else None."""
        if not self.is_of_pytorch:
            return None
        return self.reference(*(self.arguments if arguments is None else arguments))

    def gradients_by_pytorch(self, output_grads: Iterable[Tensor]) -> tuple[Tensor, ...] | None:
        """Computes the gradients by the reference in the dtypes of the call, if PyTorch computes them; else None."""
        return self.reference_gradients(output_grads) if self.has_gradients_of_pytorch else None

    def in_mixed_dtypes(self, arguments: Sequence[Any], change: Callable[[str, Tensor], Tensor]) -> tuple[Any, ...]:
        """Changes the tensors among arguments that may have another dtype than the others.

        Args:
            arguments: all of them.
            change: what becomes of a tensor of an argument of that name.
        """
        return tuple(
            each_tensor(partial(change, argument.name), (value,))[0]
            if argument.name in self.declaration.mixed
            else value
            for argument, value in zip(self.declaration.arguments, arguments, strict=True)
        )

    def expect_close(self, found: Any, expected: Any, **options: Any) -> None:
        """Compares with results in float64; see `compare.expect_close`."""
        if "summed" not in options:
            options["summed"] = self.summed
        precision = self.precision
        if precision != self.dtype or isinstance(self.operator, MadeOfOperators):
            # The terms of a sum were rounded before: to the coarser dtype, or as results of another operator. Errors of
            # both signs make a random walk.
            options["roundings"] = max(options.get("roundings", 1), 2 + math.isqrt(options["summed"]))
        expect_close(found, expected, **{"dtype": precision, **options})


def _copied(tensor: Tensor) -> Tensor:
    """Copies a tensor into new memory of the same strides, gaps included."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _plain(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Makes a tensor contiguous; converts numbers to a dtype, if one is given."""
    return tensor.contiguous() if dtype is None or not is_number(tensor) else tensor.contiguous().to(dtype)


def _depends_on_dtype(function: Callable[..., Any], call: Call) -> bool:
    """Whether results for the same numbers in float64 differ by more than any rounding."""
    found, expected = (tensors_of([function(*arguments)]) for arguments in (call.arguments, in_float64(call.arguments)))
    return any(
        bool(((one.double() - other).abs() > _NO_ROUNDING * other.square().mean().sqrt()).any())
        for one, other in zip(found, expected, strict=True)
        if is_number(one) and not one.is_complex()
    )


_answers: dict[tuple[str, torch.dtype], bool] = {}
# Whether the largest sample of an operator has random numbers of its own in a dtype on a device.
_own_numbers: WeakKeyDictionary[Operator, dict[tuple[torch.dtype, torch.device], bool]] = WeakKeyDictionary()


def _gives_gradients(call: Call) -> bool:
    """Whether a result of a call can have a gradient; the same for all calls in a dtype."""
    key = call.operator.qualified_name, call.dtype
    if key not in _answers:
        _answers[key] = False
        knows = call.declaration.knows_output and not call.declaration.sizes_from_data
        with torch.no_grad():
            results = call.declaration.output(*call.make("meta")) if knows else call.reference(*call.arguments)
        results = call.declaration.visible(results) if knows else results
        leaves = [*([] if not knows else tensors_of(call.written(call.make("meta")))), *tree_leaves(results)]
        _answers[key] = bool(call.declaration.lists) and bool(call.differentiable_results(leaves))
    return _answers[key]
