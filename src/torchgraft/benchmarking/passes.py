"""The passes of an operator that are timed: forward, gradients, or both, bound to arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from torchgraft.checking.call import Call
from torchgraft.checking.tensors.arguments import each_tensor, tensors_of
from torchgraft.checking.tensors.gradients import with_gradients
from torchgraft.declaration import Declaration
from torchgraft.operator import Operator
from torchgraft.sampling import Benchmark, Samples

FORWARD_BACKWARD = "forward_backward"


@dataclass(frozen=True)
class Candidate:
    """One row to be measured.

    Attributes:
        operator: is timed.
        samples: its rivals, bytes and error bounds.
        benchmark: on this input,
        dtype: in this dtype,
        device: on this device.
        direction: 'forward'; 'backward', the gradients of all tensor arguments; 'forward_backward', both; or
            `<argument>_grad`, the gradient of one argument.
        against: the rivals and yardsticks to be timed beside it.
        explained: whether the row says what serves each call.
        every_kernel: whether those of the operator's kernels that support the input are rivals too.
    """

    operator: Operator
    samples: Samples
    benchmark: Benchmark
    dtype: torch.dtype
    device: torch.device
    direction: str = "forward"
    against: tuple[str, ...] = ()
    explained: bool = False
    every_kernel: bool = False

    @property
    def declaration(self) -> Declaration:
        """The declaration of the operator."""
        return self.operator.declaration

    @property
    def dtype_name(self) -> str:
        """The dtype without PyTorch's prefix; 'tf32' where that is what float32 may be computed in."""
        return "tf32" if self.benchmark.sample.tf32 else str(self.dtype).removeprefix("torch.")

    @property
    def call(self) -> Call:
        """The function that is called."""
        return Call(self.operator, self.samples, self.benchmark.sample, self.device, self.dtype, 0)

    def differentiates(self, argument: str) -> bool:
        """Whether the gradient of an argument is asked for."""
        return self.direction in ("backward", FORWARD_BACKWARD, f"{argument}_grad")

    @property
    def layout(self) -> str:
        """'channels_last' where an argument is, or else 'contiguous'."""
        tensors = self.benchmark.sample.tensors
        return "channels_last" if any(each.channels_last for each in tensors) else "contiguous"


def bind(candidate: Candidate, function: Callable[..., Any], arguments: Sequence[Any]) -> Callable[[], Any]:
    """A call of a function on arguments, in the direction that is asked for."""
    leaves = []
    for name, tensor, has_gradient in candidate.call.named_tensors(arguments):
        wanted = has_gradient and candidate.differentiates(name)
        # The arguments may have been those of another pass before.
        if tensor.requires_grad_(wanted).requires_grad:
            leaves.append(tensor)
    return _bind_call(candidate.direction, lambda: function(*arguments), leaves)


def bind_yardstick(
    candidate: Candidate,
    make: Callable[..., tuple[Callable[[], Any], Sequence[Tensor]]],
    arguments: Sequence[Any],
) -> Callable[[], Any]:
    """The same of what computes something else, which must not see what is asked of these arguments."""
    own = [value.detach().clone() if isinstance(value, Tensor) else value for value in arguments]
    call, leaves = make(*own)
    if candidate.direction == "forward":
        return torch.no_grad()(call)
    for leaf in leaves:
        leaf.requires_grad_()
    return _bind_call(candidate.direction, call, leaves)


def _bind_call(direction: str, call: Callable[[], Any], leaves: Sequence[Tensor]) -> Callable[[], Any]:
    if direction == "forward":
        return call
    results: list[Tensor] = []
    output_grads: list[Tensor] = []

    def backward() -> Any:
        # Incoming gradients are made at the first call, which is not timed; as the forward pass is, unless it is
        # asked for too.
        if not results or direction == FORWARD_BACKWARD:
            results[:] = with_gradients(tree_leaves(call()))
        if not output_grads:
            output_grads.extend(output_grads_of(results))
        return torch.autograd.grad(results, leaves, output_grads, retain_graph=direction != FORWARD_BACKWARD)

    return backward


def output_grads_of(results: Sequence[Tensor]) -> list[Tensor]:
    """Incoming gradients, the same for every contender."""
    generator = torch.Generator(results[0].device).manual_seed(2)
    return [
        torch.empty_like(result).copy_(
            torch.randn(result.shape, generator=generator, device=result.device, dtype=torch.float32)
        )
        for result in results
    ]


def work_of(candidate: Candidate, arguments: Sequence[Any]) -> tuple[int, int]:
    """The bytes that must be moved and the operations that must be done."""
    tensors = tensors_of(arguments)
    shapes = each_tensor(lambda tensor: tensor.shape, arguments)
    operations = candidate.benchmark.operations
    if operations is None:
        operations = candidate.declaration.flops(*shapes) if candidate.declaration.flops else 0
    if candidate.samples.moved is not None:
        moved = candidate.samples.moved(*arguments)
    else:
        on_meta = each_tensor(lambda tensor: tensor.to("meta"), arguments)
        # Of results whose sizes depend on data nobody knows; what is written to was read before.
        knows = candidate.declaration.lists and not candidate.declaration.sizes_from_data
        results = tree_leaves(candidate.declaration.visible(candidate.declaration.output(*on_meta))) if knows else []
        results += tensors_of(candidate.call.written(arguments))
        moved = sum(each.numel() * each.element_size() for each in (*tensors, *results))
    if candidate.direction in ("backward", FORWARD_BACKWARD):
        # The incoming gradient, and every argument once more as its gradient; each gradient is as much work.
        both = candidate.direction == FORWARD_BACKWARD
        moved += sum(each.numel() * each.element_size() for each in tensors) + both * moved
        work = candidate.samples.backward_work
        operations *= (sum(each.dim() > 1 for each in tensors) if work is None else work) + both
    # The gradient of one argument reads the others and the incoming gradient: as many bytes as the forward pass moves,
    # and as much work.
    return moved, operations
