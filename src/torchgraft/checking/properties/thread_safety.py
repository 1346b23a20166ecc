"""Many Python threads may call the operator at once.

Proves: eight threads call forward and backward side by side, each with its own values. Each gets the same bits as the
same call made alone.

Cannot prove: that there is no race: a race need not show in these calls.

Mend: use no static or global buffers: allocate at each call, or make it thread_local.

Example: all threads share a static buffer.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.compare import expect_equal

_THREADS = 8
_CALLS = 6


def check(case: Case) -> None:
    """See the module."""
    # The largest too: only a call that takes a while meets another.
    samples = [*case.table(small=True, empty=False, count=4), case.table(empty=False)[-1]]
    case.each(_check_side_by_side, samples)


def _check_side_by_side(call: Call) -> None:
    calls = [replace(call, seed=call.seed + number) for number in range(_THREADS)]
    expected = [each.run_own() for each in calls]
    threads = torch.get_num_threads()

    def work(call: Call) -> list[list[Tensor | None]]:
        # Each thread has a setting of its own.
        torch.set_num_threads(threads)
        on_gpu = call.device.type == "cuda"
        with torch.cuda.stream(torch.cuda.Stream(call.device)) if on_gpu else nullcontext():
            found = [call.run_own() for _ in range(_CALLS)]
            if on_gpu:
                torch.cuda.current_stream().synchronize()
        return found

    with ThreadPoolExecutor(_THREADS) as pool:
        for alone, found in zip(expected, pool.map(work, calls), strict=True):
            for each in found:
                what = "a result or gradient of a thread"
                expect_equal(each, alone, what=what, why=" from that of the same call made alone")


PROPERTY = Property(check)
