"""Arguments may lie in memory that can only be read, such as a file of weights that is mapped into memory.

Proves: forward and backward write to no argument and to no incoming gradient, not even the same values, and not for a
moment: all of them lie in pages that the processor protects, except for arguments that the schema marks as written.

Cannot prove: anything about memory of a GPU, which cannot be protected so.

Mend: allocate a workspace instead of scratching in an argument, even if the old values are put back.

Example: writes to its input, and puts back what was there.
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.gradients import leaves_of, with_gradients

_WRITES = "writes to an argument, which lies in memory that can only be read"
_WRITES_BACKWARD = (
    "backward writes to an argument or to an incoming gradient, which lie in memory that can only be read"
)


def check(case: Case) -> None:
    """See the module."""
    if not hasattr(ctypes.CDLL(None), "mprotect"):
        raise NotApplicable("this system cannot protect memory from writing")
    case.each(lambda call: _check_call(case, call), case.table(empty=False, count=8))


def _check_call(case: Case, call: Call) -> None:
    # A fault in this call has another reason.
    call.run()
    case.progress(f"sample {call.sample.name!r}\n{_WRITES}")
    arguments = call.leaves(required=False)
    written = {id(tensor) for tensor in tensors_of(call.written(arguments))}
    placed = each_tensor(lambda tensor: tensor if id(tensor) in written else _in_pages(tensor), arguments)
    with _protected(tensor for tensor in tensors_of(placed) if id(tensor) not in written):
        results = tree_leaves(call.function(*placed))
        if differentiated := with_gradients(results):
            output_grads = [_in_pages(each) for each in call.output_grads(differentiated)]
            case.progress(f"sample {call.sample.name!r}\n{_WRITES_BACKWARD}")
            with _protected(output_grads):
                torch.autograd.grad(differentiated, leaves_of(placed), output_grads, allow_unused=True)
    case.progress(f"sample {call.sample.name!r}")


def _in_pages(tensor: Tensor) -> Tensor:
    """Copies a tensor, with its strides, to pages that hold nothing else."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    pages = torch.frombuffer(mmap.mmap(-1, max(extent * tensor.element_size(), 1)), dtype=torch.uint8)
    memory = pages[: extent * tensor.element_size()].view(tensor.dtype)
    copy = memory.as_strided(tensor.shape, tensor.stride()).copy_(tensor.detach())
    return copy.detach().requires_grad_(tensor.requires_grad)


@contextmanager
def _protected(tensors: Iterator[Tensor] | list[Tensor]) -> Iterator[None]:
    """A scope in which the pages of tensors can only be read."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    try:
        for storage in storages:
            _protect(storage, mmap.PROT_READ)
        yield
    finally:
        for storage in storages:
            _protect(storage, mmap.PROT_READ | mmap.PROT_WRITE)


def _protect(storage: torch.UntypedStorage, access: int) -> None:
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(storage.data_ptr(), storage.nbytes(), access):
        raise OSError(ctypes.get_errno(), f"mprotect: {os.strerror(ctypes.get_errno())}")


# It is isolated: a write to a protected page ends the process.
PROPERTY = Property(check, devices=("cpu",), isolated=True)
