"""Runs mutants of a folder's kernels on the samples, and tells which of them no sample detects."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchgraft.checking.mutants.changes import Mutant
from torchgraft.checking.mutants.folders import Folder, MutantError, Outcome
from torchgraft.checking.subject import target_of
from torchgraft.finding import places


def run_mutants(
    folder: Folder,
    mutants: Sequence[Mutant],
    *,
    seed: int,
    workers: int,
    on_step: Callable[[str], None] = lambda doing: None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Builds mutants of one folder and runs the samples on them; skips those whose outcome is known.

    Args:
        folder: of the kernels.
        mutants: of that folder.
        seed: of the random inputs.
        workers: how many processes compute at a time.
        on_step: told what is being done.
        on_outcome: told of each outcome as it comes.

    Raises:
        BuildError: they could not be built, whichever are left out.
        MutantError: the original fails on all that it is asked, or a mutant that is told apart is listed as equivalent.
    """
    folder.work.mkdir(parents=True, exist_ok=True)
    known, outcomes = folder.known(), list[Outcome]()

    def finish(outcome: Outcome) -> None:
        outcomes.append(outcome)
        on_outcome(outcome)

    def finish_new(outcome: Outcome) -> None:
        folder.keep(outcome)
        finish(folder.judged(outcome))

    for mutant in mutants:
        if mutant in known:
            finish(known[mutant])
    # Mutants that are not listed as equivalent go first.
    unknown = [mutant for mutant in mutants if mutant not in known]
    new = dict(enumerate(sorted(unknown, key=lambda mutant: mutant.words in folder.equivalent)))
    left: dict[int, Outcome | None] = dict.fromkeys(new)
    for directory, built in folder.builds.items():
        if not left:
            break
        is_last = directory == list(folder.builds)[-1]
        directory.mkdir(parents=True, exist_ok=True)
        on_step(f"building {len(left)} mutants of {folder.path.name}")
        library, refused = folder.build({number: new[number] for number in left}, directory)
        for number in refused:
            # A mutant that survived an earlier build compiles there: only this build's vectors make it an error.
            before = left.pop(number)
            if before is None or before.status != "survived":
                before = Outcome(new[number], "does not compile")
            finish_new(before)
        asked = {number: new[number] for number in left}
        for answer in _ask(folder, library, built.environment(), asked, len(new), seed, workers):
            if "mutant" in answer:
                number = answer.pop("mutant")
                before, outcome = left[number], Outcome(new[number], **answer)
                if before and before.status == "survived" and outcome.status == "not reached":
                    outcome = before
                left[number] = outcome
                # A later build may still tell a survivor apart.
                if is_last or outcome.status == "killed":
                    finish_new(outcome)
                    del left[number]
            elif "doing" in answer:
                on_step(f"{folder.path.name}: {answer['doing']}")
            elif answer["problems"]:
                raise MutantError(
                    f"{folder.path.name}: the unchanged kernels fail; fix that first: {answer['problems'][0]}"
                )
            else:
                on_step(f"{folder.path.name}: {answer['questions']} questions, {answer['seconds']:.0f} s")
    folder.expect_equivalent()
    return outcomes


def _ask(
    folder: Folder,
    library: Path,
    environment: Mapping[str, str],
    mutants: Mapping[int, Mutant],
    count: int,
    seed: int,
    workers: int,
) -> Iterable[dict[str, Any]]:
    """Starts the process `ask` with a library, and yields its answers."""
    read, write = os.pipe()
    request = {
        "answers": write,
        "places": {name: str(place) for name, place in places.places().items()},
        "targets": [target_of(operator) for operator in folder.operators],
        "namespace": folder.operators[0].namespace,
        "threads": any(b"get_num_threads" in source for source in folder.sources.values()),
        "mutants": list(mutants),
        "listed": [number for number, each in mutants.items() if each.words in folder.equivalent],
        "count": count,
        "seed": seed,
        "workers": max(workers, 1),
    }
    variables = {**os.environ, **environment, "CUDA_VISIBLE_DEVICES": "", "TORCHGRAFT_LIBRARIES": str(library)}
    command = [sys.executable, "-m", "torchgraft.checking.mutants.ask"]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=said,
            stderr=said,
            text=True,
            env=variables,
            pass_fds=[write],
            start_new_session=True,
        )
        os.close(write)
        assert process.stdin is not None
        with process, os.fdopen(read) as answers:
            try:
                process.stdin.write(json.dumps(request))
                process.stdin.close()
                yield from map(json.loads, answers)
            except BaseException:
                # The whole group ends, with the mutants that the process has forked.
                os.killpg(process.pid, signal.SIGKILL)
                raise
        if process.returncode:
            said.seek(0)
            raise MutantError(
                f"{folder.path.name}: the process that checks the samples ended early:\n{said.read()[-2000:]}"
            )
