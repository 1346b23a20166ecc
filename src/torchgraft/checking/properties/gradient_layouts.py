"""A gradient has the layout of its argument.

Proves: if the incoming gradients have the layout of the results, each gradient has the strides of its argument,
contiguous and channels_last. A gradient with another layout would be copied when gradients are added up, and
distributed training warns of it. Two other layouts are right: that of PyTorch's own gradient of the reference for the
same incoming gradients, and an expanded one, as that of a sum, which takes no memory. So a formula that hands an
incoming gradient to an operator with contiguous results is right where PyTorch's own gradient would be contiguous too,
as for `input * factor`: the results of a channels_last argument are contiguous there, and so are their gradients.

Cannot prove: anything for an operator without a gradient formula, whose gradients have the layout of the reference's
gradients. The strides of dimensions of one element are not compared, because no element lies elsewhere for them. So an
argument that is contiguous and channels_last at once, for example with one channel, has one layout here.

Mend: allocate each gradient as its argument lies: `torch.empty_like(input)`, or `empty_as(to_dense(input))` in C++.

Example: the gradient is contiguous where its input is channels_last.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.case import Case
from torchgraft.checking.property import Property
from torchgraft.checking.result import NotApplicable
from torchgraft.checking.tensors.compare import expect_same
from torchgraft.checking.tensors.gradients import attached, differentiate, leaves_of
from torchgraft.checking.tensors.strides import significant_strides


def check(case: Case) -> None:
    """See the module."""
    if case.declaration.gradient is None:
        raise NotApplicable("the operator has no gradient formula")
    asked: list[int] = []
    case.each(lambda call: asked.append(_check_strides(call)), case.table(empty=False))
    if not any(asked):
        raise NotApplicable("no sample has a gradient with elements")


def _check_strides(call: Call) -> int:
    """Compares the strides of all gradients, and returns how many there are."""
    arguments = call.leaves()
    results = attached(call.differentiable_results(tree_leaves(call.function(*arguments))), leaves_of(arguments))
    plain = call.output_grads(results)
    output_grads = [torch.empty_like(result).copy_(each) for result, each in zip(results, plain, strict=True)]
    gradients = differentiate(results, leaves_of(arguments), output_grads)
    own: Sequence[Tensor] | None = None
    for place, (tensor, gradient) in enumerate(zip(leaves_of(arguments), gradients, strict=True)):
        if gradient is None:
            continue
        found, expected = significant_strides(gradient), significant_strides(tensor)
        if found == expected or 0 in found:
            continue
        own = call.reference_gradients(output_grads) if own is None else own
        if found != significant_strides(own[place]):
            expect_same(found, expected, "a gradient has other strides than its argument")
    return sum(gradient is not None and gradient.numel() > 0 for gradient in gradients)


PROPERTY = Property(check)
