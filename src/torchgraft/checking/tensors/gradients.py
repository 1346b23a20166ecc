"""Gradients of tensors: which tensors need one, random incoming ones, and their computation."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchgraft.checking.result import INCOMING_CHANGED
from torchgraft.checking.tensors.arguments import tensors_of
from torchgraft.checking.tensors.compare import Mismatch, expect_equal


def leaves_of(arguments: Iterable[Any]) -> list[Tensor]:
    """Collects the tensors among arguments that need a gradient."""
    return with_gradients(tensors_of(arguments))


def with_gradients(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Returns the tensors that need a gradient, or carry one."""
    return [tensor for tensor in tensors if tensor.requires_grad]


def attached(results: Iterable[Tensor], leaves: Iterable[Tensor]) -> list[Tensor]:
    """Attaches results that carry no gradient to the leaves, with a gradient of zeros, so that none is left out.

    A function with flags gives an empty tensor or zeros for what nobody wants: such a result depends on no argument.
    """
    nothing = torch.stack([(leaf * 0).real.nan_to_num().sum() for leaf in leaves]).sum()
    return [each if each.requires_grad else each + nothing.to(each.dtype) for each in results]


def randn_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Makes normally distributed values of a tensor's shape, contiguous: on the CPU, or on the generator's GPU."""
    on_cpu = generator.device.type == "cpu"
    computed = torch.float64 if on_cpu else torch.promote_types(tensor.dtype, torch.float32)
    if on_cpu and tensor.is_complex():
        computed = torch.complex128
    values = torch.randn(tensor.shape, generator=generator, dtype=computed, device=generator.device)
    return values.to(tensor.device, tensor.dtype)


def differentiate(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], output_grads: Sequence[Tensor] | None = None, **options: bool
) -> tuple[Tensor | None, ...]:
    """Calls `torch.autograd.grad`, with None for an input that no gradient flows back to.

    Incoming gradients are copied before: an expected value that is computed from changed ones would be wrong.

    Raises:
        Mismatch: the backward pass has written to one.
    """
    given = () if output_grads is None else output_grads
    # What reads values ends the capture of a CUDA graph.
    is_captured = any(each.is_cuda for each in given) and torch.cuda.is_current_stream_capturing()
    copies = [] if is_captured else [each.detach().clone() for each in given]
    gradients = torch.autograd.grad(outputs, inputs, output_grads, allow_unused=True, **options)
    for number, (one, copy) in enumerate(zip(given, copies, strict=False), 1):
        _expect_kept(one.detach(), copy, f" {number}" if len(copies) > 1 else "")
    return gradients


def _expect_kept(output_grad: Tensor, before: Tensor, which: str) -> None:
    # This is the cheaper comparison; it cannot compare codes of one byte, and takes NaN for unlike NaN.
    if output_grad.element_size() > 1 and torch.equal(output_grad, before):
        return
    try:
        expect_equal(output_grad, before)
    except Mismatch as error:
        raise Mismatch(
            f"the gradient formula writes to its incoming gradient{which}: autograd gives the same memory to other"
            " formulas, so a formula must write to new tensors",
            index=error.index,
            expected=error.expected,
            found=error.found,
            kind=INCOMING_CHANGED,
        ) from None


def grad_or_zeros(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], output_grads: Sequence[Tensor] | None = None, **options: bool
) -> tuple[Tensor, ...]:
    """Does what `differentiate` does, with zeros for an input that no gradient flows back to."""
    found: Any = differentiate(outputs, inputs, output_grads, materialize_grads=True, **options)
    return found
