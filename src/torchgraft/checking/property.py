"""What a property is, and what one says about an operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from torchgraft.operator import FLOATING, Operator

if TYPE_CHECKING:
    from torchgraft.checking.case import Case


# What compiles, and what traces where it is asked for meta tensors: seconds to import.
COMPILER = ("torch._dynamo",)


@dataclass(frozen=True)
class Property:
    """Something that is true of every good operator.

    Attributes:
        check: returns where it holds; raises `Mismatch` where it does not, `NotApplicable` where it has no meaning. Its
            module's docstring says what it proves and what it cannot.
        dtypes: each in which it is checked; None: in each dtype of the operator.
        devices: the kinds of device on which it has a meaning.
        slow: whether it is left out of a quick run.
        isolated: whether it may end the process: it is then run in one of its own.
        sanitized: whether it is run again under the sanitizers: it calls kernels, and compiles nothing.
        of_kernels: whether it asks what kernels do. Where the operator claims one that is not there, it fails: it would
            compare the reference with itself.
        imports: modules of PyTorch's that it needs and that take long to import.
    """

    check: Callable[[Case], None]
    dtypes: Sequence[torch.dtype] | None = (torch.float32,)
    devices: Sequence[str] = ("cpu", "cuda")
    slow: bool = False
    isolated: bool = False
    sanitized: bool = False
    of_kernels: bool = True
    imports: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of its module, as `--property` takes it."""
        return self.check.__module__.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The first line of its module's docstring."""
        module = inspect.getmodule(self.check)
        return (module.__doc__ or "").strip().partition("\n")[0] if module else ""

    def dtypes_for(self, operator: Operator) -> tuple[torch.dtype, ...]:
        """In which dtypes an operator is asked: those of the property that the operator has, or else its first."""
        own = operator.dtypes or FLOATING
        if self.dtypes is None:
            return tuple(own)
        return tuple(dtype for dtype in self.dtypes if dtype in own) or (own[0],)


class NotApplicable(Exception):  # noqa: N818  an answer, not an error
    """The property has no meaning for this operator, or cannot be checked on this machine; says why."""


@dataclass(frozen=True)
class Failure:
    """How a property does not hold.

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


@dataclass(frozen=True)
class Result:
    """What a property said about an operator on a device in a dtype.

    Attributes:
        status: 'pass', 'fail' or 'not applicable'.
        reason: why it is not applicable.
        facts: what was measured on the way, by name.
        called: how many calls were drawn and made, where the property asks of any call.
        kernel: the kernel that served every call that it supports; empty where the library chose.
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
