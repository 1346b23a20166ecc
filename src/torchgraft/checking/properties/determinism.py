"""The same bits at every run, and on any number of threads.

Proves: forward and backward of each sample give the same bits again and again, in between other work, and on one, two,
three and as many threads as there are.

Cannot prove: a race that none of these runs lost; the sanitizers look for those.
"""

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Call, Case, differentiable, tensors_of
from torchgraft.checking.comparing import expect_equal
from torchgraft.checking.property import Property

_RUNS = 4


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_runs, case.table())


def _run(call: Call) -> list[Tensor | None]:
    arguments = differentiable(call.arguments)
    results = tree_leaves(call.operator(*arguments))
    output_grads = call.output_grads(results)
    gradients = torch.autograd.grad(results, tensors_of(arguments), output_grads, allow_unused=True)
    return [*(result.detach() for result in results), *gradients]


def _check_runs(call: Call) -> None:
    first = _run(call)
    threads = torch.get_num_threads()
    counts = sorted({1, 2, 3, threads} - {threads}) if call.device.type == "cpu" else []
    for run in range(_RUNS):
        expect_equal(_run(call), first, what="a result or gradient", why=f" between run 1 and run {run + 2}")
    try:
        for count in counts:
            torch.set_num_threads(count)
            why = f" between {threads} threads and {count}"
            expect_equal(_run(call), first, what="a result or gradient", why=why)
    finally:
        torch.set_num_threads(threads)


PROPERTY = Property(check, sanitized=True)
