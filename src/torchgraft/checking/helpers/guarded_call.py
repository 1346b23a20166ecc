"""A call whose tensors lie in guarded memory."""

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.tensors.arguments import each_tensor
from torchgraft.checking.tensors.gradients import leaves_of
from torchgraft.checking.tensors.guarded_memory import NAN_BYTE, Arena


def make_tables(call: Call) -> None:
    """Makes a call in memory that nobody uses again.

    There a kernel keeps what it makes once, such as a table of its sizes.
    """
    arena = Arena(call.device)

    def work() -> None:
        served_call(call, arena)
        arena.expect_guards_intact()

    arena.run(work, NAN_BYTE)


def served_call(call: Call, arena: Arena) -> tuple[list[Tensor], list[Tensor | None]]:
    """Runs a call forward and backward in an arena, inside `Arena.run`; returns its results and gradients."""
    leaves = call.leaves(required=False)
    arguments = each_tensor(lambda tensor: arena.place(tensor.detach()).requires_grad_(tensor.requires_grad), leaves)
    with arena.serving():
        results = tree_leaves(call.function(*arguments))
    differentiable = [result for result in results if result.requires_grad]
    if not differentiable:
        return results, []
    output_grads = [arena.place(each) for each in call.output_grads(differentiable)]
    with arena.serving():
        gradients = torch.autograd.grad(differentiable, leaves_of(arguments), output_grads, allow_unused=True)
    return results, list(gradients)
