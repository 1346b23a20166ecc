"""Many Python threads may call it at once.

Proves: eight threads that call forward and backward side by side, each with values of its own, get the bits that each
would have got alone.

Cannot prove: a race that none of these calls lost.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Call, Case, differentiable, tensors_of
from torchgraft.checking.comparing import expect_equal
from torchgraft.checking.property import Property

_THREADS = 8
_CALLS = 6


def check(case: Case) -> None:
    """See the module."""
    # The largest too: only a call that takes a while meets another.
    samples = [*case.table(small=True, empty=False, count=4), case.table(empty=False)[-1]]
    case.each(_check_side_by_side, samples)


def _run(call: Call, seed: int) -> list[Tensor | None]:
    arguments = differentiable(call.sample.make(call.device, call.dtype, seed))
    results = tree_leaves(call.operator(*arguments))
    gradients = torch.autograd.grad(
        results, tensors_of(arguments), [torch.ones_like(result) for result in results], allow_unused=True
    )
    return [*(result.detach() for result in results), *gradients]


def _stream(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


def _check_side_by_side(call: Call) -> None:
    expected = [_run(call, call.seed + number) for number in range(_THREADS)]
    threads = torch.get_num_threads()

    def work(number: int) -> list[list[Tensor | None]]:
        # Each thread has a setting of its own.
        torch.set_num_threads(threads)
        with _stream(call.device):
            found = [_run(call, call.seed + number) for _ in range(_CALLS)]
            if call.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(_THREADS) as pool:
        for number, found in enumerate(pool.map(work, range(_THREADS))):
            for each in found:
                what = "a result or gradient of a thread"
                expect_equal(each, expected[number], what=what, why=" from that of the same call made alone")


PROPERTY = Property(check)
