"""The operator can be captured in a CUDA graph and replayed.

Proves: forward and backward are captured together. A replay with other values in the same memory gives the results and
gradients of those values. So no call allocates memory outside of PyTorch, waits for the device or reads values on the
host.

Cannot prove: anything about sizes that change: a graph has fixed sizes.

Mend: between the first and the last launch allocate only from PyTorch, do not wait, and read no value on the host.

Example: waits for the device, which cannot be captured.
"""

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.gradients import with_gradients

_WARM_UPS = 3


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_replay, case.table(empty=False, count=6))


def _check_replay(call: Call) -> None:
    if call.declaration.sizes_from_data:
        raise NotApplicable("its sizes depend on data, so the host must wait for them")
    arguments = call.leaves(required=False)
    output_grads = call.output_grads(with_gradients(tree_leaves(call.function(*call.leaves(required=False)))))

    def step() -> list[Tensor | None]:
        # Copying is captured too: each replay writes anew.
        return call.run(call.with_copies_of_written(arguments), output_grads)

    side = torch.cuda.Stream(call.device)
    side.wait_stream(torch.cuda.current_stream(call.device))
    with torch.cuda.stream(side):
        for _ in range(_WARM_UPS):
            step()
    torch.cuda.current_stream(call.device).wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            captured = step()
    except Exception as error:
        raise Mismatch(f"a CUDA graph cannot capture it: {error}") from error

    others = tensors_of(call.make(seed=1))
    for tensor, other in zip(tensors_of(arguments), others, strict=True):
        tensor.detach().copy_(other)
    for gradient in output_grads:
        gradient.neg_()
    graph.replay()
    what = "a result or gradient, replayed with other values,"
    call.expect_close(captured, in_float64(step()), summed=call.sample.elements * call.summed, what=what)


# The property is isolated, as a failed capture leaves the device in a state that would make others fail.
PROPERTY = Property(check, devices=("cuda",), isolated=True)
