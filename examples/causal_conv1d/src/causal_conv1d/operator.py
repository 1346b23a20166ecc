"""The declarations of causal_conv1d and of its gradient: what PyTorch must know about them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from causal_conv1d import reference
from torchgraft import Operator, gradient_by_reference

WIDTHS = (2, 3, 4)


def _has_channels_last(tensor: Tensor) -> bool:
    """Whether neighbouring channels are neighbours in memory, and neighbouring times are not."""
    return tensor.stride(1) == 1 and tensor.stride(2) != 1


def _like(tensor: Tensor, length: int | None = None) -> Tensor:
    """An empty tensor (batch, channels, length) laid out as a kernel lays out what belongs to a tensor.

    Channels are neighbours in memory where they are in the tensor. The C++ twin is `empty_like` in problem.h.
    """
    batch, channels, own = tensor.shape
    length = own if length is None else length
    if _has_channels_last(tensor):
        return tensor.new_empty(batch, length, channels).transpose(1, 2)
    return tensor.new_empty(batch, channels, length)


def _output(
    input: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    return _like(input), _like(input, weight.shape[1] - 1)


def _explain_sizes(name: str, input: Tensor, weight: Tensor, **others: Tensor | None) -> None:
    """Raises ValueError where tensors do not fit each other."""
    if input.dim() != 3:
        raise ValueError(f"{name}: input must have the shape (batch, channels, length), got {tuple(input.shape)}")
    batch, channels, length = input.shape
    if weight.dim() != 2 or weight.shape[0] != channels or weight.shape[1] not in WIDTHS:
        raise ValueError(
            f"{name}: weight must have the shape ({channels}, width), as input has {channels} channels, with a width"
            f" of 2, 3 or 4; got {tuple(weight.shape)}"
        )
    state = (batch, channels, weight.shape[1] - 1)
    shapes = {
        "output_grad": (batch, channels, length),
        "final_state_grad": state,
        "bias": (channels,),
        "initial_state": state,
    }
    for argument, tensor in others.items():
        if tensor is not None and tuple(tensor.shape) != shapes[argument]:
            raise ValueError(f"{name}: {argument} must have the shape {shapes[argument]}, got {tuple(tensor.shape)}")


def _explain(input: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None, silu: bool) -> None:
    _explain_sizes("causal_conv1d", input, weight, bias=bias, initial_state=initial_state)


def _gradient(
    needs_grad: Sequence[bool],
    output_grads: Sequence[Tensor | None],
    saved: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    silu: bool,
) -> tuple[Tensor | None, ...]:
    output_grad, final_state_grad = output_grads
    if output_grad is None:
        output_grad = torch.zeros_like(input)
    grads = causal_conv1d_backward_operator(output_grad, final_state_grad, input, weight, bias, initial_state, silu)
    return tuple(grad if needed else None for grad, needed in zip(grads, needs_grad, strict=False))


def _flops(
    input: Sequence[int],
    weight: Sequence[int],
    bias: Sequence[int] | None = None,
    initial_state: Sequence[int] | None = None,
    silu: bool = False,
) -> int:
    batch, channels, length = input
    return 2 * batch * channels * length * weight[1]


causal_conv1d_operator = Operator(
    "causal_conv1d::causal_conv1d(Tensor input, Tensor weight, Tensor? bias=None, Tensor? initial_state=None,"
    " bool silu=False) -> (Tensor output, Tensor final_state)",
    reference=reference.causal_conv1d,
    output=_output,
    gradient=_gradient,
    # As PyTorch's convolutions are.
    autocast="lower",
    flops=_flops,
    explain=_explain,
)


def _backward_output(
    output_grad: Tensor,
    final_state_grad: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    channels, width = weight.shape
    state = _like(input, width - 1) if initial_state is None else _like(initial_state)
    return _like(input), weight.new_empty(channels, width), weight.new_empty(channels), state


def _explain_backward(
    output_grad: Tensor,
    final_state_grad: Tensor | None,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    silu: bool,
) -> None:
    _explain_sizes(
        "causal_conv1d_backward",
        input,
        weight,
        output_grad=output_grad,
        final_state_grad=final_state_grad,
        bias=bias,
        initial_state=initial_state,
    )


_by_reference = gradient_by_reference(reference.causal_conv1d_backward, 6)


def _laid_out(grad: Tensor, tensor: Tensor) -> Tensor:
    """A gradient, in memory as what it is the gradient of."""
    if tensor.dim() == 3 and _has_channels_last(tensor):
        return grad.transpose(1, 2).contiguous().transpose(1, 2)
    return grad.contiguous()


def _second_gradient(
    needs_grad: Sequence[bool], output_grads: Sequence[Tensor | None], saved: Any, *arguments: Any
) -> tuple[Tensor | None, ...]:
    # Second derivatives are rare, and need no kernel.
    grads = _by_reference(needs_grad, output_grads, saved, *arguments)
    return tuple(
        None if grad is None else _laid_out(grad, tensor) for grad, tensor in zip(grads, arguments, strict=False)
    )


def _backward_flops(
    output_grad: Sequence[int],
    final_state_grad: Sequence[int] | None,
    input: Sequence[int],
    weight: Sequence[int],
    bias: Sequence[int] | None,
    initial_state: Sequence[int] | None,
    silu: bool,
) -> int:
    # Of the input and of the weight; with SiLU the sums are computed again.
    return (3 if silu else 2) * _flops(input, weight, bias, initial_state, silu)


causal_conv1d_backward_operator = Operator(
    "causal_conv1d::causal_conv1d_backward(Tensor output_grad, Tensor? final_state_grad, Tensor input, Tensor weight,"
    " Tensor? bias, Tensor? initial_state, bool silu)"
    " -> (Tensor input_grad, Tensor weight_grad, Tensor bias_grad, Tensor initial_state_grad)",
    reference=reference.causal_conv1d_backward,
    output=_backward_output,
    gradient=_second_gradient,
    flops=_backward_flops,
    explain=_explain_backward,
)
