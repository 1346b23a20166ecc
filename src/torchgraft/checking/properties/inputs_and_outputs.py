"""Inputs stay unchanged, and results have memory of their own.

Proves: forward and backward change no bit of an argument or of an incoming gradient. No result shares memory with an
argument, with another result, or with the result of an earlier call.

Cannot prove: that nothing outside of the tensors is written; `memory_bounds` and the sanitizers check that.
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
    inputs = {_address(tensor) for tensor in tensors_of(arguments) if tensor.numel()}
    for result in results:
        expect(_address(result) not in inputs, "a result shares its memory with an argument")
    expect(len({_address(result) for result in results}) == len(results), "two results share their memory")

    kept = [result.clone() for result in results]
    later = [result for result in results_of(call.make(seed=1)) if result.numel()]
    for one, other in zip(results, later, strict=True):
        expect(_address(one) != _address(other), "the results of two calls share their memory")
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


PROPERTY = Property(check, sanitized=True)
