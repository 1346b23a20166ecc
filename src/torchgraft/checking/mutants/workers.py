"""Workers that share the questions: each worker takes some questions, and asks them about every mutant."""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torchgraft.checking.mutants.library import Asked, MutantLibrary, how_it_ended
from torchgraft.checking.mutants.questions import Question

# The states of a mutant; of what several workers found, the first of these counts.
STATES = ("killed", "survived", "not reached")
# One in so many questions is asked first: these tell most mutants apart, before the references compute all the others.
_FIRST_OF = 8
# A mutant that is listed as equivalent is asked questions for which the original takes so many seconds.
_LISTED_SECONDS = 5.0


def quickest(questions: Sequence[Question], seconds: float) -> list[Question]:
    """Returns the first questions for which the original takes so many seconds together; at least one, if any."""
    sums = accumulate(question.seconds for question in questions)
    return [question for question, total in zip(questions, sums, strict=True) if total - question.seconds <= seconds]


@dataclass(frozen=True)
class Worker:
    """One of the processes that share the questions among them.

    Attributes:
        number: of this worker.
        count: how many workers there are.
        library: holds the mutants.
        shared: by all workers.
        tell: called with each answer, for the process that forked it.
        listed: the numbers of mutants that are listed as equivalent.
    """

    number: int
    count: int
    library: MutantLibrary
    shared: Shared
    tell: Callable[[dict[str, Any]], None]
    listed: frozenset[int] = frozenset()

    def work(self, groups: Sequence[Iterable[Question]], mutants: Sequence[int]) -> None:
        """Traces the questions that it takes, and asks them about all mutants: first a few questions, then the rest."""
        untold: dict[int, dict[str, Any]] = {
            mutant: {"mutant": mutant, "status": "not reached", "seconds": 0.0} for mutant in mutants
        }
        unlisted = {mutant: answer for mutant, answer in untold.items() if mutant not in self.listed}
        for end, asked in ((len(groups) // _FIRST_OF, unlisted), (len(groups), untold)):
            with self.shared.cores:
                questions = self._traced(groups, end)
            # Objects that are never freed are never written to, and stay shared with the processes that are forked.
            gc.freeze()
            for mutant, answer in self._answers(questions, asked):
                if answer["status"] == "killed":
                    self.shared.told[mutant] = True
                if answer["status"] == "killed" or end == len(groups):
                    self.tell(answer)

    def _answers(
        self, questions: Sequence[Question], untold: dict[int, dict[str, Any]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Asks questions about mutants that no worker has told apart; yields each mutant with its answer so far."""
        believed, asked = set[str](), dict[int, Asked]()

        def end_one() -> tuple[int, dict[str, Any]]:
            """Waits for one of the processes, and returns its mutant and the answer."""
            process, status, usage = os.wait4(-1, 0)
            each = asked.pop(process)
            answer, how = untold[each.mutant], how_it_ended(status)
            answer["seconds"] = round(answer["seconds"] + usage.ru_utime + usage.ru_stime, 3)
            answer["status"] = "killed" if how else "survived"
            if how:
                question = each.question
                # The original is asked the same: if it fails too, no answer of this question can be believed.
                if question.name not in believed and (again := self.library.told_from_itself(question)):
                    raise RuntimeError(f"a check fails on the unchanged kernels: {question.name} ({again})")
                believed.add(question.name)
                answer |= {"how": how, "by": question.name}
            self.shared.cores.release()
            return each.mutant, answer

        for mutant in self._in_turn(list(untold)):
            if self.shared.told[mutant]:
                continue
            reaching = [each for each in questions if mutant in each.reached]
            if mutant in self.listed:
                reaching = quickest(reaching, _LISTED_SECONDS / self.count)
            if not reaching:
                yield mutant, untold[mutant]
                continue
            # A worker that has no process left waits; one that has some ends one first, which frees a core.
            while not self.shared.cores.acquire(block=not asked):
                yield end_one()
            each = Asked(mutant, reaching)
            asked[each.fork(self.library)] = each
        while asked:
            yield end_one()

    def _traced(self, groups: Sequence[Iterable[Question]], end: int) -> list[Question]:
        """Takes groups of questions before `end` and traces them; returns the questions, the quickest first."""
        found, apart = list[Question | str](), list[Question]()
        for number in self.shared.groups(end):
            for question in groups[number]:
                if question.threads > 1:
                    apart.append(question)
                else:
                    found.append(self.library.traced(question))
        found += self.library.traced_apart(apart)
        questions = [each for each in found if isinstance(each, Question)]
        # Lines of several workers stay whole in one pipe only if they are short.
        problems = [each[:1000] for each in found if isinstance(each, str) and each]
        seconds = sum(each.seconds for each in questions)
        self.tell({"questions": len(questions), "seconds": seconds, "problems": problems[:1]})
        return sorted(questions, key=lambda question: question.seconds)

    def _in_turn(self, mutants: Sequence[int]) -> Iterator[int]:
        """Yields all mutants, a few at a time; each worker begins with another one, which others then may skip."""
        for begin in range(0, len(mutants), 2 * self.count):
            few = mutants[begin : begin + 2 * self.count]
            start = len(few) * self.number // self.count
            yield from (*few[start:], *few[:start])


class Shared:
    """Memory and locks that all workers share.

    Attributes:
        cores: as many processes compute at a time as there are workers.
        told: a byte for each mutant: whether it was told from the original.
    """

    def __init__(self, mutants: int, workers: int) -> None:
        context = multiprocessing.get_context("fork")
        self._taken = context.Value("i")
        self.cores = context.Semaphore(workers)
        self.told = mmap.mmap(-1, max(mutants, 1))

    def groups(self, end: int) -> Iterator[int]:
        """Yields the numbers of groups before `end` that no worker has taken yet, and takes them."""
        while True:
            with self._taken.get_lock():
                number = self._taken.value
                if number >= end:
                    return
                self._taken.value += 1
            yield number
