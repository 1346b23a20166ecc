"""Calls with one mistake each: a wrong type, size, number or device, and memory that was freed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.call import Call
from torchgraft.checking.helpers.bounds import REFERENCE_SECONDS, TooLong, time_bounded
from torchgraft.checking.tensors.arguments import each_tensor, replaced, tensors_of
from torchgraft.checking.tensors.dtypes import in_dtype, is_whole
from torchgraft.checking.tensors.gradients import randn_like
from torchgraft.declaration.schema import REQUIRED, Argument
from torchgraft.operator import FLOATING

# A number is tried where results have at most so many elements.
_MOST = 1 << 20


@dataclass(frozen=True)
class Wrong:
    """A call with one mistake.

    Attributes:
        what: is wrong, for a person.
        arguments: of the call.
        always: whether it is wrong whatever the reference says of it.
        names: the argument that the error must name; an empty string where none is meant.
        by_any_name: whether it is wrong so also where the call does not come through the Operator.
        of_dtype: whether it is about a dtype.
        is_huge: whether a number is so large that the reference may count up to it.
        is_large: whether a number is so large that results of such a size take seconds.
        counted: the argument whose number is huge and positive: if the reference counts up to it, to others too.
    """

    what: str
    arguments: tuple[Any, ...]
    always: bool = False
    names: str = ""
    by_any_name: bool = False
    of_dtype: bool = False
    is_huge: bool = False
    is_large: bool = False
    counted: str = ""


def mistakes(call: Call, counting: set[str] | None = None) -> Iterator[Wrong]:
    """A call with each mistake in turn.

    Args:
        call: a good one.
        counting: the arguments up to whose numbers the reference is known to count; what is found is added.
    """
    arguments, described = call.arguments, call.declaration.arguments
    counting = set() if counting is None else counting
    if not any(argument.keyword_only for argument in described):
        for count in range(sum(argument.default is REQUIRED for argument in described)):
            yield Wrong(f"{count} arguments for {len(arguments)}", arguments[:count], always=True)
        yield Wrong("one argument too many", (*arguments, 1), always=True)
    for place, value in enumerate(arguments):
        argument = described[place]
        for wrong in (*_wrong_types(call, argument), *_wrong_numbers(argument, value)):
            names = argument.name if wrong.names else ""
            changed = replaced(arguments, place, *wrong.arguments)
            # `large` checks calls with so many results.
            if wrong.is_large and (argument.name in counting or _makes_many(call, changed, argument.name, counting)):
                continue
            counted = argument.name if wrong.is_huge and wrong.arguments[0] > 0 else ""
            what = f"{argument.name} {wrong.what}"
            yield replace(wrong, what=what, arguments=changed, names=names, counted=counted)
    for name, tensor, with_other in call.tensors_in_turn():
        for wrong in (*_wrong_tensors(call, name, tensor), *_wrong_indices(call, tensor)):
            names = name if wrong.names else ""
            yield replace(wrong, what=f"{name} {wrong.what}", arguments=with_other(*wrong.arguments), names=names)


def _wrong_types(call: Call, argument: Argument) -> Iterator[Wrong]:
    """One argument of a wrong type; PyTorch itself takes a tensor of one element for a number, and much for a bool."""
    pair = torch.ones(2, device=call.device)
    wrong: dict[str, Sequence[Any]] = {
        "Tensor": ("text", [1.0], 1.0, None),
        "int": ("1", [1], 1.5, None, pair),
        "SymInt": ("1", [1], 1.5, None, pair),
        "float": ("1", [1.0], 1j, None, pair),
        "bool": ("text",),
    }
    for value in () if argument.is_list else wrong.get(argument.kind, ()):
        if value is None and argument.optional:
            continue
        shown = "two elements of a tensor" if value is pair else repr(value)
        yield Wrong(f"made {shown}", (value,), always=True, names="this")


def _wrong_tensors(call: Call, name: str, tensor: Tensor) -> Iterator[Wrong]:
    several = len(tensors_of(call.arguments)) > 1
    operator, argument = call.operator, name.partition("[")[0]
    declared = operator.declaration.dtypes_of.get(argument)
    names = [each.partition("[")[0] for each in call.tensor_names]
    alike = [
        each
        for each in names
        if operator.declaration.dtypes_of.get(each) == declared and each not in operator.declaration.mixed
    ]
    for dtype in (torch.int64, torch.bool, torch.complex64, *FLOATING):
        if declared is not None and dtype in declared and (argument in operator.declaration.mixed or len(alike) == 1):
            continue
        if dtype != tensor.dtype and (several or dtype not in FLOATING):
            changed = in_dtype(tensor, dtype)
            # A kernel may be right in more dtypes than are declared, if these are of the same kind.
            of_a_kind = dtype in FLOATING and tensor.is_floating_point()
            yield Wrong(
                f"in {str(dtype).removeprefix('torch.')}",
                (changed,),
                always=declared is not None and not of_a_kind,
                names="this",
                of_dtype=True,
            )
    others = ["meta", "cpu" if call.device.type == "cuda" else "cuda" if torch.cuda.is_available() else "meta"]
    for device in dict.fromkeys(others):
        yield Wrong(f"on {device}", (tensor.to(device),), always=several)

    yield Wrong("with one more dimension", (tensor[None],))
    generator = call.generator()
    shapes = {"without its first dimension": tuple(tensor.shape[1:])} if tensor.dim() else {}
    for dim, size in enumerate(tensor.shape):
        for change in {size + 1, size - 1, 0}:
            shapes[f"with {change} elements in dimension {dim} for {size}"] = replaced(tensor.shape, dim, change)
    for what, shape in shapes.items():
        is_real = tensor.is_floating_point() or tensor.is_complex()
        yield Wrong(what, (randn_like(tensor.new_empty(shape), generator) if is_real else tensor.new_zeros(shape),))


def _wrong_indices(call: Call, tensor: Tensor) -> Iterator[Wrong]:
    """Whole numbers beyond those of the sample."""
    if not is_whole(tensor.dtype):
        return
    limits = torch.iinfo(tensor.dtype)
    most = int(tensor.max()) if tensor.numel() else 0
    for number in (-1, most + 1, most + 1000, limits.max, limits.min):
        if tensor.numel() and limits.min <= number <= limits.max:
            changed = tensor.clone()
            changed.view(-1)[-1] = number
            yield Wrong(f"with an element of {number}", (changed,))
    flat = tensor.flatten()
    steps = flat.diff()
    if (steps >= 0).all() and (rising := steps.nonzero().flatten()).numel():
        # Offsets that fall say that something has fewer elements than none.
        place = int(rising[len(rising) // 2])
        changed = tensor.clone()
        changed.view(-1)[place : place + 2] = flat[place : place + 2].flip(0)
        yield Wrong(f"with {int(flat[place + 1])} before {int(flat[place])}", (changed,))


def _wrong_numbers(argument: Argument, value: Any) -> Iterator[Wrong]:
    kind = "" if argument.is_list or value is None else argument.kind
    if kind in ("int", "SymInt"):
        # An ordinary number tells more than an absurd one, of which the same is wrong. Some of the others become the
        # right number if their upper half is cut off; others overflow in a product. No float32 is an odd number above
        # 2**24.
        ordinary = (value + 1, value - 1, 2 * value + 1)
        for number in (
            *dict.fromkeys((*ordinary, 0, -1)),
            -7,
            2**24 + 2 * value + 1,
            2**40 + value,
            2**62,
            2**63 - 1,
            -(2**63),
        ):
            yield Wrong(f"of {number}", (number,), is_huge=abs(number) > 2**32, is_large=_MOST < number <= 2**32)
        yield Wrong(f"of {2**64 + value}", (2**64 + value,), always=True, is_huge=True)
    if kind == "float":
        yield Wrong("of 10**400", (10**400,), always=True)


def freed(call: Call) -> Iterator[Wrong]:
    """Yields calls with each tensor in turn without its memory, or without that of its last element."""
    for name, tensor, with_other in call.tensors_in_turn():
        if not tensor.numel():
            continue
        # At an offset an address is not null where the storage's is.
        for what, offset, left in (
            ("whose storage was freed", 0, 0),
            ("in the middle of a storage that was freed", 16, 0),
            ("whose last element was freed", 0, tensor.numel() - 1),
        ):
            storage = tensor.new_zeros(offset + tensor.numel())
            changed = storage[offset:].view(tensor.shape)
            storage.untyped_storage().resize_(left * tensor.element_size())
            yield Wrong(f"{name} {what}", with_other(changed), names=name, by_any_name=True)


def _makes_many(call: Call, arguments: Sequence[Any], name: str, counting: set[str]) -> bool:
    """Whether the reference makes results of many elements, or takes long: then it counts up to that number."""
    try:
        with time_bounded(TooLong, REFERENCE_SECONDS):
            made = call.reference(*on_meta(arguments))
    except TooLong:
        counting.add(name)
        return True
    except Exception:
        return False
    return sum(each.numel() for each in tensors_of([made])) > _MOST


def on_meta(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments whose tensors have sizes and no values."""
    return each_tensor(lambda tensor: tensor.to("meta"), arguments)
