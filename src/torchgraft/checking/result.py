"""Results of properties."""

from dataclasses import dataclass, field
from typing import Literal


class NotApplicable(Exception):  # noqa: N818  an answer, not an error
    """The property has no meaning for this operator, or cannot be checked on this machine; says why."""


# The places beside the devices of the machine: the emulator, which runs CUDA kernels on the CPU, and the compilers of
# the CUDA toolkit, of Triton and of other languages, which run nothing.
EMULATED = "emulated cuda"
NVCC = "nvcc"
TRITON = "triton"
OWN_COMPILER = "compiler"
COMPILERS = (NVCC, TRITON, OWN_COMPILER)
# The dtype in results of a compiler.
ALL_DTYPES = "all dtypes"
# The causes that a failure can name, as `kind` has them.
UNDECLARED_SIZE = "undeclared size"
CHANGED_GLOBAL = "changed global"
UNWRITTEN_MEMORY = "unwritten memory"
OUT_OF_BOUNDS = "read out of bounds"
DATA_RACE = "data race"
STALE_CACHE = "stale cache"
INCOMING_CHANGED = "changed incoming gradient"
KINDS = (
    UNDECLARED_SIZE,
    CHANGED_GLOBAL,
    UNWRITTEN_MEMORY,
    OUT_OF_BOUNDS,
    DATA_RACE,
    STALE_CACHE,
    INCOMING_CHANGED,
)
# The beginning of the failure of a job whose process died.
DIED = "the process died"


@dataclass(frozen=True)
class Failure:
    """The way in which a property does not hold.

    Attributes:
        message: what is wrong.
        sample: the name of the smallest sample that shows it, or an empty string.
        arguments: what the operator was called with, in short.
        expected: what should have come, where it is about one value.
        found: what came.
        index: where the first wrong element is.
        reproduce: the command that shows it again.
        traceback: where it was raised, for an error that no check raised.
        seed: of the one call that shows it, where each has a seed of its own.
        at_fault: the part of the operator that is wrong, and how that is known; empty where it is not.
        cause: failures of an operator on a device that have the same one are told together; empty where this one has
            nothing in common with others that is known.
        tolerance: how the difference that is allowed came about, where results are compared with one.
        kind: the name of the cause where it is known, one of KINDS; `message` then begins with it in words.
        file: the source of the part that is at fault, or else of the kernel; empty where it is not known.
        line: in that file, counted from 1; 0 where it is not known.
    """

    message: str
    sample: str = ""
    arguments: str = ""
    expected: str = ""
    found: str = ""
    index: tuple[int, ...] | None = None
    reproduce: str = ""
    traceback: str = ""
    seed: int | None = None
    at_fault: str = ""
    cause: str = ""
    tolerance: str = ""
    kind: str = ""
    file: str = ""
    line: int = 0

    @property
    def place(self) -> str:
        """The file and the line, as editors and terminals open them; empty where they are not known."""
        return f"{self.file}:{self.line}" if self.file else ""


@dataclass(frozen=True)
class Result:
    """The result of a property for an operator on a device in a dtype.

    Attributes:
        status: 'pass', 'fail' or 'not applicable'.
        reason: why it is not applicable; or what one that passes does not vouch for.
        facts: what was measured on the way, by name.
        called: how many random calls were made.
        kernel: the kernel that served every call that it supports; empty where the library chose.
        lines: the lines of the author's kernels in Python that no earlier property of the same process had run: the
            file and the number of each. None where they could not be watched.
    """

    property: str
    operator: str
    device: str
    dtype: str
    status: Literal["pass", "fail", "not applicable"]
    seconds: float
    reason: str = ""
    failure: Failure | None = None
    facts: dict[str, float] = field(default_factory=dict)
    called: int = 0
    kernel: str = ""
    lines: tuple[tuple[str, int], ...] | None = ()
