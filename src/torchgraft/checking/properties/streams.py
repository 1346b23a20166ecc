"""Kernels are launched on the current stream.

Proves: on a stream of its own the check first waits and then writes the arguments, and forward and backward on that
stream read the new values. A kernel on another stream would read the old ones.

Cannot prove: that no launch waits for the whole device, which is slow but not wrong; `cuda_graph` refuses most such
launches.

Mend: launch on the stream of `Launch scope(input)`, which is `scope.stream()`; so do copies and calls of libraries.

Example: launches on the default stream, not on the current one.
"""

import torch
from torch.utils._pytree import tree_leaves

from torchgraft._private import pytorch
from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.gradients import with_gradients

# The seconds that a stream waits, in which the host launches everything.
_SECONDS = 0.1


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_late_arguments, case.table(empty=False, count=6))


def _check_late_arguments(call: Call) -> None:
    arguments = call.leaves(required=False)
    expected = call.run(call.leaves(arguments, required=False))
    output_grads = call.output_grads(with_gradients(tree_leaves(call.function(*call.leaves(required=False)))))

    written = [*(tensor.detach() for tensor in tensors_of(arguments)), *output_grads]
    values = [each.clone() for each in written]
    for each in written:
        each.zero_()
    torch.cuda.synchronize(call.device)

    stream = torch.cuda.Stream(call.device)
    with torch.cuda.stream(stream):
        pytorch.wait_on_gpu(_SECONDS)
        for each, value in zip(written, values, strict=True):
            each.copy_(value)
        # New leaves over the same memory: autograd warns of those that were first used on another stream.
        again = each_tensor(lambda tensor: tensor.detach().requires_grad_(tensor.requires_grad), arguments)
        found = call.run(again, output_grads)
    stream.synchronize()
    what = "a result or gradient on a stream of its own"
    call.expect_close(found, in_float64(expected), summed=call.sample.elements * call.summed, what=what)


PROPERTY = Property(check, devices=("cuda",))
