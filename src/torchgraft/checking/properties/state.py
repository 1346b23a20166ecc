"""A call depends on the values of its arguments alone, and not on other calls.

Proves: if the memory of an argument, or of an incoming gradient, holds new values, a call gives what it gives for the
same values in new memory, forward and backward. So it does if only some elements inside have new values. That holds
both if the tensor is the same and if another tensor lies at the same address. If another call comes between forward and
backward, the gradients are those of the first call alone, and its results and gradients stay as they are. Two calls
with the same arguments return different memory.

Cannot prove: that a call does not depend on numbers or sizes of earlier calls that no sample repeats.

Mend: keep nothing from call to call. Pack a weight at each call, or let the caller pack it once and pass the result;
memory is used again, so an address identifies nothing.

Example: remembers its results by the address of its input.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_equal
from torchgraft.checking.tensors.dtypes import in_float64, is_number
from torchgraft.checking.tensors.gradients import leaves_of, with_gradients

# The fewest elements of a tensor of which some are changed alone.
_LEAST_CHANGED = 12


def check(case: Case) -> None:
    """See the module."""
    samples = case.table(small=True, empty=False, count=8)
    case.each(_check_cached_result, samples)
    case.each(_check_new_values, samples)
    # The call between is of another size too: a workspace may fit one of them alone.
    after = dict(zip((sample.name for sample in samples), (*samples[1:], samples[0]), strict=True))
    case.each(lambda call: _check_call_between(call, replace(call, seed=call.seed + 1)), samples)
    case.each(lambda call: _check_call_between(call, replace(call, sample=after[call.sample.name])), samples)


def _check_cached_result(call: Call) -> None:
    if not call.declaration.lists:
        return
    arguments = call.arguments
    inputs = {_address(tensor) for tensor in tensors_of(arguments)}
    first, again = (
        [each for each in tree_leaves(call.operator.call(*arguments)) if each.numel() and _address(each) not in inputs]
        for _ in range(2)
    )
    expect(
        {_address(each) for each in first}.isdisjoint(map(_address, again)),
        "two calls with the same arguments return the same memory: who writes to one result changes the other",
    )


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class _Outcome(NamedTuple):
    """Copies of what a call gives."""

    results: list[Tensor]
    gradients: list[Tensor | None]


def _check_new_values(call: Call) -> None:
    """Writes other values to the memory of each argument in turn."""
    for same_tensor in (True, False):
        memory, values = call.leaves(required=False), tensors_of(call.arguments)
        grads: list[Tensor] = []

        def arguments(memory: Sequence[Any] = memory, same_tensor: bool = same_tensor) -> Sequence[Any]:
            return memory if same_tensor else _in_other_tensors(memory)

        previous = _outcome(call, arguments(), grads)
        for place, (name, value) in enumerate(zip(call.tensor_names, tensors_of(call.make(seed=1)), strict=True)):
            values[place] = value
            _write(memory, values)
            previous = _expect_new(call, arguments(), values, previous, name, grads)
        for place, name in enumerate(call.tensor_names):
            # What is kept may be found by an address and by some of the values.
            for value in _changed_inside(values[place], call.seed):
                # The last call was in new memory, and a cache may hold no more than one.
                _write(memory, values)
                _outcome(call, arguments(), grads)
                values[place] = value
                _write(memory, values)
                previous = _expect_new(call, arguments(), values, previous, f"some elements of {name}", grads)
        if grads:
            _write(memory, values)
            for grad in grads:
                grad.neg_()
            _expect_new(call, arguments(), values, previous, "an incoming gradient", grads)


def _changed_inside(tensor: Tensor, seed: int) -> Iterator[Tensor]:
    """Yields the tensor with other values in one block that has none of the elements by which one would know it.

    These are the first, the last and those at the eighths of all.
    """
    count = tensor.numel()
    if count < _LEAST_CHANGED or not is_number(tensor):
        return
    kept = {(count - 1) * part // 8 for part in range(9)} | {count * part // 8 for part in range(9)}
    random = Random(seed)
    for begin in {1, random.randrange(count)}:
        places = [place for place in range(begin, min(begin + max(count // 2, 1), count)) if place not in kept]
        if places:
            changed = tensor.clone(memory_format=torch.contiguous_format)
            flat = changed.view(-1)
            # Values that the tensor has, so that they make sense.
            flat[places] = flat[places].roll(1)
            yield torch.empty_like(tensor).copy_(changed)


def _in_other_tensors(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Makes other tensors in the same memory, whose counters of versions begin anew."""
    return each_tensor(lambda tensor: tensor.data.requires_grad_(tensor.requires_grad), arguments)


def _write(arguments: Sequence[Any], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors_of(arguments), values, strict=True):
            tensor.copy_(value)


def _outcome(call: Call, arguments: Sequence[Any], grads: list[Tensor] | None = None) -> _Outcome:
    """Runs forward and backward.

    Args:
        call: the operator's.
        arguments: leaves.
        grads: the incoming gradients; if they do not fit the results, others are put into the list.
    """
    results, differentiate = _forward(call, arguments, grads)
    copies = [each.detach().clone() for each in results]
    return _Outcome(copies, [None if each is None else each.clone() for each in differentiate()])


def _forward(
    call: Call, arguments: Sequence[Any], grads: list[Tensor] | None = None
) -> tuple[list[Tensor], Callable[[], Sequence[Tensor | None]]]:
    """Runs forward; returns the results, and what runs backward."""
    results = tree_leaves(call.function(*arguments))
    differentiated = with_gradients(results)
    incoming = [] if grads is None else grads
    # The sizes of results may follow from values.
    if [each.shape for each in incoming] != [each.shape for each in differentiated]:
        incoming[:] = call.output_grads(differentiated)

    def differentiate() -> Sequence[Tensor | None]:
        if not differentiated:
            return ()
        return torch.autograd.grad(differentiated, leaves_of(arguments), incoming, allow_unused=True)

    return results, differentiate


def _expect_new(
    call: Call,
    arguments: Sequence[Any],
    values: Sequence[Tensor],
    previous: _Outcome,
    name: str,
    grads: Sequence[Tensor],
) -> _Outcome:
    """Compares a call in memory that held other values before with one in new memory.

    Args:
        call: the operator's.
        arguments: lie in the memory of an earlier call, and hold new values.
        values: the values of its tensors.
        previous: what the earlier call gave.
        name: of what is new.
        grads: incoming gradients that the earlier call had too.

    Returns:
        What the call gives for these values; `previous` if the operator refuses them.
    """
    own, refused = list(grads), None
    try:
        found = _outcome(call, arguments, own)
    except Exception as error:
        refused = error
    copies = iter(values)
    fresh = call.leaves(each_tensor(lambda _: next(copies), arguments), required=False)
    try:
        expected = _outcome(call, fresh, [each.clone() for each in own])
    except Exception:
        if refused is None:
            raise
        return previous
    if refused is not None:
        raise refused
    parts = ([*each.results, *each.gradients] for each in (found, expected, previous))
    for one, other, before in zip(*parts, strict=True):
        message = (
            f"returns what it computed for the old values of {name} in the same memory: it remembers results by address"
            if one is not None and before is not None and _is_equal(one, before)
            else "gives another result in memory that earlier calls used than for the same values in new memory: it "
            "remembers something by address"
        )
        _expect_close(call, one, other, message)
    if all(map(_is_equal, found.results, previous.results)):
        _expect_no_difference(call, fresh, expected.results, name)
    return expected


def _expect_no_difference(call: Call, arguments: Sequence[Any], found: list[Tensor], name: str) -> None:
    """Asks the reference if new values make no difference, as the operator gave the same for both."""
    if call.declaration.random or call.declaration.mutates:
        return
    exact = tree_leaves(call.expected(each_tensor(Tensor.detach, arguments)))
    try:
        call.expect_close(found, exact)
    except Mismatch as error:
        # A call that ignores an argument is wrong for the old values too.
        if _is_right(call):
            raise error.explained(
                f"returns for other values of {name} what it computed for those of an earlier call of the same sizes"
            ) from None


def _is_right(call: Call) -> bool:
    try:
        call.expect_close(tree_leaves(call.function(*call.arguments)), tree_leaves(call.expected()))
    except Mismatch:
        return False
    return True


def _is_equal(one: Tensor | None, other: Tensor | None) -> bool:
    try:
        expect_equal(one, other)
    except Mismatch:
        return False
    return True


def _expect_close(call: Call, found: Tensor | None, expected: Tensor | None, message: str) -> None:
    """Compares what one kernel gives in two calls: the same, as far as the order of sums permits."""
    try:
        is_rounded = found is not None and (found.is_floating_point() or found.is_complex())
        if found is None or expected is None or not is_rounded or found.element_size() == 1:
            expect_equal(found, expected)
        else:
            summed = max(call.summed, call.sample.elements, found.numel())
            call.expect_close(found, in_float64([expected])[0], summed=summed)
    except Mismatch as error:
        raise error.explained(message) from None


def _check_call_between(call: Call, other: Call) -> None:
    """Makes another call between forward and backward, and its backward afterwards."""
    alone = _outcome(call, call.leaves(required=False))
    arguments = call.leaves(required=False)
    written = {id(tensor) for tensor in tensors_of(call.written(arguments))}
    results, differentiate = _forward(call, arguments)
    kept = [each.detach().clone() for each in results]
    _, differentiate_other = _forward(other, other.leaves(required=False))
    gradients = differentiate()
    for one, expected in zip(gradients, alone.gradients, strict=True):
        message = (
            "a gradient is another if a second call comes between forward and backward: what the first call saved is "
            "overwritten"
        )
        _expect_close(call, one, expected, message)
    kept_gradients = [None if each is None else each.clone() for each in gradients]
    differentiate_other()
    _outcome(other, other.leaves(required=False))
    why = " after a later call: both calls use the same memory"
    for one, before in zip(results, kept, strict=True):
        if id(one) not in written:
            expect_equal(one.detach(), before, what="the result of an earlier call", why=why)
    expect_equal(list(gradients), kept_gradients, what="the gradient of an earlier call", why=why)


PROPERTY = Property(check, of_calls=True)
