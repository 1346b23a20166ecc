"""It runs on the device of its arguments, whichever is current.

Proves: with another CUDA device current, value and gradients are those of the reference, and the other device is still
current afterwards; arguments on two CUDA devices are refused.

Cannot prove: anything on a machine with one CUDA device.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Call, Case, tensors_of
from torchgraft.checking.comparing import Mismatch, expect
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable


def check(case: Case) -> None:
    """See the module."""
    if torch.cuda.device_count() < 2:
        raise NotApplicable("there is one CUDA device")
    current = torch.cuda.current_device()
    other = torch.device("cuda", 0 if current else 1)

    def check_there(call: Call) -> None:
        there = replace(call, device=other)
        result = tree_leaves(call.operator(*there.arguments))[0]
        expect(result.device == other, "the result is on another device", expected=other, found=result.device)
        check_value(there)
        check_gradient(there)
        expect(torch.cuda.current_device() == current, "another device is current after the call")
        _check_mixture(call, other)

    case.each(check_there, case.table(empty=False, count=6))


def _check_mixture(call: Call, other: torch.device) -> None:
    arguments = call.arguments
    if len(tensors_of(arguments)) < 2:
        return
    for place, value in enumerate(arguments):
        if not isinstance(value, Tensor):
            continue
        mixed = (*arguments[:place], value.to(other), *arguments[place + 1 :])
        for target in (call.operator, call.operator.public, call.operator.raw):
            try:
                target(*mixed)
            except (ValueError, RuntimeError):
                continue
            raise Mismatch(f"{call.operator.arguments[place].name} on {other} among others is accepted")


# A kernel that is launched on the wrong device may leave it unusable.
PROPERTY = Property(check, devices=("cuda",), isolated=True)
