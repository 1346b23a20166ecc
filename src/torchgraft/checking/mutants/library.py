"""The library that holds the mutants, and processes that ask questions about one of them."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, NoReturn

import torch

from torchgraft import native
from torchgraft.checking.helpers.bounds import memory_bounded
from torchgraft.checking.mutants.questions import Question
from torchgraft.checking.result import NotApplicable

# A mutant may make a loop long or endless: it may take so many times as long as the original, and so many seconds more.
_TIMES_AS_LONG, _SECONDS_MORE = 20, 5
# The seconds that the original is assumed to take before it is measured.
_FIRST_SECONDS = 10.0
# The exit status of a process whose question told the mutant apart; no signal and no sanitizer has it.
_TOLD_APART = 77
# The number under which the library runs the original.
ORIGINAL = -1


class MutantLibrary:
    """The library that holds the mutants."""

    def __init__(self, namespace: str, mutants: int) -> None:
        named = native.libraries_of(namespace, "cpu")
        self.choose: Any = named[0].function("torchgraft_choose_mutant") if named else None
        if self.choose is None:
            why = named[0].problem if named else f"nothing is loaded by torchgraft.native.load({namespace!r}, ...)"
            raise LookupError(why or f"{named[0].path} was not built with mutants")
        self.choose.restype = None
        self._mutants = mutants

    @cached_property
    def _reached(self) -> mmap.mmap:
        """One byte for each mutant, set by the library when it executes the mutant; shared with forked processes."""
        return mmap.mmap(-1, max(self._mutants, 1))

    @cached_property
    def _buffer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(torch.frombuffer(self._reached, dtype=torch.uint8).data_ptr())

    def traced(self, question: Question) -> Question | str:
        """Asks the original, and notes the seconds that it takes and the mutants that it reaches.

        Returns:
            The question with both; or a text if the original does not pass it, which is empty if it does not apply.
        """
        # The reference may end the process too, and its time is not known yet.
        if question.isolated and self.told_from_itself(replace(question, seconds=_FIRST_SECONDS)):
            return ""
        self._reached[:] = bytes(len(self._reached))
        self.choose(ORIGINAL, self._buffer)
        started = time.perf_counter()
        try:
            question.ask_on_threads()
        except NotApplicable:
            return ""
        except Exception as error:
            return f"{question.name}: {error}"
        finally:
            self.choose(ORIGINAL, None)
        seconds = time.perf_counter() - started
        reached = frozenset(number for number, byte in enumerate(self._reached[:]) if byte)
        return replace(question, seconds=seconds, reached=reached)

    def traced_apart(self, questions: Sequence[Question]) -> Iterator[Question | str]:
        """Does the same in a forked process, for questions on several threads: a process with threads cannot fork."""
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            with open(write, "w") as answers:
                for question in questions:
                    found = self.traced(question)
                    known = found if isinstance(found, str) else (found.seconds, list(found.reached))
                    answers.write(json.dumps(known) + "\n")
            os._exit(0)
        os.close(write)
        with open(read) as lines:
            for question, line in zip_longest(questions, lines):
                known = json.loads(line) if line else f"{question.name}: the process died"
                if isinstance(known, str):
                    yield known
                else:
                    yield replace(question, seconds=known[0], reached=frozenset(known[1]))
        os.waitpid(child, 0)

    def told_from_itself(self, question: Question) -> str:
        """Says how the original fails on a question, asked in a process of its own; an empty text if it passes."""
        return how_it_ended(os.waitpid(Asked(ORIGINAL, [question]).fork(self), 0)[1])


def _run(mutant: int, questions: Sequence[Question], at: mmap.mmap, choose: Any) -> NoReturn:
    """Asks questions about a mutant in a forked process, silently, and ends the process."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    choose(mutant, None)
    # A mutant may ask for all memory of the machine.
    with memory_bounded(torch.device("cpu")):
        _ask_all(questions, at)
    os._exit(0)


def _ask_all(questions: Sequence[Question], at: mmap.mmap) -> None:
    for number, question in enumerate(questions):
        at[:] = number.to_bytes(4, "little")
        signal.setitimer(signal.ITIMER_REAL, _TIMES_AS_LONG * question.seconds + _SECONDS_MORE)
        try:
            question.ask_on_threads()
        except BaseException:
            os._exit(_TOLD_APART)


def how_it_ended(status: int) -> str:
    """Says how a process told a mutant apart, by its exit status; an empty text if no question did."""
    if os.WIFSIGNALED(status):
        return "does not end" if os.WTERMSIG(status) == signal.SIGALRM else "dies"
    return {0: "", _TOLD_APART: "wrong"}.get(os.WEXITSTATUS(status), "sanitizer")


@dataclass(frozen=True)
class Asked:
    """A mutant that a process of its own is asked about."""

    mutant: int
    questions: Sequence[Question]
    _at: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 4))

    def fork(self, library: MutantLibrary) -> int:
        """The process, which ends at the first question that tells the mutant from the original."""
        if (child := os.fork()) == 0:
            _run(self.mutant, self.questions, self._at, library.choose)
        return child

    @property
    def question(self) -> Question:
        """The last that was asked."""
        return self.questions[int.from_bytes(self._at[:], "little")]
