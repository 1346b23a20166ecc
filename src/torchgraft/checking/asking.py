"""Asks samples about the mutants of a library: `python -m torchgraft.checking.asking`, a process of its own.

The library is loaded once. Then some workers, forked from this process, share the questions among them: each computes
what the references give to its own, and asks these about every mutant, in a process forked from it, the quickest first
of those that reach the mutant, until a question of any worker tells it from the original.
"""

from __future__ import annotations

import ctypes
import gc
import json
import mmap
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import accumulate, combinations, zip_longest
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft import choosing, native, python_kernels
from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.kernels import claims_kernel, listed_kernels
from torchgraft.checking.properties import PROPERTIES, autocast, bad_input, second_gradient
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.subject import Subject, find_subjects
from torchgraft.checking.tensors.compare import expect
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.fallback import PerformanceWarning
from torchgraft.finding import places
from torchgraft.operator import FLOATING, Operator
from torchgraft.precision import cudnn_switches, true_precision

# Asked as they are; the others draw calls, compile, or look at what no kernel decides.
_WHOLE = {
    **{name: PROPERTIES[name].check for name in ("layouts", "incoming_gradients", "non_finite", "bad_input")},
    "second_gradient": second_gradient.check_against_reference,
    "autocast": autocast.check_eager,
}
_DRAWN = 40
# A mutant may make a loop long or endless.
_TIMES_AS_LONG, _SECONDS_MORE = 20, 5
_FIRST_SECONDS = 10.0
# An exit status that no signal and no sanitizer has.
_TOLD_APART = 77
# The number of no mutant.
_ORIGINAL = -1
# What one of several workers found goes before what others did.
_STATES = ("killed", "survived", "not reached")
# One of so many questions tells most mutants, before time is spent on what the references give to the others.
_FIRST_OF = 8
# What the original takes for the questions that a mutant is asked of which somebody has said why it computes the same.
_LISTED_SECONDS = 5.0
# Of PyTorch, where a kernel asks for their number.
_THREADS = 4
# A kernel that can be measured: the operator, the problem, and the kernel's name.
_Candidate = tuple[str, tuple[int, ...], str]


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

    def expected_gradients(self, output_grads: Any, arguments: Sequence[Any] | None = None) -> tuple[Tensor, ...]:
        if arguments is not None:
            return super().expected_gradients(output_grads, arguments)
        if not self._gradients:
            self._gradients.append(super().expected_gradients(output_grads))
        return self._gradients[0]

    def original(self, find: Callable[[_KnownCall], Any]) -> Any:
        """What `find` gives of the call the first time that this is asked: the original's."""
        if find not in self._originals:
            self._originals[find] = find(self)
        return self._originals[find]

    @cached_property
    def _originals(self) -> dict[Callable[[_KnownCall], Any], Any]:
        return {}

    @cached_property
    def _gradients(self) -> list[tuple[Tensor, ...]]:
        return []


def _strides_of(call: _KnownCall) -> list[tuple[int, ...]]:
    return [result.stride() for result in tree_leaves(call.operator(*call.arguments))]


def _check_strides(call: _KnownCall) -> None:
    expect(call.original(_strides_of) == _strides_of(call), "the results have other strides")


def _nodes_of(call: _KnownCall) -> list[str]:
    return [type(result.grad_fn).__name__ for result in tree_leaves(call.operator(*call.leaves()))]


def _check_nodes(call: _KnownCall) -> None:
    # Where the quicker of two ways is refused, the other is taken, and only the time differs.
    expect(call.original(_nodes_of) == _nodes_of(call), "gradients are recorded in another way")


def _by_candidates(call: _KnownCall) -> dict[_Candidate, list[Tensor]]:
    """What a call gives by each kernel that can be measured, PyTorch's own operator among them."""
    found = {}
    with cudnn_switches(benchmark=True), choosing.measuring(True):
        try:
            choosing.forget_choices()
            call.operator(*call.arguments)
            candidates = [replace(each, kernel=name) for each in choosing.choices() for name in each.microseconds]
            for each in candidates:
                choosing.forget_choices()
                choosing.adopt([each])
                results = call.operator(*call.arguments)
                found[each.operator, each.problem, each.kernel] = tree_leaves(results)
        finally:
            choosing.forget_choices()
    return found


def _check_candidates(call: _KnownCall) -> None:
    original = call.original(_by_candidates)
    if not original:
        raise NotApplicable("nothing is measured")
    found = _by_candidates(call)
    expect(found.keys() == original.keys(), "other kernels can be measured")
    for each, results in original.items():
        *_, kernel = each
        strides = [[result.stride() for result in those] for those in (results, found[each])]
        expect(strides[0] == strides[1], f"by {kernel!r}, the results have other strides")
        call.expect_close(found[each], in_float64(results), what=f"by {kernel!r}, the result")


# Where the limits of sizes lie, if there are any: where no memory holds a tensor of that size.
_LIMITS = tuple(2**power for power in range(36, 63))


@dataclass
class _Errors:
    """What a kernel says of calls with a mistake each: its texts are the original's, and so is what it takes."""

    case: Case

    @cached_property
    def _calls(self) -> list[tuple[Call, str, tuple[Any, ...]]]:
        found = []
        for sample in bad_input.smallest_samples(self.case):
            call = self.case.call(sample)
            wrong = [(each.what, each.arguments) for each in (*bad_input.mistakes(call), *bad_input.freed(call))]
            numbers = [place for place, value in enumerate(call.arguments) if type(value) is int]
            # Two at once: the product of two sizes may be too large where neither is.
            for chosen in (*combinations(numbers, 1), *combinations(numbers, 2)):
                names = " and ".join(call.operator.arguments[place].name for place in chosen)
                for limit in _LIMITS:
                    large = tuple(limit if place in chosen else value for place, value in enumerate(call.arguments))
                    wrong.append((f"{names} of {limit}", large))
            found += [(call, *each) for each in wrong]
        return found

    def _said(self) -> list[str]:
        with bad_input.memory_bounded(self.case.device):
            return [_said_of(call.operator, arguments) for call, _, arguments in self._calls]

    @cached_property
    def _expected(self) -> list[str | None]:
        """The first time that this is asked: the original's; None where it does not say the same twice."""
        return [one if one == other else None for one, other in zip(self._said(), self._said(), strict=True)]

    def check(self) -> None:
        for (_, what, _), expected, said in zip(self._calls, self._expected, self._said(), strict=True):
            expect(expected in (None, said), f"the error for {what} differs", expected=expected, found=said)


def _said_of(operator: Operator, arguments: tuple[Any, ...]) -> str:
    """The text of the error that a kernel raises; an empty one where it takes the arguments."""
    try:
        operator.raw(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@dataclass(frozen=True)
class _Question:
    """What may tell a mutant from the original: `ask` raises where it does.

    Attributes:
        isolated: whether it may end the process that asks it.
        threads: of PyTorch; with several, only a process that is forked to end may ask it.
        seconds: that the original takes.
        reached: the mutants that it runs through.
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


def _questions(subject: Subject, seed: int, *, threads: bool) -> Iterator[Iterable[_Question]]:
    """Groups of questions: those of a group, in their order, make use of what the first has computed."""
    operator, samples = subject.operator, subject.samples
    kernels = ("", *listed_kernels(operator, "cpu"))
    dtypes = operator.dtypes or FLOATING
    device = torch.device("cpu")
    # More than the value in one dtype a sample, in turn, and with kernels forced: gradients take most of the time.
    every: list[Callable[[_KnownCall], None]] = [check_value, _check_strides, check_gradient]
    every += [_check_nodes, _check_candidates]
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
        forced = kernels if checks is every else kernels[:1]
        yield _questions_of_call(subject, call, checks, forced, threads=threads and checks is every)
    dtype = torch.float32 if torch.float32 in dtypes else dtypes[0]
    quick = Case(subject, device, dtype, seed, quick=True)
    for whole, check in _WHOLE.items():
        case = quick
        if whole == "layouts":
            # Strides of every small sample, as each may be the one whose layout another one's is not.
            case = replace(quick, quick=False)
        elif whole == "second_gradient" and torch.float64 in dtypes:
            # It alone tells what is wrong in a derivative of a derivative from what is rounded.
            case = replace(quick, dtype=torch.float64)
        for kernel in kernels:
            ask = _forced(subject, kernel, partial(check, case))
            yield [_Question(_with(f"{whole} of {subject.name}", kernel), ask, PROPERTIES[whole].isolated)]
    if claims_kernel(operator, device, dtype) and not operator.mutates:
        yield [_Question(f"errors of {subject.name}", _Errors(quick).check, isolated=True)]


def _questions_of_call(
    subject: Subject,
    call: _KnownCall,
    checks: Sequence[Callable[[_KnownCall], None]],
    kernels: Sequence[str],
    *,
    threads: bool,
) -> Iterator[_Question]:
    for check in checks:
        # Where one is forced, nothing is measured.
        for kernel in kernels[:1] if check is _check_candidates else kernels:
            name = f"{check.__name__.rpartition('check_')[2]} of {subject.name} on {call.sample.name!r} in {call.dtype}"
            question = _Question(_with(name, kernel), _forced(subject, kernel, partial(check, call)))
            yield question
            # After the one above: what it expects is known then.
            if threads and check in (check_value, check_gradient):
                yield replace(question, name=f"{question.name}, {_THREADS} threads", threads=_THREADS)


def _with(name: str, kernel: str) -> str:
    return f"{name}, kernel {kernel}" if kernel else name


def _forced(subject: Subject, kernel: str, ask: Callable[[], None]) -> Callable[[], None]:
    """A question with a kernel forced; NotApplicable where that serves no call."""
    if not kernel:
        return ask

    def ask_forced() -> None:
        with python_kernels.forced(subject.operator, "cpu", kernel) as forced:
            ask()
        if not forced.served:
            raise NotApplicable(f"no sample runs on the kernel {kernel}")

    return ask_forced


class _Library:
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
        """A byte a mutant, which a library sets where it runs through one: of this worker and of what it forks."""
        return mmap.mmap(-1, max(self._mutants, 1))

    @cached_property
    def _buffer(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(torch.frombuffer(self._reached, dtype=torch.uint8).data_ptr())

    def traced(self, question: _Question) -> _Question | str:
        """A question with what it costs and reaches; why not, where the original does not pass it."""
        # A reference may be what ends the process; how long it takes is not known yet.
        if question.isolated and self.told_from_itself(replace(question, seconds=_FIRST_SECONDS)):
            return ""
        self._reached[:] = bytes(len(self._reached))
        self.choose(_ORIGINAL, self._buffer)
        started = time.perf_counter()
        try:
            question.ask_on_threads()
        except NotApplicable:
            return ""
        except Exception as error:
            return f"{question.name}: {error}"
        finally:
            self.choose(_ORIGINAL, None)
        seconds = time.perf_counter() - started
        reached = frozenset(number for number, byte in enumerate(self._reached[:]) if byte)
        return replace(question, seconds=seconds, reached=reached)

    def traced_apart(self, questions: Sequence[_Question]) -> Iterator[_Question | str]:
        """Likewise, by a process that is forked to end: one that has run threads cannot be forked any more."""
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

    def told_from_itself(self, question: _Question) -> str:
        """How the original fails on a question, in a process of its own; an empty text where it does not."""
        return _how(os.waitpid(_Asked(_ORIGINAL, [question]).fork(self), 0)[1])


def _run(mutant: int, questions: Sequence[_Question], at: mmap.mmap, choose: Any) -> NoReturn:
    """What a forked process does."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    choose(mutant, None)
    # A mutant may want all memory that there is.
    with bad_input.memory_bounded(torch.device("cpu")):
        _ask_all(questions, at)
    os._exit(0)


def _ask_all(questions: Sequence[_Question], at: mmap.mmap) -> None:
    for number, question in enumerate(questions):
        at[:] = number.to_bytes(4, "little")
        signal.setitimer(signal.ITIMER_REAL, _TIMES_AS_LONG * question.seconds + _SECONDS_MORE)
        try:
            question.ask_on_threads()
        except BaseException:
            os._exit(_TOLD_APART)


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return "does not end" if os.WTERMSIG(status) == signal.SIGALRM else "dies"
    return {0: "", _TOLD_APART: "wrong"}.get(os.WEXITSTATUS(status), "sanitizer")


@dataclass(frozen=True)
class _Asked:
    """A mutant that a process of its own is asked about."""

    mutant: int
    questions: Sequence[_Question]
    _at: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 4))

    def fork(self, library: _Library) -> int:
        """The process, which ends at the first question that tells the mutant from the original."""
        if (child := os.fork()) == 0:
            _run(self.mutant, self.questions, self._at, library.choose)
        return child

    @property
    def question(self) -> _Question:
        """The last that was asked."""
        return self.questions[int.from_bytes(self._at[:], "little")]


def _quickest(questions: Sequence[_Question], seconds: float) -> list[_Question]:
    """The first of some questions, of which the original takes so many seconds; at least one of any."""
    sums = accumulate(question.seconds for question in questions)
    return [question for question, total in zip(questions, sums, strict=True) if total - question.seconds <= seconds]


@dataclass(frozen=True)
class _Worker:
    """One of the processes that share the questions among them.

    Attributes:
        number: of so many, `count`.
        tell: what it says to the process that forked it.
        listed: mutants of which somebody has said why they compute the same.
    """

    number: int
    count: int
    library: _Library
    shared: _Shared
    tell: Callable[[dict[str, Any]], None]
    listed: frozenset[int] = frozenset()

    def work(self, groups: Sequence[Iterable[_Question]], mutants: Sequence[int]) -> None:
        """Traces the questions that it takes, and asks them about all mutants: first a few, which tell most."""
        untold: dict[int, dict[str, Any]] = {
            mutant: {"mutant": mutant, "status": "not reached", "seconds": 0.0} for mutant in mutants
        }
        unlisted = {mutant: answer for mutant, answer in untold.items() if mutant not in self.listed}
        for end, asked in ((len(groups) // _FIRST_OF, unlisted), (len(groups), untold)):
            with self.shared.cores:
                questions = self._traced(groups, end)
            # What is never freed is never written to, and stays shared with the processes that are forked.
            gc.freeze()
            for mutant, answer in self._answers(questions, asked):
                if answer["status"] == "killed":
                    self.shared.told[mutant] = True
                if answer["status"] == "killed" or end == len(groups):
                    self.tell(answer)

    def _answers(
        self, questions: Sequence[_Question], untold: dict[int, dict[str, Any]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Mutants with what is known of each after some questions more; none that any worker told apart."""
        believed, asked = set[str](), dict[int, _Asked]()

        def end_one() -> tuple[int, dict[str, Any]]:
            """What came of one of the processes, which has ended then."""
            process, status, usage = os.wait4(-1, 0)
            each = asked.pop(process)
            answer, how = untold[each.mutant], _how(status)
            answer["seconds"] = round(answer["seconds"] + usage.ru_utime + usage.ru_stime, 3)
            answer["status"] = "killed" if how else "survived"
            if how:
                question = each.question
                # Told from itself, the original would show that nothing here can be believed.
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
                reaching = _quickest(reaching, _LISTED_SECONDS / self.count)
            if not reaching:
                yield mutant, untold[mutant]
                continue
            # A worker that has nothing left to ask leaves its core to the others.
            while not self.shared.cores.acquire(block=not asked):
                yield end_one()
            each = _Asked(mutant, reaching)
            asked[each.fork(self.library)] = each
        while asked:
            yield end_one()

    def _traced(self, groups: Sequence[Iterable[_Question]], end: int) -> list[_Question]:
        """The questions of groups before `end` that this worker takes, the quickest first."""
        found, apart = list[_Question | str](), list[_Question]()
        for number in self.shared.groups(end):
            for question in groups[number]:
                if question.threads > 1:
                    apart.append(question)
                else:
                    found.append(self.library.traced(question))
        found += self.library.traced_apart(apart)
        questions = [each for each in found if isinstance(each, _Question)]
        # A line of a pipe is whole up to so many bytes.
        problems = [each[:1000] for each in found if isinstance(each, str) and each]
        seconds = sum(each.seconds for each in questions)
        self.tell({"questions": len(questions), "seconds": seconds, "problems": problems[:1]})
        return sorted(questions, key=lambda question: question.seconds)

    def _in_turn(self, mutants: Sequence[int]) -> Iterator[int]:
        """All mutants, a few at a time, of which each worker begins with another one: what it tells, others skip."""
        for begin in range(0, len(mutants), 2 * self.count):
            few = mutants[begin : begin + 2 * self.count]
            start = len(few) * self.number // self.count
            yield from (*few[start:], *few[:start])


class _Shared:
    """What workers share."""

    def __init__(self, mutants: int, workers: int) -> None:
        context = multiprocessing.get_context("fork")
        self._taken = context.Value("i")
        # As many processes compute at a time as there are workers.
        self.cores = context.Semaphore(workers)
        # A byte a mutant: whether it was told from the original.
        self.told = mmap.mmap(-1, max(mutants, 1))

    def groups(self, end: int) -> Iterator[int]:
        """The numbers of groups before `end` that nobody has taken yet, one after another."""
        while True:
            with self._taken.get_lock():
                number = self._taken.value
                if number >= end:
                    return
                self._taken.value += 1
            yield number


def _answer(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    subjects = find_subjects(request["targets"])
    library = _Library(request["namespace"], request["count"])
    groups = [
        group for subject in subjects for group in _questions(subject, request["seed"], threads=request["threads"])
    ]
    Random(request["seed"]).shuffle(groups)
    tell({"doing": "computing what the references give"})
    count = min(request["workers"], len(groups))
    shared = _Shared(request["count"], count)
    read, write = os.pipe()
    children = []
    for number in range(count):
        if (child := os.fork()) == 0:
            try:
                listed = frozenset(request["listed"])
                worker = _Worker(number, count, library, shared, partial(_write, write), listed)
                worker.work(groups, request["mutants"])
            except BaseException as error:
                print(error, file=sys.stderr, flush=True)
                # Without this worker's questions no answer is whole.
                os.killpg(0, signal.SIGKILL)
            os._exit(0)
        children.append(child)
    os.close(write)
    with open(read) as lines:
        _merge(map(json.loads, lines), count, tell)
    # A sanitizer ends a worker without an exception; without its questions no answer is whole.
    if any(os.waitpid(child, 0)[1] for child in children):
        raise RuntimeError("a worker ended early: the unchanged kernels crash in a check")


def _write(descriptor: int, answer: dict[str, Any]) -> None:
    os.write(descriptor, f"{json.dumps(answer)}\n".encode())


def _merge(answers: Iterable[dict[str, Any]], workers: int, tell: Callable[[dict[str, Any]], None]) -> None:
    """Tells what the workers found together: what one tells apart is told apart, and all must have asked for less."""
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
            best = min(before, key=lambda each: _STATES.index(each["status"]))
            tell(best | {"seconds": round(sum(each["seconds"] for each in before), 3)})


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
