"""The report of a check, for a person and for a machine."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchgraft.checking.kernel_code import UnreachedLines
from torchgraft.checking.result import COMPILERS, DIED, Result
from torchgraft.machine.documents import with_format
from torchgraft.machine.environment import Environment

# If kernels have many files, so many are named.
_FEW = 3
# Properties that compare an operator with itself, and change one thing in between: what they say is the cause. The
# others compare with the reference, which tells that something is wrong and not why.
_COMPARE_WITH_ITSELF = (
    "state",
    "surroundings",
    "read_only",
    "mutation",
    "memory_bounds",
    "inputs_and_outputs",
    "randomness",
    "determinism",
    "memory",
)
# And those that name what they changed, where ordinary calls are right.
_NAME_A_CAUSE = (*_COMPARE_WITH_ITSELF, "numbers", "value_regimes", "gradient_regimes")
_OF_ORDINARY_CALLS = ("smoke", "value")


@dataclass(frozen=True)
class LeftOut:
    """Kernels that a check did not run where their users run them.

    Attributes:
        operators: whose kernels they are.
        device: the kind of device that they are for, 'cpu' or 'cuda'.
        kernels: what they are written in or for: 'CPU', 'CUDA', 'Triton', 'Python' or another language.
        sources: the names of their files, or of the functions in Python; empty where they are not known, or differ.
        state: 'not checked'; or what became of them instead, as 'compiled, not run'.
        reason: why they did not run.
        advice: what to do about it; may be empty.
    """

    operators: tuple[str, ...]
    device: str
    kernels: str
    sources: tuple[str, ...]
    state: str
    reason: str
    advice: str

    def __str__(self) -> str:
        more = f" and {len(self.sources) - _FEW} more" if len(self.sources) > _FEW else ""
        files = f" ({', '.join(self.sources[:_FEW])}{more})" if self.sources else ""
        advice = f"; {self.advice}" if self.advice else ""
        return f"{self.state}: the {self.kernels} kernels of {', '.join(self.operators)}{files}: {self.reason}{advice}"


@dataclass(frozen=True)
class CheckReport:
    """All results of a check, and the machine on which it ran.

    Attributes:
        results: a result a property, operator, device and dtype.
        environments: the machine and its software, by device.
        seed: of all inputs; the same seed gives the same inputs.
        quick: whether the slow properties were left out.
        unfinished: how many properties were not run to the end when the check was stopped.
        left_out: the kernels that did not run where their users run them.
        unreached: the lines of kernels in Python that no property has run; empty if only some properties were asked.
        not_asked: the properties that were left out because they are asked in other dtypes than the chosen ones.
        stopped_in: what ran when the check was stopped, as 'compile of NAME on cpu in float32'.
    """

    results: tuple[Result, ...]
    environments: dict[str, Environment]
    seed: int
    quick: bool
    unfinished: int = 0
    left_out: tuple[LeftOut, ...] = ()
    unreached: tuple[UnreachedLines, ...] = ()
    not_asked: tuple[str, ...] = ()
    stopped_in: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every property ran, and none failed."""
        return not self.failures and not self.unfinished

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results that failed."""
        return tuple(result for result in self.results if result.status == "fail")

    @property
    def verdict(self) -> str:
        """The verdict if nothing failed; it claims nothing about kernels that did not run, or what was not asked."""
        if not self.left_out:
            return "every property that was asked holds" if self.not_asked else "every property holds"
        places = dict.fromkeys(result.device for result in self.results if result.status == "pass")
        for compiler in COMPILERS:
            places.pop(compiler, None)
        if not places:
            return "the kernels compile"
        return f"every property that was asked holds on {' and '.join(places)}"

    @property
    def left_out_by_dtypes(self) -> str:
        """The properties that the chosen dtypes leave out, in words; empty if there are none."""
        names = ", ".join(self.not_asked)
        return f"left out by --dtype, as they are asked in other dtypes: {names}" if names else ""

    def count(self, status: str) -> int:
        """Counts the results with a status."""
        return sum(result.status == status for result in self.results)

    @property
    def called(self) -> dict[tuple[str, str], int]:
        """The number of random calls of each operator on each device."""
        counts: Counter[tuple[str, str]] = Counter()
        for result in self.results:
            counts[result.operator, result.device] += result.called
        return {place: count for place, count in counts.items() if count}

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON has it."""
        report = with_format("check", {"passed": self.passed, **asdict(self)})
        for result in report["results"]:
            # They are a part of what `unreached` says.
            del result["lines"]
        return report

    def __str__(self) -> str:
        lines = [describe(*alike) for alike in group_alike(self.failures)]
        if self.left_out:
            lines.append("\n".join(map(str, self.left_out)))
        lines += map(str, self.unreached)
        lines += filter(None, [self.left_out_by_dtypes])
        lines.append(
            f"{self.count('pass')} passed, {self.count('fail')} failed, {self.count('not applicable')} not applicable"
        )
        return "\n\n".join(lines)


def group_alike(failures: Iterable[Result]) -> list[list[Result]]:
    """Groups failures so that one description is enough for each group.

    Those with the same cause are a group. So are those of several properties that say the same of no input, as where a
    kernel is missing, or end in the same error at the same place. Any other is in a group with those of the same
    property in other dtypes. The first of a group describes it: one that names the cause, or else the first that was
    asked. So does the first group of an operator for the others.
    """
    failures = list(failures)
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in failures:
        keys = [(*_subject(result), what) for what in _causes_of(result)]
        group = next((groups[key] for key in keys if key in groups), [])
        group.append(result)
        for key in keys:
            groups.setdefault(key, group)
    found = [sorted(group, key=_rank) for group in {id(group): group for group in groups.values()}.values()]
    always_wrong = {_subject(result) for result in failures if result.property in _OF_ORDINARY_CALLS}
    order = list(dict.fromkeys(map(_subject, failures)))

    def place(group: list[Result]) -> tuple[int, bool, bool]:
        subject = _subject(group[0])
        return order.index(subject), *_rank(
            group[0], _COMPARE_WITH_ITSELF if subject in always_wrong else _NAME_A_CAUSE
        )

    return sorted(found, key=place)


def _subject(result: Result) -> tuple[str, str, str]:
    return result.operator, result.device, result.kernel


def _rank(result: Result, naming: Sequence[str] = _NAME_A_CAUSE) -> tuple[bool, bool]:
    """Orders failures: those that name their cause come first, and then those of properties that name causes."""
    failure = result.failure
    assert failure is not None
    # An error, and what is true of no sample, is no answer of the property.
    is_answer = bool(failure.sample) and not failure.traceback
    return not failure.kind, not (is_answer and result.property in naming)


def _causes_of(result: Result) -> list[str]:
    """Returns the texts of which two failures of one cause share at least one."""
    failure = result.failure
    assert failure is not None
    causes = [failure.cause] if failure.cause else []
    places = _PLACE.findall(failure.traceback)
    died = failure.message.startswith(DIED)
    if died and _HEAP.search(failure.traceback):
        # The call that wrote past its memory came before, and may be anywhere.
        causes.append(f"{DIED}: the allocator found its memory damaged")
    elif places or died:
        causes.append("\n".join((_NUMBER.sub("#", failure.message), *places[-1:])))
    about_inputs = failure.sample or failure.arguments or failure.traceback
    # The part at fault may differ between dtypes.
    alone = f"{result.property}: {failure.at_fault.partition(':')[0]}" if about_inputs else failure.message
    return causes or [alone]


# A line of a traceback, and what differs between two errors that are the same: numbers and addresses.
_PLACE = re.compile(r'^ *File ".*', re.MULTILINE)
_NUMBER = re.compile(r"(0x)?[0-9a-f]*\d[0-9a-f]*")
# Messages of glibc about a damaged heap, such as "free(): invalid pointer" and "corrupted size vs. prev_size".
_HEAP = re.compile(r"^(\w*(alloc|free)\w*\(\): |corrupted |double free)", re.MULTILINE)


# The beginning of the line of a description that has a file and a line.
PLACE_LINE = "  source    "


def describe(result: Result, *alike: Result) -> str:
    """Describes a failure for a person: the input, the expected and the found value, and how to repeat it.

    Args:
        result: the failure.
        alike: others that failed in the same way: in other dtypes, or for the same reason.
    """
    failure = result.failure
    assert failure is not None
    kernel = f", kernel {result.kernel}," if result.kernel else ""
    lines = [f"{result.operator}{kernel} on {result.device} in {result.dtype}: {result.property}"]
    lines.append(f"  {failure.message}")
    if failure.at_fault:
        lines.append(f"  at fault  {failure.at_fault}")
    if failure.place:
        lines.append(f"{PLACE_LINE}{failure.place}")
    if failure.sample:
        lines.append(f"  sample    {failure.sample}")
    if failure.arguments:
        lines.append(f"  arguments {failure.arguments}")
    if failure.expected or failure.found:
        lines += [f"  expected  {failure.expected}", f"  found     {failure.found}"]
    if failure.tolerance:
        lines.append(f"  allowed   {failure.tolerance}")
    if failure.traceback:
        lines += [f"  | {line}" for line in failure.traceback.splitlines()[-6:]]
    lines.append(f"  again     {failure.reproduce}")
    properties = dict.fromkeys(other.property for other in alike if other.property != result.property)
    dtypes = dict.fromkeys(other.dtype for other in alike if other.property == result.property)
    if properties:
        lines.append(f"  also fail, most likely for the same reason: {', '.join(properties)}")
    if dtypes:
        lines.append(f"  also in   {', '.join(dtypes)}")
    return "\n".join(lines)
