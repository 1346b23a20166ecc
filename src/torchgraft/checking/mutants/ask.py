"""Runs samples on the mutants of a library: `python -m torchgraft.checking.mutants.ask`, a process of its own.

The library is loaded once. Then workers, forked from this process, share the questions. Each worker computes the
results of the reference for its questions. It asks about a mutant in a process forked from it: the quickest question
first, and only those that reach the mutant, until a question of any worker tells it from the original.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch

from torchgraft.checking.mutants.library import MutantLibrary
from torchgraft.checking.mutants.questions import make_questions
from torchgraft.checking.mutants.workers import STATES, Shared, Worker
from torchgraft.checking.subject import find_subjects
from torchgraft.finding import places
from torchgraft.kernels.fallback import PerformanceWarning
from torchgraft.kernels.precision import true_precision


def _answer(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Forks the workers, and tells what they find."""
    subjects = find_subjects(request["targets"])
    library = MutantLibrary(request["namespace"], request["count"])
    groups = [
        group for subject in subjects for group in make_questions(subject, request["seed"], threads=request["threads"])
    ]
    Random(request["seed"]).shuffle(groups)
    tell({"doing": "computing what the references give"})
    count = min(request["workers"], len(groups))
    shared = Shared(request["count"], count)
    read, write = os.pipe()
    children = []
    for number in range(count):
        if (child := os.fork()) == 0:
            try:
                listed = frozenset(request["listed"])
                worker = Worker(number, count, library, shared, partial(_write, write), listed)
                worker.work(groups, request["mutants"])
            except BaseException as error:
                print(error, file=sys.stderr, flush=True)
                # No answer is complete without this worker's questions, so all processes end.
                os.killpg(0, signal.SIGKILL)
            os._exit(0)
        children.append(child)
    os.close(write)
    with open(read) as lines:
        _merge(map(json.loads, lines), count, tell)
    # A sanitizer ends a worker without an exception; no answer is complete without its questions either.
    if any(os.waitpid(child, 0)[1] for child in children):
        raise RuntimeError("a worker ended early: the unchanged kernels crash in a check")


def _write(descriptor: int, answer: dict[str, Any]) -> None:
    os.write(descriptor, f"{json.dumps(answer)}\n".encode())


def _merge(answers: Iterable[dict[str, Any]], workers: int, tell: Callable[[dict[str, Any]], None]) -> None:
    """Tells what the workers found together: one is enough to kill a mutant; for less, all must have answered."""
    known: dict[int, list[dict[str, Any]]] = {}
    questions, seconds = 0, 0.0
    for answer in answers:
        if "mutant" not in answer:
            questions, seconds = questions + answer["questions"], seconds + answer["seconds"]
            tell(answer | {"questions": questions, "seconds": seconds})
            continue
        before = known.setdefault(answer["mutant"], [])
        if any(each["status"] == "killed" for each in before):
            continue
        before.append(answer)
        if answer["status"] == "killed" or len(before) == workers:
            best = min(before, key=lambda each: STATES.index(each["status"]))
            tell(best | {"seconds": round(sum(each["seconds"] for each in before), 3)})


def main() -> None:
    """Reads a request as JSON from standard input, and writes a line for each answer to the descriptor in it."""
    request = json.load(sys.stdin)
    places.remember({name: Path(place) for name, place in request["places"].items()})
    # A process that has run several of PyTorch's threads cannot be forked.
    torch.set_num_threads(1)
    with open(request["answers"], "w") as answers, warnings.catch_warnings(), true_precision():
        warnings.simplefilter("ignore", PerformanceWarning)

        def tell(answer: dict[str, Any]) -> None:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

        _answer(request, tell)


if __name__ == "__main__":
    main()
