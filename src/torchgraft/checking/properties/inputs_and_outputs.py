"""Inputs stay unchanged, and results have memory of their own.

Proves: forward and backward change no bit of an argument or of an incoming gradient. No result shares memory with an
argument, with another result, or with the results of three other calls, also of the same arguments. A result is a
Tensor of no other class, without attributes.

Cannot prove: that nothing outside of the tensors is written; `memory_bounds` and the sanitizers check that.

Mend: write to a tensor that the call allocated, and return a new one also where nothing is to be done; `to_dense` may
return its argument itself. An argument that is to be written is `Tensor(a!)` in the schema.

Example: gives its input itself where the factor is one.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.compare import expect, expect_equal
from torchgraft.checking.tensors.gradients import differentiate, leaves_of, with_gradients


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_forward, case.table())
    case.each(_check_backward, case.table(empty=False, count=12))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the storages of two tensors have a byte in common; one memory may have several."""
    first, second = one.untyped_storage(), other.untyped_storage()
    begin, start = first.data_ptr(), second.data_ptr()
    return begin < start + second.nbytes() and start < begin + first.nbytes()


def _check_forward(call: Call) -> None:
    def results_of(arguments: Sequence[Any]) -> list[Tensor]:
        found = call.operator.raw(*arguments)
        return tree_leaves(found) if call.declaration.lists else []

    arguments = call.arguments
    written = {id(tensor) for tensor in tensors_of(call.written(arguments))}
    read = [tensor for tensor in tensors_of(arguments) if id(tensor) not in written]
    before = [tensor.clone() for tensor in read]
    versions = [tensor._version for tensor in read]
    results = [result for result in results_of(arguments) if result.numel()]
    expect_equal(read, before, what="an argument", why=" after the call, which must not write to it")
    for tensor, version in zip(read, versions, strict=True):
        expect(tensor._version == version, "an argument was written to, although with the same values")
    inputs = [tensor for tensor in tensors_of(arguments) if tensor.numel()]
    for number, result in enumerate(results):
        is_new = not any(_overlap(result, tensor) for tensor in inputs)
        expect(is_new, "a result shares its memory with an argument")
        expect(not any(_overlap(result, other) for other in results[:number]), "two results share their memory")
        plain = type(result) is Tensor and not result.__dict__
        expect(plain, f"a result is a {type(result).__name__} with the attributes {sorted(result.__dict__)}, no Tensor")

    kept = [result.clone() for result in results]
    # Each call's results are held, so that only a kernel that keeps memory can give it to two calls.
    held = list(results)
    for seed in (0, 1, 2):
        later = [result for result in results_of(call.make(seed=seed)) if result.numel()]
        for one in later:
            is_new = not any(_overlap(one, other) for other in held)
            expect(is_new, "the results of two calls share their memory: the kernel keeps it, and must make it anew")
        held += later
    expect_equal(results, kept, what="a result", why=" after a later call")


def _check_backward(call: Call) -> None:
    arguments = call.leaves(required=False)
    tensors = leaves_of(arguments)
    if not tensors:
        return
    before = [tensor.detach().clone() for tensor in tensors]
    results = with_gradients(tree_leaves(call.function(*arguments)))
    output_grads = call.output_grads(results)
    gradients = differentiate(results, tensors, output_grads)
    expect_equal(tensors, before, what="an argument", why=" after backward, which must not write to it")
    present = [gradient for gradient in gradients if gradient is not None and gradient.numel()]
    foreign = {_address(tensor) for tensor in (*tensors, *results)}
    for gradient in present:
        expect(_address(gradient) not in foreign, "a gradient shares its memory with an argument or a result")


PROPERTY = Property(check, sanitized=True, of_calls=True)
