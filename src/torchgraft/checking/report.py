"""What a check found, for a person and for a machine."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from torchgraft.checking.result import Result
from torchgraft.environment import Environment


@dataclass(frozen=True)
class CheckReport:
    """All results of a check, and where it ran.

    Attributes:
        results: a result a property, operator, device and dtype.
        environments: the machine and its software, by device.
        seed: of all inputs; the same seed gives the same inputs.
        quick: whether the slow properties were left out.
        unfinished: how many properties were still to be run when the check was stopped.
    """

    results: tuple[Result, ...]
    environments: dict[str, Environment]
    seed: int
    quick: bool
    unfinished: int = 0

    @property
    def passed(self) -> bool:
        """Whether all was run, and nothing failed."""
        return not self.failures and not self.unfinished

    @property
    def failures(self) -> tuple[Result, ...]:
        """The results that failed."""
        return tuple(result for result in self.results if result.status == "fail")

    def count(self, status: str) -> int:
        """How many results have a status."""
        return sum(result.status == status for result in self.results)

    @property
    def called(self) -> dict[tuple[str, str], int]:
        """How many calls were drawn and made of each operator on each device, by properties that ask of any call."""
        counts: Counter[tuple[str, str]] = Counter()
        for result in self.results:
            counts[result.operator, result.device] += result.called
        return {place: count for place, count in counts.items() if count}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"passed": self.passed, **asdict(self)}

    def __str__(self) -> str:
        lines = [describe(*alike) for alike in group_alike(self.failures)]
        lines.append(
            f"{self.count('pass')} passed, {self.count('fail')} failed, {self.count('not applicable')} not applicable"
        )
        return "\n\n".join(lines)


def group_alike(failures: Iterable[Result]) -> list[list[Result]]:
    """Failures in groups, of each of which one description is enough.

    Those of a property in several dtypes are a group; so are those of several properties for the same reason that has
    nothing to do with inputs, as where a kernel is missing.
    """
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in failures:
        assert result.failure is not None
        about_inputs = result.failure.sample or result.failure.arguments or result.failure.traceback
        what = result.property if about_inputs else result.failure.message
        groups.setdefault((result.operator, result.device, result.kernel, what), []).append(result)
    return list(groups.values())


def describe(result: Result, *alike: Result) -> str:
    """A failure as a person reads it: what, on which input, what was expected, what came, how to see it again.

    Args:
        result: the failure.
        alike: others that failed in the same way: in other dtypes, or for the same reason.
    """
    failure = result.failure
    assert failure is not None
    kernel = f", kernel {result.kernel}," if result.kernel else ""
    lines = [f"{result.operator}{kernel} on {result.device} in {result.dtype}: {result.property}"]
    lines.append(f"  {failure.message}")
    if failure.sample:
        lines.append(f"  sample    {failure.sample}")
    if failure.arguments:
        lines.append(f"  arguments {failure.arguments}")
    if failure.expected or failure.found:
        lines += [f"  expected  {failure.expected}", f"  found     {failure.found}"]
    if failure.traceback:
        lines += [f"  | {line}" for line in failure.traceback.splitlines()[-6:]]
    lines.append(f"  again     {failure.reproduce}")
    properties = dict.fromkeys(other.property for other in alike if other.property != result.property)
    dtypes = dict.fromkeys(other.dtype for other in alike if other.property == result.property)
    if properties:
        lines.append(f"  also      {', '.join(properties)}")
    if dtypes:
        lines.append(f"  also in   {', '.join(dtypes)}")
    return "\n".join(lines)
