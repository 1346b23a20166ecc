"""Asks samples about the mutants of a library: `python -m torchgraft.checking.asking`, a process of its own.

The library is loaded once, and what the references give is computed once; then each mutant is a process forked from
this one, which asks the questions that reach it, the quickest first, until one tells it from the original.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft import native
from torchgraft.checking import places
from torchgraft.checking.case import Call, Case
from torchgraft.checking.comparing import expect
from torchgraft.checking.properties import PROPERTIES
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.subject import Subject, find_subjects, listed_kernels
from torchgraft.fallback import PerformanceWarning
from torchgraft.operator import FLOATING
from torchgraft.precision import true_precision

# Asked as they are; the others draw calls, compile, or look at what no kernel decides.
_WHOLE = ("layouts", "incoming_gradients", "non_finite", "bad_input")
_DRAWN = 40
# A mutant may make a loop long or endless.
_TIMES_AS_LONG, _SECONDS_MORE = 20, 5
# An exit status that no signal and no sanitizer has.
_TOLD_APART = 77
# The number of no mutant.
_ORIGINAL = -1


@dataclass(frozen=True)
class _KnownCall(Call):
    """A call that makes its arguments, and asks the reference, once."""

    @cached_property
    def arguments(self) -> tuple[Any, ...]:
        return super().arguments

    @cached_property
    def _expected(self) -> Any:
        return super().expected(self.arguments)

    def expected(self, arguments: tuple[Any, ...] | None = None) -> Any:
        return self._expected if arguments is None else super().expected(arguments)

    def expected_gradients(self, output_grads: Any) -> tuple[Tensor, ...]:
        if not self._gradients:
            self._gradients.append(super().expected_gradients(output_grads))
        return self._gradients[0]

    @cached_property
    def strides(self) -> list[tuple[int, ...]]:
        """Of the results, the first time that this is asked: the original's."""
        return self.found_strides()

    def found_strides(self) -> list[tuple[int, ...]]:
        return [result.stride() for result in tree_leaves(self.operator(*self.arguments))]

    @cached_property
    def _gradients(self) -> list[tuple[Tensor, ...]]:
        return []


def _check_strides(call: _KnownCall) -> None:
    expect(call.strides == call.found_strides(), "the results are laid out otherwise")


@dataclass(frozen=True)
class _Question:
    """What may tell a mutant from the original: `ask` raises where it does.

    Attributes:
        isolated: whether it may end the process that asks it.
        seconds: that the original takes.
        reached: the mutants that it runs through.
    """

    name: str
    ask: Callable[[], None]
    isolated: bool = False
    seconds: float = 0.0
    reached: frozenset[int] = frozenset()


def _questions(subject: Subject, seed: int) -> Iterator[_Question]:
    operator, samples = subject.operator, subject.samples
    kernels = ("", *listed_kernels(operator, "cpu"))
    dtypes = operator.dtypes or FLOATING
    device = torch.device("cpu")
    # More than the value in one dtype a sample, in turn: gradients take most of the time.
    every: tuple[Callable[[_KnownCall], None], ...] = (check_value, _check_strides, check_gradient)
    asked = [
        (sample, dtype, every if dtypes[turn % len(dtypes)] == dtype else every[:1])
        for turn, sample in enumerate(samples.table)
        for dtype in dtypes
    ]
    if samples.draw is not None:
        drawn = [(samples.draw(Random(seed + turn)), dtypes[turn % len(dtypes)]) for turn in range(_DRAWN)]
        asked += [(sample, dtype, every) for sample, dtype in drawn]
    for sample, dtype, checks in asked:
        call = _KnownCall(operator, samples, sample, device, dtype, seed)
        for check in checks:
            for kernel in kernels:
                name = f"{check.__name__.rpartition('check_')[2]} of {subject.name} on {sample.name!r} in {dtype}"
                yield _Question(_with(name, kernel), _forced(subject, kernel, partial(check, call)))
    for whole in _WHOLE:
        dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
        case = Case(subject, device, dtype, seed, quick=True)
        for kernel in kernels:
            ask = _forced(subject, kernel, partial(PROPERTIES[whole].check, case))
            yield _Question(_with(f"{whole} of {subject.name}", kernel), ask, PROPERTIES[whole].isolated)


def _with(name: str, kernel: str) -> str:
    return f"{name}, kernel {kernel}" if kernel else name


def _forced(subject: Subject, kernel: str, ask: Callable[[], None]) -> Callable[[], None]:
    """A question with a kernel forced; NotApplicable where that serves no call."""
    if not kernel:
        return ask

    def ask_forced() -> None:
        with native.ForcedKernel(subject.operator.namespace, "cpu", kernel) as forced:
            ask()
        if not forced.served:
            raise NotApplicable(f"{kernel} serves no call")

    return ask_forced


class _Library:
    """The library that holds the mutants."""

    def __init__(self, namespace: str, mutants: int) -> None:
        named = [each for each in native.libraries() if (each.namespace, each.device) == (namespace, "cpu")]
        self.choose: Any = named[0].function("torchgraft_choose_mutant") if named else None
        if self.choose is None:
            why = named[0].problem if named else f"nothing is loaded by torchgraft.native.load({namespace!r}, ...)"
            raise LookupError(why or f"{named[0].path} holds no mutants")
        self.choose.restype = None
        self._reached = mmap.mmap(-1, max(mutants, 1))
        self._buffer = (torch.frombuffer(self._reached, dtype=torch.uint8)).data_ptr()

    def traced(self, question: _Question) -> _Question | str:
        """A question with what it costs and reaches; why not, where the original does not pass it."""
        if question.isolated and not _ends_well(question):
            return ""
        self._reached[:] = bytes(len(self._reached))
        self.choose(_ORIGINAL, ctypes.c_void_p(self._buffer))
        started = time.perf_counter()
        try:
            question.ask()
        except NotApplicable:
            return ""
        except Exception as error:
            return f"{question.name}: {error}"
        finally:
            self.choose(_ORIGINAL, None)
        reached = frozenset(number for number, byte in enumerate(self._reached[:]) if byte)
        return replace(question, seconds=time.perf_counter() - started, reached=reached)


def _ends_well(question: _Question) -> bool:
    """Whether a process that asks a question of the original ends as it should; a reference may be what ends it."""
    if (child := os.fork()) == 0:
        _run(_ORIGINAL, [question], mmap.mmap(-1, 4), 0, lambda number, reached: None)
    return os.waitpid(child, 0)[1] == 0


def _run(mutant: int, questions: Sequence[_Question], at: mmap.mmap, slot: int, choose: Any) -> NoReturn:
    """What a forked process does."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    choose(mutant, None)
    for number, question in enumerate(questions):
        at[4 * slot : 4 * slot + 4] = number.to_bytes(4, "little")
        signal.setitimer(signal.ITIMER_REAL, _TIMES_AS_LONG * question.seconds + _SECONDS_MORE)
        try:
            question.ask()
        except BaseException:
            os._exit(_TOLD_APART)
    os._exit(0)


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "does not end" if os.WTERMSIG(status) == signal.SIGALRM else "dies"
    return {0: "", _TOLD_APART: "wrong"}.get(os.WEXITSTATUS(status), "sanitizer")


def _answer(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    subjects = find_subjects(request["targets"])
    library = _Library(request["namespace"], request["count"])
    tell({"doing": "computing what the references give"})
    questions, problems = [], []
    for subject in subjects:
        for question in _questions(subject, request["seed"]):
            traced = library.traced(question)
            if isinstance(traced, _Question):
                questions.append(traced)
            elif traced:
                problems.append(traced)
    tell({"questions": len(questions), "seconds": sum(each.seconds for each in questions), "problems": problems})
    questions.sort(key=lambda question: question.seconds)
    # What is never freed is never written to, and stays shared with the processes that are forked.
    gc.freeze()
    at = mmap.mmap(-1, 4 * request["workers"])
    # The original goes first: told from itself, it would show that nothing here can be believed.
    waiting = [*reversed(request["mutants"]), _ORIGINAL]
    slots = list(range(request["workers"]))
    running: dict[int, tuple[int, list[_Question], int, float]] = {}
    while waiting or running:
        while waiting and slots:
            mutant = waiting.pop()
            reaching = [each for each in questions if mutant == _ORIGINAL or mutant in each.reached]
            if not reaching:
                tell({"mutant": mutant, "status": "not reached"})
                continue
            slot = slots.pop()
            if (child := os.fork()) == 0:
                _run(mutant, reaching, at, slot, library.choose)
            running[child] = (mutant, reaching, slot, time.perf_counter())
        if running:
            child, status = os.wait()
            mutant, reaching, slot, started = running.pop(child)
            slots.append(slot)
            how = _how(status)
            by = reaching[int.from_bytes(at[4 * slot : 4 * slot + 4], "little")].name if how else ""
            seconds = round(time.perf_counter() - started, 3)
            if mutant != _ORIGINAL:
                status_name = "killed" if how else "survived"
                tell({"mutant": mutant, "status": status_name, "how": how, "by": by, "seconds": seconds})
            elif how:
                raise RuntimeError(f"the kernels as they are are told from themselves: {by} ({how})")


def main() -> None:
    """Takes a request as JSON from standard input; answers, a line each, on the descriptor that it names."""
    request = json.load(sys.stdin)
    places.remember({name: Path(place) for name, place in request["places"].items()})
    # A process that has run threads of PyTorch's cannot be forked.
    torch.set_num_threads(1)
    with open(request["answers"], "w") as answers, warnings.catch_warnings(), true_precision():
        warnings.simplefilter("ignore", PerformanceWarning)

        def tell(answer: dict[str, Any]) -> None:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

        _answer(request, tell)


if __name__ == "__main__":
    main()
