"""The meaning of causal_conv1d: its kernels are compared with this."""

import torch
from torch import Tensor


def _extended(input: Tensor, weight: Tensor, initial_state: Tensor | None) -> Tensor:
    """The numbers that the convolution reads (batch, channels, width - 1 + length): the past, then the input.

    It is in the dtype that sums are kept in, float32 for dtypes of two bytes.
    """
    batch, channels, _ = input.shape
    if initial_state is None:
        initial_state = input.new_zeros(batch, channels, weight.shape[1] - 1)
    return torch.cat([initial_state, input], 2).to(torch.promote_types(input.dtype, torch.float32))


def _sums(extended: Tensor, weight: Tensor, bias: Tensor | None, length: int) -> Tensor:
    """The convolution before SiLU (batch, channels, length)."""
    sums = torch.zeros_like(extended[..., :length]) if bias is None else bias[:, None].to(extended.dtype)
    for tap in range(weight.shape[1]):
        sums = sums + weight[:, tap, None] * extended[..., tap : tap + length]
    return sums


def causal_conv1d(
    input: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    """The output, and the last width - 1 elements of the past and the input together."""
    length = input.shape[2]
    extended = _extended(input, weight, initial_state)
    sums = _sums(extended, weight.to(extended.dtype), bias, length)
    # torch.nn.functional.silu has no second derivative in forward mode.
    output = sums * torch.sigmoid(sums) if silu else sums
    return output.to(input.dtype), extended[..., length:].to(input.dtype, copy=True)


def causal_conv1d_backward(
    output_grad: Tensor,
    final_state_grad: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of input, weight, bias and initial state; the last two also where there are none of these."""
    length, width = input.shape[2], weight.shape[1]
    extended = _extended(input, weight, initial_state)
    wide = extended.dtype
    weight, sums_grad = weight.to(wide), output_grad.to(wide)
    if silu:
        sums = _sums(extended, weight, bias, length)
        sigmoid = torch.sigmoid(sums)
        sums_grad = sums_grad * (sigmoid * (1 + sums * (1 - sigmoid)))
    extended_grad = torch.zeros_like(extended)
    weight_grads = []
    for tap in range(width):
        product = sums_grad * weight[:, tap, None]
        extended_grad = extended_grad + torch.nn.functional.pad(product, (tap, width - 1 - tap))
        weight_grads.append((sums_grad * extended[..., tap : tap + length]).sum((0, 2)))
    if final_state_grad is not None:
        extended_grad = extended_grad + torch.nn.functional.pad(final_state_grad.to(wide), (length, 0))
    return (
        extended_grad[..., width - 1 :].to(input.dtype, copy=True),
        torch.stack(weight_grads, 1).to(input.dtype),
        sums_grad.sum((0, 2)).to(input.dtype),
        extended_grad[..., : width - 1].to(input.dtype, copy=True),
    )
