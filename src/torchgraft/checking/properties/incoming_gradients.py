"""The layout of an incoming gradient does not change the gradients.

Proves: incoming gradients that are expanded (as `sum()` sends them), transposed, sliced, offset or channels_last give
the same gradients as contiguous ones with the same values. If there are several results, any of them may be unused.

Cannot prove: that the gradients themselves are right; `gradient` checks them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.case import Call, Case, grad_or_zeros, in_float64, leaves_of, replaced
from torchgraft.checking.property import Property
from torchgraft.checking.strides import in_awkward_strides


def check(case: Case) -> None:
    """See the module."""
    case.each(_check_strides, case.table(small=True, empty=False, count=8))
    case.each(_check_expanded, case.table(small=True, empty=False, count=8))
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


def _check_unused(call: Call) -> None:
    plain = _random_grads(call)
    if len(plain) == 1:
        return
    for place, gradient in enumerate(plain):
        alone = replaced([None] * len(plain), place, gradient)
        zeros = replaced([torch.zeros_like(each) for each in plain], place, gradient)
        _expect_same(call, _gradients(call, alone), _gradients(call, zeros), f"of result {place + 1} alone")


PROPERTY = Property(check, sanitized=True)
