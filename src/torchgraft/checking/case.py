"""A case: one operator, on one device, in one dtype, as a property sees it."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from torchgraft import native
from torchgraft.checking.comparing import Mismatch, expect, expect_close
from torchgraft.checking.result import Failure, NotApplicable
from torchgraft.checking.subject import Subject
from torchgraft.declaration import Declaration
from torchgraft.declaration.results import as_tuple, single
from torchgraft.declaration.schema import tensors_in
from torchgraft.operator import Operator, mutation
from torchgraft.sampling import Budget, Drawn, Sample, Samples, draw_at_border

# Calls that are drawn for a property that asks of any call, where nobody says how many; and in a quick run.
_RANDOM_CALLS, _QUICK_RANDOM_CALLS = 40, 10


@dataclass(frozen=True)
class _Sizes:
    """A share of the calls that are drawn, and the budget of each: powers of two between which elements lie."""

    share: float
    least: float
    most: float
    products: int

    def budget(self, random: Random) -> Budget:
        return Budget(round(2 ** random.uniform(self.least, self.most)), self.products)


# Where nobody says how many calls: as cheap as those of the other properties.
_FEW_SIZES = (_Sizes(1.0, 0, 9, 1 << 14),)
# On a CPU a call takes milliseconds, and on a GPU many kernels pay only for millions of elements. Libraries that stand
# in for the installed ones are instrumented, or emulate a small GPU: the same takes ten times as long and more.
_MANY_SIZES = {
    "instead": (_Sizes(0.65, 3, 13, 1 << 17), _Sizes(0.345, 14, 17, 1 << 22), _Sizes(0.005, 17, 19, 1 << 23)),
    "cpu": (_Sizes(0.6, 4, 14, 1 << 20), _Sizes(0.37, 14, 17, 1 << 22), _Sizes(0.03, 17, 20, 1 << 24)),
    "cuda": (_Sizes(0.3, 4, 14, 1 << 22), _Sizes(0.45, 14, 20, 1 << 26), _Sizes(0.25, 20, 23, 1 << 29)),
}

# The share of many calls that lie at a border of the library's own rules. A search makes some ten calls, which run.
_AT_BORDER = {"instead": 0.05, "cpu": 0.0, "cuda": 0.35}

# Samples small enough for numerical gradients and for compiling several times.
SMALL_ELEMENTS = 900


class MadeOfOperators:
    """An operator that may be made of PyTorch's own, each of which rounds its results."""


class CheckFailed(Exception):  # noqa: N818  a finding, not an error of the program
    """A property does not hold; carries the Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


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
        """New tensors at each look; always the same values."""
        return self.make()

    def make(
        self, device: torch.device | str | None = None, *, seed: int = 0, on_device: bool = False
    ) -> tuple[Any, ...]:
        """All arguments, with what the sample leaves to the schema's defaults.

        Args:
            device: where, if not on the call's; on `meta` they hold nothing.
            seed: is added to the call's.
            on_device: whether a GPU may draw values of its own.
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
        """How many products one element of the result is a sum of."""
        return self.samples.summed(*self.make("meta"))

    @property
    def precision(self) -> torch.dtype:
        """The coarsest dtype that results are computed in: the call's, or one of numbers that is an argument."""
        given = self.declaration.with_defaults(self.sample.arguments)
        dtypes = [each for each in given if isinstance(each, torch.dtype) and _holds_numbers(each)]
        return max(self.dtype, *dtypes, key=lambda each: torch.finfo(each).eps) if dtypes else self.dtype

    @property
    def tensor_names(self) -> list[str]:
        """The names of all tensors among the arguments."""
        return [name for name, _, _ in self.named_tensors(self.make("meta"))]

    @property
    def leaf_names(self) -> list[str]:
        """The names of the tensors that have gradients."""
        return [name for name, _, has_gradient in self.named_tensors(self.make("meta")) if has_gradient]

    def named_tensors(self, arguments: Sequence[Any]) -> Iterator[tuple[str, Tensor, bool]]:
        """Each tensor among some arguments, with its name and whether it has a gradient."""
        gives_gradients = _gives_gradients(self)
        for argument, value in zip(self.declaration.arguments, arguments, strict=True):
            may = argument.name not in self.declaration.not_differentiable and not argument.mutated
            has_gradient = gives_gradients and may
            for number, each in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(each, Tensor):
                    name = f"{argument.name}[{number}]" if isinstance(value, list) else argument.name
                    yield name, each, has_gradient and is_number(each)

    def leaves(self, arguments: Sequence[Any] | None = None, *, required: bool = True) -> tuple[Any, ...]:
        """Arguments with every tensor a new one of its own strides, a leaf where it has a gradient.

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
        """`function` with only the tensors left to pass that have gradients, and only results that have one."""
        chosen = [has_gradient for _, _, has_gradient in self.named_tensors(arguments)]
        of_chosen = of_tensors(function, arguments, chosen)
        return lambda *tensors: single(tuple(self.differentiable_results(tree_leaves(of_chosen(*tensors)))))

    def differentiable_results(self, results: Sequence[Tensor]) -> list[Tensor]:
        """Those of all results, one by one, that should have a gradient where an argument needs one."""
        constant = [False] * len(results)
        written = len(tensors_of(self.written(self.make("meta")))) if self.declaration.mutates else 0
        constant[:written] = [True] * written
        for place in self.declaration.constant_outputs:
            constant[written + place] = True
        return [
            each for each, is_constant in zip(results, constant, strict=True) if not is_constant and is_number(each)
        ]

    def written(self, arguments: Sequence[Any]) -> list[Any]:
        """Those of some arguments that a call writes to, and that are not left out."""
        return [value for _, value in mutation.written(self.declaration.arguments, arguments) if value is not None]

    def with_copies_of_written(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """Some arguments, with copies of the same strides of those that a call writes to."""
        written = {id(each) for each in tensors_of(self.written(arguments))}
        return each_tensor(lambda each: _copied(each) if id(each) in written else each, arguments)

    def function(self, *arguments: Any) -> Any:
        """What a call gives: new values of what it writes to, and its results."""
        return self.outcome_of(self.operator.call, arguments)

    def outcome_of(self, function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """What calling a function gives that computes the same as the operator; see `function`."""
        found = function(*arguments)
        if not self.declaration.mutates:
            return found
        return single((*self.written(arguments), *(as_tuple(found) if self.declaration.lists else ())))

    def tensors_in_turn(self) -> Iterator[tuple[str, Tensor, Callable[[Any], tuple[Any, ...]]]]:
        """Each tensor argument: its name, its value, and what gives all arguments with another value in its place."""
        arguments = self.arguments

        def others(change: Callable[..., tuple[Any, ...]], *at: Any) -> Callable[[Any], tuple[Any, ...]]:
            # What a call writes to must not be there again in the next one.
            return lambda value: change(self.arguments if self.declaration.mutates else arguments, *at, value)

        for place, value in enumerate(arguments):
            name = self.declaration.arguments[place].name
            if isinstance(value, Tensor):
                yield name, value, others(replaced, place)
            for number, each in enumerate(value if isinstance(value, list) else ()):
                if isinstance(each, Tensor):
                    yield f"{name}[{number}]", each, others(_replaced_inside, place, number)

    def reference(self, *arguments: Any) -> Any:
        """What a caller should see, by the reference.

        Of random results, which are not the reference's, what the operator gives for contiguous arguments.
        """
        if self.declaration.random:
            taken = self.declaration.dtypes
            exact = taken is None or torch.float64 in taken
            return self.function(*each_tensor(lambda each: _plain(each, None if exact else self.dtype), arguments))
        results = self.declaration.visible(self.declaration.reference(*arguments))
        if not self.declaration.mutates:
            return results
        # What was left out has no new value.
        return single(tuple(each for each in as_tuple(results) if each is not None))

    def expected(self, arguments: tuple[Any, ...] | None = None) -> Any:
        """What a caller should see, in float64: by the reference, of these arguments or of others."""
        return self.reference(*in_float64(self.arguments if arguments is None else arguments))

    def run(
        self, arguments: tuple[Any, ...] | None = None, output_grads: Sequence[Tensor] | None = None
    ) -> list[Tensor | None]:
        """The results, and then the gradients of all tensors that have any, None where there is none.

        Args:
            arguments: other leaves than those of this call.
            output_grads: other incoming gradients than random ones.
        """
        arguments = self.leaves(required=False) if arguments is None else arguments
        results = tree_leaves(self.function(*arguments))
        differentiated = with_gradients(results)
        gradients: Sequence[Tensor | None] = ()
        if differentiated:
            output_grads = self.output_grads(differentiated) if output_grads is None else output_grads
            gradients = torch.autograd.grad(differentiated, leaves_of(arguments), output_grads, allow_unused=True)
        return [*(result.detach() for result in results), *gradients]

    def generator(self) -> torch.Generator:
        """For further values, such as incoming gradients."""
        return torch.Generator().manual_seed(self.seed + 1)

    def output_grads(self, results: Iterable[Tensor]) -> list[Tensor]:
        """Incoming gradients for results: random, always the same values."""
        generator = self.generator()
        return [randn_like(result, generator) for result in results]

    def expected_gradients(
        self, output_grads: Iterable[Tensor], arguments: Sequence[Any] | None = None
    ) -> tuple[Tensor, ...]:
        """The gradients of all tensors for incoming gradients, in float64: by the reference.

        Args:
            output_grads: of all results that are differentiable.
            arguments: None: the call's.

        Raises:
            Mismatch: the reference has none.
        """
        exact = self.leaves(in_float64(self.arguments if arguments is None else arguments))
        references = self.differentiable_results(tree_leaves(self.reference(*exact)))
        expect(
            any(reference.requires_grad for reference in references) or not any(map(Tensor.numel, references)),
            "the reference has no gradient: its result does not require one, although its arguments do",
        )
        leaves = leaves_of(exact)
        # Of an empty batch PyTorch's own gradient is cut from the graph.
        return grad_or_zeros(attached(references, leaves), leaves, in_float64(output_grads))

    def in_mixed_dtypes(self, arguments: Sequence[Any], change: Callable[[str, Tensor], Tensor]) -> tuple[Any, ...]:
        """Arguments, with those tensors changed that may have another dtype than the others.

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
        """Compares with results in float64; see `comparing.expect_close`."""
        if "summed" not in options:
            options["summed"] = self.summed
        precision = self.precision
        if precision != self.dtype or isinstance(self.operator, MadeOfOperators):
            # What is summed was rounded before: to the coarser dtype, or as the result of another operator. Errors of
            # both signs make a random walk.
            options["roundings"] = max(options.get("roundings", 1), 2 + math.isqrt(options["summed"]))
        expect_close(found, expected, **{"dtype": precision, **options})


@dataclass
class Case:
    """What a property is asked about.

    Attributes:
        subject: the operator and its samples.
        device: where it runs.
        dtype: of its tensors.
        seed: of all values, and of what is drawn.
        quick: whether a few samples are enough.
        only: the name of the one sample to look at; None: all.
        calls: how many calls to draw where a property asks of any call; None: a few.
        progress: told what is about to be done, so that a crash can be laid to it.
        facts: what was measured on the way, by name.
        called: how many calls were drawn and made so far by a property that asks of any call.
        asked: the call that was looked at last, and what asks the same of it once more.
    """

    subject: Subject
    device: torch.device
    dtype: torch.dtype
    seed: int = 0
    quick: bool = False
    only: str | None = None
    calls: int | None = None
    progress: Callable[[str], None] = lambda doing: None
    facts: dict[str, float] = field(default_factory=dict)
    called: int = 0
    asked: tuple[Call, Callable[[], None]] | None = field(default=None, init=False)

    @property
    def declaration(self) -> Declaration:
        """The declaration of the operator."""
        return self.operator.declaration

    @property
    def operator(self) -> Operator:
        """The operator."""
        return self.subject.operator

    @property
    def samples(self) -> Samples:
        """What it is checked on."""
        return self.subject.samples

    def call(self, sample: Sample) -> Call:
        """A sample, to be made on this case's device in its dtype."""
        return Call(self.operator, self.samples, sample, self.device, self.dtype, self.seed)

    def table(
        self, *, small: bool = False, empty: bool = True, count: int | None = None, below: int | None = None
    ) -> list[Sample]:
        """Named samples, the smallest first.

        Args:
            small: only those that are small enough for numerical gradients and for compiling.
            empty: those without elements too.
            count: at most so many, spread over the table; a quick run takes half.
            below: only those with fewer elements.
        """
        limit = SMALL_ELEMENTS + 1 if small else below
        on_gpu = self.device.type == "cuda"
        chosen = [
            sample
            for sample in (self.samples.named if on_gpu or self.only else self.samples.table)
            if (empty or not sample.is_empty) and (limit is None or sample.elements < limit)
        ]
        if self.only is not None:
            chosen = [sample for sample in chosen if sample.name == self.only]
        elif count is not None:
            count = min(max(1, count // 2) if self.quick else count, len(chosen))
            # Not every so manieth: layouts take turns in a table.
            chosen = [chosen[turn * len(chosen) // count] for turn in range(count)]
        if not chosen:
            raise NotApplicable("it can use none of the samples" if self.only is None else "it cannot use this sample")
        return sorted(chosen, key=lambda sample: sample.elements)

    def each(self, check: Callable[[Call], None], samples: Iterable[Sample]) -> None:
        """Checks samples one by one; the first that fails is the failure, so give the smallest first."""
        for sample in samples:
            self.progress(f"sample {sample.name!r}")
            call = self.call(sample)
            with self._of(sample, drawn=False):
                self.asked = call, partial(check, call)
                check(call)

    def drawn(self, check: Callable[[Call], None], examples: int) -> None:
        """Checks samples that are drawn; of those that fail, the smallest that can be found is the failure."""
        draw = self.samples.draw
        if draw is None:
            raise NotApplicable("its samples have no `draw`")
        if self.only is not None:
            return
        from hypothesis import HealthCheck, Phase, given, seed, settings
        from hypothesis import strategies as st
        from hypothesis.errors import FlakyFailure

        @seed(self.seed)
        @settings(
            max_examples=max(5, examples // 4) if self.quick else examples,
            deadline=None,
            database=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            print_blob=False,
        )
        @given(random=st.randoms(use_true_random=False))
        def every(random: Random) -> None:
            sample = draw(random)
            self.progress(f"sample {sample.name!r}")
            call = self.call(sample)
            with self._of(sample, drawn=True):
                self.asked = call, partial(check, call)
                check(call)

        try:
            every()
        except FlakyFailure as error:
            # The same call held when it was made again: what failed is told, and not that it did so once.
            raise next((each for each in error.exceptions if isinstance(each, CheckFailed)), error) from error

    def random_calls(self, check: Callable[[Call, Call, Random], None]) -> None:
        """Checks calls that are drawn, each beside another: `check(call, other, random)`.

        What is random about a call follows from its seed alone, which is this case's and then one more at each call; it
        is what a failure says. Nothing is made smaller: where calls are beside others, sizes are not all that matters.
        Where somebody asked for so many calls, sizes are those of real use, which depend on the kind of device; where
        nobody did, they are small.
        """
        if self.samples.stress is None and self.samples.draw is None:
            raise NotApplicable("its samples have no `draw`")
        if self.only is not None:
            raise NotApplicable("its samples have a `draw`")
        calls = self.calls or (_QUICK_RANDOM_CALLS if self.quick else _RANDOM_CALLS)
        for seed in range(self.seed, self.seed + calls):
            random = Random(seed)
            self.progress(f"seed {seed}")
            call, other = (replace(self.call(self._draw_any(random, seed)), seed=seed) for _ in range(2))
            state = random.getstate()
            with self._of(call.sample, drawn=True, seed=seed):
                self.called += 1
                self.asked = call, partial(_check_from, state, check, call, other)
                check(call, other, random)

    def _draw_any(self, random: Random, seed: int) -> Sample:
        """A sample of any size, as `random_calls` draws it."""
        if self.samples.stress is None:
            assert self.samples.draw is not None
            return self.samples.draw(random)
        where = "cuda" if self.device.type == "cuda" else "instead" if "TORCHGRAFT_LIBRARIES" in os.environ else "cpu"
        kinds = _FEW_SIZES if self.calls is None else _MANY_SIZES[where]
        (kind,) = random.choices(kinds, [each.share for each in kinds])
        draw, budget = self.samples.stress, kind.budget(random)
        if self.calls is None or random.random() >= _AT_BORDER[where]:
            return draw(random, budget)
        return draw_at_border(lambda source: draw(source, budget), random, partial(self._answers, seed))

    def _answers(self, seed: int, sample: Sample) -> int:
        """What the rules of the operator's library answer about a sample, as one number; the seed names the search."""
        arguments = self.declaration.with_defaults(sample.make(self.device, self.dtype, on_device=True))
        with self._of(sample, drawn=True, seed=seed), torch.no_grad():
            return native.trace_answers(
                self.operator.namespace, self.device.type, lambda: self.operator.raw(*arguments)
            )

    @contextmanager
    def _of(self, sample: Sample, *, drawn: bool, seed: int | None = None) -> Iterator[None]:
        """Names the sample in what is raised; a call that the forced kernel refuses is passed over."""
        try:
            yield
        except (CheckFailed, NotApplicable):
            raise
        except Exception as error:
            if native.is_refused(error):
                return
            name = f"{sample.name} (drawn)" if drawn else sample.name
            failure = failure_of(error, sample=name, arguments=describe_arguments(self.operator, sample), seed=seed)
            raise CheckFailed(failure) from error


def _check_from(state: Any, check: Callable[[Call, Call, Random], None], call: Call, other: Call) -> None:
    """Checks a call with what is random about it as it was before."""
    random = Random()
    random.setstate(state)
    check(call, other, random)


def failure_of(error: Exception, **more: Any) -> Failure:
    """What an exception says: all that a Mismatch holds, of any other its kind and its text."""
    if not isinstance(error, Mismatch):
        return Failure(f"{type(error).__name__}: {error}", **more)
    expected, found = ("" if value is None else str(value) for value in (error.expected, error.found))
    more["tolerance"] = error.tolerance
    return Failure(str(error), expected=expected, found=found, index=error.index, **more)


def describe_arguments(operator: Operator, sample: Sample) -> str:
    """The arguments of a sample in short: shapes of tensors, numbers as they are."""
    described = []
    for argument, value in zip(operator.declaration.arguments, sample.arguments, strict=False):
        described.append(f"{argument.name}={_describe(value)}")
    return ", ".join(described)


def _describe(value: Any) -> str:
    if isinstance(value, (list, tuple)) and any(isinstance(each, Drawn) for each in value):
        return f"[{', '.join(map(_describe, value))}]"
    if not isinstance(value, Drawn):
        return str(value)
    layout = ", channels_last" if value.channels_last else ""
    dtype = "" if value.dtype is None else f" in {str(value.dtype).removeprefix('torch.')}"
    return f"{value.shape}{layout}{dtype}"


def tensors_of(arguments: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments, those in lists too."""
    return list(tensors_in(arguments))


def leaves_of(arguments: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments that need a gradient."""
    return with_gradients(tensors_of(arguments))


def with_gradients(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those of some tensors that need a gradient, or carry one."""
    return [tensor for tensor in tensors if tensor.requires_grad]


def attached(results: Iterable[Tensor], leaves: Iterable[Tensor]) -> list[Tensor]:
    """Results with those that carry no gradient made to carry one of zeros, so that none is left out of a row.

    A function with flags gives an empty tensor or zeros for what nobody wants: such a result depends on no argument.
    """
    nothing = torch.stack([(leaf * 0).real.nan_to_num().sum() for leaf in leaves]).sum()
    return [each if each.requires_grad else each + nothing.to(each.dtype) for each in results]


def in_float64(arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments with every number, and every dtype of numbers that is an argument itself, in float64 or complex128.

    What has one byte or fewer is a code and stays so.
    """
    return tuple(map(_exact_dtype, each_tensor(_exact, arguments)))


def _exact_dtype(value: Any) -> Any:
    if isinstance(value, torch.dtype) and value.is_complex:
        return torch.complex128
    return torch.float64 if isinstance(value, torch.dtype) and _holds_numbers(value) else value


def _holds_numbers(dtype: torch.dtype) -> bool:
    return dtype.is_complex or (dtype.is_floating_point and dtype.itemsize > 1)


def _exact(tensor: Tensor) -> Tensor:
    if not is_number(tensor):
        return tensor
    return tensor.to(torch.complex128) if tensor.is_complex() else tensor.double()


def is_number(tensor: Tensor) -> bool:
    """Whether a tensor holds what can have gradients: neither indices nor flags, nor codes of one byte."""
    return _holds_numbers(tensor.dtype)


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor in another dtype; of complex numbers the real parts, where the dtype has no others."""
    return (tensor if dtype.is_complex or not tensor.is_complex() else tensor.real).to(dtype)


def _copied(tensor: Tensor) -> Tensor:
    """A copy of the same strides, gaps and all."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _plain(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A tensor as kernels like it best; numbers in a dtype, where one is given."""
    return tensor.contiguous() if dtype is None or not is_number(tensor) else tensor.contiguous().to(dtype)


_answers: dict[tuple[str, torch.dtype], bool] = {}


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


def each_tensor(change: Callable[[Tensor], Any], arguments: Iterable[Any]) -> tuple[Any, ...]:
    """Arguments with every tensor changed."""
    return tuple(tree_map_only(Tensor, change, list(arguments)))


def replaced(values: Sequence[Any], place: int, value: Any) -> tuple[Any, ...]:
    """Values with another in one place."""
    return (*values[:place], value, *values[place + 1 :])


def _replaced_inside(values: Sequence[Any], place: int, number: int, value: Any) -> tuple[Any, ...]:
    """Values with another in a place of a list that stands in one place."""
    return replaced(values, place, list(replaced(values[place], number, value)))


def randn_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Normally distributed values of a tensor's shape, contiguous; the same on every device, or drawn on a GPU."""
    on_cpu = generator.device.type == "cpu"
    drawn = torch.float64 if on_cpu else torch.promote_types(tensor.dtype, torch.float32)
    if on_cpu and tensor.is_complex():
        drawn = torch.complex128
    values = torch.randn(tensor.shape, generator=generator, dtype=drawn, device=generator.device)
    return values.to(tensor.device, tensor.dtype)


def grad_or_zeros(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], output_grads: Sequence[Tensor] | None = None, **options: bool
) -> tuple[Tensor, ...]:
    """`torch.autograd.grad` with zeros where nothing flows back to an input."""
    return torch.autograd.grad(outputs, inputs, output_grads, allow_unused=True, materialize_grads=True, **options)


def of_tensors(
    function: Callable[..., Any], arguments: Sequence[Any], chosen: Sequence[bool] | None = None
) -> Callable[..., Any]:
    """`function` with only its tensor arguments left to pass, those in lists one by one.

    Args:
        function: of all arguments.
        arguments: what it takes else.
        chosen: which of the tensors are left to pass; None: all.
    """
    leaves, structure = tree_flatten(list(arguments))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if chosen is not None:
        places = [place for place, is_chosen in zip(places, chosen, strict=True) if is_chosen]
    return with_places_left(lambda *each: function(*tree_unflatten(list(each), structure)), leaves, places)


def with_places_left(
    function: Callable[..., Any], arguments: Sequence[Any], places: Sequence[int]
) -> Callable[..., Any]:
    """`function` with only the arguments in some places left to pass."""

    def call(*values: Any) -> Any:
        full = list(arguments)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        return function(*full)

    return call
