"""A shift layer."""

from typing import Any, Literal

import torch
from torch import Tensor

from torchgraft.arguments import record_call, require_tensor, whole
from torchgraft.nn.recording import refuse_scripting
from torchgraft.operators.shift import shift

# As Shift-GCN was published: offsets along x begin within this of zero; with a stride, samples lie half a row further.
_INITIAL_X_RANGE = 1e-8
_STRIDE_OFFSET = 0.5
# The gradients along y by the published rule: the size of every gradient, and what stands in place of a zero.
_STEP, _STEP_FROM_ZERO = 0.01, 0.0001


class Shift(torch.nn.Module):
    """Moves each channel by a fractional offset that is learnt; `torchgraft.shift` as a layer.

    With stride 1 it samples at (t + ypos, v + xpos), with a larger one at (t * stride + ypos + 0.5, v + xpos).
    Parameters have the names of Shift-GCN's published checkpoints.

    Args:
        channels: of the input, C.
        stride: rows between results, 1 or more.
        init_scale: ypos is drawn uniformly from -init_scale to init_scale, and xpos from -1e-8 to 1e-8.
        offset_gradient: 'exact' for the true derivative. 'shift_gcn' for the published rule: xpos stays, and the
            gradient of ypos is 0.01 with the sign of the true one, or 0.0001 where that is zero.
        device: where the parameters are.
        dtype: the parameters' dtype.

    Attributes:
        xpos: (C), by how many columns each channel moves.
        ypos: (C), by how many rows.

    Raises:
        TypeError: channels or stride no whole number.
        ValueError: channels or stride below 1, or another word for offset_gradient.

    Source: Cheng et al., "Skeleton-Based Action Recognition with Shift Graph Convolutional Network", CVPR 2020.
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        channels: int,
        stride: int = 1,
        init_scale: float = 3.0,
        offset_gradient: Literal["exact", "shift_gcn"] = "exact",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        channels, stride = whole("Shift", "channels", channels), whole("Shift", "stride", stride)
        for name, value in (("channels", channels), ("stride", stride)):
            if value < 1:
                raise ValueError(f"Shift: {name} must be at least 1, got {value}")
        if offset_gradient not in ("exact", "shift_gcn"):
            raise ValueError(f"Shift: offset_gradient must be 'exact' or 'shift_gcn', got {offset_gradient!r}")
        self.channels = channels
        self.stride = stride
        self.init_scale = init_scale
        self.offset_gradient = offset_gradient
        self.xpos = torch.nn.Parameter(torch.empty(channels, device=device, dtype=dtype))
        self.ypos = torch.nn.Parameter(torch.empty(channels, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the offsets anew."""
        torch.nn.init.uniform_(self.xpos, -_INITIAL_X_RANGE, _INITIAL_X_RANGE)
        torch.nn.init.uniform_(self.ypos, -self.init_scale, self.init_scale)

    def extra_repr(self) -> str:
        """The channels, the stride, and the rule for gradients if it is not the default."""
        parts = [str(self.channels), f"stride={self.stride}"]
        if self.offset_gradient != "exact":
            parts.append(f"offset_gradient={self.offset_gradient!r}")
        return ", ".join(parts)

    def forward(self, input: Tensor) -> Tensor:
        """Input (N, C, T, V) to (N, C, T // stride, V)."""
        x_offset: Tensor = self.xpos
        y_offset: Tensor = self.ypos
        if self.offset_gradient == "shift_gcn":
            x_offset, y_offset = _with_published_rule(input, x_offset, y_offset)
        if self.stride > 1:
            y_offset = y_offset + _STRIDE_OFFSET
        return shift(input, x_offset, y_offset, self.stride)


def _with_published_rule(input: Tensor, x_offset: Tensor, y_offset: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets as they are, whose gradients follow the published rule.

    Args:
        input: of the layer, whose batch the rule divides by.
        x_offset: (C).
        y_offset: (C).

    Returns:
        Both offsets.

    Raises:
        TypeError: input is not a tensor.
    """
    if not isinstance(input, Tensor) or not isinstance(x_offset, Tensor):
        recorded = record_call(_with_published_rule, input, x_offset, y_offset)
        if recorded is not None:
            return recorded[0], recorded[1]
        require_tensor("Shift", "input", input)
    return _PublishedRule.apply(x_offset, y_offset, input.shape[0])


class _PublishedRule(torch.autograd.Function):
    """Offsets as they are; their gradients by the rule that Shift-GCN was trained with."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x_offset: Tensor, y_offset: Tensor, batch: int) -> tuple[Tensor, Tensor]:
        return x_offset.clone(), y_offset.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.batch = inputs[2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x_grad, y_grad = grads
        mean = y_grad / max(ctx.batch, 1)
        return torch.zeros_like(x_grad), torch.where(mean == 0, _STEP_FROM_ZERO, mean.sign() * _STEP), None
