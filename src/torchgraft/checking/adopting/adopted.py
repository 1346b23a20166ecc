"""Adopted: an operator that somebody else registered, as the checks see it.

Nothing is registered for it. Its schema, fake kernel and gradient are its own, and are what is checked; the reference
comes from whoever asks.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from torchgraft._private import pytorch
from torchgraft.checking.adopting.adoption import Adoption
from torchgraft.checking.adopting.names import find_overload, find_reference, import_named
from torchgraft.checking.adopting.random_samples import INDICES, is_drawable, random_samples
from torchgraft.checking.call import MadeOfOperators
from torchgraft.checking.subject import target_of
from torchgraft.checking.tensors.arguments import each_tensor
from torchgraft.checking.tensors.dtypes import in_float64, is_number
from torchgraft.checking.tensors.gradients import leaves_of
from torchgraft.declaration import FLOATING, Declaration
from torchgraft.declaration.dtypes import dtypes_of
from torchgraft.declaration.schema import Argument, by_name, read_schema, tensors_in
from torchgraft.declaration.sharding import read_sharding
from torchgraft.finding.samples import samples_in
from torchgraft.kernels.names import Names
from torchgraft.operator import Operator
from torchgraft.sampling import Drawn, Sample, Samples

# So many kinds of refusals are shown if too few calls make sense.
_SHOWN = 3


class Adopted(Operator, MadeOfOperators):
    """An operator as it is registered, with all attributes that the checks read of an Operator.

    Attributes:
        adoption: what it was made of.
        samples: what it is checked on.
        notes: what was found out about it by trying, for a person.
    """

    def __init__(self, adoption: Adoption) -> None:
        for module in adoption.imports:
            import_named(module)
        self.adoption = adoption
        public = find_overload(adoption.target)
        schema = pytorch.schema_of(public)
        qualified_name = str(schema).partition("(")[0]
        if any(result.alias_info is not None for result in schema.returns):
            raise LookupError(
                f"{qualified_name} returns an argument or a view of one, which no check can tell from a copy; "
                "give the operator that returns new tensors"
            )
        try:
            read = read_schema(str(schema))
        except ValueError as error:
            raise LookupError(str(error)) from None
        self.module, function = find_reference(adoption.reference)
        raw: Any = _ByPosition(public, read.arguments)
        # A compiler does not see an operator that PyTorch decomposes.
        is_decomposed = str(schema).startswith("aten::") or pytorch.is_composite(public)
        declaration = Declaration(
            schema=str(schema),
            arguments=read.arguments,
            results=read.results,
            reference=by_name(function, read.arguments),
            output=_make_output(raw),
            visible_outputs=len(read.results),
            sharding=read_sharding(qualified_name, None, read.arguments, read.results),
            kernels="reference" if is_decomposed else {},
            compile="reference" if is_decomposed else "kernel",
            dtypes_of={},
            dtypes=FLOATING,
            primary=dtypes_of(qualified_name, read.arguments, None)[1],
            # It says itself what is wrong with its arguments.
            explain_call=raw,
        )
        self._set(declaration)
        self._argument_count = -1
        self.names = Names(declaration, public, raw)
        self.call: Callable[..., Any] = raw
        # Nothing can replace its gradient, as it is no formula.
        self.autograd = cast("Any", None)
        self.notes: list[str] = []
        self._sensible: tuple[torch.dtype, ...] = ()
        self._refusals: Counter[str] = Counter()
        with warnings.catch_warnings():
            # The properties see its warnings.
            warnings.simplefilter("ignore")
            self.samples = self._find_samples()
            self._try()

    def __reduce__(self) -> tuple[Any, ...]:
        return adopt, (self.adoption,)

    def _find_samples(self) -> Samples:
        if not self.adoption.samples:
            try:
                samples, tried = random_samples(self.declaration.arguments, self._makes_sense)
            except LookupError as too_few:
                said = "".join(f"\n  {count:5} x {error}" for error, count in self._refusals.most_common(_SHOWN))
                raise LookupError(f"{too_few.args[0]}{said and '. Most calls were refused so:'}{said}") from None
            self.notes.append(
                f"samples: the reference and the operator accept {len(samples.table)} of {tried} random calls that fit"
                " the schema"
            )
            if left := [each.name for each in self.declaration.arguments if not is_drawable(each)]:
                self.notes.append(f"samples: {', '.join(left)}: always the default; --samples may have other values")
            return samples
        found = samples_in(import_named(self.adoption.samples), self.name)
        if found is None:
            raise LookupError(
                f"{self.adoption.samples} has no samples for {self.qualified_name}: define `samples = "
                f"torchgraft.sampling.Samples([...])`, or a dict of them with the key {self.name!r}"
            )
        return found

    def _makes_sense(self, sample: Sample) -> bool:
        """Whether the reference gives finite results and gradients for a call, and the operator accepts it.

        The first call with elements that makes sense decides in which dtypes the others must, too.
        """
        for each in _with_extremes(sample):
            try:
                arguments = in_float64(self._make(each, torch.float64))
                arguments = each_tensor(lambda tensor: tensor.requires_grad_(is_number(tensor)), arguments)
                results = tree_leaves(self.declaration.reference(*arguments))
            except Exception as error:
                self._refusals[f"the reference: {first_line(error)}"] += 1
                return False
            if not all(isinstance(result, Tensor) and result.isfinite().all() for result in results):
                self._refusals["the reference: its results are not all finite"] += 1
                return False
            if not all(gradient.isfinite().all() for gradient in _gradients(results, leaves_of(arguments))):
                self._refusals["the reference: its gradients are not all finite"] += 1
                return False
            refused = {dtype: self._refusal(each, dtype) for dtype in self._sensible or FLOATING}
            taken = tuple(dtype for dtype, said in refused.items() if not said)
            if not taken or (self._sensible and taken != self._sensible):
                self._refusals[f"the operator: {next(filter(None, refused.values()))}"] += 1
                return False
            narrowest = min(taken, key=lambda dtype: torch.finfo(dtype).max)
            numbers = [result for result in results if result.is_floating_point()]
            if not all(result.to(narrowest).isfinite().all() for result in numbers):
                self._refusals[f"the reference: its results are beyond the numbers of {narrowest}"] += 1
                return False
            if not each.is_empty:
                self._sensible = taken
        return True

    def _try(self) -> None:
        """Finds out by calls which dtypes it takes, which arguments have a gradient, and which sizes are open."""
        # Many operators take an empty tensor of any dtype, so empty samples come last.
        sample = min(self.samples.table, key=lambda each: (each.is_empty, each.elements))
        takes_any = any(each.dtype is None for each in sample.tensors)
        refused = {dtype: self._refusal(sample, dtype) for dtype in (FLOATING if takes_any else (torch.float32,))}
        taken = tuple(dtype for dtype, said in refused.items() if not said)
        if not taken:
            said = refused[torch.float32]
            raise LookupError(f"{self.qualified_name} accepts sample {sample.name!r} in no dtype; its error is: {said}")
        self.notes += [f"{dtype}: refused, {said}" for dtype, said in refused.items() if said]
        self._change(dtypes=taken)
        self._change(sizes_from_data=self._has_sizes_from_data(sample))
        names = [argument.name for argument in self.declaration.arguments if argument.holds_tensors]
        if unknown := sorted(set(self.adoption.without_gradient) - set(names)):
            raise LookupError(f"--no-gradient must name one of the tensors {', '.join(names)}, got {unknown[0]!r}")
        self._change(not_differentiable=self.adoption.without_gradient)
        if reason := self._why_no_gradient(sample):
            self.notes.append(f"gradients are not checked: {reason}")
            self._change(not_differentiable=tuple(names))

    def _change(self, **found: Any) -> None:
        """Puts what was found out by trying into the declaration."""
        self.declaration = replace(self.declaration, **found)
        self.names = replace(self.names, declaration=self.declaration)

    def _refusal(self, sample: Sample, dtype: torch.dtype) -> str:
        """Returns the operator's error if it refuses a dtype; an empty text if it accepts it."""
        try:
            self.raw(*self._make(sample, dtype))
        except Exception as error:
            return first_line(error) or type(error).__name__
        return ""

    def _make(self, sample: Sample, dtype: torch.dtype | None = None) -> tuple[Any, ...]:
        return self.declaration.with_defaults(
            sample.make(self.adoption.device, dtype or (self.declaration.dtypes or FLOATING)[0])
        )

    def _has_sizes_from_data(self, sample: Sample) -> bool:
        """Whether sizes of results depend on the values in tensors, by its own fake kernel."""
        from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            arguments = each_tensor(lambda each: mode.from_tensor(each, static_shapes=True), self._make(sample))
            try:
                results = tensors_in([self.raw(*arguments)])
                return any(not isinstance(size, int) for result in results for size in result.shape)
            except DynamicOutputShapeException:
                return True
            except Exception:
                # The properties about fake tensors report this error.
                return False

    def _why_no_gradient(self, sample: Sample) -> str:
        """Returns why gradients are not checked; an empty text if they are. Notes results that carry none."""
        if self.declaration.mutates:
            return "it writes to its arguments"
        if not pytorch.has_autograd(self.public):
            return "no autograd kernel is registered for it"

        def as_leaf(name: str, value: Any) -> Any:
            wanted = name not in self.declaration.not_differentiable
            return each_tensor(lambda each: each.detach().clone().requires_grad_(wanted and is_number(each)), [value])[
                0
            ]

        pairs = zip(self.declaration.arguments, self._make(sample), strict=True)
        arguments = [as_leaf(argument.name, value) for argument, value in pairs]
        if not leaves_of(arguments):
            return "no argument holds real or complex numbers"
        results = tree_leaves(self.raw(*arguments))
        differentiated = [result for result in results if result.requires_grad]
        if not differentiated:
            return "its results do not require a gradient even if its arguments do"
        constant = tuple(
            place for place, result in enumerate(results) if is_number(result) and not result.requires_grad
        )
        if constant:
            self._change(constant_outputs=constant, reference=_detaching(self.declaration.reference, constant))
            places = ", ".join(str(place + 1) for place in constant)
            self.notes.append(f"results that the operator marks as not differentiable: {places}")
        try:
            torch.autograd.grad([each.sum() for each in differentiated], leaves_of(arguments), allow_unused=True)
        except Exception as error:
            # The property `gradient` reports any other error.
            if isinstance(error, NotImplementedError) or "no autograd formula" in str(error):
                return first_line(error)
        return ""


def _make_output(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function that returns empty results, laid out as by the operator's own fake kernel."""

    def output(*arguments: Any) -> Any:
        device = next(tensors_in(arguments)).device
        results = operator(*each_tensor(lambda each: each.to("meta"), arguments))
        return tree_map_only(Tensor, lambda each: torch.empty_like(each, device=device), results)

    return output


class _ByPosition:
    """An operator overload that takes all arguments by position, even those that its schema wants named."""

    def __init__(self, overload: Any, arguments: Sequence[Argument]) -> None:
        self.name: Callable[[], str] = overload.name
        self._call = by_name(overload, arguments)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)


@cache
def adopt(adoption: Adoption) -> Adopted:
    """Adopts an operator that is registered already; returns the same object for the same names.

    Raises:
        LookupError: there is no such operator, reference or samples, or it takes none of these.
    """
    return Adopted(adoption)


def words_of(operator: Operator) -> list[str]:
    """The words of the command that checks an operator, without `graft`."""
    return operator.adoption.words() if isinstance(operator, Adopted) else ["check", target_of(operator)]


def _gradients(results: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Computes the gradients of the sum of all results that have one; none if autograd fails."""
    sums = [each.sum() for each in results if each.requires_grad]
    try:
        found = torch.autograd.grad(sums, leaves, allow_unused=True) if sums else ()
    except Exception:
        # The property `gradient` reports this error.
        return []
    return [each for each in found if each is not None]


def _detaching(reference: Callable[..., Any], places: Sequence[int]) -> Callable[..., Any]:
    """Wraps a reference so that its results in some places have no gradient."""

    def detached(*arguments: Any) -> Any:
        results = reference(*arguments)
        return tuple(result.detach() if place in places else result for place, result in enumerate(results))

    return detached


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return str(error).strip().partition("\n")[0]


def _with_extremes(sample: Sample) -> Iterator[Sample]:
    """Yields a sample, and the same with the largest index everywhere, which other seeds may give."""
    yield sample
    if any(each.dtype in INDICES for each in sample.tensors):

        def largest(value: Any) -> Any:
            if isinstance(value, list):
                return [largest(each) for each in value]
            is_index = isinstance(value, Drawn) and value.dtype in INDICES
            return replace(value, values=(value.integers.stop - 1,)) if is_index else value

        yield replace(sample, arguments=tuple(map(largest, sample.arguments)))
