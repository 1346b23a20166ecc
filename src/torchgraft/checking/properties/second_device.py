"""The operator runs on the device of its arguments, whichever device is current.

Proves: while another CUDA device is current, values and gradients are those of the reference, and the other device is
still current afterwards. Arguments on two CUDA devices are refused.

Cannot prove: anything on a machine with one CUDA device.

Mend: open `Launch scope(input)` before anything is allocated or launched: it makes the device of the tensor current.
Compare the devices of all arguments with `check_alike`.

Example: launches on the current device, wherever its input is.
"""

from dataclasses import replace

import torch
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.properties.gradient import check_gradient
from torchgraft.checking.properties.value import check_value
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_same


def check(case: Case) -> None:
    """See the module."""
    if torch.cuda.device_count() < 2:
        raise NotApplicable("there is only one CUDA device")
    current = torch.cuda.current_device()
    other = torch.device("cuda", 0 if current else 1)

    def check_there(call: Call) -> None:
        there = replace(call, device=other)
        result = tree_leaves(call.function(*there.arguments))[0]
        expect_same(result.device, other, "the result is on another device")
        check_value(there)
        check_gradient(there)
        expect(torch.cuda.current_device() == current, "another device is current after the call")
        _check_mixture(call, other)

    case.each(check_there, case.table(empty=False, count=6))


def _check_mixture(call: Call, other: torch.device) -> None:
    if len(call.tensor_names) < 2:
        return
    for name, tensor, with_other in call.tensors_in_turn():
        for target in (call.operator.call, call.operator.names.call_public, call.operator.raw):
            try:
                target(*with_other(tensor.to(other)))
            except (ValueError, RuntimeError):
                continue
            raise Mismatch(f"{name} on {other} is accepted, although the other tensors are elsewhere")


# A kernel that is launched on the wrong device may leave it unusable.
PROPERTY = Property(check, devices=("cuda",), isolated=True)
