"""The operator writes to the arguments that its schema marks, and to nothing else.

Proves: through the Operator and through torch.ops, arguments marked as in `Tensor(a!)` hold the values of the reference
afterwards, their version counters advance, and autograd notices that a saved tensor has changed. If such an argument is
part of a larger tensor, with gaps between its elements or between its rows alone, the rest of that tensor stays
unchanged. One tensor given as two arguments gives what the reference gives for two equal tensors, and so do two
arguments that overlap in part, unless the operator refuses these. On a CPU so does a smaller argument that lies at the
beginning or at the end of the one that is written to, as its first row.
An argument that needs a gradient is refused and stays unchanged.

Cannot prove: what happens if two arguments overlap in other ways, or if both are written to.

Mend: write through `mutable_data_of`, in the argument's own strides, and nowhere else; if two arguments may share
memory, read one by `apart_from`, or compute in a new tensor and end with `torch::stable::copy_`.

Example: writes to an argument while it still reads from it, where one tensor is given as both.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.arguments import each_tensor, replaced, tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_equal
from torchgraft.checking.tensors.dtypes import is_number
from torchgraft.sampling import Drawn


def check(case: Case) -> None:
    """See the module."""
    if not case.declaration.mutates:
        raise NotApplicable("it writes to no argument")
    case.each(_check_names, case.table())
    case.each(_check_parts, case.table(small=True, empty=False, count=8))
    case.each(_check_shared, case.table(small=True, empty=False, count=8))
    case.each(_check_refused, case.table(small=True, empty=False, count=2))


def _check_names(call: Call) -> None:
    operator = call.operator
    for function, name in (
        (operator.call, "the Operator"),
        (operator.names.call_public, operator.public.name()),
        (operator.raw, operator.raw.name()),
    ):
        arguments = call.arguments
        written = tensors_of(call.written(arguments))
        versions = [tensor._version for tensor in written]
        _expect_written(call, arguments, function(*arguments), call.expected(), f"through {name}")
        for tensor, version in zip(written, versions, strict=True):
            expect(
                tensor._version > version,
                f"{name} writes to an argument without advancing its version: autograd would use overwritten values",
            )


def _expect_written(call: Call, arguments: Sequence[Any], results: Any, expected: Any, how: str) -> None:
    found = [*tensors_of(call.written(arguments)), *(tree_leaves(results) if call.declaration.lists else ())]
    call.expect_close(found, tree_leaves(expected), what=f"what is written and returned {how}")


# How much larger each outer dimension is than the part; where the part begins in the last dimension, how many elements
# are behind it, and its step. A kernel may step over the gaps in one of these and not in another.
_PARTS = {
    "the middle of larger tensors, every other element": (2, 1, 2, 2),
    "rows with a gap at their end": (0, 0, 3, 1),
    "columns cut out of wider rows": (0, 2, 3, 1),
}


def _check_parts(call: Call) -> None:
    for how, part in _PARTS.items():
        _check_part(call, how, *part)


def _check_part(call: Call, how: str, outer: int, begin: int, behind: int, step: int) -> None:
    """Gives parts of larger tensors to be written to, and looks at the rest of these tensors."""
    arguments = list(call.arguments)
    around: list[tuple[Tensor, Tensor, Tensor]] = []

    def inside(tensor: Tensor) -> Tensor:
        *rows, columns = tensor.shape or (1,)
        sizes = [*(size + outer for size in rows), begin + step * columns + behind]
        middle = [slice(outer // 2, outer // 2 + size) for size in rows]
        # Zeros and ones in turn: whatever is written there changes some of them.
        larger = (torch.arange(math.prod(sizes), device=tensor.device) % 2).reshape(sizes).to(tensor.dtype)
        part = larger[(*middle, slice(begin, begin + step * columns, step))]
        part = part if tensor.shape else part[0]
        part.copy_(tensor)
        around.append((larger, part, larger.clone()))
        return part

    for place, argument in enumerate(call.declaration.arguments):
        if argument.mutated:
            arguments[place] = each_tensor(inside, [arguments[place]])[0]
    results = call.operator.call(*arguments)
    _expect_written(call, arguments, results, call.expected(), f"into {how},")
    for larger, part, before in around:
        part.copy_(before.as_strided(part.shape, part.stride(), part.storage_offset()))
        is_same = torch.equal(larger.view(torch.uint8), before.view(torch.uint8))
        expect(is_same, f"writes to memory around an argument, given {how}")


def _check_shared(call: Call) -> None:
    """A tensor that is written to, given also as another argument of its dtype, in whole and in part."""
    declared = call.operator.declaration.arguments
    for place, argument in enumerate(declared):
        value = call.arguments[place]
        if not argument.mutated or not isinstance(value, Tensor):
            continue
        for other, beside in enumerate(call.arguments):
            if declared[other].mutated or not isinstance(beside, Tensor):
                continue
            name = declared[other].name
            if beside.shape != value.shape:
                how = f"where {name} lies in {argument.name}, at its"
                _check_within(call, (place, value), (other, beside), how)
            elif beside.dtype == value.dtype:
                _check_sharing(call, (place, value), (other, value), f"where {name} is {argument.name} itself,")
                _check_overlap(call, (place, value), (other, beside), f"where {name} and {argument.name} overlap, but")


def _check_overlap(call: Call, written: tuple[int, Tensor], read: tuple[int, Tensor], how: str) -> None:
    """Gives two arguments that lie in one tensor, each beginning before the other once."""
    count = read[1].numel()
    for apart in sorted({1, read[1].stride(0) if read[1].dim() else 1}):
        if not 0 < apart < count:
            continue
        numbers = torch.cat([written[1].flatten(), read[1].flatten()[:apart]])
        for first, second in ((0, apart), (apart, 0)):
            shared = numbers.clone()
            one, other = (shared[begin : begin + count].view(read[1].shape) for begin in (first, second))
            elements = "one element" if apart == 1 else f"{apart} elements"
            _check_unless_refused(call, (written[0], one), (read[0], other), f"{how} for {elements},")


def _check_within(call: Call, written: tuple[int, Tensor], read: tuple[int, Tensor], how: str) -> None:
    """Gives an argument that lies in one that is written to: a kernel may copy those of equal shape alone."""
    (place, value), (other, beside) = written, read
    count, most = beside.numel(), value.numel()
    # On a GPU threads read and write in any order, and no order shows what a kernel promises.
    if call.device.type != "cpu" or value.dtype != beside.dtype or not is_number(value) or not 0 < count <= most:
        return
    for begin, end in {0: "beginning", most - count: "end"}.items():
        shared = value.clone(memory_format=torch.contiguous_format)
        part = shared.view(-1)[begin : begin + count].view(beside.shape)
        if not _is_unbounded(call, other):
            if not _is_unbounded(call, place):
                return
            part.copy_(beside)
        _check_unless_refused(call, (place, shared), (other, part), f"{how} {end},")


def _is_unbounded(call: Call, place: int) -> bool:
    """Whether an argument may hold any numbers, as another one has them."""
    given = call.sample.arguments[place] if place < len(call.sample.arguments) else None
    return isinstance(given, Drawn) and given == Drawn(
        given.shape, channels_last=given.channels_last, dtype=given.dtype
    )


def _check_unless_refused(call: Call, written: tuple[int, Tensor], read: tuple[int, Tensor], how: str) -> None:
    try:
        _check_sharing(call, written, read, how)
    except Mismatch:
        raise
    except (ValueError, TypeError, RuntimeError):
        # It may refuse them, as PyTorch's own operations do.
        return


def _check_sharing(call: Call, written: tuple[int, Tensor], read: tuple[int, Tensor], how: str) -> None:
    arguments = replaced(replaced(call.arguments, *read), *written)
    try:
        expected = call.expected(each_tensor(Tensor.clone, arguments))
    except Exception:
        # The reference refuses these values for one of the two.
        return
    _expect_written(call, arguments, call.operator.call(*arguments), expected, how)


def _check_refused(call: Call) -> None:
    operator = call.operator
    for place, argument in enumerate(operator.declaration.arguments):
        value = call.arguments[place]
        if not argument.mutated or not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        for function, name in (
            (operator.call, "the Operator"),
            (operator.names.call_public, operator.public.name()),
        ):
            _expect_refused(
                call, function, replaced(call.arguments, place, value.clone().requires_grad_()), place, name
            )


def _expect_refused(call: Call, function: Callable[..., Any], arguments: Sequence[Any], place: int, name: str) -> None:
    before = arguments[place].detach().clone()
    what = f"{name} writes to {call.declaration.arguments[place].name}, a leaf that needs a gradient"
    try:
        function(*arguments)
    except (ValueError, RuntimeError):
        expect_equal(arguments[place].detach(), before, what=f"{what} and is refused: it")
        return
    raise Mismatch(f"{what}, and raises no error")


PROPERTY = Property(check, sanitized=True, asked_of=lambda operator: operator.declaration.mutates)
