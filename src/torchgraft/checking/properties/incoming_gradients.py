"""The layout of an incoming gradient does not change the gradients.

Proves: incoming gradients that are expanded (as `sum()` sends them, and along each dimension alone, as `sum(dim)` sends
them), transposed, sliced, offset or channels_last give
the same gradients as contiguous ones with the same values. If there are several results, any of them may be unused: the
gradients are those of the reference both if the formula gets None for such a result, as from autograd, and if it gets
zeros, as from compilers.

Cannot prove: that the gradients themselves are right if all results are used; `gradient` checks them.

Mend: an incoming gradient may have strides of 0, be None, or hold zeros for a result that nobody used: bring it into a
layout with `to_contiguous` before a pointer is taken, or set `materialize_grads=True`.

Example: reads an incoming gradient as if it were contiguous.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.helpers.compiling import in_short
from torchgraft.checking.property import Property
from torchgraft.checking.tensors.arguments import replaced
from torchgraft.checking.tensors.compare import Mismatch
from torchgraft.checking.tensors.dtypes import in_float64
from torchgraft.checking.tensors.gradients import grad_or_zeros, leaves_of
from torchgraft.checking.tensors.strides import in_awkward_strides


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_strides, case.table(small=True, empty=False, count=8))
    case.each(_check_expanded, case.table(small=True, empty=False, count=8))
    case.each(_check_expanded_along, case.table(small=True, empty=False, count=8))
    case.each(_check_unused, case.table(small=True, empty=False, count=4))


def _gradients(call: Call, output_grads: Sequence[Tensor | None]) -> Sequence[Tensor]:
    arguments = call.leaves()
    results = call.differentiable_results(tree_leaves(call.function(*arguments)))
    pairs = zip(results, output_grads, strict=True)
    used = [(result, gradient) for result, gradient in pairs if gradient is not None]
    return grad_or_zeros([result for result, _ in used], leaves_of(arguments), [gradient for _, gradient in used])


def _random_grads(call: Call) -> list[Tensor]:
    call.leaves()
    return call.output_grads(call.differentiable_results(tree_leaves(call.function(*call.arguments))))


def _expect_same(
    call: Call, found: Sequence[Tensor], expected: Sequence[Tensor], kind: str, *, coherent: bool = False
) -> None:
    for name, one, other in zip(call.leaf_names, found, expected, strict=True):
        what = f"the gradient of {name} for an incoming gradient {kind}"
        call.expect_close(one, *in_float64([other]), summed=call.sample.elements, coherent=coherent, what=what)


def _check_strides(call: Call) -> None:
    plain = _random_grads(call)
    expected = _gradients(call, plain)
    for place, gradient in enumerate(plain):
        for kind, strided in in_awkward_strides(gradient).items():
            _expect_same(call, _gradients(call, replaced(plain, place, strided)), expected, kind)


def _check_expanded(call: Call) -> None:
    plain = [torch.ones_like(gradient) for gradient in _random_grads(call)]
    expanded = [gradient.new_ones(()).expand(gradient.shape) for gradient in plain]
    _expect_same(call, _gradients(call, expanded), _gradients(call, plain), "expanded from one element", coherent=True)


def _check_expanded_along(call: Call) -> None:
    """One dimension alone has a stride of zero: the values along the others differ."""
    plain = _random_grads(call)
    for place, gradient in enumerate(plain):
        dims = [dim for dim, size in enumerate(gradient.shape) if size > 1]
        for dim in dims if len(dims) > 1 else ():
            expanded = gradient.narrow(dim, 0, 1).expand(gradient.shape)
            expected = _gradients(call, replaced(plain, place, expanded.clone(memory_format=torch.contiguous_format)))
            found = _gradients(call, replaced(plain, place, expanded))
            _expect_same(call, found, expected, f"expanded along dimension {dim}", coherent=True)


def _check_unused(call: Call) -> None:
    plain = _random_grads(call)
    count = len(plain)
    if count == 1:
        return
    places = range(count)
    # One result alone, and one left out.
    for used in dict.fromkeys([*((place,) for place in places), *itertools.combinations(places, count - 1)]):
        zeros = [gradient if place in used else torch.zeros_like(gradient) for place, gradient in enumerate(plain)]
        nones = [gradient if place in used else None for place, gradient in enumerate(plain)]
        expected, own = call.expected_gradients(zeros), call.gradients_by_pytorch(zeros)
        unused = " and ".join(str(place + 1) for place in places if place not in used)
        for output_grads, kind in ((nones, "None"), (zeros, "zeros, as compilers give it,")):
            what = f"with {kind} for result {unused}"
            try:
                found = _gradients(call, output_grads)
            except Exception as error:
                raise Mismatch(f"the gradient {what} fails: {type(error).__name__}: {in_short(error)}") from error
            for place, (name, one, other) in enumerate(zip(call.leaf_names, found, expected, strict=True)):
                by_pytorch = None if own is None else own[place]
                options = {"summed": _summed(call, plain), "of_pytorch": by_pytorch}
                call.expect_close(one, other, what=f"the gradient of {name} {what}", **options)


def _summed(call: Call, output_grads: Sequence[Tensor]) -> int:
    return max(call.summed, *(gradient.numel() for gradient in output_grads))


PROPERTY = Property(check, sanitized=True)
