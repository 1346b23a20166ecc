"""Property: a statement that is true of every good operator."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torchgraft.checking.case import Case
from torchgraft.operator import FLOATING, Operator

# The modules that compile and trace, which take seconds to import.
COMPILER = ("torch._dynamo",)


@dataclass(frozen=True)
class Property:
    """A statement that is true of every good operator, and how to check it.

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
        forces_alone: whether a call that a forced kernel does not support is refused, and its sample left out, so that
            no other kernel is checked again. Not for a property that makes several calls of a sample: one refusal
            would also leave out the calls that the kernel supports.
        asked_of: which operators it has a meaning for; the others are asked only where somebody names it.
        of_calls: whether it asks how calls depend on other calls. A failure that does not repeat is then not put down
            to chance.
        of_samples: whether it asks about the samples that there are, so that it is asked of captured calls too: not
            where it draws its own, or asks about the declaration.
        imports: modules of PyTorch's that it needs and that take long to import.
    """

    check: Callable[[Case], None]
    dtypes: Sequence[torch.dtype] | None = (torch.float32,)
    devices: Sequence[str] = ("cpu", "cuda")
    slow: bool = False
    isolated: bool = False
    sanitized: bool = False
    of_kernels: bool = True
    forces_alone: bool = False
    asked_of: Callable[[Operator], bool] = lambda operator: True
    of_calls: bool = False
    of_samples: bool = True
    imports: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name of its module, as `--property` takes it."""
        return self.check.__module__.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The first line of its module's docstring."""
        return (sys.modules[self.check.__module__].__doc__ or "").strip().partition("\n")[0]

    def dtypes_for(self, operator: Operator) -> tuple[torch.dtype, ...]:
        """Chooses the dtypes for an operator: those of the property that the operator has, or else its first."""
        own = operator.declaration.dtypes or FLOATING
        if self.dtypes is None:
            return tuple(own)
        return tuple(dtype for dtype in self.dtypes if dtype in own) or (own[0],)
