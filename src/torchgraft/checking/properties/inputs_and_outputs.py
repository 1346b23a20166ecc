"""Inputs stay unchanged, and results have memory of their own.

Proves: forward and backward change no bit of an argument or of an incoming gradient. No result shares memory with an
argument, with another result, or with the results of three other calls, also of the same arguments. A result is a
Tensor of no other class, without attributes. One tensor, given as two arguments that samples draw alike, or twice in a
list, gives the results of two equal tensors, and its gradient is the sum of theirs.

Cannot prove: that nothing outside of the tensors is written; `memory_bounds` and the sanitizers check that.

Mend: write to a tensor that the call allocated, and return a new one also where nothing is to be done; `to_dense` may
return its argument itself. An argument that is to be written is `Tensor(a!)` in the schema. A formula returns the
gradient of each place, and autograd adds up those of one tensor.

Example: gives its input itself where the factor is one.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect, expect_equal
from torchgraft.checking.tensors.dtypes import in_float64, is_number
from torchgraft.checking.tensors.gradients import differentiate, grad_or_zeros, leaves_of, with_gradients

# How many pairs of tensors of a sample are one tensor in turn, and by which part of their gradients the sum may err.
_PAIRS = 3
_GRADIENT_ERROR = 1e-2


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_forward, case.table())
    case.each(_check_backward, case.table(empty=False, count=12))
    case.each(_check_one_tensor_twice, case.table(small=True, empty=False, count=4))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the storages of two tensors have a byte in common; one memory may have several."""
    first, second = one.untyped_storage(), other.untyped_storage()
    begin, start = first.data_ptr(), second.data_ptr()
    return begin < start + second.nbytes() and start < begin + first.nbytes()


def expect_apart(results: Sequence[Tensor], arguments: Sequence[Tensor], words: str = "") -> None:
    """Raises a Mismatch where a result has a byte of an argument; words say of which call it is."""
    is_new = not any(_overlap(result, each) for result in results for each in arguments)
    expect(is_new, f"{words}a result shares its memory with an argument")


def _check_forward(call: Call) -> None:
    def results_of(arguments: Sequence[Any]) -> list[Tensor]:
        found = call.operator.raw(*arguments)
        return tree_leaves(found) if call.declaration.lists else []

    arguments = call.arguments
    versions = [tensor._version for tensor in _read(call, arguments)]
    results = [result for result in expect_unwritten(call, arguments, results_of) if result.numel()]
    for tensor, version in zip(_read(call, arguments), versions, strict=True):
        expect(tensor._version == version, "an argument was written to, although with the same values")
    inputs = [tensor for tensor in tensors_of(arguments) if tensor.numel()]
    for number, result in enumerate(results):
        expect_apart([result], inputs)
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


def _read(call: Call, arguments: Sequence[Any]) -> list[Tensor]:
    """The tensors that a call must not write to."""
    written = {id(tensor) for tensor in tensors_of(call.written(arguments))}
    return [tensor for tensor in tensors_of(arguments) if id(tensor) not in written]


def expect_unwritten(
    call: Call, arguments: Sequence[Any] | None = None, run: Callable[[Sequence[Any]], Any] | None = None
) -> Any:
    """Runs a call, and returns its results.

    Args:
        call: any.
        arguments: others than those of the call.
        run: of the arguments; None: as a caller does.

    Raises:
        Mismatch: the call changes an argument that its schema does not call written.
    """
    arguments = call.arguments if arguments is None else arguments
    read = _read(call, arguments)
    before = [tensor.clone() for tensor in read]
    results = call.function(*arguments) if run is None else run(arguments)
    expect_equal(read, before, what="an argument", why=" after the call, which must not write to it")
    return results


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


def _check_one_tensor_twice(call: Call) -> None:
    """Gives one tensor in two places, and two equal ones there; an operator may refuse either."""
    if call.declaration.random:
        return
    names = call.tensor_names
    for first, second in _pairs_alike(call):
        is_written = any(call.declaration.argument(names[each].partition("[")[0]).mutated for each in (first, second))
        if is_written:
            # `mutation` asks about these.
            continue
        try:
            apart = _outcome_of(call, first, second, is_one=False)
            together = _outcome_of(call, first, second, is_one=True)
        except (ValueError, TypeError, NotImplementedError):
            continue
        how = f"where {names[first]} and {names[second]} are one tensor"
        (results, (gradient,)), (expected, gradients) = together, apart
        if not all(bool(each.isfinite().all()) for each in (*expected, *tensors_of(gradients))):
            # A norm of the difference of equal vectors may have no gradient.
            continue
        what = f"the result, {how}, and not two equal ones,"
        call.expect_close(results, in_float64(expected), summed=max(call.summed, call.sample.elements), what=what)
        if gradient is not None:
            one, other = (each.double() for each in tensors_of(gradients))
            allowed = _GRADIENT_ERROR * (one.abs() + other.abs()).max()
            wrong = ((gradient.double() - (one + other)).abs() > allowed).nonzero()
            if len(wrong):
                index = tuple(wrong[0].tolist())
                raise Mismatch(
                    f"the gradient, {how}, is not the sum of the gradients of two equal tensors",
                    index=index,
                    expected=(one + other)[index].item(),
                    found=gradient[index].item(),
                )


def _pairs_alike(call: Call) -> Iterator[tuple[int, int]]:
    """Yields the numbers of tensors that a sample draws alike: each may have the values of the other."""
    drawn, tensors = call.sample.tensors, tensors_of(call.make("meta"))
    pairs = combinations([place for place, each in enumerate(tensors) if is_number(each)], 2)
    alike = [(one, other) for one, other in pairs if drawn[one] == drawn[other]]
    yield from alike[:_PAIRS]


def _outcome_of(call: Call, first: int, second: int, *, is_one: bool) -> tuple[list[Tensor], list[Tensor | None]]:
    """Runs forward and backward with equal values in two places.

    Args:
        call: any.
        first: the number of a tensor.
        second: the number of another one, which gets the values of the first.
        is_one: whether both are one tensor.

    Returns:
        the results, and the gradients of the two; of one, if they are one; None if there are none.
    """
    leaves = call.leaves(required=False)
    tensors = tensors_of(leaves)
    value = tensors[first]
    places = iter(range(len(tensors)))

    def chosen(tensor: Tensor) -> Tensor:
        if next(places) != second:
            return tensor
        return value if is_one else value.detach().clone().requires_grad_(value.requires_grad)

    arguments = each_tensor(chosen, leaves)
    results = tree_leaves(call.function(*arguments))
    carriers = with_gradients(call.differentiable_results(results))
    given = tensors_of(arguments)
    asked = [given[first]] if is_one else [given[first], given[second]]
    plain = [result.detach() for result in results]
    if not carriers or not all(each.requires_grad and each.is_leaf for each in asked):
        return plain, [None] * len(asked)
    return plain, list(grad_or_zeros(carriers, asked, call.output_grads(carriers)))


PROPERTY = Property(check, sanitized=True, of_calls=True)
