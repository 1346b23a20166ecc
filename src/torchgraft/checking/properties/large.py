"""More than 2**31 elements are counted in 64 bits.

Proves: inputs whose elements lie more than 2**31 elements apart are read at the right addresses, and so are five rows
with a stride of 2**30 and more: it fits into 32 bits, where the address of the third row does not with a sign, and that
of the fifth not without one. On CUDA, if memory allows, every part of a result with more than 2**31 elements is right.

Cannot prove: anything about an operator without its own kernels if PyTorch's kernels refuse such an input; on CPU,
anything about tensors that really have so many elements, which would take minutes.

Mend: multiply sizes and strides in 64 bits: `int64_t` in C++, `.to(tl.int64)` on the program's number in Triton.

Example: multiplies a row and a stride in 32 bits.
"""

import sys
from functools import partial
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.derived_calls import is_taken_on_cpu, may_shrink, resizable
from torchgraft.checking.helpers.other_sizes import with_sizes
from torchgraft.checking.helpers.parts import expect_parts_close, prepare
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import expect
from torchgraft.sampling import Large, Sample

# Linux knows it, and not every version of Python names it.
_MAP_NORESERVE = 0x4000
# The most elements of a first dimension that are spread over memory.
_ROWS = 5
# The stride of a first dimension, in words, and with how many elements in it the last of them lies beyond 2**31.
_FAR = ((2**30 + 64, "2**30 + 64 elements", 3), (2**31 + 64, "2**31 elements", 2))


def check(case: Case) -> None:
    """See the module."""
    small = case.table(small=True, empty=False)
    samples = [
        sample for sample in small if any(each.shape and 2 <= each.shape[0] <= _ROWS for each in sample.tensors)
    ][:2]
    # Where these have no five rows, another one has them, or takes them.
    if not any(each.shape[:1] == (_ROWS,) for sample in samples for each in sample.tensors):
        samples += [sample for sample in map(_with_all_rows, map(case.call, small)) if sample is not None][:1]
    if not samples and not case.samples.large:
        raise NotApplicable(f"no sample has a first dimension of 2 to {_ROWS}, and there is no large one")
    case.each(partial(_check_far_apart, case), samples)
    if case.device.type == "cuda" and not case.quick:
        for large in case.samples.large:
            _check_many(case, large)


def _with_all_rows(call: Call) -> Sample | None:
    """The sample with a first dimension of five in a tensor, and wherever else that size was, if that is taken."""
    sizes = resizable(call)
    for place, size in sizes.items():
        if place.dim == 0 and (size <= _ROWS or may_shrink(call)):
            other = with_sizes(call, dict.fromkeys((each for each in sizes if sizes[each] == size), _ROWS))
            if is_taken_on_cpu(other):
                return other.sample
    return None


def _check_far_apart(case: Case, call: Call) -> None:
    expected = call.expected()
    for name, tensor, with_other in call.tensors_in_turn():
        for stride, words, least in _FAR:
            if not tensor.dim() or not least <= tensor.shape[0] <= _ROWS:
                continue
            far = f"{name} with {words} from one to the next of its first dimension"
            case.progress(f"sample {call.sample.name!r}\nreads or writes at a wrong address, given {far}")
            try:
                found = call.function(*with_other(_far_apart(tensor, stride)))
            except RuntimeError as error:
                # cuBLAS takes no matrix whose rows are so far apart, and says so.
                if call.declaration.kernels != "reference":
                    raise
                refused = f"its kernels are PyTorch's, which refuse this: {str(error).splitlines()[0]}"
                raise NotApplicable(refused) from None
            case.progress(f"sample {call.sample.name!r}")
            call.expect_close(found, expected, what=f"the result of {far}")


def _far_apart(tensor: Tensor, stride: int) -> Tensor:
    """An equal tensor, spread over memory; on CPU only what is touched of it is ever backed."""
    inner = tensor[0].contiguous()
    needed = stride * (tensor.shape[0] - 1) + inner.numel()
    try:
        room = _untouched(needed, tensor.dtype) if tensor.device.type == "cpu" else tensor.new_empty(needed)
    except (RuntimeError, OSError):
        raise NotApplicable(f"there is no memory for {needed * tensor.element_size() / 2**30:.0f} GiB") from None
    return room.as_strided(tensor.shape, (stride, *inner.stride())).copy_(tensor)


def _untouched(elements: int, dtype: torch.dtype) -> Tensor:
    """A tensor in memory that the system need not have: it may refuse an allocator what nobody will ever touch."""
    if not sys.platform.startswith("linux"):
        return torch.empty(elements, dtype=dtype)
    room = mmap(-1, elements * dtype.itemsize, flags=MAP_PRIVATE | MAP_ANONYMOUS | _MAP_NORESERVE)
    return torch.frombuffer(room, dtype=torch.uint8).view(dtype)


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
    made = large.sample.make(device, dtype, case.seed, on_device=True)
    arguments = case.declaration.with_defaults(made)
    prepare(large, arguments)
    expect_parts_close(case.operator, case.samples, large, arguments, case.operator.call(*arguments))


PROPERTY = Property(check, of_samples=False)
