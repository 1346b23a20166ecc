"""Where the operator claims a kernel, a kernel runs.

Proves: on every sample, in every dtype for which the operator claims kernels on the device, neither the call nor its
backward falls back to a reference, its own or that of an operator that its gradient calls. An operator that writes to
its arguments and has no gradient formula is asked for calls without a gradient alone: for others it has no kernel.

Cannot prove: that the kernel is fast, or anything about compiled graphs, whose calls are not counted.

Mend: the reason in the message says which call fell back. Build the library and load it, register the dtype in the
kernel's dispatch, or declare fewer in `kernels=`.

Example: claims a kernel that nobody wrote.
"""

from collections.abc import Sequence

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.kernels import claims_kernel
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.gradients import leaves_of
from torchgraft.kernels.fallback import Fallback, fallbacks


def check(case: Case) -> None:
    """See the module."""
    if case.declaration.kernels == "reference":
        raise NotApplicable("it declares kernels='reference', so it always runs on its reference")
    if not claims_kernel(case.operator, case.device, case.dtype):
        raise NotApplicable(f"it declares no kernel for {case.dtype} on {case.device.type}")
    case.each(_check_call, case.table())


def _check_call(call: Call) -> None:
    before = fallbacks()
    call.function(*call.arguments)
    _expect_none_since(before, "the call")
    if call.declaration.mutates and call.declaration.gradient is None:
        return
    arguments = call.leaves(required=False)
    results = [result for result in tree_leaves(call.function(*arguments)) if result.requires_grad]
    _expect_none_since(before, "the call that records a gradient")
    if results:
        output_grads = call.output_grads(results)
        torch.autograd.grad(results, leaves_of(arguments), output_grads, allow_unused=True)
    _expect_none_since(before, "backward")


def _expect_none_since(before: Sequence[Fallback], what: str) -> None:
    # One that was called again since has another count.
    new = [each for each in fallbacks() if each not in before]
    for operator, device, dtype, reason, _ in new:
        raise Mismatch(
            f"{what} runs on the reference of {operator} in {dtype} on {device}, not on a kernel: {reason}",
            expected="a kernel, as declared",
            found="the reference",
        )


PROPERTY = Property(check, dtypes=None)
