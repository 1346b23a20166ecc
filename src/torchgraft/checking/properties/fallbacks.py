"""Where it claims to have a kernel, a kernel answers.

Proves: on every sample, in every dtype for which the operator claims kernels on the device, neither the call nor its
backward falls back to a reference, its own or that of an operator which its gradient is made of.

Cannot prove: that the kernel is fast; nor anything about compiled graphs, which are not counted.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Call, Case, differentiable, tensors_of
from torchgraft.checking.comparing import Mismatch
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.fallback import fallbacks


def check(case: Case) -> None:
    """See the module."""
    claimed = case.operator.kernels
    if claimed == "reference":
        raise NotApplicable("it declares that PyTorch's own composition is its best kernel")
    if case.dtype not in claimed.get(case.device.type, ()):
        raise NotApplicable(f"it claims no kernel for {case.dtype} on {case.device.type}")
    case.each(_check_call, case.table())


def _check_call(call: Call) -> None:
    before = _calls()
    call.operator(*call.arguments)
    _expect_none_since(before, "the call")
    arguments = differentiable(call.arguments)
    results = [result for result in tree_leaves(call.operator(*arguments)) if result.requires_grad]
    _expect_none_since(before, "the call that records a gradient")
    if results:
        output_grads = call.output_grads(results)
        torch.autograd.grad(results, tensors_of(arguments), output_grads, allow_unused=True)
    _expect_none_since(before, "backward")


def _calls() -> dict[tuple[str, ...], int]:
    return {each[:-1]: each.calls for each in fallbacks()}


def _expect_none_since(before: dict[tuple[str, ...], int], what: str) -> None:
    for (operator, device, dtype, reason), calls in _calls().items():
        if calls > before.get((operator, device, dtype, reason), 0):
            raise Mismatch(
                f"{what} runs on the reference of {operator} in {dtype} on {device}, not on a kernel: {reason}",
                expected="a kernel, as the declaration claims",
                found="the reference",
            )


PROPERTY = Property(check, dtypes=None)
