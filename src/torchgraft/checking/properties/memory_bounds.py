"""The operator writes all of its results and nothing else, and reads no uninitialized memory.

Proves: arguments, and all memory that forward and backward request from PyTorch, lie between guards, and the guards
stay unchanged. The results are the same bit for bit whether memory and guards are full of NaN or full of numbers before
the call. So every element is written, and no element depends on uninitialized memory or on memory outside of a tensor.

Cannot prove: anything about memory that a kernel gets elsewhere, or past both the dispatcher and the headers of
torchgraft, or about a read whose value is not used. The sanitizers look for these.

Mend: allocate what the loop writes, write each element of it, and mask the last vector or block for reads too.
`empty_as` and `empty_contiguous` give memory with any content: fill it if the kernel adds to it.

Example: the last block is read whole, and what lies behind the input is summed with it.
"""

from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.guarded_call import make_tables, served_call
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import Mismatch, expect_equal
from torchgraft.checking.tensors.guarded_memory import NAN_BYTE, NUMBER_BYTE, Arena
from torchgraft.kernels.python_kernels import reference_mode_of

# How often a call whose results differ is made in memory that held the same.
_RUNS = 5


def check(case: Case) -> None:
    """See the module."""
    if case.device.type == "cpu" and (language := reference_mode_of(case.operator.declaration)):
        raise NotApplicable(
            f"in {language}'s reference mode an index that is out of range stands for the nearest element"
        )
    arena = Arena(case.device)
    samples = case.table(count=30) if case.quick else case.table()
    case.each(lambda call: _check_call(call, arena), samples)


def _run(call: Call, arena: Arena, fill: int) -> dict[str, Tensor | None]:
    """The results and gradients by name, out of memory that holds `fill` before, with the guards looked at."""

    def work() -> dict[str, Tensor | None]:
        results, gradients = served_call(call, arena)
        arena.expect_guards_intact()
        names = [f"the gradient of {name}" for name in call.tensor_names]
        parts = [f"result {number}" for number in range(1, len(results) + 1)]
        # The names are more than the values if there are no gradients.
        named = zip((*parts, *names), (*results, *gradients), strict=False)
        # The next run overwrites the arena.
        return {name: None if value is None else value.detach().clone() for name, value in named}

    return arena.run(work, fill)


def _check_call(call: Call, arena: Arena) -> None:
    make_tables(call)
    poisoned = _run(call, arena, NAN_BYTE)
    numbers = _run(call, arena, NUMBER_BYTE)
    try:
        for name, found in poisoned.items():
            why = " between a run in memory full of NaN and one in memory full of numbers"
            expect_equal(found, numbers[name], what=name, why=why)
    except Mismatch:
        _expect_repeated(call, arena, poisoned)
        raise


def _expect_repeated(call: Call, arena: Arena, before: dict[str, Tensor | None]) -> None:
    """Tells results that change from run to run, for whatever reason, from those that depend on what memory held."""
    for number in range(2, _RUNS + 1):
        again = _run(call, arena, NAN_BYTE)
        for name, found in again.items():
            try:
                why = f" between run 1 and run {number} in memory that held the same: threads race, or add in any order"
                expect_equal(found, before[name], what=name, why=why)
            except Mismatch:  # noqa: PERF203  a call has few results
                is_authors = call.device.type == "cpu" and not call.is_of_pytorch
                if is_authors and (name.startswith("result ") or not call.has_gradients_of_pytorch):
                    raise
                reason = "its results change from run to run, which would hide an effect of memory"
                raise NotApplicable(reason) from None


# It does not run under sanitizers: the arena is one allocation, so they would not see where a tensor ends.
PROPERTY = Property(check, dtypes=None)
