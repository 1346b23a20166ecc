"""Questions that may tell a mutant from the original: a property, or a part of one, about a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import torch

from torchgraft.checking.case import Case
from torchgraft.checking.kernels import claims_kernel, listed_kernels
from torchgraft.checking.mutants.errors import Errors
from torchgraft.checking.mutants.known_calls import KnownCall, check_candidates, check_nodes, check_strides
from torchgraft.checking.properties import PROPERTIES, autocast, second_gradient
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.subject import Subject
from torchgraft.kernels import python_kernels
from torchgraft.operator import FLOATING

# The properties that are asked whole. The others make random calls, compile, or check what no kernel decides.
_WHOLE = {
    **{
        name: PROPERTIES[name].check
        for name in ("layouts", "incoming_gradients", "non_finite", "bad_input", "mutation")
    },
    "second_gradient": second_gradient.check_against_reference,
    "autocast": autocast.check_eager,
}
# So many random samples are asked about beside those of the table.
_RANDOM_SAMPLES = 40
# The number of PyTorch's threads for kernels whose work depends on it.
_THREADS = 4


@dataclass(frozen=True)
class Question:
    """A check that may tell a mutant from the original: `ask` raises if it does.

    Attributes:
        name: for a person.
        ask: raises if the answer is not the original's.
        isolated: whether it may end the process that asks it.
        threads: how many of PyTorch's threads it needs; a process that has used several cannot fork any more.
        seconds: the time that the original takes.
        reached: the numbers of the mutants that it executes.
    """

    name: str
    ask: Callable[[], None]
    isolated: bool = False
    threads: int = 1
    seconds: float = 0.0
    reached: frozenset[int] = frozenset()

    def ask_on_threads(self) -> None:
        """Asks it on as many threads as it names."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        self.ask()


def make_questions(subject: Subject, seed: int, *, threads: bool) -> Iterator[Iterable[Question]]:
    """Yields groups of questions about an operator; the later ones of a group reuse what the first has computed."""
    operator, samples = subject.operator, subject.samples
    kernels = ("", *listed_kernels(operator, "cpu"))
    dtypes = operator.declaration.dtypes or FLOATING
    device = torch.device("cpu")
    # Gradients take most of the time. So each sample is asked about everything, with every kernel, in one dtype, and
    # about its value alone in the others.
    every: list[Callable[[KnownCall], None]] = [check_value, check_strides, check_gradient]
    every += [check_nodes, check_candidates]
    asked = [
        (sample, dtype, every if dtypes[turn % len(dtypes)] == dtype else every[:1])
        for turn, sample in enumerate(samples.table)
        for dtype in dtypes
    ]
    if samples.draw is not None:
        turns = [(samples.draw(Random(seed + turn)), dtypes[turn % len(dtypes)]) for turn in range(_RANDOM_SAMPLES)]
        asked += [(sample, dtype, every) for sample, dtype in turns]
    for sample, dtype, checks in asked:
        call = KnownCall(operator, samples, sample, device, dtype, seed)
        forced = kernels if checks is every else kernels[:1]
        yield _questions_of_call(subject, call, checks, forced, threads=threads and checks is every)
    dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
    quick = Case(subject, device, dtype, seed, quick=True)
    for whole, check in _WHOLE.items():
        case = quick
        if whole == "layouts":
            # Not quick: the layout that tells a mutant apart may be that of any sample.
            case = replace(quick, quick=False)
        elif whole == "second_gradient" and torch.float64 in dtypes:
            # Only float64 is exact enough to tell a wrong second derivative from rounding.
            case = replace(quick, dtype=torch.float64)
        for kernel in kernels:
            ask = _forced(subject, kernel, partial(check, case))
            yield [Question(_with(f"{whole} of {subject.name}", kernel), ask, PROPERTIES[whole].isolated)]
    if claims_kernel(operator, device, dtype) and not operator.declaration.mutates:
        yield [Question(f"errors of {subject.name}", Errors(quick).check, isolated=True)]


def _questions_of_call(
    subject: Subject,
    call: KnownCall,
    checks: Sequence[Callable[[KnownCall], None]],
    kernels: Sequence[str],
    *,
    threads: bool,
) -> Iterator[Question]:
    for check in checks:
        # A choice is measured only if no kernel is forced.
        for kernel in kernels[:1] if check is check_candidates else kernels:
            name = f"{check.__name__.rpartition('check_')[2]} of {subject.name} on {call.sample.name!r} in {call.dtype}"
            question = Question(_with(name, kernel), _forced(subject, kernel, partial(check, call)))
            yield question
            # It comes second, as the question before has computed what both expect.
            if threads and check in (check_value, check_gradient):
                yield replace(question, name=f"{question.name}, {_THREADS} threads", threads=_THREADS)


def _with(name: str, kernel: str) -> str:
    return f"{name}, kernel {kernel}" if kernel else name


def _forced(subject: Subject, kernel: str, ask: Callable[[], None]) -> Callable[[], None]:
    """Wraps a check so that it runs with a kernel forced; it raises NotApplicable if the kernel served no call."""
    if not kernel:
        return ask

    def ask_forced() -> None:
        with python_kernels.forced(subject.declaration, "cpu", kernel) as forced:
            ask()
        if not forced.served:
            raise NotApplicable(f"no sample runs on the kernel {kernel}")

    return ask_forced
