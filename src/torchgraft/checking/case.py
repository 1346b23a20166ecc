"""A case: one operator, on one device, in one dtype, as a property sees it."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

import torch

from torchgraft import native
from torchgraft.building import cache
from torchgraft.checking.call import Call
from torchgraft.checking.result import Failure, NotApplicable
from torchgraft.checking.subject import Subject
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.declaration import Declaration
from torchgraft.operator import Operator
from torchgraft.sampling import Budget, Drawn, Sample, Samples, draw_at_border

# The number of random calls if nobody says how many; and in a quick run.
_RANDOM_CALLS, _QUICK_RANDOM_CALLS = 40, 10


@dataclass(frozen=True)
class _Sizes:
    """A share of the random calls, and the budget of each: the powers of two between which its elements lie."""

    share: float
    least: float
    most: float
    products: int

    def budget(self, random: Random) -> Budget:
        return Budget(round(2 ** random.uniform(self.least, self.most)), self.products)


# The sizes of calls if nobody says how many: as cheap as those of the other properties.
_FEW_SIZES = (_Sizes(1.0, 0, 9, 1 << 14),)
# The sizes of many calls. On a CPU a call takes milliseconds; on a GPU many kernels pay only for millions of elements.
# Libraries that replace the installed ones are instrumented, or emulate a small GPU, and take ten times as long or
# more.
_MANY_SIZES = {
    "instead": (_Sizes(0.65, 3, 13, 1 << 17), _Sizes(0.345, 14, 17, 1 << 22), _Sizes(0.005, 17, 19, 1 << 23)),
    "cpu": (_Sizes(0.6, 4, 14, 1 << 20), _Sizes(0.37, 14, 17, 1 << 22), _Sizes(0.03, 17, 20, 1 << 24)),
    "cuda": (_Sizes(0.3, 4, 14, 1 << 22), _Sizes(0.45, 14, 20, 1 << 26), _Sizes(0.25, 20, 23, 1 << 29)),
}
# The share of many calls that lie at a border of the library's own rules. Each search for one makes some ten calls.
_AT_BORDER = {"instead": 0.05, "cpu": 0.0, "cuda": 0.35}
# Samples small enough for numerical gradients and for compiling several times.
SMALL_ELEMENTS = 900


class CheckFailed(Exception):  # noqa: N818  a finding, not an error of the program
    """A property does not hold; carries the Failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass
class Case:
    """The operator, the device and the dtype that a property is checked for.

    Attributes:
        subject: the operator and its samples.
        device: where it runs.
        dtype: of its tensors.
        seed: of all values, and of random samples.
        quick: whether a few samples are enough.
        only: the name of the one sample to look at; None: all.
        calls: how many random calls a property makes; None: a few.
        progress: told what is about to be done, so that a crash can be laid to it. A second line says what it means if
            the processor faults at an address then, where that is known.
        facts: what was measured on the way, by name.
        called: how many random calls were made so far.
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
    _depth: int = field(default=0, init=False)

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
        """The samples on which it is checked."""
        return self.subject.samples

    def call(self, sample: Sample) -> Call:
        """Makes a call of a sample, on this case's device in its dtype."""
        return Call(self.operator, self.samples, sample, self.device, self.dtype, self.seed)

    def table(
        self, *, small: bool = False, empty: bool = True, count: int | None = None, below: int | None = None
    ) -> list[Sample]:
        """Chooses named samples, the smallest first.

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
            # A fixed step would choose one layout: layouts take turns in a table.
            chosen = [chosen[turn * len(chosen) // count] for turn in range(count)]
        if not chosen:
            raise NotApplicable("it can use none of the samples" if self.only is None else "it cannot use this sample")
        return sorted(chosen, key=lambda sample: sample.elements)

    def each(self, check: Callable[[Call], None], samples: Iterable[Sample]) -> None:
        """Checks samples one by one; the first that fails is the failure, so give the smallest first."""
        for sample in samples:
            self.progress(f"sample {sample.name!r}")
            call = self.call(sample)
            with self._of(sample, is_random=False):
                outer, self.asked = self.asked, (call, partial(check, call))
                self._depth += 1
                try:
                    check(call)
                finally:
                    self._depth -= 1
                if self._depth:
                    # A check may ask about other calls on its way: what it says after them is about its own.
                    self.asked = outer

    def random_samples(self, check: Callable[[Call], None], examples: int) -> None:
        """Checks random samples; of those that fail, the smallest that can be found is the failure."""
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
            with self._of(sample, is_random=True):
                self.asked = call, partial(check, call)
                check(call)

        try:
            with _hypothesis_kept_apart():
                every()
        except FlakyFailure as error:
            # The same call passed when it was repeated: the failure itself is raised, and not that it is unsteady.
            raise next((each for each in error.exceptions if isinstance(each, CheckFailed)), error) from error

    def random_calls(self, check: Callable[[Call, Call, Random], None]) -> None:
        """Checks random calls, each beside another: `check(call, other, random)`.

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
            call, other = (replace(self.call(self._random_sample(random, seed)), seed=seed) for _ in range(2))
            state = random.getstate()
            with self._of(call.sample, is_random=True, seed=seed):
                self.called += 1
                self.asked = call, partial(_check_from, state, check, call, other)
                check(call, other, random)

    def _random_sample(self, random: Random, seed: int) -> Sample:
        """Returns a random sample of any size, for `random_calls`."""
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
        """Returns the answers of the library's rules about a sample, as one number; the seed names the search."""
        arguments = self.declaration.with_defaults(sample.make(self.device, self.dtype, on_device=True))
        with self._of(sample, is_random=True, seed=seed), torch.no_grad():
            return native.trace_answers(
                self.operator.namespace, self.device.type, lambda: self.operator.raw(*arguments)
            )

    @contextmanager
    def _of(self, sample: Sample, *, is_random: bool, seed: int | None = None) -> Iterator[None]:
        """Adds the sample to errors that are raised inside; skips a call that the forced kernel refuses."""
        try:
            yield
        except (CheckFailed, NotApplicable):
            raise
        except Exception as error:
            if native.is_refused(error):
                return
            name = f"{sample.name} (drawn)" if is_random else sample.name
            failure = failure_of(error, sample=name, arguments=describe_arguments(self.operator, sample), seed=seed)
            raise CheckFailed(failure) from error


@contextmanager
def _hypothesis_kept_apart() -> Iterator[None]:
    """Lets Hypothesis write what it keeps of the author's modules into torchgraft's cache.

    Without a database too it writes a folder `.hypothesis`, and by default into the working directory. Tests of the
    author's that use Hypothesis in this process keep their own folder.
    """
    from hypothesis import configuration

    before = configuration.storage_directory(intent_to_write=False).path
    configuration.set_hypothesis_home_dir(cache.folder() / "hypothesis")
    try:
        yield
    finally:
        configuration.set_hypothesis_home_dir(before)


def _check_from(state: Any, check: Callable[[Call, Call, Random], None], call: Call, other: Call) -> None:
    """Checks a call with a random source in the state of the first time."""
    random = Random()
    random.setstate(state)
    check(call, other, random)


def failure_of(error: Exception, **more: Any) -> Failure:
    """Makes a Failure of an exception: of a Mismatch with all its figures, of any other with its kind and text."""
    if not isinstance(error, Mismatch):
        return Failure(f"{type(error).__name__}: {error}", **more)
    expected, found = ("" if value is None else str(value) for value in (error.expected, error.found))
    more["tolerance"] = error.tolerance
    return Failure(str(error), expected=expected, found=found, index=error.index, **more)


def describe_arguments(operator: Operator, sample: Sample) -> str:
    """Describes the arguments of a sample in short: shapes of tensors, numbers as they are."""
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
