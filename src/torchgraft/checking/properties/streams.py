"""Kernels are launched on the current stream.

Proves: where the arguments are written late on a stream of one's own, forward and backward on that stream read what was
written; a kernel launched on another one would read what stood there before.

Cannot prove: that no launch waits for the whole device, which is slow and not wrong; `cuda_graph` refuses most of that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft import _torch_private
from torchgraft.checking.case import Call, Case, differentiable, tensors_of
from torchgraft.checking.property import Property

# In which the host has long since launched everything.
_SECONDS = 0.1


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_late_arguments, case.table(empty=False, count=6))


def _check_late_arguments(call: Call) -> None:
    arguments = differentiable(call.arguments)
    tensors = tensors_of(arguments)
    results = tree_leaves(call.operator(*arguments))
    output_grads = call.output_grads(results)
    expected = torch.autograd.grad(results, tensors, output_grads, allow_unused=True)

    written = [*(tensor.detach() for tensor in tensors), *output_grads]
    values = [each.clone() for each in written]
    for each in written:
        each.zero_()
    torch.cuda.synchronize(call.device)

    stream = torch.cuda.Stream(call.device)
    with torch.cuda.stream(stream):
        _torch_private.wait_on_gpu(_SECONDS)
        for each, value in zip(written, values, strict=True):
            each.copy_(value)
        # New leaves over the same memory: autograd warns of those that were first used on another stream.
        again = tuple(value.detach().requires_grad_() if isinstance(value, Tensor) else value for value in arguments)
        found_results = tree_leaves(call.operator(*again))
        found = torch.autograd.grad(found_results, tensors_of(again), output_grads, allow_unused=True)
    stream.synchronize()
    _expect_same(call, found_results, results, "a result on a stream of its own")
    _expect_same(call, found, expected, "a gradient on a stream of its own")


def _expect_same(call: Call, found: Sequence[Tensor | None], expected: Sequence[Tensor | None], what: str) -> None:
    exact = [None if each is None else each.detach().double() for each in expected]
    call.expect_close(found, exact, summed=call.sample.elements * call.summed, what=what)


PROPERTY = Property(check, devices=("cuda",))
