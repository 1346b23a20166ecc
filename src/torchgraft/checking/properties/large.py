"""More than 2**31 elements are counted in 64 bits.

Proves: inputs whose elements lie more than 2**31 elements apart are read at the right addresses. On CUDA, if memory
allows, every part of a result with more than 2**31 elements is right.

Cannot prove: anything about an operator without its own kernels if PyTorch's kernels refuse such an input; on CPU,
anything about tensors that really have so many elements, which would take minutes.
"""

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.parts import expect_parts_close, prepare
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import expect
from torchgraft.sampling import Large

_FAR = 2**31 + 64


def check(case: Case) -> None:
    """See the module."""
    samples = [
        sample
        for sample in case.table(small=True, empty=False)
        if any(each.shape and max(each.shape[:1]) in (2, 3) for each in sample.tensors)
    ]
    if not samples and not case.samples.large:
        raise NotApplicable("no sample has a first dimension of 2 or 3, and there is no large one")
    case.each(_check_far_apart, samples[:2])
    if case.device.type == "cuda" and not case.quick:
        for large in case.samples.large:
            _check_many(case, large)


def _check_far_apart(call: Call) -> None:
    expected = call.expected()
    for name, tensor, with_other in call.tensors_in_turn():
        if tensor.dim() and tensor.shape[0] in (2, 3):
            try:
                found = call.function(*with_other(_far_apart(tensor)))
            except RuntimeError as error:
                # cuBLAS takes no matrix whose rows are so far apart, and says so.
                if call.declaration.kernels != "reference":
                    raise
                refused = f"its kernels are PyTorch's, which refuse this: {str(error).splitlines()[0]}"
                raise NotApplicable(refused) from None
            what = f"the result of {name} with 2**31 elements from one to the next of its first dimension"
            call.expect_close(found, expected, what=what)


def _far_apart(tensor: Tensor) -> Tensor:
    """An equal tensor, spread over memory; on CPU only what is touched of it is ever backed."""
    inner = tensor[0].contiguous()
    needed = _FAR * (tensor.shape[0] - 1) + inner.numel()
    try:
        room = tensor.new_empty(needed)
    except RuntimeError:
        raise NotApplicable(f"there is no memory for {needed * tensor.element_size() / 2**30:.0f} GiB") from None
    return room.as_strided(tensor.shape, (_FAR, *inner.stride())).copy_(tensor)


def _check_many(case: Case, large: Large) -> None:
    device, dtype = case.device, torch.float16 if torch.float16 in (case.declaration.dtypes or ()) else case.dtype
    elements = max(torch.Size(each.shape).numel() for each in large.sample.tensors)
    expect(elements > 2**31, "the large sample has no tensor of more than 2**31 elements", found=elements)
    free, _ = torch.cuda.mem_get_info(device)
    needed = 4 * large.sample.elements * dtype.itemsize
    if free < needed:
        raise NotApplicable(f"it needs {needed / 2**30:.0f} GiB of free memory, and {free / 2**30:.0f}")
    case.progress(f"sample {large.sample.name!r}")
    # On the device: values from the host would take longer than the kernel by far.
    arguments = large.sample.make(device, dtype, case.seed, on_device=True)
    prepare(large, arguments)
    expect_parts_close(case.operator, case.samples, large, arguments, case.operator(*arguments))


PROPERTY = Property(check, of_samples=False)
