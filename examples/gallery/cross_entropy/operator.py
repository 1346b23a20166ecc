"""The declaration of cross_entropy, and of the operator that computes its gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torchgraft import Operator
from torchgraft.operator import FLOATING

_REDUCTIONS = ("mean", "sum", "none")
_DTYPES = {"input": FLOATING, "target": (torch.int64,)}


def wide_dtype(input: Tensor) -> torch.dtype:
    """The dtype of what is computed from logits: float32, and float64 for float64."""
    return torch.promote_types(input.dtype, torch.float32)


def _reference(input: Tensor, target: Tensor, *, ignore_index: int, reduction: str) -> tuple[Tensor, Tensor]:
    loss = torch.nn.functional.cross_entropy(input, target, ignore_index=ignore_index, reduction=reduction)
    return loss, torch.logsumexp(input.to(wide_dtype(input)), 1)


def _output(input: Tensor, target: Tensor, *, ignore_index: int, reduction: str) -> tuple[Tensor, Tensor]:
    loss = input.new_empty(target.shape if reduction == "none" else ())
    return loss, input.new_empty(target.shape, dtype=wide_dtype(input))


def _explain_targets(name: str, input: Tensor, target: Tensor, ignore_index: int, reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{name}: reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if input.dim() != 2 or not input.shape[1]:
        raise ValueError(
            f"{name}: input must have the shape (rows, classes), with one class at least, got {tuple(input.shape)}"
        )
    if target.shape != input.shape[:1]:
        raise ValueError(
            f"{name}: target must have the shape {tuple(input.shape[:1])} of the rows of input, got"
            f" {tuple(target.shape)}"
        )
    # A GPU would have to be waited for; there a kernel gives NaN for a class that does not exist.
    if target.device.type == "cpu":
        strange = target[(target != ignore_index) & ((target < 0) | (target >= input.shape[1]))]
        if strange.numel():
            raise ValueError(
                f"{name}: target must hold classes from 0 to {input.shape[1] - 1}, or ignore_index, {ignore_index}; got"
                f" {strange[0].item()}"
            )


def _explain(input: Tensor, target: Tensor, *, ignore_index: int, reduction: str) -> None:
    _explain_targets("cross_entropy", input, target, ignore_index, reduction)


def _gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor],
    saved: Sequence[Tensor],
    input: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    reduction: str,
) -> tuple[Tensor, None]:
    (logsumexp,) = saved
    if torch.is_grad_enabled():
        # A second derivative is wanted, and what was saved is a constant.
        logsumexp = torch.logsumexp(input.to(logsumexp.dtype), 1)
    return cross_entropy_backward(output_grads[0], input, target, logsumexp, ignore_index, reduction), None


cross_entropy = Operator(
    'gallery::cross_entropy(Tensor input, Tensor target, *, int ignore_index=-100, str reduction="mean")'
    " -> (Tensor loss, Tensor logsumexp)",
    reference=_reference,
    output=_output,
    gradient=_gradient,
    # The second result is kept for the gradient.
    visible_outputs=1,
    dtypes=_DTYPES,
    kernels={"cuda": FLOATING},
    explain=_explain,
)


def _backward_reference(
    output_grad: Tensor, input: Tensor, target: Tensor, logsumexp: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    wide = wide_dtype(input)
    counts = target != ignore_index
    grads = output_grad.to(wide).expand(target.shape)
    if reduction == "mean":
        grads = grads / counts.sum()
    chosen = torch.arange(input.shape[1], device=input.device) == target[:, None]
    differences = torch.exp(input.to(wide) - logsumexp[:, None].to(wide)) - chosen.to(wide)
    return torch.where(counts[:, None], grads[:, None] * differences, 0).to(input.dtype)


def _explain_backward(
    output_grad: Tensor, input: Tensor, target: Tensor, logsumexp: Tensor, ignore_index: int, reduction: str
) -> None:
    _explain_targets("cross_entropy_backward", input, target, ignore_index, reduction)
    expected = tuple(target.shape) if reduction == "none" else ()
    if tuple(output_grad.shape) != expected:
        raise ValueError(
            f"cross_entropy_backward: output_grad must have the shape {expected} of the loss, got"
            f" {tuple(output_grad.shape)}"
        )
    if logsumexp.shape != target.shape:
        raise ValueError(
            f"cross_entropy_backward: logsumexp must have the shape {tuple(target.shape)} of target, got"
            f" {tuple(logsumexp.shape)}"
        )


cross_entropy_backward = Operator(
    "gallery::cross_entropy_backward(Tensor output_grad, Tensor input, Tensor target, Tensor logsumexp,"
    " int ignore_index, str reduction) -> Tensor",
    reference=_backward_reference,
    output=lambda output_grad, input, *others: input.new_empty(input.shape),
    # Second derivatives are rare, and need no kernel.
    gradient="reference",
    dtypes={"output_grad": FLOATING, "logsumexp": FLOATING, **_DTYPES},
    # It is in float32 beside half precision.
    mixed=("logsumexp",),
    kernels={"cuda": FLOATING},
    explain=_explain_backward,
)
