"""Kernels of cross_entropy, forward and gradient.

Forward, a program owns one row of logits and reads it once: each of BLOCK lanes keeps the largest logit that it met and
the sum of exponentials relative to that, and the lanes are joined at the end. Backward, a program owns one row and
BLOCK of its classes. Arithmetic is in float32, and in float64 for float64.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cross_entropy.operator import cross_entropy, cross_entropy_backward, wide_dtype
from torchgraft import wrap_triton

_MOST_CLASSES = 4096


@triton.jit
def _widened(values):
    return values if values.dtype == tl.float64 else values.to(tl.float32)


@triton.jit
def _finite(values):
    # Lanes that met nothing but -inf: the difference of two such would be NaN.
    return tl.where(values == -float("inf"), 0.0, values).to(values.dtype)


@triton.jit
def _forward(
    input_ptr,
    target_ptr,
    loss_ptr,
    logsumexp_ptr,
    classes,
    ignore_index,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    start = input_ptr + row * classes
    dtype = logsumexp_ptr.dtype.element_ty
    largest = tl.full((BLOCK,), -float("inf"), dtype)
    total = tl.zeros((BLOCK,), dtype)
    for first in range(0, classes, BLOCK):
        column = first + tl.arange(0, BLOCK)
        logits = tl.load(start + column, mask=column < classes, other=-float("inf")).to(dtype)
        larger = tl.maximum(largest, logits)
        base = _finite(larger)
        total = total * tl.exp(largest - base) + tl.exp(logits - base)
        largest = larger
    base = _finite(tl.max(largest))
    # One a row, and in float64: it would be half of the error in float32.
    logarithm = tl.log(tl.sum(total * tl.exp(largest - base)).to(tl.float64))
    tl.store(logsumexp_ptr + row, (base + logarithm).to(dtype))
    target = tl.load(target_ptr + row)
    counts = target != ignore_index
    exists = counts & (target >= 0) & (target < classes)
    logit = tl.load(start + target, mask=exists, other=float("nan")).to(dtype)
    # Not from the sum of the two, which is larger than either and would be rounded.
    tl.store(
        loss_ptr + row, tl.where(counts, logarithm - (logit.to(tl.float64) - base), 0.0).to(loss_ptr.dtype.element_ty)
    )


@triton.jit
def _backward(
    grad_ptr,
    grad_stride,
    input_ptr,
    target_ptr,
    logsumexp_ptr,
    input_grad_ptr,
    classes,
    ignore_index,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < classes
    target = tl.load(target_ptr + row)
    logits = _widened(tl.load(input_ptr + row * classes + column, mask=inside, other=0))
    logsumexp = tl.load(logsumexp_ptr + row).to(logits.dtype)
    grad = tl.load(grad_ptr + row * grad_stride)
    differences = tl.exp(logits - logsumexp) - tl.where(column == target, 1.0, 0.0)
    result = tl.where(target != ignore_index, grad * differences, 0.0)
    tl.store(input_grad_ptr + row * classes + column, result.to(input_grad_ptr.dtype.element_ty), mask=inside)


@cross_entropy.kernel("cuda", triton=True)
def cross_entropy_rows(input: Tensor, target: Tensor, *, ignore_index: int, reduction: str) -> tuple[Tensor, Tensor]:
    """One program for each row; their losses are added up by PyTorch, in an order that is always the same."""
    (rows, classes), wide = input.shape, wide_dtype(input)
    # What is added up is rounded once, at the end.
    losses = torch.empty(rows, dtype=input.dtype if reduction == "none" else torch.float64, device=input.device)
    logsumexp = torch.empty(rows, dtype=wide, device=input.device)
    if rows:
        block = min(triton.next_power_of_2(classes), _MOST_CLASSES)
        wrap_triton(_forward)[(rows,)](
            input.contiguous(),
            target.contiguous(),
            losses,
            logsumexp,
            classes,
            ignore_index,
            BLOCK=block,
            num_warps=4 if block <= 1024 else 8,
        )
    if reduction == "none":
        return losses, logsumexp
    loss = losses.sum()
    if reduction == "mean":
        loss = loss / (target != ignore_index).sum()
    return loss.to(input.dtype), logsumexp


@cross_entropy_backward.kernel("cuda", triton=True)
def cross_entropy_backward_rows(
    output_grad: Tensor, input: Tensor, target: Tensor, logsumexp: Tensor, ignore_index: int, reduction: str
) -> Tensor:
    """One program for each row and each block of classes."""
    rows, classes = input.shape
    input_grad = torch.empty(input.shape, dtype=input.dtype, device=input.device)
    if not rows:
        return input_grad
    grads = output_grad.to(wide_dtype(input)).contiguous()
    if reduction == "mean":
        grads = grads / (target != ignore_index).sum()
    block = min(triton.next_power_of_2(classes), _MOST_CLASSES)
    wrap_triton(_backward)[(rows, triton.cdiv(classes, block))](
        grads,
        1 if reduction == "none" else 0,
        input.contiguous(),
        target.contiguous(),
        logsumexp.contiguous(),
        input_grad,
        classes,
        ignore_index,
        BLOCK=block,
        num_warps=4 if block <= 1024 else 8,
    )
    return input_grad
